"""Config files and `--set` become a `Config`, or all faults in one `ConfigError`.

Precedence: defaults < file < `--set`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mt.config import yaml_text
from mt.config.messages import problem, shown, unknown_key
from mt.config.schema import (
    BatchConfig,
    Config,
    DataConfig,
    ModelConfig,
    OptimConfig,
    TokenizerConfig,
    TrainConfig,
    named_sources,
    sections,
)
from mt.config.shipped import find_config
from mt.errors import ConfigError


@dataclass(frozen=True)
class Loaded:
    """A config; `origins` maps each value ("model.d_ff") to "default", a file's name or "--set"."""

    config: Config
    origins: dict[str, str]
    name: str
    path: Path


def load_config(name: str, sets: Sequence[str] = ()) -> Loaded:
    """Read the file NAME, else the shipped config of that name, and apply `a.b=value` yaml_text."""
    path = find_config(name)
    value, faults = yaml_text.read(path)
    if not isinstance(value, dict):
        found = "an empty file" if value is None else shown(value)
        sections = ", ".join(Config.model_fields)
        raise ConfigError(f"{path}: must hold sections ({sections}), found {found}")
    tree = _normalise(value)
    in_file, in_sets = set(yaml_text.leaves(tree)), list[str]()
    for setting in sets:
        faults += [f"--set {setting}: {text}" for text in yaml_text.apply(setting, tree, in_sets)]
    config = _validate(_normalise(tree), str(path), in_sets, faults)
    origins: dict[str, str] = {}
    for leaf in yaml_text.leaves(config.model_dump(mode="json")):
        below_sets = path.name if leaf in in_file else "default"
        origins[leaf] = "--set" if yaml_text.touched(leaf, in_sets) else below_sets
    return Loaded(config, origins, path.stem, path)


def config_from_mapping(mapping: Mapping[str, Any], where: str) -> Config:
    """Validate what was read from elsewhere, such as a checkpoint; `where` opens every message."""
    return _validate(_normalise(mapping), where, [], [])


def require_training_data(config: Config) -> None:
    """Training needs what no default can give and what inspecting a model can do without."""
    if not config.data.train:
        problem = "must name at least one text to train on, found none"
        raise ConfigError(f"data.train: {problem}; add - {{src: FILE, tgt: FILE}} below it")


def _normalise(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A header with nothing below it is an empty section; one text is a list of one."""
    tree = {key: {} if value is None else value for key, value in mapping.items()}
    if isinstance(tree.get("data"), dict):
        data = tree["data"] = dict(tree["data"])
        for key in {"train", "test"} & data.keys():
            if not isinstance(data[key], list):
                data[key] = [] if data[key] is None else [data[key]]
    return tree


def _validate(
    tree: Mapping[str, Any], where: str, in_sets: Sequence[str], faults: Sequence[str]
) -> Config:
    """Tree → Config, or all of its faults in one error, below those that were found before."""
    found: list[tuple[Sequence[str], str]] = []
    for key in tree:
        if key not in Config.model_fields:
            found.append(([key], unknown_key(key, Config)))
    parts: dict[str, Any] = {}
    for section, model in sections().items():
        try:
            parts[section] = model.model_validate(tree.get(section, {}))
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                steps = (section, *detail["loc"])
                found.append(([yaml_text.path_of(steps)], problem(detail, steps)))
    found += _combinations(parts)
    lines = list(faults)
    for paths, text in found:
        by_set = any(yaml_text.touched(path, in_sets) for path in paths)
        shell = (
            f", as in --set \"{paths[0]}='...'\"" if by_set and text.endswith("in quotes") else ""
        )
        lines.append(f"{'--set' if by_set else where}: {paths[0]}: {text}{shell}")
    if lines:
        raise ConfigError("\n".join(lines))
    return Config(**parts)


def _combinations(parts: Mapping[str, Any]) -> Iterator[tuple[Sequence[str], str]]:
    """What each key allows but all together do not: (paths, text); faulty sections are left out."""
    data: DataConfig | None = parts.get("data")
    tokenizer: TokenizerConfig | None = parts.get("tokenizer")
    batch: BatchConfig | None = parts.get("batch")
    model: ModelConfig | None = parts.get("model")
    optim: OptimConfig | None = parts.get("optim")
    train: TrainConfig | None = parts.get("train")
    if model and (model.d_model % model.n_heads or model.d_model % 2):
        paths = ["model.d_model", "model.n_heads"]
        required = f"must be even and a multiple of model.n_heads ({model.n_heads})"
        yield paths, f"{required}, found {model.d_model}"
    if model and data and model.max_positions < data.max_tokens + 2:
        paths = ["model.max_positions", "data.max_tokens"]
        required = f"must be at least data.max_tokens + 2 ({data.max_tokens + 2})"
        yield paths, f"{required}, found {model.max_positions}"
    if (
        batch
        and data
        and batch.tokens_per_batch != "auto"
        and batch.tokens_per_batch < data.max_tokens + 1
    ):
        paths = ["batch.tokens_per_batch", "data.max_tokens"]
        required = f"must be at least data.max_tokens + 1 ({data.max_tokens + 1})"
        yield paths, f"{required}, found {batch.tokens_per_batch}"
    if tokenizer and tokenizer.byte_fallback and tokenizer.vocab_size <= 260:
        paths = ["tokenizer.vocab_size", "tokenizer.byte_fallback"]
        required = "must be above 260 (256 bytes, 4 special tokens) with byte_fallback"
        yield paths, f"{required}, found {tokenizer.vocab_size}"
    if tokenizer and tokenizer.type == "bpe" and (alpha := tokenizer.sampling_alpha) and alpha >= 1:
        paths = ["tokenizer.sampling_alpha", "tokenizer.type"]
        yield (
            paths,
            f"must be below 1 with type bpe (the share of merges passed over), found {alpha}",
        )
    if optim and (optim.schedule == "noam") != (optim.peak_lr is None):
        paths = ["optim.peak_lr", "optim.schedule"]
        required = (
            f"must be {'null' if optim.peak_lr else 'a number'} with schedule {optim.schedule}"
        )
        yield paths, f"{required}, found {optim.peak_lr or shown(None)}"
    if optim and train and optim.schedule == "cosine" and optim.warmup_steps >= train.max_steps:
        paths = ["optim.warmup_steps", "optim.schedule", "train.max_steps"]
        required = f"must be below train.max_steps ({train.max_steps}) with schedule cosine"
        yield paths, f"{required}, found {optim.warmup_steps}"
    if train and train.new_vocabulary and train.init_from is None:
        paths = ["train.new_vocabulary", "train.init_from"]
        yield (
            paths,
            "must be false without train.init_from, found true; a run of its own learns one anyway",
        )
    for path, source in named_sources(data) if data else []:
        if source.name and not source.path:
            paths, text = [f"{path}.name", f"{path}.path"], shown(source.name)
            yield paths, f"must stand beside path, found {text} without one; add path"


def with_origins(loaded: Loaded) -> str:
    """Every value in YAML, with where it comes from as a comment."""
    lines: list[str] = []
    for section, values in loaded.config.model_dump(mode="json").items():
        lines.append(f"{section}:")
        for key, value in values.items():
            path = f"{section}.{key}"
            below = (f"{path}.", f"{path}[")
            origins = {
                origin
                for leaf, origin in loaded.origins.items()
                if leaf == path or leaf.startswith(below)
            }
            first, *rest = yaml_text.dump({key: value}).rstrip("\n").split("\n")
            lines.append(f"  {first:<40}  # {', '.join(sorted(origins))}")
            lines += [f"  {line}" for line in rest]
    return "\n".join(lines)
