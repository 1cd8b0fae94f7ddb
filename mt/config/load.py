"""Load a config: defaults, then the recipe that the file names, then the file, then `--set`.

All faults of a config are reported in one `ConfigError`, a line each. Combinations with values that
the model of `train.init_from` decides are checked once it has been read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from mt.config import yaml_text
from mt.config.faults import Fault, combination_faults, nearest, problem, shown, unknown_key
from mt.config.schema import Config, sections
from mt.errors import ConfigError
from mt.removed import OFF, REMOVED, why_removed

# Keys of the section `data` that say which data there are, and are never taken from a recipe.
TEXTS = ("root", "src_lang", "tgt_lang", "train", "valid", "test")


@dataclass(frozen=True)
class Loaded:
    """A config; `origins` maps a key ("model.d_ff") that has no default to its origin."""

    config: Config
    origins: dict[str, str]
    name: str
    path: Path

    @property
    def run_dir(self) -> Path:
        """The run directory without --run-dir; ConfigError if the config may stand for a run."""
        folder = self.path.parent
        is_of_run = self.path.name == "config.yaml" and (folder / "manifest.json").is_file()
        if self.config.run.dir is None and is_of_run:
            raise ConfigError(
                f"--config {self.path}: is the config of a run; give --run-dir {folder} to resume "
                "that run, or another --run-dir to begin a new one"
            )
        return Path(self.config.run.dir or f"runs/{self.name}").expanduser()


def load_config(name: str, sets: Sequence[str] = ()) -> Loaded:
    """Load the file or shipped config `name` and apply settings such as `optim.peak_lr=1e-3`."""
    path = find_config(name)
    value = yaml_text.read(path)
    if not isinstance(value, dict):
        given = "an empty file" if value is None else shown(value)
        known = ", ".join(Config.model_fields)
        raise ConfigError(f"{path}: must have sections ({known}), found {given}")
    tree = _normalise(value)
    origins = dict.fromkeys(_keys(tree), path.name)
    where = str(path)
    set_paths: list[str] = []
    faults: list[str] = []

    def apply(settings: Iterable[str]) -> None:
        for setting in settings:
            try:
                set_paths.append(apply_setting(setting, tree))
            except ValueError as error:
                faults.append(f"--set {setting}: {error}")

    apply(setting for setting in sets if setting.startswith("recipe="))
    if (recipe := tree.pop("recipe", None)) not in (None, {}):  # {}: null in a file
        name_of_recipe = _fill(tree, recipe, "--set" if "recipe" in set_paths else str(path))
        origins = dict.fromkeys(_keys(tree), name_of_recipe) | origins
        where += f" (recipe {name_of_recipe})"
    apply(setting for setting in sets if not setting.startswith("recipe="))
    config = _validate(_normalise(tree), where, set_paths, faults)
    origins |= dict.fromkeys(config.left_to_base(), "default, but train.init_from decides")
    for set_path in set_paths:
        key = ".".join(set_path.partition("[")[0].split(".")[:2])
        rest = "" if key == set_path else f"{origins.get(key, 'default')}, "
        origins[key] = f"{rest.removesuffix('--set, ')}--set"
    return Loaded(config, origins, path.stem, path)


def _keys(tree: Mapping[str, Any]) -> list[str]:
    sections = ((name, keys) for name, keys in tree.items() if isinstance(keys, dict))
    return [f"{name}.{key}" for name, keys in sections for key in keys]


def as_settings(values: Mapping[str, Any] | Sequence[str] | None) -> list[str]:
    """Values by key as `load_config` takes them in `sets`; as JSON, so that texts stay texts."""

    def plain(value: Any) -> Any:  # of NumPy, a path, ...
        return value.item() if hasattr(value, "item") else str(value)

    if not isinstance(values, Mapping):
        settings = [values] if isinstance(values, str | int | float) else [*(values or ())]
        if wrong := [value for value in settings if not isinstance(value, str)]:
            raise ConfigError(f"settings: must be KEY=VALUE or a mapping, found {wrong[0]!r}")
        return settings
    dump = partial(json.dumps, ensure_ascii=False, default=plain)
    return [f"{key}={dump(value)}" for key, value in values.items()]


def config_from_mapping(mapping: Mapping[str, Any], where: str) -> Config:
    """Validate a config from elsewhere, such as a checkpoint; `where` starts every message."""
    return _validate(_normalise(mapping), where, [], [])


def config_of_model(mapping: Mapping[str, Any], where: str) -> Config:
    """Validate the config that a model was trained with, without removed keys of its training."""

    def is_gone(path: str, value: object) -> bool:
        is_of_training = path.startswith(("data.", "optim.", "train."))
        return is_of_training and bool(why_removed(path) or why_removed(f"{path}: {value}"))

    mapping = deepcopy(dict(mapping))
    data = mapping.get("data", {})
    for key in {"valid", "test"} & data.keys():  # a set that sacreBLEU fetched is not read
        data[key] = [text for text in data[key] or [] if not text.get("test_set")]
    for stage in data.get("stages") or []:
        if shares := stage.get("shares"):  # tell which texts a stage leaves out, as weights do
            stage["weights"] = shares
        if until := stage.get("until"):  # one of its ends; a model does not depend on it
            updates, share = until.get("updates"), until.get("share")
            stage["until"] = {"updates": updates} if updates else {"share": share or 1.0}
    return config_from_mapping(_without(is_gone, mapping), where)


def require_training_data(config: Config) -> None:
    """Raise ConfigError for a config without training text, which is enough to inspect a model."""
    if not config.data.train:
        raise ConfigError(
            "data.train: must name at least one text to train on, found none; "
            "add - {src: FILE, tgt: FILE} below it"
        )


def with_origins(loaded: Loaded) -> str:
    """The whole config as YAML, each value with its origin as a comment."""
    lines: list[str] = []
    for section, values in loaded.config.model_dump(mode="json").items():
        lines.append(f"{section}:")
        for key, value in values.items():
            origin = loaded.origins.get(f"{section}.{key}", "default")
            first, *rest = yaml_text.dump({key: value}).rstrip("\n").split("\n")
            lines += [f"  {first:<40}  # {origin}", *(f"  {line}" for line in rest)]
    return "\n".join(lines)


def _normalise(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Make an empty section a mapping, one text a list, a path a text; drop keys that are off."""

    def is_off(path: str, value: object) -> bool:
        return bool(why_removed(path)) and (not value or value in OFF.values())

    tree = _without(is_off, {key: {} if value is None else value for key, value in mapping.items()})
    if isinstance(tree.get("data"), dict):
        data = tree["data"] = dict(tree["data"])
        for key in {"train", "valid", "test"} & data.keys():
            if not isinstance(data[key], list):
                data[key] = [] if data[key] is None else [data[key]]
            data[key] = [{"path": text} if isinstance(text, str) else text for text in data[key]]
    return tree


