"""The config: typed, frozen and strict; the only home of defaults and of what each key means.

Precedence: defaults < file < `--set`. All faults of a config are reported in one `ConfigError`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticKnownError

from mt import settings
from mt.errors import ConfigError


def _whole(value: object) -> object:
    """4000.0 and 1e5 count as whole numbers; whatever else is no int is left to be refused."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _switch(value: object) -> object:
    """Python's 1 equals True, so a literal `true` would let it pass."""
    if isinstance(value, bool | str):
        return value
    raise PydanticKnownError("literal_error", {"expected": "'auto', True or False"})


def _count_or_auto(value: object) -> object:
    """Python's True is a whole number, so an `int` would let it pass."""
    whole = _whole(value)
    if whole == "auto" or (isinstance(whole, int) and not isinstance(whole, bool) and whole >= 1):
        return whole
    raise PydanticKnownError("literal_error", {"expected": "'auto' or a whole number from 1"})


Count = Annotated[int, Field(strict=True, ge=1), BeforeValidator(_whole)]
Natural = Annotated[int, Field(strict=True, ge=0), BeforeValidator(_whole)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Ratio = Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)]
Decay = Annotated[float, Field(strict=True, gt=0, lt=1, allow_inf_nan=False)]
Text = Annotated[str, Field(strict=True, min_length=1)]
Flag = Annotated[bool, Field(strict=True)]
CountOrAuto = Annotated[Annotated[int, Field(ge=1)] | Literal["auto"], BeforeValidator(_count_or_auto)]
Compile = Annotated[Literal["auto", True, False], BeforeValidator(_switch)]
Part = Literal[
    "source_embedding", "target_embedding", "output", "encoder", "decoder",
    "self_attention", "cross_attention", "feed_forward",
]  # fmt: skip


def _key(default: Any, description: str) -> Any:
    return Field(default=default, description=description)


def _section(model: type[BaseModel], description: str) -> Any:
    return Field(default_factory=model, description=description)


def _texts(description: str) -> Any:
    def schema(field: dict[str, Any]) -> None:
        """Editors must also accept what `_normalise` accepts: one mapping, or nothing."""
        items = field.pop("items")
        field["anyOf"] = [{"type": field.pop("type"), "items": items}, items, {"type": "null"}]

    return Field(default_factory=list, description=description, json_schema_extra=schema)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(_Strict):
    """A parallel text: two line-aligned files, or two columns of a data set."""

    src: Text = Field(description="source side: a text file (plain or .gz), or a column of path")
    tgt: Text = Field(description="target side, line for line: a text file, or a column of path")
    weight: Positive = _key(1.0, "how often the text is seen, relative to the other texts")
    path: Text | None = _key(
        None,
        "data set with columns src and tgt (dots lead into nested ones): a .jsonl, .json, .csv, "
        ".tsv or .parquet file, a folder written by save_to_disk, or a hub name",
    )
    name: Text | None = _key(None, "configuration of the hub data set")
    split: Text = _key("train", "split of the data set at path")


class RunConfig(_Strict):
    """Where a run lives."""

    dir: Text | None = _key(None, "run directory; null means runs/<name of the config file>")
    seed: Natural = _key(1, "seed of initial weights, data order and dropout")


class DataConfig(_Strict):
    """Which text is learned from, and what of it is left out."""

    root: Text | None = _key(None, "folder of relative data paths; null means the current one")
    src_lang: Text = _key("src", "code of the source language, such as de; a note for readers, nothing depends on it")
    tgt_lang: Text = _key("tgt", "code of the target language, such as en; a note, as well")
    train: list[Source] = _texts("texts to train on")
    valid: Source | None = _key(None, "text for validation and early stopping; null means none")
    test: list[Source] = _texts("texts to score when training has ended")
    max_tokens: Count = _key(256, "longest side of a training pair, in tokens without eos")
    max_length_ratio: Ratio = _key(3.0, "a training pair's longer side over its shorter, at most")
    dedupe: Flag = _key(True, "drop a training pair when both its sides came together before")


