"""Which checkpoint is the best one, and by more than chance? `train.metric`, nll, patience."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import config_of, log_of, metrics_of
from sacrebleu.metrics import bleu as sacrebleu
from sacrebleu.significance import PairedTest

from mt.evaluation.metrics import METRICS, LineMetric
from mt.model.checkpoint import load_model
from mt.runs.model_folder import find_model, read_meta
from mt.runs.outputs import drop_other_outputs, read_valid_outputs
from mt.runtime.devices import choose_device
from mt.training import validation
from mt.training.checkpoints import TrainState
from mt.training.launch import train
from mt.training.selection import BestComparison, Criterion, NewBest

# 1,000 sentences: differences of up to 0.1 go by nll.
BLEU = Criterion("bleu", 1000)


@pytest.mark.parametrize(
    ("score", "nll", "best_score", "best_nll", "better"),
    [
        (0.0, 9.0, None, None, True),  # the first one
        (0.0, 4.9, 0.0, 5.0, True),  # nothing is translated yet, but the nll falls
        (0.0, 5.0, 0.0, 5.0, False),
        (0.3, 5.1, 0.9, 5.0, False),  # both below noise: the nll alone
        (0.3, 4.9, 0.9, 5.0, True),
        (1.5, 5.1, 0.9, 5.0, True),  # above noise now
        (20.5, 2.1, 20.0, 2.0, True),  # a real difference: the nll does not matter
        (19.5, 1.9, 20.0, 2.0, False),
        (20.05, 2.1, 20.0, 2.0, False),  # too small a difference
        (19.95, 1.9, 20.0, 2.0, True),
        (20.0, 1.9, 20.0, 2.0, True),  # a tie
        (20.1, 9.0, 20.0, None, True),  # the best one is from version 0.1, without its nll
        (20.0, 0.1, 20.0, None, False),
    ],
)
def test_bleu_decides_above_noise_and_resolution_else_the_nll(
    score: float, nll: float, best_score: float | None, best_nll: float | None, better: bool
) -> None:
    assert BLEU.is_better(score, nll, best_score, best_nll) == better


@pytest.mark.parametrize(
    ("metric", "n_sentences", "score", "better"),
    [
        ("bleu", 40, 22.6, True),  # one sentence of 40 is 2.5
        ("bleu", 40, 22.4, False),
        ("chrf", 1000, 20.11, True),
        ("chrf", 1000, 20.09, False),
        ("nll", 10, 20.001, True),
        ("nll", 10, 19.999, False),
    ],
)
def test_the_resolution_is_one_sentence_and_the_nll_compares_exactly(
    metric: str, n_sentences: int, score: float, better: bool
) -> None:
    nll = -score if metric == "nll" else 9.0
    best_nll = -20.0 if metric == "nll" else 1.0
    assert Criterion(metric, n_sentences).is_better(score, nll, 20.0, best_nll) == better


def test_patience_counts_once_bleu_is_above_noise() -> None:
    assert [BLEU.counts_for_patience(best) for best in (None, 0.0, 1.0, 1.1)] == [
        False, False, False, True,
    ]  # fmt: skip
    assert Criterion("nll", 10).counts_for_patience(-9.0)
    assert Criterion("chrf", 10).counts_for_patience(0.5)


@pytest.mark.parametrize("metric", ["nll", "bleu"])
def test_a_first_validation_of_nan_does_not_remain_the_best(metric: str) -> None:
    """Finite weights may give a NaN, in fp16 for one."""
    state = TrainState(step=1)
    criterion = Criterion(metric, 1000)
    for nll in (math.nan, math.nan, 3.0):
        state.add_score(-nll if metric == "nll" else 0.0, nll, criterion)
        state.step += 1
    assert (state.best_step, state.best_nll) == (3, 3.0)


def test_small_losses_do_not_add_up() -> None:
    """BLEU falls by less than the resolution each time while the nll falls too."""
    state = TrainState(step=1)
    for i in range(100):
        state.add_score(30 - 0.09 * i, 3 - i / 1000, BLEU)
        state.step += 1
    assert (state.best_step, state.best_score) == (2, 29.91)


# --- in a training ----------------------------------------------------------------------------

VALIDATIONS = {"max_steps": 6, "valid_every": 1, "patience": 2, "keep_last": 1, "log_every": 6}


def best_step(run_dir: Path) -> int:
    return int(read_meta(find_model(run_dir), [])["step"])


@pytest.mark.parametrize(("slope", "best"), [(-0.1, 6), (0.1, 1)])
def test_at_bleu_0_the_nll_chooses_and_patience_does_not_count(
    slope: float,
    best: int,
    tiny_mapping: Mapping[str, Any],
    scripted_validations: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Version 0.1 stopped after the third of these, and its best model was the first."""
    scripted_validations(*((0.0, 6.0 + slope * step) for step in range(6)))
    config = config_of(tiny_mapping, train=VALIDATIONS, data={"test": []})
    outcome = train(config, tmp_path, "cpu")
    assert outcome.reason.startswith("all 6 updates are done; best model (BLEU 0.00 on the ")
    assert best_step(tmp_path) == best


@pytest.mark.parametrize(
    ("metric", "best", "said"),
    [("bleu", 3, "BLEU 30.00"), ("chrf", 2, "chrF2 50.00"), ("nll", 2, "nll 2.000")],
)
def test_the_metric_chooses_the_best(
    metric: str,
    best: int,
    said: str,
    tiny_mapping: Mapping[str, Any],
    scripted_validations: Callable[..., None],
    tmp_path: Path,
) -> None:
    scripted_validations((10.0, 3.0), (20.0, 2.0), (30.0, 2.5))
    changes = {**VALIDATIONS, "max_steps": 3, "metric": metric}
    outcome = train(config_of(tiny_mapping, train=changes, data={"test": []}), tmp_path, "cpu")
    assert f"best model ({said} on the validation set)" in outcome.reason
    assert best_step(tmp_path) == best
    assert all(("chrf" in line) == (metric == "chrf") for line in metrics_of(tmp_path, "valid"))


def test_scores_of_another_metric_do_not_count(
    tiny_mapping: Mapping[str, Any], scripted_validations: Callable[..., None], tmp_path: Path
) -> None:
    scripted_validations(
        (90.0, 3.0), (90.0, 3.0), (1.0, 2.0)
    )  # step 1, again with the new metric, step 2
    for steps, metric in ((1, "bleu"), (2, "nll")):
        changes = {**VALIDATIONS, "max_steps": steps, "metric": metric}
        train(config_of(tiny_mapping, train=changes, data={"test": []}), tmp_path, "cpu")
    assert "train.metric or the tokenizer of BLEU has changed" in log_of(tmp_path)
    assert best_step(tmp_path) == 2


def test_a_state_of_version_0_1_has_no_nll_of_its_best() -> None:
    saved = {"step": 4, "best_score": 7.0, "best_step": 2, "judged_on": "text"}
    state = TrainState.from_saved(saved)
    assert (state.best_score, state.best_nll, state.valid_fingerprint) == (7.0, None, "text")
    state.add_score(7.0, 1.0, BLEU)
    assert (state.best_step, state.bad_validations) == (2, 1)
    state.add_score(7.5, 1.0, BLEU)
    assert (state.best_step, state.best_nll) == (4, 1.0)


# --- a new best one: better by more than chance? ------------------------------------------------

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
        translations = validation.translate(
            loaded.config, loaded.model, loaded.tokenizer, device, lines
        )
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
    _, scores = PairedTest(named, {"BLEU": sacrebleu.BLEU()}, [references], test_type="bs")()
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