def _without(is_gone: Callable[[str, Any], bool], value: Any, path: str = "") -> Any:
    """The value at a path, which has no indices of lists, without the keys that are gone."""
    if isinstance(value, list):
        return [_without(is_gone, entry, path) for entry in value]
    if not isinstance(value, dict):
        return value
    below = {key: f"{path}.{key}".removeprefix(".") for key in value}
    return {
        key: _without(is_gone, inner, below[key])
        for key, inner in value.items()
        if not is_gone(below[key], inner)
    }


def _validate(
    tree: Mapping[str, Any], where: str, set_paths: Sequence[str], messages: Sequence[str]
) -> Config:
    """Validate a tree. Raises ConfigError with `messages`, from earlier, and all faults found."""
    faults = [Fault([key], unknown_key(key, Config)) for key in tree if key not in sections()]
    valid: dict[str, BaseModel] = {}
    for section, model in sections().items():
        try:
            valid[section] = model.model_validate(tree.get(section, {}))
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                steps = (section, *detail["loc"])
                faults.append(Fault([path_of(steps)], problem(detail, steps)))
    config = Config.model_validate(valid)  # sections with faults have their defaults
    left = set(config.left_to_base())
    faults += [
        fault
        for fault in combination_faults(config)
        if left.isdisjoint(fault.paths) and valid.keys() >= {p.split(".")[0] for p in fault.paths}
    ]
    lines = list(messages)
    for paths, text in faults:
        by_set = any(is_set(path, set_paths) for path in paths)
        # A shell takes one pair of quotes away.
        hint = f", as in --set \"{paths[0]}='...'\"" if text.endswith("in quotes") else ""
        start, end = ("--set", hint) if by_set else (where, "")
        lines.append(f"{start}: {paths[0]}: {text}{end}")
    if lines:
        raise ConfigError("\n".join(lines))
    return config


