"""Every value that the schema names has a branch of its own, and no other value falls through.

A Literal of the schema without an entry in `BRANCHES` fails the first test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from pydantic import BaseModel
from token_stores import tokenizer_of
from torch import nn

from mt.cleaning.stages import keys_of, leaks_go
from mt.config import schema
from mt.config.auto import Sizes, replace_auto
from mt.config.schema import (
    BatchConfig,
    Config,
    ModelConfig,
    OptimConfig,
    Source,
    TokenizerConfig,
    TrainConfig,
)
from mt.config.settled import Settled
from mt.data.reading.corpus import read_pairs
from mt.data.reading.table_files import read_table
from mt.data.tokens.sentencepiece_model import model_proto
from mt.errors import DataError, MtError
from mt.evaluation import bleu_tokenizer
from mt.evaluation.metrics import Score
from mt.model.transformer import Embedding, FeedForward, Residual
from mt.runtime import devices
from mt.training import batch_size
from mt.training.optim import learning_rate
from mt.training.selection import Criterion, ValidationResult

SMALL = {"d_model": 2, "n_heads": 1, "n_encoder_layers": 1, "n_decoder_layers": 1, "d_ff": 2}
CPU = devices.Device(torch.device("cpu"), "fp32")


def model_config(**values: Any) -> ModelConfig:
    """A small model, with values that are not validated."""
    return ModelConfig.model_construct(**SMALL | {"dropout": 0.0} | values)


# --- what a value does ------------------------------------------------------------------------


def activation(value: Any) -> list[float]:
    """The feed-forward block of [-1, 2], its matrices being the identity."""
    block = FeedForward(model_config(activation=value)).eval()
    for linear in (block.inner, block.outer):
        nn.init.eye_(linear.weight)
        nn.init.zeros_(linear.bias)
    return [round(x, 3) for x in block(torch.tensor([[[-1.0, 2.0]]])).flatten().tolist()]


def norm(value: Any) -> list[float]:
    """A residual connection of [1, 3] around a block that gives 0."""
    around = Residual(model_config(norm=value)).eval()
    return [round(x, 3) for x in around(torch.tensor([1.0, 3.0]), torch.zeros_like).tolist()]


def positions(value: Any) -> bool:
    """Whether the positions are trained."""
    table = Embedding(nn.Embedding(5, 2), model_config(positions=value)).positions
    return isinstance(table, nn.Parameter)


def schedule(value: Any) -> float:
    """The rate of the last of 8 updates, after a warm-up of 2 to 1."""
    optim = OptimConfig.model_construct(schedule=value, warmup_steps=2, peak_lr=1.0)
    return round(learning_rate(8, optim, d_model=2, max_steps=8), 3)


def metric(value: Any) -> float:
    values = {"bleu": 2.0, "chrf": 3.0}
    scores = {name: Score("", score, "") for name, score in values.items()}
    return Criterion(value).scored(ValidationResult(1.0, scores, []).figures())[0]


def precision(value: Any) -> str:
    """The precision on a GPU with bf16."""
    return devices._find_precision(value, torch.device("cuda"))


def compiles(value: Any) -> str:
    """What is said about a CPU, which cannot compile."""
    try:
        devices.check_compile(value, CPU)
    except MtError as error:
        return str(error).split(" needs")[0]
    return ""


def tokens_per_batch(value: Any) -> Any:
    """The size on a CPU, where 123 tokens fit."""
    config = Config.model_construct(batch=BatchConfig.model_construct(tokens_per_batch=value))
    world = SimpleNamespace(
        on_main=lambda f: f(), all_or_raise=lambda f: f(), all_gather=lambda own: [own]
    )
    updater: Any = SimpleNamespace(device=CPU, world=world)
    log: Any = SimpleNamespace(say=lambda line: None, run_dir=Path("/nowhere"))
    settled = batch_size.settle_batch_size(config, Settled(), updater, [9], log)
    return settled.tokens_per_batch


def tokenizer_type(value: Any) -> str:
    """The algorithm of a trained model."""
    words = [("eins zwei drei", "one two three")] * 9
    cfg = TokenizerConfig.model_construct(type=value, vocab_size=290)
    tokenizer = tokenizer_of(cfg, words)
    spec = model_proto(tokenizer.models[0]).trainer_spec
    return str(spec.ModelType.Name(spec.model_type)).lower()


def chosen(**values: Any) -> Any:
    """The section of a config with this value, once `auto` is replaced."""
    tokenizer, model = TokenizerConfig.model_construct(**values), model_config(**values)
    train = TrainConfig.model_construct(**values)
    config = Config.model_construct(tokenizer=tokenizer, model=model, train=train)
    return replace_auto(config, Sizes(7, 0.5, 9.0))[0]


def quoting(value: Any) -> list[str]:
    """The cells of a row of the table in the current folder."""
    source = Source.model_construct(path="a.tsv", src="de", tgt="en", quoting=value)
    Path("a.tsv").write_text('de\ten\n"ja"\tyes\n', encoding="utf-8")
    return [cell for _, row in read_table(Path("a.tsv"), source, "test") for cell in row.values()]


def duplicates(value: Any) -> list[int]:
    """How many different keys three pairs have, of which two are equal but for a sign."""
    pairs = [("a", "x"), ("a!", "x"), ("b", "x")]
    keys = keys_of(pairs, [b"a", b"a", b"b"], [b"x"] * 3, value)
    return [len(set(column)) for column in keys.T.tolist()]


def leaks(value: Any) -> int:
    """How many go of four pairs: a whole leak, that of a source, that of a target, and none."""
    return int(leaks_go(np.array([7, 1, 2, 0], np.uint8), value).sum())


def source_format(value: Any) -> str:
    """The sides that a file without a suffix has, or what its message says."""
    Path("rows").write_text('{"de": "ja",\t"en": "yes"}\n' * 2, encoding="utf-8")
    source = Source.model_construct(path="rows", src="de", tgt="en", format=value)
    try:
        return " ".join(next(read_pairs(source, Path(), "x")))
    except DataError as error:
        return next(
            part for part in ("rows.de", "'{", "<tu>", "library", "Set f") if part in str(error)
        )


def tags(value: Any) -> list[Any]:
    """The text of a segment with a tag."""
    segments = "".join(f'<tuv lang="{one}"><seg>a<b/></seg></tuv>' for one in ("de", "en"))
    Path("a.tmx").write_text(f"<tu>{segments}</tu>", encoding="utf-8")
    source = Source.model_construct(path="a.tmx", src="de", tgt="en", tags=value)
    return [src for src, _ in read_pairs(source, Path(), "x")]


def errors(value: Any) -> list[str]:
    """The lines of a file, of which the second is not UTF-8."""
    for side in ("a.de", "a.en"):
        Path(side).write_bytes(b"a\nb\xff\nc\n")
    source = Source.model_construct(src="a.de", tgt="a.en", errors=value)
    try:
        return [src for src, _ in read_pairs(source, Path(), "x")]
    except DataError:
        return ["refused"]


# A key of the schema -> what uses its value, and what each value gives.
BRANCHES: dict[str, tuple[Callable[[Any], Any], dict[Any, Any]]] = {
    "Clean.duplicates": (duplicates, {"exact": [3, 3], "normalised": [2, 2]}),
    "Clean.leaks": (leaks, {"sides": 3, "pairs": 1}),
    "TextEntry.format": (
        source_format,
        {
            **{"text": "rows.de", "tsv": "'{", "csv": "'{", "json": "ja yes", "jsonl": "ja yes"},
            **{"parquet": "library", "tmx": "<tu>", "xliff": "<tu>", "dataset": "Set f"},
        },
    ),
    "TextEntry.tags": (tags, {"strip": ["a"], "keep": ["a<b/>"]}),
    "TextEntry.errors": (
        errors,
        {"strict": ["refused"], "replace": ["a", "b\ufffd", "c"], "skip": ["a", "c"]},
    ),
    "TextEntry.quoting": (quoting, {"csv": ["ja", "yes"], "none": ['"ja"', "yes"]}),
    "TokenizerConfig.type": (tokenizer_type, {"bpe": "bpe", "unigram": "unigram"}),
    "TokenizerConfig.vocab_size": (
        lambda value: chosen(vocab_size=value).tokenizer.size,
        {"auto": 7},
    ),
    "ModelConfig.dropout": (lambda value: chosen(dropout=value).model.dropout_p, {"auto": 0.5}),
    "BatchConfig.tokens_per_batch": (tokens_per_batch, {"auto": 123}),
    "ModelConfig.norm": (norm, {"pre": [1.0, 3.0], "post": [-1.0, 1.0]}),
    "ModelConfig.positions": (positions, {"sinusoidal": False, "learned": True}),
    "ModelConfig.activation": (
        activation,
        {"relu": [0.0, 2.0], "gelu": [-0.159, 1.954], "silu": [-0.269, 1.762]},
    ),
    "OptimConfig.schedule": (
        schedule,
        {"inverse_sqrt": 0.5, "noam": 0.25, "cosine": 0.0, "constant": 1.0},
    ),
    "TrainConfig.max_epochs": (lambda value: chosen(max_epochs=value).train.epochs, {"auto": 9}),
    "TrainConfig.precision": (
        precision,
        {"auto": "bf16", "fp32": "fp32", "bf16": "bf16", "fp16": "fp16"},
    ),
    "TrainConfig.compile": (compiles, {"auto": ""}),
    "TrainConfig.metric": (metric, {"nll": -1.0, "bleu": 2.0, "chrf": 3.0}),
    "TrainConfig.bleu_tokenize": (
        lambda value: bleu_tokenizer.choose_tokenizer("th", value),
        {"auto": "char", **{name: name for name in bleu_tokenizer.TOKENIZERS}},
    ),
}


# --- the schema -------------------------------------------------------------------------------


def literals_in(annotation: Any) -> Iterator[Any]:
    """The values of every Literal in a type, also inside lists, unions and `Annotated`."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from literals_in(part)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """A model and those of its fields."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models_in(field.annotation)
    for part in get_args(annotation):
        yield from models_in(part)


