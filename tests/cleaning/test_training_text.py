"""With `data.clean` a run trains on cleaned text, made once; the manifest names the originals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import QuickConfig, log_of
from messages import raises_saying, says
from pydantic import TypeAdapter

from mt.api import cleaner
from mt.cleaning import executors
from mt.cleaning.report import CleaningReport
from mt.config.plan import plan_data
from mt.config.schema import Clean, Config
from mt.errors import DataError
from mt.files import sha256_of
from mt.runs.run_dir import STORE, read_manifest
from mt.training import launch
from mt.training.outcome import Outcome

CHANGES: dict[str, Any] = {"train": {"max_steps": 1, "valid_every": 1}}


def train(config: Config, run_dir: Path, dry_run: bool = False) -> Outcome:
    return launch.train(config, run_dir, "cpu", dry_run=dry_run, clean=cleaner(config))


@pytest.fixture
def dirty(tiny_corpus: Path, quick_config: QuickConfig, tmp_path: Path) -> Config:
    """The tiny corpus with an empty pair, a pair twice, one of the validation set, and spaces."""
    valid = [(tiny_corpus / f"valid.{side}").read_text().split("\n")[3] for side in ("src", "tgt")]
    texts = [["", "ja" * 9], ["Null NULL!", "Zero zero"], ["null null.", "zero zero"], valid]
    for number, side in enumerate(("src", "tgt")):
        lines = (tiny_corpus / f"train.{side}").read_text().split("\n")[:300]
        lines = [f"\u200b{lines[0]}", *lines[1:], *(pair[number] for pair in texts)]
        (tmp_path / f"d.{side}").write_text("\n".join(lines) + "\n")
    files = {side: str(tmp_path / f"d.{side}") for side in ("src", "tgt")}
    return quick_config(
        CHANGES,
        data={"train": [{**files, "weight": 2.0}], "test": [], "clean": {}},
        tokenizer={"vocab_size": 300},
    )


def test_a_run_trains_on_cleaned_text_and_cleans_it_once(
    dirty: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert train(dirty, run).exit_code == 0
    log = log_of(run)
    report = TypeAdapter(CleaningReport).validate_json(
        (run / STORE / "cleaned" / "report.json").read_text()
    )
    kept = report.corpora[0].kept
    assert says(
        log, "data.train[0]", f"{kept} of 304 pairs kept, ", " of them repaired; rejected: "
    )
    assert report.rejected("leak") >= 1
    assert report.rejected("duplicate") >= 1
    assert says(log, "data.valid[0]: of 40 sentences")
    cleaned = (run / STORE / "cleaned" / "0.src").read_text()
    assert cleaned.count("\n") == kept
    assert "\u200b" not in cleaned
    manifest = read_manifest(run)
    assert manifest["pairs"] == kept
    source = plan_data(dirty.data).corpora[0].source
    assert {name for name in manifest["data"] if "valid" not in name} == {source.src, source.tgt}
    assert manifest["data"][source.src] == {"sha256": sha256_of(Path(source.src)), "lines": 304}

    monkeypatch.setattr(executors, "STAGES", None)  # cleaning again would fail
    longer = dirty.model_copy(update={"train": dirty.train.model_copy(update={"max_steps": 2})})
    before = json.loads((run / STORE / "train" / "meta.json").read_text())
    assert train(longer, run).exit_code == 0
    assert json.loads((run / STORE / "train" / "meta.json").read_text()) == before


def test_another_threshold_cleans_again(dirty: Config, tmp_path: Path) -> None:
    run = tmp_path / "run"
    clean = dirty.data.clean
    assert clean is not None
    for limit in (200, 3):
        data = dirty.data.model_copy(
            update={"clean": clean.model_copy(update={"max_words": limit})}
        )
        train(dirty.model_copy(update={"data": data}), run, dry_run=limit == 3)
    assert not list(run.rglob("cleaning*"))


def test_a_corpus_of_which_nothing_stays_ends_the_run(dirty: Config, tmp_path: Path) -> None:
    data = dirty.data.model_copy(update={"clean": Clean(max_chars=1)})
    with raises_saying(DataError, "data.train[0]", "leaves no pair", "0 of 304", "characters"):
        train(dirty.model_copy(update={"data": data}), tmp_path / "run")
    assert not (tmp_path / "run" / STORE / "cleaned").exists()
