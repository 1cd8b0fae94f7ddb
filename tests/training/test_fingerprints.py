"""What a store or a plan depends on, of the keys of a text that test_affects.py does not change."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import write_lines
from token_stores import store_of_lengths

from mt.config.plan import plan_data
from mt.config.schema import BatchConfig, Config
from mt.data.tokens.directions import DirectedPairs, tokens_before
from mt.data.tokens.mixing import sampling_weights
from mt.data.tokens.plan import Plan
from mt.data.tokens.store import fingerprint_of
from mt.training.prepare import Prepared, training_texts

TEXTS = [{"path": "a.jsonl", "src": "de", "tgt": "en"}, {"src": "b.de", "tgt": "b.en"}]
# What changes with another value of each key of the first text: the store, and so the plan; the
# order of the data, which is the plan alone; or nothing.
OF_A_TEXT: dict[str, tuple[str, Any]] = {
    "path": ("nothing", "same.jsonl"),
    "format": ("store", "jsonl"),
    "name": ("store", "de-en"),
    "split": ("store", "test"),
    "delimiter": ("store", ","),
    "quoting": ("store", "csv"),
    "errors": ("store", "skip"),
    "directions": ("nothing", ["de-en"]),
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


def fingerprints(**changes: Any) -> tuple[str, str]:
    """Of the store and of the plan, whose texts have 70 and 30 pairs."""
    section = {"src_lang": "de", "tgt_lang": "en", "train": TEXTS} | changes
    batch = BatchConfig(tokens_per_update=300, tokens_per_batch=300)
    config = Config.model_validate({"data": section, "batch": batch.model_dump()})
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
        plans=[Plan(pairs, of_stage, batch, seed=1) for of_stage in weights],
    )
    return fingerprint, Prepared.plan_fingerprint.fget(prepared)  # type: ignore[attr-defined]


def check_changes(what: str, **changes: Any) -> None:
    """`what` changes, and nothing more; the plan does with the store."""
    same = [new == old for new, old in zip(fingerprints(**changes), fingerprints(), strict=True)]
    assert same == {"store": [False, False], "plan": [True, False], "nothing": [True, True]}[what]


@pytest.mark.parametrize("key", OF_A_TEXT)
def test_a_key_of_a_text_changes_what_depends_on_it(key: str) -> None:
    what, value = OF_A_TEXT[key]
    sides = {"src": None, "tgt": None} if key == "directions" else {}
    check_changes(what, train=[TEXTS[0] | sides | {key: value}, TEXTS[1]])


def test_what_stays_of_duplicates_is_a_part_of_the_store() -> None:
    check_changes("store", train=[TEXTS[0], TEXTS[1] | {"weight": 2.0}])
