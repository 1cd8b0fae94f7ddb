"""The config: typed, frozen and strict; the only home of defaults and of keys' descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter
from pydantic.fields import FieldInfo

from mt.config import yaml_text
from mt.config.data_schema import (
    Affects,
    Coefficient,
    Count,
    Flag,
    Length,
    Positive,
    Section,
    Share,
    Text,
    integral,
    key,
    model_key,
    plan_key,
)
from mt.config.data_schema import Clean as Clean
from mt.config.data_schema import DataConfig as DataConfig
from mt.config.data_schema import Source as Source
from mt.config.data_schema import TextEntry as TextEntry

RECIPE = "shipped config, such as small.yaml, that sets the keys a file leaves out"
_CHOSEN = "mt.config.settled chooses a number"
MAX_POSITIONS = "model.max_positions"
Metric = Literal["bleu", "chrf", "nll"]
BleuTokenizer = Literal["auto", "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none"]


def _or_auto(number: Any) -> BeforeValidator:
    check = TypeAdapter(number).validate_python
    return BeforeValidator(lambda value: value if value == "auto" else check(value))


Width = Annotated[int, Field(strict=True, ge=1, le=2**17), BeforeValidator(integral)]
Few = Annotated[int, Field(strict=True, ge=1, le=1000), BeforeValidator(integral)]
Vocabulary = Annotated[int, Field(strict=True, ge=1, le=10**7), BeforeValidator(integral)]
Natural = Annotated[int, Field(strict=True, ge=0), BeforeValidator(integral)]
Seed = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1), BeforeValidator(integral)]
LearningRate = Annotated[float, Field(strict=True, gt=0, le=10, allow_inf_nan=False)]
# A length raised to a higher power may overflow a float.
Penalty = Annotated[float, Field(strict=True, ge=0, le=10, allow_inf_nan=False)]
# The range that SentencePiece takes.
Coverage = Annotated[float, Field(strict=True, ge=0.98, le=1, allow_inf_nan=False)]
Decay = Annotated[float, Field(strict=True, gt=0, lt=1, allow_inf_nan=False)]
CountOrAuto = Annotated[Count | Literal["auto"] | None, _or_auto(Count | None)]
VocabularyOrAuto = Annotated[Vocabulary | Literal["auto"], _or_auto(Vocabulary)]
ShareOrAuto = Annotated[Share | Literal["auto"], _or_auto(Share)]
CoefficientOrAuto = Annotated[Coefficient | Literal["auto"], _or_auto(Coefficient)]
PositiveOrAuto = Annotated[Positive | Literal["auto"] | None, _or_auto(Positive | None)]
FlagOrAuto = Annotated[Flag | Literal["auto"], _or_auto(Flag)]


def _section(model: type[BaseModel], description: str) -> Any:
    return Field(default_factory=model, description=description)


class RunConfig(Section):
    """The run directory and the seed."""

    dir: Text | None = key(None, "folder of the run; null: runs/<name of the config file>")
    seed: Seed = plan_key(1, "seed of initial weights, data order and dropout")


class TokenizerConfig(Section):
    """The SentencePiece vocabulary."""

    vocab_size: VocabularyOrAuto = model_key(
        32000, "tokens, 4 special ones included; auto: by the number of pairs"
    )
    type: Literal["bpe", "unigram"] = model_key("bpe", "SentencePiece algorithm")
    joint: Flag = model_key(True, "one vocabulary for both languages")
    byte_fallback: Flag = model_key(True, "encode unknown characters as bytes instead of unk")
    character_coverage: Coverage | None = model_key(
        None,
        "share of the text whose characters get a token; null: 0.99999 with byte_fallback "
        "(0.9995 where these do not fit), else 1",
    )
    user_defined_symbols: list[Text] = model_key(
        [], "strings that are always one token, such as tags"
    )
    split_digits: Flag = model_key(
        True, "make each digit a token, so that unseen numbers can be copied"
    )
    sample_lines: Count = model_key(
        2_000_000, "lines per side, at most, to learn the vocabulary from"
    )
    model: Text | None = model_key(
        None,
        "SentencePiece file of your own, of this type; with joint: false, the source's; null: "
        "train one",
    )
    tgt_model: Text | None = model_key(
        None, "with model and joint: false, the target's SentencePiece file"
    )

    @property
    def size(self) -> int:
        assert isinstance(self.vocab_size, int), f"{self.vocab_size}: {_CHOSEN}"
        return self.vocab_size

    @property
    def symbols(self) -> int:
        """Number of tokens that every vocabulary has: special, bytes, user-defined symbols."""
        return 4 + 256 * self.byte_fallback + len(self.user_defined_symbols)


class BatchConfig(Section):
    """The size of updates and batches."""

    tokens_per_update: Count = plan_key(
        25000, "target tokens per update, summed over batches and devices"
    )
    tokens_per_batch: CountOrAuto = key(
        None,
        "tokens per batch and device, padding included; auto: what fits into memory; null: "
        "auto on a GPU, 8192 on a CPU",
    )

    @property
    def budget(self) -> int:
        """Largest size of a batch: rows times longest side, or the tokens of the longer sides."""
        assert isinstance(self.tokens_per_batch, int), "training chooses it before the first update"
        return self.tokens_per_batch


class ModelConfig(Section):
    """The encoder-decoder Transformer."""

    d_model: Width = model_key(512, "width of embeddings and layers")
    n_heads: Few = model_key(8, "attention heads per layer, each d_model / n_heads wide")
    n_encoder_layers: Few = model_key(6, "encoder layers")
    n_decoder_layers: Few = model_key(6, "decoder layers")
    d_ff: Width = model_key(2048, "inner width of the feed-forward blocks")
    dropout: ShareOrAuto = key(
        0.1,
        "probability of dropout; auto: by the number of pairs; on a CPU in steps of 1/256: 0.1 "
        "drops 0.1016",
    )
    attention_dropout: Share = key(0.0, "dropout of attention weights")
    activation_dropout: Share | None = key(
        None, "dropout after the feed-forward activation; null: as dropout"
    )
    norm: Literal["pre", "post"] = model_key(
        "pre", "layer norm before each block (pre) or after its residual sum (post, as in 2017)"
    )
    positions: Literal["sinusoidal", "learned"] = model_key("sinusoidal", "position embeddings")
    tie_embeddings: Flag = model_key(
        True, "one matrix for target embedding and output, and for the source embedding if joint"
    )
    activation: Literal["relu", "gelu", "silu"] = model_key(
        "relu", "activation of the feed-forward blocks"
    )
    attention_bias: Flag = model_key(True, "biases in the four projections of attention")
    output_bias: Flag = model_key(False, "a bias per token in the output layer")
    max_positions: Length = model_key(
        1024, "longest sequence in tokens, special ones included; fixed if learned"
    )

    @property
    def dropout_p(self) -> float:
        assert isinstance(self.dropout, float | int), f"{self.dropout}: {_CHOSEN}"
        return self.dropout

    @property
    def pre_norm(self) -> bool:
        return self.norm == "pre"

    @property
    def learned_positions(self) -> bool:
        return self.positions == "learned"


class OptimConfig(Section):
    """Learning rate, AdamW and loss."""

    peak_lr: LearningRate | None = key(
        7.0e-4, "learning rate at the end of warm-up; null with schedule noam, which computes it"
    )
    warmup_steps: Count = key(4000, "updates of linear warm-up")
    schedule: Literal["inverse_sqrt", "noam", "cosine", "constant"] = key(
        "inverse_sqrt", "learning rate after warm-up"
    )
    betas: tuple[Share, Share] = key((0.9, 0.98), "Adam's beta1 and beta2")
    eps: Positive = key(1e-9, "Adam's epsilon, added to the denominator")
    weight_decay: CoefficientOrAuto = key(0.0, "of layers' matrices; auto: by the number of pairs")
    fix_norm: FlagOrAuto = key(False, "output rows keep their length; auto: by the number of pairs")
    label_smoothing: Share = key(0.1, "probability spread evenly over the vocabulary")
    clip_norm: Positive | None = key(1.0, "largest norm of the gradient; null: no clipping")


class TrainConfig(Section):
    """Length and precision of training, checkpoints, and what to start from."""

    max_steps: Count = key(100_000, "updates until training ends")
    max_epochs: PositiveOrAuto = key(
        None, "epochs until training ends, if sooner; auto: by the number of pairs"
    )
    max_minutes: Positive | None = key(
        None, "lower max_epochs to what fits into so many minutes, as measured"
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = key(
        "auto", "arithmetic of the model; auto: bf16 where the device computes it fast"
    )
    compile: FlagOrAuto = key("auto", "use torch.compile; auto: on GPUs that gain from it")
    log_every: Count = key(100, "updates between log lines")
    valid_every: Count | None = key(
        2000, "updates between validations, each with a checkpoint; null: 20 validations in all"
    )
    save_every_minutes: Positive | None = key(
        30.0, "minutes between checkpoints where validations are rarer; null: only those"
    )
    patience: Count | None = key(
        10, "stop after so many validations of the last stage without a new best; null: never"
    )
    metric: Metric = key("bleu", "metric that selects the best checkpoint; nll breaks ties")
    bleu_tokenize: BleuTokenizer = key("auto", "sacreBLEU's tokenizer; auto: by data.tgt_lang")
    keep_last: Count = key(5, "newest checkpoints to keep")
    keep_best: Natural = key(1, "best checkpoints to keep as well")
    ema: Decay | None = key(
        None, "decay of a running mean of the weights, which is validated and kept; null: none"
    )
    init_from: Text | None = model_key(
        None,
        "model to start from: run directory, checkpoint, averaged or imported model; sizes and "
        "vocabulary are its own unless named; null: random weights",
    )
    new_vocabulary: Flag = model_key(False, "with init_from: learn a new vocabulary from this data")

    @property
    def epochs(self) -> float | None:
        assert not isinstance(self.max_epochs, str), f"{self.max_epochs}: {_CHOSEN}"
        return self.max_epochs

    @property
    def updates_between_validations(self) -> int:
        """`valid_every` as a number; training lowers `max_steps` to `max_epochs` before."""
        return self.valid_every or -(-self.max_steps // 20)


class DecodeConfig(Section):
    """The search for translations, in validation and by default in mt translate."""

    beam_size: Length = key(5, "hypotheses kept per sentence; 1: greedy search")
    length_penalty: Penalty = key(
        1.0, "exponent: score = log-probability / length^length_penalty, eos counted"
    )
    max_len_factor: Coefficient = key(2.0, "longest output, in tokens per source token")
    max_len_extra: Length = key(10, "tokens added to the longest output")


class Config(Section):
    """A config of mt: everything that determines a run."""

    run: RunConfig = _section(RunConfig, "run directory and seed")
    data: DataConfig = _section(DataConfig, "texts for training, validation and tests")
    tokenizer: TokenizerConfig = _section(TokenizerConfig, "SentencePiece vocabulary")
    batch: BatchConfig = _section(BatchConfig, "size of updates and batches")
    model: ModelConfig = _section(ModelConfig, "shape of the Transformer")
    optim: OptimConfig = _section(OptimConfig, "optimiser, learning rate and loss")
    train: TrainConfig = _section(TrainConfig, "length, precision and checkpoints of training")
    decode: DecodeConfig = _section(DecodeConfig, "search for translations")

    def value(self, path: str) -> Any:
        section, _, name = path.partition(".")
        return getattr(getattr(self, section), name)

    def left_to_base(self, has_learned_positions: bool = False) -> list[str]:
        """The keys without a value here that have it from the model of `train.init_from`.

        One is model.max_positions if that model has learned positions, which are weights.
        """
        if self.train.init_from is None:
            return []
        keys = shape_keys() + vocabulary_keys() * (not self.train.new_vocabulary)
        keys += [MAX_POSITIONS] * has_learned_positions
        named = [f"{name}.{key}" for name, part in self for key in part.model_fields_set]
        return [key for key in keys if key not in named]

    def with_values(self, values: Mapping[str, Any]) -> Config:
        """The config with other values of some keys, which are not validated."""
        config = self
        for path, value in values.items():
            section, _, name = path.partition(".")
            changed = getattr(config, section).model_copy(update={name: value})
            config = config.model_copy(update={section: changed})
        return config

    def as_asked(self) -> dict[str, Any]:
        """All values as JSON has them, but for those that are left to another model."""
        tree = self.model_dump(mode="json")
        for path in self.left_to_base(has_learned_positions=True):
            section, _, name = path.partition(".")
            del tree[section][name]
        return tree

    def to_yaml(self) -> str:
        return yaml_text.dump(self.as_asked())


def json_schema() -> dict[str, Any]:
    """The JSON Schema of configs; editors accept by it what loading accepts."""
    schema = Config.model_json_schema()
    schema["properties"]["recipe"] = {"type": "string", "description": RECIPE}
    alternatives = ["src", "tgt"], ["path"], ["split"]
    schema["$defs"]["TextEntry"]["anyOf"] = [{"required": keys} for keys in alternatives]
    for name in ("train", "valid", "test"):  # one mapping or path, or nothing, for a list
        field = schema["$defs"]["DataConfig"]["properties"][name]
        item = {"anyOf": [field.pop("items"), {"type": "string"}]}
        field["anyOf"] = [{"type": field.pop("type"), "items": item}, item, {"type": "null"}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def effect_of(field: FieldInfo) -> Affects:
    return cast("dict[str, Affects]", field.json_schema_extra)["x-affects"]


def keys_affecting(effect: Affects, section: str = "") -> list[str]:
    """The keys, of one section or all, whose change does this to a run; see `Affects`."""
    return [
        f"{name}.{key}"
        for name, of_section in sections().items()
        for key, field in of_section.model_fields.items()
        if effect_of(field) == effect and name.startswith(section.rstrip("."))
    ]


def shape_keys() -> list[str]:
    """The keys that say which weights a model has, but for the number of learned positions."""
    return [key for key in keys_affecting("model", "model.") if key != MAX_POSITIONS]


def vocabulary_keys() -> list[str]:
    """The keys that say what a vocabulary is like, but not from what it is learnt."""
    learnt_from = ("tokenizer.sample_lines", "tokenizer.model", "tokenizer.tgt_model")
    return [key for key in keys_affecting("model", "tokenizer.") if key not in learnt_from]


def sections() -> dict[str, type[BaseModel]]:
    fields = Config.model_fields.items()
    return {name: cast("type[BaseModel]", field.annotation) for name, field in fields}
