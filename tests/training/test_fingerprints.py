"""What a store or a plan depends on: each key of a text and of the section data is decided here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import write_lines
from token_stores import store_of_lengths

from mt.config.plan import plan_data
from mt.config.schema import BatchConfig, Config, DataConfig, TextEntry
from mt.data.tokens.directions import DirectedPairs, tokens_before
from mt.data.tokens.mixing import sampling_weights
from mt.data.tokens.plan import Plan
from mt.data.tokens.store import fingerprint_of
from mt.training.prepare import Prepared, training_texts

TEXTS = [{"path": "a.jsonl", "src": "de", "tgt": "en"}, {"src": "b.de", "tgt": "b.en"}]
# What changes with another value of each key of the first text: the store, and so the plan; the
# order of the data, which is the plan alone; or nothing.
OF_A_TEXT: dict[str, tuple[str, Any]] = {
    "src": ("store", "fr"),
    "tgt": ("store", "fr"),
    "path": ("nothing", "same.jsonl"),
    "format": ("store", "jsonl"),
    "name": ("store", "de-en"),
    "split": ("store", "test"),
    "delimiter": ("store", ","),
    "quoting": ("store", "csv"),
    "tags": ("store", "keep"),
    "test_set": ("nothing", None),  # training text is none, which the config's check says
    "errors": ("store", "skip"),
    "tag": ("store", "<bt>"),
    "weight": ("plan", 2.0),  # what stays of duplicates does not change
    "reverse": ("plan", True),
    "src_lang": ("plan", "fr"),
    "tgt_lang": ("plan", "fr"),
    "directions": ("nothing", ["de-en"]),
}
OF_THE_SECTION: dict[str, tuple[str, Any]] = {
    "train": ("store", TEXTS[::-1]),
    "language_tokens": ("store", True),
    "max_tokens": ("store", 39),
    "max_length_ratio": ("store", 2.0),
    "dedupe": ("store", False),
    "root": ("nothing", "elsewhere"),
    "valid": ("nothing", TEXTS[:1]),
    "test": ("nothing", TEXTS[:1]),
    "clean": ("nothing", {}),  # the cleaned text is stored in the place of the other one
    "src_lang": ("plan", "fr"),
    "tgt_lang": ("plan", "fr"),
    "temperature": ("plan", 2.0),
    "augment": ("plan", {}),
    "stages": ("plan", [{"until": {"updates": 1}, "both_directions": True}, {}]),
}


class Words:
    """A tokenizer whose tokens are the words."""

    fingerprint, joint, languages = "words", True, {"en": 4}

    def __init__(self) -> None:
        self.src = self

    def encode(self, lines: list[str]) -> list[list[int]]:
        return [[5] * len(line.split()) for line in lines]

    def pieces(self, text: str) -> list[str]:
        return text.split()


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, tmp_path / "elsewhere"):
        folder.mkdir(exist_ok=True)
        for name in ("a.jsonl", "same.jsonl"):
            write_lines(folder / name, ['{"de": "ja", "en": "yes", "fr": "oui"}'])
        write_lines(folder / "b.de", ["nein"])
        write_lines(folder / "b.en", ["no"])


def fingerprints(
    batch: BatchConfig | None = None, seed: int = 1, **changes: Any
) -> tuple[str, str]:
    """Of the store and of the plan, whose texts have 70 and 30 pairs."""
    section = {"src_lang": "de", "tgt_lang": "en", "train": TEXTS} | changes
    batch = batch or BatchConfig(tokens_per_update=300, tokens_per_batch=300)
    values = {"data": section, "batch": batch.model_dump(), "run": {"seed": seed}}
    config = Config.model_validate(values)
    data, tokenizer = plan_data(config.data), Words()
    fingerprint = fingerprint_of(training_texts(data, tokenizer, Path("none"), {}))  # type: ignore[arg-type]
    stored = store_of_lengths(np.full(100, 4), kept=(70, 30)).store
    before = tokens_before(data.flows, tokenizer)  # type: ignore[arg-type]
    pairs = DirectedPairs.of(stored, data.flows, before)
    weights = [sampling_weights(data, stage, pairs.kept) for stage in data.stages]
    prepared: Any = SimpleNamespace(
        config=config,
        data=data,
        store=SimpleNamespace(fingerprint=fingerprint),
        plans=[Plan(pairs, of_stage, batch, seed) for of_stage in weights],
    )
    return fingerprint, Prepared.plan_fingerprint.fget(prepared)  # type: ignore[attr-defined]


def check_changes(what: str, **changes: Any) -> None:
    """`what` changes, and nothing more; the plan does with the store."""
    same = [new == old for new, old in zip(fingerprints(**changes), fingerprints(), strict=True)]
    assert same == {"store": [False, False], "plan": [True, False], "nothing": [True, True]}[what]


@pytest.mark.parametrize("key", TextEntry.model_fields)
def test_a_key_of_a_text_changes_what_depends_on_it(key: str) -> None:
    what, value = OF_A_TEXT[key]
    sides = {"src": None, "tgt": None} if key == "directions" else {}
    check_changes(what, train=[TEXTS[0] | sides | {key: value}, TEXTS[1]])


@pytest.mark.parametrize("key", DataConfig.model_fields)
def test_a_key_of_the_section_changes_what_depends_on_it(key: str) -> None:
    what, value = OF_THE_SECTION[key]
    check_changes(what, **{key: value})


def test_what_stays_of_duplicates_is_a_part_of_the_store() -> None:
    check_changes("store", train=[TEXTS[0], TEXTS[1] | {"weight": 2.0}])


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("nothing", {"batch": BatchConfig(tokens_per_update=300, tokens_per_batch=20)}),
        ("nothing", {"batch": BatchConfig(tokens_per_update=300, tokens_per_batch="auto")}),
        ("plan", {"batch": BatchConfig(tokens_per_update=301)}),
        ("plan", {"seed": 2}),
    ],
)
def test_the_size_of_updates_and_the_seed_change_the_plan(
    what: str, changes: dict[str, Any]
) -> None:
    check_changes(what, **changes)
