"""Whether a new best validation is better by more than chance: the log, metrics.jsonl, resuming."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from conftest import log_of, metrics_of
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from mt.evaluation.metrics import METRICS, LineMetric
from mt.model.checkpoint import load_model
from mt.runs.outputs import drop_other_outputs, read_valid_outputs
from mt.runtime.devices import choose_device
from mt.training.selection import BestComparison, NewBest
from mt.training.validation import translate

Outputs = dict[int, list[str]]


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def references(tiny_corpus: Path) -> list[str]:
    return lines_of(tiny_corpus / "valid.tgt")


@pytest.fixture(scope="module")
def outputs(tiny_run: Path, tiny_corpus: Path) -> Outputs:
    """What the two checkpoints of the tiny run make of its validation set."""
    found = {}
    for step in (100, 200):
        loaded = load_model(tiny_run / "checkpoints" / f"step-{step:08d}")
        device = choose_device("cpu", "fp32")
        lines = lines_of(tiny_corpus / "valid.src")
        translations = translate(loaded.config, loaded.model, loaded.tokenizer, device, lines)
        found[step] = [one.texts[0] for one in translations]
    return found


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[[list[str]], Path]:
    """`run_of(lines)`: a run directory that has these outputs of its best validation, at 100."""

    def made(lines: list[str]) -> Path:
        (tmp_path / "outputs").mkdir()
        text = "".join(
            json.dumps({"source": "", "reference": "", "output": line}) + "\n" for line in lines
        )
        path = tmp_path / "outputs" / "step-00000100-valid.jsonl"
        path.write_text(text, encoding="utf-8")
        return tmp_path

    return made


def line_metric(name: str, ref: list[str]) -> LineMetric:
    metric = METRICS[name]([ref])
    assert isinstance(metric, LineMetric)
    return metric


def test_a_new_best_is_compared_with_the_last_best(
    tiny_run: Path, references: list[str], outputs: Outputs
) -> None:
    """The tiny run validates twice; sacreBLEU compares the same translations."""
    first, second = metrics_of(tiny_run, "valid")
    assert first["new_best"] is True
    assert "p_value" not in first
    named: list[tuple[str, Sequence[str]]] = [(str(step), lines) for step, lines in outputs.items()]
    _, scores = PairedTest(named, {"BLEU": BLEU()}, [references], test_type="bs")()
    assert second["compared_with"] == 100
    assert second["p_value"] == scores["BLEU"][1].p_value
    assert second["difference"] == pytest.approx(second["bleu"] - first["bleu"])
    verdict = "significant" if second["p_value"] < 0.05 else "may be chance"
    assert (
        f" | new best: {second['difference']:+.2f} BLEU over step 100, "
        f"p = {second['p_value']:.2g}: {verdict}\n"
    ) in log_of(tiny_run)


@pytest.mark.parametrize(("name", "title"), [("bleu", "BLEU"), ("chrf", "chrF2"), ("ter", "TER")])
def test_a_resumed_run_finds_the_same_as_an_uninterrupted_one(
    references: list[str], outputs: Outputs, run_of: Callable[[list[str]], Path],
    name: str, title: str,
) -> None:  # fmt: skip
    """After resuming, the outputs of the last best come from a file."""
    run_dir = run_of(outputs[100])
    metric = line_metric(name, references)
    uninterrupted = BestComparison(run_dir)
    uninterrupted.new_best(metric, outputs[100], 100, None)
    found = uninterrupted.new_best(metric, outputs[200], 200, 100)
    assert found.comparison is not None
    assert found.metric == title
    assert BestComparison(run_dir).new_best(metric, outputs[200], 200, 100) == found


def test_where_the_last_best_is_not_known_nothing_is_said(
    references: list[str], run_of: Callable[[list[str]], Path]
) -> None:
    """In runs of version 0.1; where the file is damaged; where the text is another one."""
    run_dir = run_of(references[:-1])
    metric = line_metric("bleu", references)
    assert BestComparison(run_dir).new_best(metric, references, 200, 100) == NewBest()
    path = run_dir / "outputs" / "step-00000100-valid.jsonl"
    path.write_text('{"output": "cut', encoding="utf-8")
    assert BestComparison(run_dir).new_best(metric, references, 200, 100) == NewBest()
    path.unlink()
    found = BestComparison(run_dir).new_best(metric, references, 200, 100, by_nll=True)
    assert str(found) == "new best by nll"
    assert found.figures() == {"new_best": True}


def test_outputs_of_earlier_bests_go_once_the_checkpoint_is_saved(
    run_of: Callable[[list[str]], Path],
) -> None:
    run_dir = run_of(["a", "ß"])
    (run_dir / "outputs" / "step-00000200-valid.jsonl").touch()
    drop_other_outputs(run_dir, 100)
    assert read_valid_outputs(run_dir, 100) == ["a", "ß"]
    assert read_valid_outputs(run_dir, 200) is None