class TokenizerConfig(_Strict):
    """How text becomes subword tokens (SentencePiece)."""

    vocab_size: Count = _key(32000, "tokens of a vocabulary, special ones included")
    type: Literal["bpe", "unigram"] = _key("bpe", "algorithm that chooses the tokens")
    joint: Flag = _key(True, "one vocabulary for both languages")
    byte_fallback: Flag = _key(True, "spell an unseen character in bytes instead of unk")
    sample_lines: Count = _key(2_000_000, "lines per side to learn the tokens from, at most")
    sampling_alpha: Positive | None = _key(
        None, "subword regularisation: bpe: share of merges passed over; unigram: smoothing; null for none"
    )


class BatchConfig(_Strict):
    """How much is learned from at a time."""

    tokens_per_update: Count = _key(25000, "target tokens of an update, over all of its batches")
    tokens_per_batch: CountOrAuto = _key(
        8192, "rows times longest side that a device takes at a time; auto means as much as fits into its memory"
    )

    @property
    def budget(self) -> int:
        """Rows times longest side of a micro-batch. One beyond the update's own size would make the update larger."""
        assert self.tokens_per_batch != "auto", "training settles it before the first update"
        return min(self.tokens_per_batch, self.tokens_per_update)


class ModelConfig(_Strict):
    """The encoder-decoder Transformer."""

    d_model: Count = _key(512, "width of embeddings and of every layer's output")
    n_heads: Count = _key(8, "attention heads, each d_model / n_heads wide")
    n_encoder_layers: Count = _key(6, "layers of the encoder")
    n_decoder_layers: Count = _key(6, "layers of the decoder")
    d_ff: Count = _key(2048, "inner width of the feed-forward blocks")
    dropout: Share = _key(0.1, "share of activations dropped in training")
    attention_dropout: Share = _key(0.0, "share of attention weights dropped in training")
    activation_dropout: Share | None = _key(None, "dropout inside the feed-forward blocks; null means model.dropout")
    source_word_dropout: Share = _key(0.0, "share of source tokens whose embedding is dropped whole in training")
    norm: Literal["pre", "post"] = _key("pre", "layer norm before a block or after its sum (2017)")
    positions: Literal["sinusoidal", "learned"] = _key("sinusoidal", "kind of position embeddings")
    tie_embeddings: Flag = _key(True, "one matrix for target embedding and output, and for source embedding if joint")
    activation: Literal["relu", "gelu"] = _key("relu", "non-linearity of the feed-forward blocks")
    attention_bias: Flag = _key(True, "biases in the four projections of attention")
    output_bias: Flag = _key(False, "a bias per token in the output layer")
    max_positions: Count = _key(1024, "longest sequence the model takes, in tokens with eos")


class OptimConfig(_Strict):
    """The optimiser, its learning rate and the loss."""

    optimizer: Literal["adamw", "muon"] = _key(
        "adamw", "what makes a step of a gradient; muon: orthogonal steps for the matrices inside the layers"
    )
    peak_lr: Positive | None = _key(7.0e-4, "learning rate after warm-up; null for noam's own")
    warmup_steps: Count = _key(4000, "updates over which the learning rate rises linearly")
    schedule: Literal["inverse_sqrt", "noam", "cosine", "constant"] = _key(
        "inverse_sqrt", "course of the learning rate after warm-up"
    )
    betas: tuple[Share, Share] = _key((0.9, 0.98), "decay of Adam's running means of the gradient and of its square")
    eps: Positive = _key(1e-9, "added to Adam's denominator")
    weight_decay: NonNegative = _key(0.0, "decoupled weight decay, per unit of learning rate")
    label_smoothing: Share = _key(0.1, "probability spread evenly over the whole vocabulary")
    rdrop: NonNegative = _key(0.0, "weight of R-Drop, which reads each batch twice with other dropout; 0 for none")
    clip_norm: Positive | None = _key(1.0, "largest norm of the gradient; null for no clipping")


