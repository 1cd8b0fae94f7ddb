"""Load a config: defaults, then the file, then `--set`.

All faults of a config are reported in one `ConfigError`, a line each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from mt.config import settings, yaml_text
from mt.config.combinations import Fault, combination_faults
from mt.config.messages import problem, shown, unknown_key, unknown_section
from mt.config.schema import Config, sections
from mt.config.shipped import find_config
from mt.errors import ConfigError


@dataclass(frozen=True)
class Loaded:
    """A config; `origins` maps each path ("model.d_ff") to "default", a file's name or "--set"."""

    config: Config
    origins: dict[str, str]
    name: str
    path: Path


def load_config(name: str, sets: Sequence[str] = ()) -> Loaded:
    """Load the file or shipped config `name` and apply settings such as `optim.peak_lr=1e-3`.

    Raises ConfigError with all faults.
    """
    path = find_config(name)
    value = yaml_text.read(path)
    if not isinstance(value, dict):
        found = "an empty file" if value is None else shown(value)
        known = ", ".join(Config.model_fields)
        raise ConfigError(f"{path}: must have sections ({known}), found {found}")
    tree = _normalise(value)
    file_paths = set(settings.leaves(tree))
    set_paths: list[str] = []
    faults: list[str] = []
    for setting in sets:
        try:
            set_paths.append(settings.apply(setting, tree))
        except ValueError as error:
            faults.append(f"--set {setting}: {error}")
    config = _validate(_normalise(tree), str(path), set_paths, faults)
    origins: dict[str, str] = {}
    for leaf in settings.leaves(config.model_dump(mode="json")):
        from_file = path.name if leaf in file_paths else "default"
        origins[leaf] = "--set" if settings.is_set(leaf, set_paths) else from_file
    return Loaded(config, origins, path.stem, path)


def config_from_mapping(mapping: Mapping[str, Any], where: str) -> Config:
    """Validate a config from elsewhere, such as a checkpoint; `where` starts every message."""
    return _validate(_normalise(mapping), where, [], [])


def require_training_data(config: Config) -> None:
    """Raise ConfigError for a config without training text, which is enough to inspect a model."""
    if not config.data.train:
        raise ConfigError(
            "data.train: must name at least one text to train on, found none; "
            "add - {src: FILE, tgt: FILE} below it"
        )


def with_origins(loaded: Loaded) -> str:
    """Return the whole config as YAML, each value with its origin as a comment."""
    lines: list[str] = []
    for section, values in loaded.config.model_dump(mode="json").items():
        lines.append(f"{section}:")
        for key, value in values.items():
            path = f"{section}.{key}"
            origins = {
                origin for leaf, origin in loaded.origins.items() if settings.is_within(leaf, path)
            }
            first, *rest = yaml_text.dump({key: value}).rstrip("\n").split("\n")
            lines.append(f"  {first:<40}  # {', '.join(sorted(origins))}")
            lines += [f"  {line}" for line in rest]
    return "\n".join(lines)


def _normalise(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Make a section without keys an empty one, and one training or test text a list of one."""
    tree = {key: {} if value is None else value for key, value in mapping.items()}
    if isinstance(tree.get("data"), dict):
        data = tree["data"] = dict(tree["data"])
        for key in {"train", "test"} & data.keys():
            if not isinstance(data[key], list):
                data[key] = [] if data[key] is None else [data[key]]
    return tree


def _validate(
    tree: Mapping[str, Any], where: str, set_paths: Sequence[str], messages: Sequence[str]
) -> Config:
    """Validate a tree. Raises ConfigError with `messages`, from earlier, and all faults found.

    A message starts with `where`, or with `--set` if a setting is involved.
    """
    faults = [
        Fault([key], unknown_section(key) if isinstance(value, dict) else unknown_key(key, Config))
        for key, value in tree.items()
        if key not in Config.model_fields
    ]
    valid: dict[str, BaseModel] = {}
    for section, model in sections().items():
        try:
            valid[section] = model.model_validate(tree.get(section, {}))
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                steps = (section, *detail["loc"])
                faults.append(Fault([settings.path_of(steps)], problem(detail, steps)))
    faults += combination_faults(valid)
    lines = list(messages)
    for paths, text in faults:
        by_set = any(settings.is_set(path, set_paths) for path in paths)
        # A shell takes one pair of quotes away.
        hint = f", as in --set \"{paths[0]}='...'\"" if text.endswith("in quotes") else ""
        lines.append(
            f"--set: {paths[0]}: {text}{hint}" if by_set else f"{where}: {paths[0]}: {text}"
        )
    if lines:
        raise ConfigError("\n".join(lines))
    return Config.model_validate(valid)
