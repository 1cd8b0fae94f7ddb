"""Find a config file: a path, or the name of a config that comes with mt."""

from __future__ import annotations

import difflib
from pathlib import Path

from mt.errors import ConfigError


def shipped_configs() -> list[str]:
    """Names of the configs that come with mt, such as `base.yaml`."""
    return sorted(path.name for path in _shipped_folder().glob("*.yaml"))


def find_config(name: str) -> Path:
    """The file at path `name`, else the shipped config of that name, with or without `.yaml`.

    Raises ConfigError, with the nearest known name, where there is neither.
    """
    path = Path(name)
    shipped = shipped_configs()
    if path.is_file():
        return path
    for candidate in (name, f"{name}.yaml"):
        if candidate in shipped:
            return _shipped_folder() / candidate
    found = "a folder" if path.is_dir() else "neither"
    near = _nearest(path, shipped)
    hint = f"; did you mean {near}?" if near else ""
    raise ConfigError(
        f"--config {name}: must be a file or the name of a shipped config "
        f"({', '.join(shipped)}), found {found}{hint}"
    )


def _nearest(path: Path, shipped: list[str]) -> str | None:
    """The config that was probably meant: in the folder given, beside the path, or shipped."""
    if (path / "config.yaml").is_file():
        return str(path / "config.yaml")
    known = {Path(other).stem: other for other in shipped}
    known |= {other.stem: str(other) for other in path.parent.glob("*.y*ml")}
    near = difflib.get_close_matches(path.stem, known, 1)
    return known[near[0]] if near else None


def _shipped_folder() -> Path:
    """`mt/configs` in an installed package, `configs` beside `mt` in a checkout."""
    inside = Path(__file__).parents[1] / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "configs"
