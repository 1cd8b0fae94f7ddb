"""Sets that `data.valid` and `data.test` hold out of the training text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Mt, QuickConfig, lines_of, log_of, metrics_of, write_lines
from messages import raises_saying, says

from mt.config.plan import HELD_OUT, plan_data
from mt.data.reading.check import check_data
from mt.data.reading.corpus_record import CorpusRecord, described
from mt.data.tokens.tokenizer import UNK, Tokenizer
from mt.errors import CheckpointError, DataError
from mt.interop.exporter import model_card
from mt.model.checkpoint import load_model
from mt.runs.run_dir import read_manifest
from mt.runtime.distributed import World
from mt.training.launch import prepare_data, train
from mt.training.prepare import hold_out
from mt.training.runlog import RunLog

SETS = {"valid": [{"split": 30}], "test": [{"split": 20}, {"split": 10}]}


def pairs_at(stem: Path) -> list[tuple[str, str]]:
    """The lines of two files side by side."""
    return list(zip(lines_of(Path(f"{stem}.src")), lines_of(Path(f"{stem}.tgt")), strict=True))


def test_a_run_trains_on_what_it_does_not_hold_out(
    quick_config: QuickConfig, tiny_corpus: Path, tmp_path: Path, mt: Mt
) -> None:
    config = quick_config({"data": SETS}, train={"max_steps": 2, "valid_every": 2})
    run = tmp_path / "run"
    assert train(config, run, "cpu").exit_code == 0
    folder = run / HELD_OUT
    names = ("train-0", "valid-0", "test-0", "test-1")
    texts = {name: pairs_at(folder / name) for name in names}
    assert {name: len(pairs) for name, pairs in texts.items()} == {
        "train-0": 1940, "valid-0": 30, "test-0": 20, "test-1": 10
    }  # fmt: skip
    whole = pairs_at(tiny_corpus / "train")
    assert sorted(pair for pairs in texts.values() for pair in pairs) == sorted(whole)
    kept = iter(whole)
    assert all(pair in kept for pair in texts["train-0"])  # in their order
    assert [line["lines"] for line in metrics_of(run, "valid")] == [30]
    assert [line["lines"] for line in metrics_of(run, "test")] == [20, 10]
    assert {str(tiny_corpus / "train.src")} < read_manifest(run)["data"].keys()
    made = (folder / "made.json").stat().st_mtime_ns
    longer = quick_config({"data": SETS}, train={"max_steps": 3, "valid_every": 2})
    assert train(longer, run, "cpu").exit_code == 0
    assert (folder / "made.json").stat().st_mtime_ns == made
    assert says(log_of(run), "resuming after update 2")
    assert "order of the data" not in log_of(run)
    assert mt("evaluate", "--model", run, "--metrics", "bleu").code == 0
    assert mt("report", run, "-o", tmp_path / "report.html").code == 0
    assert says(model_card(load_model(run), ""), "train.src", "data.valid[0], held out, src | 30")
    assert {line["name"] for line in metrics_of(run, "test")} == {"data.test[0]", "data.test[1]"}
    config_of_model = json.loads((run / "checkpoints/last/meta.json").read_bytes())["config"]
    assert config_of_model["data"]["valid"][0]["split"] == 30  # no path: the run may be moved
    moved = tmp_path / "moved"
    run.rename(moved)
    assert mt("evaluate", "--model", moved, "--metrics", "bleu").code == 0
    assert train(longer, moved, "cpu").exit_code == 0
    named = {"data": {"valid": [{"split": 30}, {"split": 20}], "test": [{"split": 10}]}}
    assert train(quick_config(named, train={"max_steps": 4}), moved, "cpu").exit_code == 0
    assert pairs_at(moved / HELD_OUT / "valid-1") == texts["test-0"]
    for change in ({"run": {"seed": 7}}, {"data": {"valid": [{"split": 31}], "test": []}}):
        with raises_saying(CheckpointError, moved, "has been trained on", "held out", "--fresh"):
            train(quick_config({"data": SETS}, change), moved, "cpu")
    train(quick_config(train={"max_steps": 5}), moved, "cpu")  # on the whole text
    with raises_saying(CheckpointError, moved, "has been trained on", "held out", "--fresh"):
        train(longer, moved, "cpu")
    assert len(lines_of(moved / HELD_OUT / "valid-0.src")) == 30


def test_a_text_of_which_nothing_is_held_out_does_not_prevent_resuming(
    quick_config: QuickConfig, tiny_corpus: Path, tmp_path: Path
) -> None:
    """Its file in the run has the same bytes as the text itself."""
    stems = tiny_corpus / "train", tmp_path / "other"
    texts = [{side: f"{stem}.{side}" for side in ("src", "tgt")} for stem in stems]
    for path in texts[1].values():
        write_lines(Path(path), [f"{path[-3:]} {n}" for n in range(99)])
    for steps in (1, 2):
        data = {"train": texts, "valid": [{"split": 9}], "test": []}
        config = quick_config({"data": data}, train={"max_steps": steps})
        assert train(config, tmp_path / "run", "cpu").exit_code == 0
    assert pairs_at(tmp_path / "run" / HELD_OUT / "train-1") == pairs_at(tmp_path / "other")


def test_sets_are_drawn_anew_from_another_column(quick_config: QuickConfig, tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.tsv", [f"a{n}\tb{n}\tc{n}" for n in range(300)])
    run = tmp_path / "run"
    for tgt, letter in (("2", "b"), ("3", "c")):
        text = {"path": str(tmp_path / "rows.tsv"), "src": "1", "tgt": tgt}
        config = quick_config({"data": {"train": text, "valid": [{"split": 9}], "test": []}})
        hold_out(config, RunLog(run, 1), World())
        assert all(line[0] == letter for line in lines_of(run / HELD_OUT / "train-0.tgt"))


def test_a_vocabulary_is_learned_without_what_is_held_out(
    quick_config: QuickConfig, tiny_corpus: Path, tmp_path: Path, mt: Mt
) -> None:
    """By training, by `mt tokenizer train`, and again where other sets are drawn."""
    texts = {side: lines_of(tiny_corpus / f"train.{side}") for side in ("src", "tgt")}
    for side, lines in texts.items():  # a letter of its own in each line
        write_lines(tmp_path / side, [f"{chr(0x4E00 + n)} {line}" for n, line in enumerate(lines)])
    data: dict[str, Any] = {"train": {side: str(tmp_path / side) for side in texts}}
    data |= {"valid": [{"split": 30}], "test": []}
    learned = []
    for seed in (1, 2):
        vocabulary = {"vocab_size": 2200, "byte_fallback": False}
        config = quick_config({"data": data}, tokenizer=vocabulary, run={"seed": seed})
        prepare_data(config, tmp_path / "run")
        held_out = lines_of(tmp_path / "run" / HELD_OUT / "valid-0.src")
        tokenizer = Tokenizer.load(tmp_path / "run")
        kept = lines_of(tmp_path / "run" / HELD_OUT / "train-0.src")
        assert all(UNK in tokenizer.src.encode([line])[0] for line in held_out)
        assert UNK not in [i for row in tokenizer.src.encode(kept) for i in row]
        (tmp_path / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
        alone = tmp_path / f"{seed}.model"
        assert mt("tokenizer", "train", "-c", tmp_path / "config.yaml", "-o", alone).code == 0
        learned.append((tmp_path / "run" / "tokenizer.model").read_bytes())
        assert alone.read_bytes() == learned[-1]
    assert learned[0] != learned[1]


def test_the_corpus_behind_held_out_sets_is_recorded(
    quick_config: QuickConfig, tiny_corpus: Path, tmp_path: Path
) -> None:
    """A `corpus.yaml` beside the whole text names its licence."""
    folder = tmp_path / "fetched"
    folder.mkdir()
    for side in ("src", "tgt"):
        write_lines(folder / f"a.{side}", lines_of(tiny_corpus / f"train.{side}")[:300])
    about: dict[str, Any] = {"source": "X", "name": "X", "version": "1", "languages": [], "url": []}
    about |= {"licence": "CC0", "citation": "us", "files": described([*folder.iterdir()])}
    (folder / "corpus.yaml").write_text(CorpusRecord.model_validate(about).model_dump_json())
    corpus = {side: str(folder / f"a.{side}") for side in ("src", "tgt")}
    held_out = {"train": corpus, "valid": [{"split": 10}], "test": []}
    train(quick_config({"data": held_out}, train={"max_steps": 1}), tmp_path / "run", "cpu")
    (corpus_of_run,) = read_manifest(tmp_path / "run")["corpora"]
    assert (corpus_of_run["licence"], corpus_of_run["changed"]) == ("CC0", [])


def test_too_large_sets_are_faults_of_the_config(quick_config: QuickConfig, tmp_path: Path) -> None:
    config = quick_config({"data": {"valid": [{"split": 1500}], "test": []}})
    (fault,) = check_data(plan_data(config.data)).faults
    assert says(fault, "data.train[0]", "2,000 pairs", "1,500", "at most half")
    files = {side: str(tmp_path / side) for side in ("src", "tgt")}
    write_lines(tmp_path / "src", ["a", "b"])
    write_lines(tmp_path / "tgt", ["a"])
    faulty = quick_config({"data": {"train": files, "valid": [{"split": 1500}], "test": []}})
    (fault,) = check_data(plan_data(faulty.data)).faults  # not that it has too few pairs
    assert says(fault, "tgt has 1 line", "src has 2")
    with pytest.raises(DataError):
        train(config, tmp_path / "run", "cpu")
    assert not (tmp_path / "run").exists()
