"""The config: typed, frozen and strict; the only home of defaults and of what each key means.

Precedence: defaults < file < `--set`. All faults of a config are reported in one `ConfigError`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticKnownError

from mt.config import yaml_text


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
CountOrAuto = Annotated[
    Annotated[int, Field(ge=1)] | Literal["auto"], BeforeValidator(_count_or_auto)
]
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
    src_lang: Text = _key(
        "src", "code of the source language, such as de; a note for readers, nothing depends on it"
    )
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
        None,
        "subword regularisation: bpe: share of merges passed over; unigram: smoothing; null for none",
    )


class BatchConfig(_Strict):
    """How much is learned from at a time."""

    tokens_per_update: Count = _key(25000, "target tokens of an update, over all of its batches")
    tokens_per_batch: CountOrAuto = _key(
        8192,
        "rows times longest side that a device takes at a time; auto means as much as fits into its memory",
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
    activation_dropout: Share | None = _key(
        None, "dropout inside the feed-forward blocks; null means model.dropout"
    )
    source_word_dropout: Share = _key(
        0.0, "share of source tokens whose embedding is dropped whole in training"
    )
    norm: Literal["pre", "post"] = _key("pre", "layer norm before a block or after its sum (2017)")
    positions: Literal["sinusoidal", "learned"] = _key("sinusoidal", "kind of position embeddings")
    tie_embeddings: Flag = _key(
        True, "one matrix for target embedding and output, and for source embedding if joint"
    )
    activation: Literal["relu", "gelu"] = _key("relu", "non-linearity of the feed-forward blocks")
    attention_bias: Flag = _key(True, "biases in the four projections of attention")
    output_bias: Flag = _key(False, "a bias per token in the output layer")
    max_positions: Count = _key(1024, "longest sequence the model takes, in tokens with eos")


class OptimConfig(_Strict):
    """The optimiser, its learning rate and the loss."""

    optimizer: Literal["adamw", "muon"] = _key(
        "adamw",
        "what makes a step of a gradient; muon: orthogonal steps for the matrices inside the layers",
    )
    peak_lr: Positive | None = _key(7.0e-4, "learning rate after warm-up; null for noam's own")
    warmup_steps: Count = _key(4000, "updates over which the learning rate rises linearly")
    schedule: Literal["inverse_sqrt", "noam", "cosine", "constant"] = _key(
        "inverse_sqrt", "course of the learning rate after warm-up"
    )
    betas: tuple[Share, Share] = _key(
        (0.9, 0.98), "decay of Adam's running means of the gradient and of its square"
    )
    eps: Positive = _key(1e-9, "added to Adam's denominator")
    weight_decay: NonNegative = _key(0.0, "decoupled weight decay, per unit of learning rate")
    label_smoothing: Share = _key(0.1, "probability spread evenly over the whole vocabulary")
    rdrop: NonNegative = _key(
        0.0, "weight of R-Drop, which reads each batch twice with other dropout; 0 for none"
    )
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
    tensorboard: Flag = _key(
        False, "write the figures for TensorBoard too (needs the extra tensorboard)"
    )
    init_from: Text | None = _key(
        None,
        "run directory, checkpoint or exported folder whose weights are the first ones; null for random ones",
    )
    new_vocabulary: Flag = _key(
        False, "with init_from: learn a vocabulary from this data instead of keeping that one"
    )
    freeze: list[Part] = _key(
        [], "parts that do not learn; those of layers are meant in all layers"
    )


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
        return yaml_text.dump(self.model_dump(mode="json"))


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a config file, for editors: types, limits, defaults, descriptions."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}


def sections() -> dict[str, type[BaseModel]]:
    """The model of each section, by its name."""
    fields = Config.model_fields.items()
    return {name: cast("type[BaseModel]", field.annotation) for name, field in fields}


def named_sources(data: DataConfig) -> list[tuple[str, Source]]:
    """Every source with the name that messages use, such as `data.train[0]`."""
    named = [(f"data.train[{i}]", source) for i, source in enumerate(data.train)]
    if data.valid is not None:
        named.append(("data.valid", data.valid))
    return named + [(f"data.test[{i}]", source) for i, source in enumerate(data.test)]