# --- paths into a config, such as data.train[0].src, and --set PATH=VALUE ------------------------


def path_of(steps: Sequence[str | int]) -> str:
    """`data.train[0].src` of ("data", "train", 0, "src")."""
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).removeprefix(".")


def is_set(path: str, set_paths: Iterable[str]) -> bool:
    """Whether a setting named this path, a value below it, or a mapping or list around it."""
    ours, *others = (f"{each}.".replace("[", ".[") for each in (path, *set_paths))
    return any(ours.startswith(other) or other.startswith(ours) for other in others)


def apply_setting(setting: str, tree: dict[str, Any]) -> str:
    """Put the value of `section.key=value` into the tree; return its path. Raises ValueError."""
    path, equals, text = setting.partition("=")
    steps = [int(i) if i else word for word, i in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path)]
    if not equals or not steps or path_of(steps) != path:
        raise ValueError("must be section.key=value, such as optim.peak_lr=1e-3")
    value = yaml_text.parse(text)
    if len(steps) == 1 and path != "recipe" and (value is None or isinstance(value, dict)):
        raise ValueError(f"must name one key, found a whole section; write {path}.KEY=value")
    _put(tree, steps, value, "")
    return path


def _put(tree: Any, steps: Sequence[Any], value: object, here: str) -> None:
    """Set the value below `tree`, whose path is `here`; create missing mappings and lists."""
    step, *rest = steps
    fits = isinstance(tree, dict if isinstance(step, str) else list)
    if not fits:
        entry = f", or an entry, such as {here}[0]" if isinstance(tree, list) else ""
        raise ValueError(f"there is no {path_of([step])} in {here}; set {here} itself{entry}")
    if isinstance(step, int):
        if step > len(tree):
            raise ValueError(f"{here} has {len(tree)} entries; set {here}[{len(tree)}]")
        tree.extend([None] * (step == len(tree)))
    else:
        tree.setdefault(step, None)
    if not rest:
        tree[step] = value
        return
    if tree[step] is None:
        tree[step] = [] if isinstance(rest[0], int) else {}
    _put(tree[step], rest, value, path_of([here, step]).removeprefix("."))


def _fill(tree: dict[str, Any], name: Any, where: str) -> str:
    """Put the keys that `tree` lacks into it from the recipe `name`; return its file's name."""
    shipped = shipped_configs()
    file = next((file for file in shipped if name in (file, Path(file).stem)), None)
    if file is None:
        raise ConfigError(
            f"{where}: recipe: must be the name of a shipped config ({', '.join(shipped)}), "
            f"found {shown(name)}{_meant(Path(str(name)).stem, shipped)}"
        )
    recipe = _normalise(yaml_text.read(shipped_folder() / file))
    if inner := recipe.pop("recipe", None):
        _fill(recipe, inner, file)
    for section, values in recipe.items():
        given = tree.get(section, {})
        if isinstance(given, dict):  # else it is a fault
            own = TEXTS if section == "data" else ()
            tree[section] = {key: values[key] for key in values.keys() - {*own}} | given
    return file


def shipped_configs() -> list[str]:
    return sorted(path.name for path in shipped_folder().glob("*.yaml"))


def find_config(name: str) -> Path:
    """The file at path `name`, else the shipped config of that name, with or without `.yaml`."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = shipped_configs()
    for candidate in (name, f"{name}.yaml"):
        if candidate in shipped:
            return shipped_folder() / candidate
    raise ConfigError(
        f"--config {name}: must be a file or the name of a shipped config "
        f"({', '.join(shipped)}), found {'a folder' if path.is_dir() else 'neither'}"
        f"{_meant(path.stem, shipped)}"
    )


def _meant(stem: str, shipped: Sequence[str]) -> str:
    """The end of a message about a config that is not there: which was meant, or when it left."""
    if removed := REMOVED.get(f"{stem}.yaml"):
        return f"; {stem}.yaml was removed in {removed}"
    near = nearest(stem, [Path(config).stem for config in shipped])
    return f"; did you mean {near}.yaml?" if near else ""


def shipped_folder() -> Path:
    """`mt/configs` in an installed package, `configs` beside `mt` in a checkout."""
    inside = Path(__file__).parents[1] / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "configs"