class TrainConfig(_Strict):
    """How long to train, in which arithmetic, and what to keep."""

    max_steps: Count = _key(100_000, "updates after which training ends")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = _key(
        "auto", "arithmetic of the model; auto means bf16 where the device is fast at it"
    )
    compile: Compile = _key("auto", "compile the model; auto means where that pays")
    log_every: Count = _key(100, "updates from one log line to the next")
    valid_every: Count = _key(2000, "updates from one validation and checkpoint to the next")
    patience: Count | None = _key(10, "validations without a best one until the end; null for all")
    keep_last: Count = _key(5, "newest checkpoints to keep")
    keep_best: Natural = _key(1, "best checkpoints to keep besides")
    ema: Decay | None = _key(None, "decay per update of a running mean of weights; null for none")
    tensorboard: Flag = _key(False, "write the figures for TensorBoard too (needs the extra tensorboard)")
    init_from: Text | None = _key(
        None, "run directory, checkpoint or exported folder whose weights are the first ones; null for random ones"
    )
    new_vocabulary: Flag = _key(False, "with init_from: learn a vocabulary from this data instead of keeping that one")
    freeze: list[Part] = _key([], "parts that do not learn; those of layers are meant in all layers")


class DecodeConfig(_Strict):
    """How translations are searched for."""

    beam_size: Count = _key(5, "hypotheses kept per sentence; 1 means greedy search")
    length_penalty: NonNegative = _key(1.0, "a in log-probability / length^a, eos counted")
    max_len_factor: NonNegative = _key(2.0, "longest output, in tokens per source token")
    max_len_extra: Count = _key(10, "tokens that an output may have beyond that")


class Config(_Strict):
    """A config of mt: everything that decides what a run does."""

    run: RunConfig = _section(RunConfig, "where the run lives")
    data: DataConfig = _section(DataConfig, "which text is learned from")
    tokenizer: TokenizerConfig = _section(TokenizerConfig, "how text becomes tokens")
    batch: BatchConfig = _section(BatchConfig, "how much is learned from at a time")
    model: ModelConfig = _section(ModelConfig, "the Transformer")
    optim: OptimConfig = _section(OptimConfig, "optimiser, learning rate and loss")
    train: TrainConfig = _section(TrainConfig, "length, arithmetic and checkpoints of training")
    decode: DecodeConfig = _section(DecodeConfig, "how translations are searched for")

    def to_yaml(self) -> str:
        """The whole config as YAML that `load_config` reads back to an equal config."""
        return settings.dump(self.model_dump(mode="json"))


@dataclass(frozen=True)
class Loaded:
    """A config; `origins` maps each value ("model.d_ff") to "default", a file's name or "--set"."""

    config: Config
    origins: dict[str, str]
    name: str
    path: Path


def load_config(name: str, sets: Sequence[str] = ()) -> Loaded:
    """Read the file NAME, else the shipped config of that name, and apply `a.b=value` settings."""
    path = _find(name)
    value, faults = settings.read(path)
    if not isinstance(value, dict):
        found = "an empty file" if value is None else _shown(value)
        sections = ", ".join(Config.model_fields)
        raise ConfigError(f"{path}: must hold sections ({sections}), found {found}")
    tree = _normalise(value)
    in_file, in_sets = set(settings.leaves(tree)), list[str]()
    for setting in sets:
        faults += [f"--set {setting}: {text}" for text in settings.apply(setting, tree, in_sets)]
    config = _validate(_normalise(tree), str(path), in_sets, faults)
    origins: dict[str, str] = {}
    for leaf in settings.leaves(config.model_dump(mode="json")):
        below_sets = path.name if leaf in in_file else "default"
        origins[leaf] = "--set" if settings.touched(leaf, in_sets) else below_sets
    return Loaded(config, origins, path.stem, path)


def config_from_mapping(mapping: Mapping[str, Any], where: str) -> Config:
    """Validate what was read from elsewhere, such as a checkpoint; `where` opens every message."""
    return _validate(_normalise(mapping), where, [], [])


def require_training_data(config: Config) -> None:
    """Training needs what no default can give and what inspecting a model can do without."""
    if not config.data.train:
        problem = "must name at least one text to train on, found none"
        raise ConfigError(f"data.train: {problem}; add - {{src: FILE, tgt: FILE}} below it")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a config file, for editors: types, limits, defaults, descriptions."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}


def shipped_configs() -> list[str]:
    """Names of the configs that come with mt."""
    return sorted(path.name for path in _shipped_folder().glob("*.yaml"))


def _shipped_folder() -> Path:
    """An installed wheel holds the configs beside this file, a checkout beside the package."""
    inside = Path(__file__).with_name("configs")
    return inside if inside.is_dir() else Path(__file__).parents[1] / "configs"


