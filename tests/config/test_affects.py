"""A change of a key does to a run what the schema says that it affects."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from conftest import Mapped, merged, write_lines
from pydantic import BaseModel
from token_stores import tokenizer_of

from mt.cleaning.plan import plan_of
from mt.config.data_schema import Augment, Clean, TextEntry, TrainingStage, Until
from mt.config.load import config_from_mapping
from mt.config.plan import plan_data
from mt.config.schema import TokenizerConfig, effect_of, sections
from mt.data.tokens.directions import DirectedPairs, tokens_before
from mt.data.tokens.plan import sampling_weights, sentences_of_epoch
from mt.data.tokens.store import Store, fingerprint_of
from mt.data.tokens.tokenizer import PairSample, Tokenizer, train_on_sample
from mt.errors import CheckpointError
from mt.files import write_whole
from mt.runs.run_dir import CONFIG, check_same_run
from mt.training.prepare import Prepared, training_texts

PAIRS = [("eins zwei drei vier fünf", "one two three four five")] * 50
KEPT = (70, 30)
# Values that are not derived from the one in BASE.
OTHER: dict[str, Any] = {
    "run.dir": "elsewhere",
    "data.root": "{root}/.",
    "data.src_lang": "nl",
    "data.tgt_lang": "nl",
    "data.train": [{"src": "a.de", "tgt": "a.en"}],
    "data.valid": {"src": "b.de", "tgt": "b.en"},
    "data.test": [{"src": "a.de", "tgt": "a.en"}],
    "data.clean": {},
    "data.augment": {},
    "data.stages": [{"until": {"updates": 1}, "weights": [1, 0]}, {}],
    "tokenizer.character_coverage": 0.99,
    "tokenizer.user_defined_symbols": ["<x>"],
    "tokenizer.model": "own.model",
    "tokenizer.tgt_model": "own.model",
    "batch.tokens_per_batch": 77,
    "model.d_model": 32,
    "model.n_heads": 1,
    "model.activation_dropout": 0.2,
    "optim.betas": [0.8, 0.9],
    "train.compile": False,
    "train.max_epochs": 3,
    "train.max_minutes": 60,
    "train.ema": 0.99,
    "train.init_from": "model",
    "train.new_vocabulary": True,
    "train.max_steps": 7,
    "data.train[].src": "b.de",
    "data.train[].tgt": "b.en",
    "data.train[].tag": "<bt>",
    "data.train[].src_lang": "fr",
    "data.train[].tgt_lang": "fr",
    "data.clean.duplicates": None,
    "data.clean.leaks": None,
    "data.clean.against": ["b.en"],
}
# What a change of these keys does to a text of a file with columns.
OF_A_FILE: dict[str, tuple[str, Any]] = {
    "path": ("nothing", "same.jsonl"), "format": ("text", "jsonl"), "name": ("text", "de-en"),
    "split": ("text", "test"), "delimiter": ("text", ","), "quoting": ("text", "csv"),
    "errors": ("text", "skip"), "directions": ("nothing", ["de-en"]),
}  # fmt: skip
BASE = {
    "data": {
        "train": [{"src": "a.de", "tgt": "a.en"}, {"src": "b.de", "tgt": "b.en", "weight": 2.0}],
        "src_lang": "de",
        "tgt_lang": "en",
        "max_tokens": 50,
    },
    "tokenizer": {"vocab_size": 300, "user_defined_symbols": ["<bt>"]},
    "model": {"d_model": 64, "n_heads": 2},
    "train": {"max_steps": 5},
    "optim": {"warmup_steps": 2},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    settings = TokenizerConfig(vocab_size=300, user_defined_symbols=["<bt>"])
    sample = PairSample(1000)
    assert len(list(sample.watch(PAIRS))) == len(PAIRS)
    return train_on_sample(settings, sample, print, languages=["en", "fr", "de", "nl"])


@pytest.fixture(scope="module")
def saved() -> Tokenizer:
    return tokenizer_of(TokenizerConfig(vocab_size=300), PAIRS)


@pytest.fixture
def run(saved: Tokenizer, tmp_path: Path) -> Path:
    """A run that has a tokenizer and a checkpoint."""
    write_lines(tmp_path / "a.de", ["eins"])
    write_lines(tmp_path / "a.en", ["one"])
    write_lines(tmp_path / "b.de", ["zwei"])
    write_lines(tmp_path / "b.en", ["two"])
    folder = tmp_path / "run"
    (folder / "checkpoints" / "step-00000001").mkdir(parents=True)
    saved.save(folder)
    return folder


def other_value(path: str, annotation: Any, value: Any) -> Any:
    """Another value of a key than `value`."""
    if path in OTHER:
        return OTHER[path]
    choices = [
        choice
        for part in (annotation, *get_args(annotation))
        for choice in (get_args(part) if get_origin(part) is Literal else ())
    ]
    if choices := [choice for choice in choices if choice not in (value, "auto")]:
        return choices[-1]
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value / 2 if value else 0.25
    raise AssertionError(f"{path}: give another value than {value!r} in OTHER")


class State:
    """What a run would have of a config: its token store, its plan, and its cleaned text."""

    def __init__(self, values: Mapped, root: Path, tokenizer: Tokenizer) -> None:
        self.config = config_from_mapping(values, "test")
        data = plan_data(self.config.data)
        self.store = fingerprint_of(training_texts(data, tokenizer, root / "none", {}))
        kept = [KEPT[flow.corpus] for flow in data.flows]
        plans = [
            SimpleNamespace(
                drawn=sentences_of_epoch(sampling_weights(data, stage, kept), kept),
                pairs=SimpleNamespace(before=before_of(data.flows, tokenizer)),
            )
            for stage in data.stages
        ]
        store = SimpleNamespace(fingerprint=self.store)
        prepared: Any = SimpleNamespace(config=self.config, data=data, store=store, plans=plans)
        self.plan = Prepared.plan_fingerprint.fget(prepared)  # type: ignore[attr-defined]
        self.text = "" if data.clean is None else plan_of(data, root / "work").writing_key


def before_of(flows: Any, tokenizer: Tokenizer) -> Any:
    """The table of tokens before each source, of pairs that are not there."""
    store = Store(np.zeros(0, "<u2"), np.zeros((2, 0), int), (0,) * len(flows), "", "")
    return DirectedPairs.of(store, None, tokens_before(flows, tokenizer)).before


def effect(before: Mapped, after: Mapped, run: Path, tokenizer: Any) -> str:
    """What the second config does to a run of the first one."""
    old, new = (State(values, run.parent, tokenizer) for values in (before, after))
    assert old.config != new.config
    write_whole(run / CONFIG, old.config.to_yaml())
    try:
        check_same_run(run, new.config)
    except CheckpointError as error:
        return str(error)
    if (old.text, old.store) != (new.text, new.store):
        assert old.text != new.text or old.plan != new.plan
        return "text"
    return "plan" if old.plan != new.plan else "nothing"


def check(path: str, affects: str, found: str) -> None:
    """That a change of a key did what it is to do."""
    if path == "model.max_positions":  # of sinusoids
        assert found == "nothing"
    elif affects == "model":
        assert "another model, tokenizer, start or language" in found, path
    else:
        assert found == affects, path


def base_of(run: Path, more: Mapped) -> dict[str, Any]:
    return merged(merged(BASE, {"data": {"root": str(run.parent)}}), more)


KEYS = [f"{name}.{key}" for name, model in sections().items() for key in model.model_fields]


@pytest.mark.parametrize("path", KEYS)
def test_a_key_of_a_section(path: str, run: Path, tokenizer: Tokenizer) -> None:
    section, _, key = path.partition(".")
    base = base_of(run, {})
    value = config_from_mapping(base, "test").value(path)
    field = sections()[section].model_fields[key]
    changed = other_value(path, field.annotation, value)
    if path == "data.root":
        changed = changed.format(root=run.parent)
    needed = {"train.new_vocabulary": {"train": {"init_from": "model"}}}.get(path, {})
    two = {"tokenizer": {"joint": False, "model": "m", "tgt_model": "n"}}
    if path.endswith("model") and section == "tokenizer":
        base = merged(base, {"tokenizer": {"user_defined_symbols": []}})
    base = merged(base, two if path == "tokenizer.tgt_model" else needed)
    after = merged(base, {section: {key: changed}})
    check(path, effect_of(field), effect(base, after, run, tokenizer))


def test_learned_positions_are_weights(run: Path, tokenizer: Tokenizer) -> None:
    base = base_of(run, {"model": {"positions": "learned"}})
    changed = merged(base, {"model": {"max_positions": 999}})
    assert "another model, tokenizer" in effect(base, changed, run, tokenizer)


@pytest.mark.parametrize("key", OF_A_FILE)
def test_a_key_of_a_file(key: str, run: Path, tokenizer: Tokenizer) -> None:
    """Where the key says how a file is read, the text may be another one."""
    for name in ("a.jsonl", "same.jsonl"):
        write_lines(run.parent / name, ['{"de": "ja", "en": "yes"}'])
    what, value = OF_A_FILE[key]
    entry = {"path": "a.jsonl", "src": "de", "tgt": "en"}
    sides = {"src": None, "tgt": None} if key == "directions" else {}
    base, after = (
        base_of(run, {"data": {"train": [text, {"src": "b.de", "tgt": "b.en"}]}})
        for text in (entry, entry | sides | {key: value})
    )
    assert effect(base, after, run, tokenizer) == what


INSIDE: list[tuple[str, type[BaseModel], dict[str, Any]]] = [
    ("data.train[]", TextEntry, {}),
    ("data.clean", Clean, {"data": {"clean": {"mojibake": False, "max_other_language": None}}}),
    ("data.augment", Augment, {"data": {"augment": {}}}),
    ("data.stages[]", TrainingStage, {"data": {"stages": [{"until": {"updates": 2}}, {}]}}),
    ("data.stages[].until", Until, {"data": {"stages": [{"until": {"updates": 2}}, {}]}}),
]
STAGES = {"weights": [1, 0], "augment": {}, "until": {"updates": 3}}
UNTIL = {"updates": 9, "share": 0.3}


@pytest.mark.parametrize(
    ("place", "key"),
    [
        (place, key)
        for place, (_, model, _) in enumerate(INSIDE)
        for key in model.model_fields
        if key not in OF_A_FILE and (place, key) not in [(1, "mojibake"), (1, "max_other_language")]
    ],
)
def test_a_key_inside(place: int, key: str, run: Path, tokenizer: Tokenizer) -> None:
    where, model, needed = INSIDE[place]
    field = model.model_fields[key]
    base = base_of(run, needed)
    changed = config_from_mapping(base, "test").model_dump(mode="json")
    data = changed["data"]
    inner = {
        "data.train[]": lambda: data["train"][0],
        "data.clean": lambda: data["clean"],
        "data.augment": lambda: data["augment"],
        "data.stages[]": lambda: data["stages"][0],
        "data.stages[].until": lambda: data["stages"][0]["until"],
    }[where]()
    path = f"{where}.{key}"
    tables: dict[str, dict[str, Any]] = {"data.stages[]": STAGES, "data.stages[].until": UNTIL}
    if key in tables.get(where, {}):
        inner[key] = tables[where][key]
        if key == "share":
            inner["updates"] = None
    else:
        inner[key] = other_value(path, field.annotation, inner[key])
    if key == "tgt_lang":  # into one language from each, or a token would be needed
        data["train"][1][key] = inner[key]
    check(path, effect_of(field), effect(base, changed, run, tokenizer))