def literals(root: type[BaseModel]) -> dict[str, set[Any]]:
    """`Class.key` -> the values that its Literals name."""
    found = {
        f"{model.__name__}.{key}": set(literals_in(field.annotation))
        for model in models_in(root)
        for key, field in model.model_fields.items()
    }
    return {key: values for key, values in found.items() if values}


@pytest.fixture(autouse=True)
def able_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All BLEU tokenizers, a GPU with bf16, and memory for a batch of 123 tokens."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bleu_tokenizer, "find_spec", bool)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(batch_size, "fitting_batch", lambda *_: 123)


def test_every_literal_of_the_schema_is_in_the_table() -> None:
    listed = {key: set(values) for key, (_, values) in BRANCHES.items()}
    assert literals(Config) == listed


def test_the_walk_finds_a_new_literal() -> None:
    class Inner(BaseModel):
        depth: list[Literal["deep"] | None] = []

    class New(Config):
        inner: Inner | None = None
        top: schema.FlagOrAuto = "auto"

    assert literals(New).keys() - literals(Config).keys() == {"Inner.depth", "New.top"}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, (_, values) in BRANCHES.items() for value in values]
)
def test_a_value_does_what_it_says(key: str, value: Any) -> None:
    use, results = BRANCHES[key]
    assert use(value) == results[value]


@pytest.mark.parametrize("key", BRANCHES)
def test_a_value_that_no_branch_knows_fails(key: str) -> None:
    use, _ = BRANCHES[key]
    with pytest.raises((AssertionError, MtError, KeyError, ValueError), match="unheard-of"):
        use("unheard-of")