def _find(name: str) -> Path:
    path, shipped = Path(name), shipped_configs()
    if path.is_file():
        return path
    for candidate in (name, f"{name}.yaml"):
        if candidate in shipped:
            return _shipped_folder() / candidate
    known = {Path(other).stem: other for other in shipped}
    known |= {other.stem: str(other) for other in path.parent.glob("*.y*ml")}
    near = [known[stem] for stem in difflib.get_close_matches(path.stem, known, 1)]
    if (path / "config.yaml").is_file():
        near = [str(path / "config.yaml")]
    found = f"found {'a folder' if path.is_dir() else 'neither'}"
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(
        f"--config {name}: must be a file or the name of a shipped config ({', '.join(shipped)}), {found}{hint}"
    )


def _normalise(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A header with nothing below it is an empty section; one text is a list of one."""
    tree = {key: {} if value is None else value for key, value in mapping.items()}
    if isinstance(tree.get("data"), dict):
        data = tree["data"] = dict(tree["data"])
        for key in {"train", "test"} & data.keys():
            if not isinstance(data[key], list):
                data[key] = [] if data[key] is None else [data[key]]
    return tree


# --- validation -------------------------------------------------------------------------------


def _sections() -> dict[str, type[BaseModel]]:
    fields = Config.model_fields.items()
    return {name: cast("type[BaseModel]", field.annotation) for name, field in fields}


def _validate(tree: Mapping[str, Any], where: str, in_sets: Sequence[str], faults: Sequence[str]) -> Config:
    """Tree → Config, or all of its faults in one error, below those that were found before."""
    found: list[tuple[Sequence[str], str]] = []
    for key in tree:
        if key not in Config.model_fields:
            found.append(([key], _unknown_key(key, Config)))
    parts: dict[str, Any] = {}
    for section, model in _sections().items():
        try:
            parts[section] = model.model_validate(tree.get(section, {}))
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                steps = (section, *detail["loc"])
                found.append(([settings.path_of(steps)], _problem(detail, steps)))
    found += _combinations(parts)
    lines = list(faults)
    for paths, text in found:
        by_set = any(settings.touched(path, in_sets) for path in paths)
        shell = f", as in --set \"{paths[0]}='...'\"" if by_set and text.endswith("in quotes") else ""
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
    if batch and data and batch.tokens_per_batch != "auto" and batch.tokens_per_batch < data.max_tokens + 1:
        paths = ["batch.tokens_per_batch", "data.max_tokens"]
        required = f"must be at least data.max_tokens + 1 ({data.max_tokens + 1})"
        yield paths, f"{required}, found {batch.tokens_per_batch}"
    if tokenizer and tokenizer.byte_fallback and tokenizer.vocab_size <= 260:
        paths = ["tokenizer.vocab_size", "tokenizer.byte_fallback"]
        required = "must be above 260 (256 bytes, 4 special tokens) with byte_fallback"
        yield paths, f"{required}, found {tokenizer.vocab_size}"
    if tokenizer and tokenizer.type == "bpe" and (alpha := tokenizer.sampling_alpha) and alpha >= 1:
        paths = ["tokenizer.sampling_alpha", "tokenizer.type"]
        yield paths, f"must be below 1 with type bpe (the share of merges passed over), found {alpha}"
    if optim and (optim.schedule == "noam") != (optim.peak_lr is None):
        paths = ["optim.peak_lr", "optim.schedule"]
        required = f"must be {'null' if optim.peak_lr else 'a number'} with schedule {optim.schedule}"
        yield paths, f"{required}, found {optim.peak_lr or _shown(None)}"
    if optim and train and optim.schedule == "cosine" and optim.warmup_steps >= train.max_steps:
        paths = ["optim.warmup_steps", "optim.schedule", "train.max_steps"]
        required = f"must be below train.max_steps ({train.max_steps}) with schedule cosine"
        yield paths, f"{required}, found {optim.warmup_steps}"
    if train and train.new_vocabulary and train.init_from is None:
        paths = ["train.new_vocabulary", "train.init_from"]
        yield paths, "must be false without train.init_from, found true; a run of its own learns one anyway"
    for path, source in named_sources(data) if data else []:
        if source.name and not source.path:
            paths, text = [f"{path}.name", f"{path}.path"], _shown(source.name)
            yield paths, f"must stand beside path, found {text} without one; add path"


def named_sources(data: DataConfig) -> list[tuple[str, Source]]:
    """Every source with the name that messages use, such as `data.train[0]`."""
    named = [(f"data.train[{i}]", source) for i, source in enumerate(data.train)]
    if data.valid is not None:
        named.append(("data.valid", data.valid))
    return named + [(f"data.test[{i}]", source) for i, source in enumerate(data.test)]


_REQUIRED = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "list_type": "must be a list",
    "tuple_type": "must be a list of two numbers",
    "too_long": "must be a list of two numbers",
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
}


def _problem(detail: ErrorDetails, steps: Sequence[str | int]) -> str:
    """One fault in our words: what is required, what was found, what to do."""
    kind, found, context = detail["type"], detail["input"], detail.get("ctx", {})
    in_source = steps[0] == "data" and len(steps) + (kind == "model_type") > 2
    owner = Source if in_source else _sections()[str(steps[0])]
    if kind == "missing":
        return "is missing and has no default; write it"
    if kind == "extra_forbidden":
        return _unknown_key(str(steps[-1]), owner)
    if kind == "model_type":
        return f"must hold keys ({', '.join(owner.model_fields)}), found {_shown(found)}"
    if kind == "literal_error":
        options = context["expected"].replace("True", "true").replace("False", "false")
        near = difflib.get_close_matches(str(found), re.findall(r"\w+", options), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"must be {options.replace(chr(39), '')}, found {_shown(found)}{hint}"
    required = _REQUIRED.get(kind, "cannot be used").format(**context)
    return f"{required}, found {_shown(found)}{_remedy(kind, found)}"


def _remedy(kind: str, found: object) -> str:
    if found is None:
        return "; leave the key out for its default"
    if kind == "string_type" and isinstance(found, bool):
        return "; YAML reads an unquoted yes, no, on or off as that: put the text in quotes"
    if kind == "string_type" and isinstance(found, int | float):
        return "; put the text in quotes"
    if kind == "list_type" and isinstance(found, str):
        return f"; write [{found}]"
    if kind in ("int_type", "float_type") and isinstance(found, str):
        with suppress(ValueError, OverflowError):
            number = int(found) if kind == "int_type" else float(found)
            return f"; write {number} without quotes" if math.isfinite(number) else ""
    return ""


def _shown(found: object) -> str:
    if isinstance(found, dict | list):
        return "keys below it" if isinstance(found, dict) else "a list"
    words = {None: "nothing (null)", True: "true", False: "false"}
    text = words[found] if found is None or isinstance(found, bool) else repr(found)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unknown_key(key: str, owner: type[BaseModel]) -> str:
    """An unknown key with its home in another section, else the nearest known key."""
    homes = [name for name, model in _sections().items() if key in model.model_fields]
    homes += ["data.train"] * (key in Source.model_fields)
    if homes:
        return f"unknown key; {key} belongs in section {' or '.join(homes)}"
    elsewhere = {k: f"{name}.{k}" for name, m in _sections().items() for k in m.model_fields}
    word = key.lower().replace("-", "_")
    own = {name: name for name in owner.model_fields}
    for names, cutoff in ((own, 0.6), (elsewhere, 0.8)):
        if near := difflib.get_close_matches(word, names, 1, cutoff):
            return f"unknown key; did you mean {names[near[0]]}?"
    return f"unknown key; known here: {', '.join(owner.model_fields)}"


def with_origins(loaded: Loaded) -> str:
    """Every value in YAML, with where it comes from as a comment."""
    lines: list[str] = []
    for section, values in loaded.config.model_dump(mode="json").items():
        lines.append(f"{section}:")
        for key, value in values.items():
            path = f"{section}.{key}"
            below = (f"{path}.", f"{path}[")
            origins = {origin for leaf, origin in loaded.origins.items() if leaf == path or leaf.startswith(below)}
            first, *rest = settings.dump({key: value}).rstrip("\n").split("\n")
            lines.append(f"  {first:<40}  # {', '.join(sorted(origins))}")
            lines += [f"  {line}" for line in rest]
    return "\n".join(lines)
