"""Which checkpoint is the best one, and by more than chance? `train.metric`, nll, patience."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import config_of, lines_of, log_of, metrics_of
from messages import says
from sacrebleu.metrics import bleu as sacrebleu
from sacrebleu.significance import PairedTest

from mt.evaluation.metrics import METRICS
from mt.evaluation.significance import Comparison, resample
from mt.model.checkpoint import load_model
from mt.runs.model_folder import find_model, read_meta
from mt.runs.outputs import drop_other_outputs, read_valid_outputs, valid_output_steps
from mt.runtime.devices import choose_device
from mt.training import validation
from mt.training.checkpoints import TrainState
from mt.training.launch import train
from mt.training.selection import BestComparison, Criterion, Difference

BLEU = Criterion("bleu")


def ties_up_to(tie: float, metric: str = "BLEU") -> Difference:
    return Difference(metric, 1, Comparison(0.3, 0.21), tie)


@pytest.mark.parametrize(
    ("score", "nll", "best_score", "best_nll", "better"),
    [
        (0.0, 9.0, None, None, True),  # the first one
        (0.0, 4.9, 0.0, 5.0, True),  # nothing is translated yet, but the nll falls
        (0.0, 5.0, 0.0, 5.0, False),
        (0.3, 5.1, 0.9, 5.0, False),  # both below noise: the nll alone
        (0.3, 4.9, 0.9, 5.0, True),
        (1.0, 5.1, 0.5, 5.0, False),  # at its upper end
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
def test_bleu_decides_above_noise_and_ties_else_the_nll(
    score: float, nll: float, best_score: float | None, best_nll: float | None, better: bool
) -> None:
    best = best_score, best_nll, None
    assert BLEU.decide(score, nll, best, ties_up_to(0.1)).is_best == better


@pytest.mark.parametrize(
    ("metric", "difference", "score", "better"),
    [
        ("chrf", ties_up_to(0.1, "chrF2"), 20.11, True),
        ("chrf", ties_up_to(0.1, "chrF2"), 20.09, False),
        ("bleu", None, 20.001, True),  # the outputs of the best one are not known
        ("bleu", None, 20.0, False),
        ("nll", ties_up_to(0.1), 20.001, True),
        ("nll", ties_up_to(0.1), 19.999, False),
        ("comet", ties_up_to(0.1), 20.001, True),
    ],
)
def test_ties_are_those_of_the_metric_and_the_nll_and_comet_compare_exactly(
    metric: str, difference: Difference | None, score: float, better: bool
) -> None:
    nll = -score if metric == "nll" else 9.0
    best_nll = -20.0 if metric == "nll" else 1.0
    decision = Criterion(metric).decide(score, nll, (20.0, best_nll, 20.0), difference)
    assert decision.is_best == better


@pytest.mark.parametrize(
    ("metric", "score", "nll", "best", "why"),
    [
        ("bleu", 20.3, 2.0, (20.0, 1.9, 20.0), "new best: +0.30 BLEU over step 1, p = 0.21: may"),
        ("bleu", 19.0, 1.8, (20.0, 1.9, 20.0), "no new best: +0.30 BLEU over step 1, p = 0.21"),
        (
            "bleu",
            19.9,
            1.8,
            (20.0, 1.9, 20.0),
            "new best by nll, 1.800 … 1.900: +0.30 BLEU over step 1 is a tie",
        ),
        ("bleu", 19.9, 2.0, (20.0, 1.9, 20.0), "no new best by nll, 2.000 … a tie … up to 0.20"),
        ("bleu", 19.9, 1.8, (20.0, 1.9, 20.2), "no new best: … a tie … but BLEU 20.20 was reached"),
        ("bleu", 0.2, 7.1, (0.9, 7.0, 0.9), "no new best by nll, 7.100 … BLEU up to 1 is noise"),
        ("nll", -1.8, 1.8, (-1.9, 1.9, -1.9), "new best: nll 1.800 against nll 1.900; +0.30 BLEU"),
        ("nll", -1.8, 1.8, (-1.7, 1.7, -1.7), "no new best: nll 1.800 against nll 1.700"),
    ],
)
def test_the_log_says_why(
    metric: str, score: float, nll: float, best: tuple[float, float, float], why: str
) -> None:
    decision = Criterion(metric).decide(score, nll, best, ties_up_to(0.2))
    assert str(decision).startswith(why.split(" … ")[0])
    assert says(str(decision), *why.split(" … "))
    assert bool(decision.figures()) == why.startswith("new")


@pytest.mark.parametrize("metric", ["nll", "bleu"])
def test_a_first_validation_of_nan_does_not_remain_the_best(metric: str) -> None:
    """Finite weights may give a NaN, in fp16 for one."""
    state = TrainState(step=1)
    criterion = Criterion(metric)
    for nll in (math.nan, math.nan, 3.0):
        state.add_score(-nll if metric == "nll" else 0.0, nll, criterion)
        state.step += 1
    assert (state.best_step, state.best_nll) == (3, 3.0)


def test_small_losses_do_not_add_up() -> None:
    """BLEU falls by less than a tie each time while the nll falls too."""
    state = TrainState(step=1)
    for i in range(100):
        state.add_score(30 - 0.09 * i, 3 - i / 1000, BLEU, ties_up_to(0.1))
        state.step += 1
    assert (state.best_step, state.best_score) == (2, 29.91)


# --- in a training ----------------------------------------------------------------------------

VALIDATIONS = {"max_steps": 6, "valid_every": 1, "patience": 2, "keep_last": 1, "log_every": 6}


def best_step(run_dir: Path) -> int:
    return int(read_meta(find_model(run_dir), [])["step"])


@pytest.mark.parametrize(
    ("slope", "best", "reason"),
    [
        (-0.1, 6, "all 6 updates are done"),
        (3.0, 1, "no better validation in the last 2, at update 3"),
    ],
)
def test_at_bleu_0_the_nll_chooses_and_patience_counts_it(
    slope: float,
    best: int,
    reason: str,
    tiny_mapping: Mapping[str, Any],
    scripted_validations: Callable[..., None],
    tmp_path: Path,
) -> None:
    """A training that diverges ends."""
    scripted_validations(*((0.0, 6.0 + slope * step) for step in range(6)))
    config = config_of(tiny_mapping, train=VALIDATIONS, data={"test": []})
    outcome = train(config, tmp_path, "cpu")
    assert outcome.reason.startswith(f"{reason}; best model (BLEU 0.00 on the ")
    assert log_of(tmp_path).count(" | patience 2 of 2\n") == (slope > 0)
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


# --- a new best one: better by more than chance? ------------------------------------------------

Outputs = dict[int, list[str]]


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


def test_of_40_lines_the_higher_score_is_kept(
    references: list[str], outputs: Outputs, run_of: Callable[[list[str]], Path]
) -> None:
    """What ties is measured on the sentences: a quarter of the differences that chance makes."""
    metric = METRICS["bleu"]([references])
    difference = BestComparison(run_of(outputs[100])).compare(metric, outputs[200], 200, 100)
    assert difference is not None
    values = [resample(metric, metric.statistics(outputs[step])) for step in (100, 200)]
    by_chance = abs(values[1] - values[0] - (values[1] - values[0]).mean())
    assert sum(by_chance < difference.tie) == pytest.approx(250, abs=1)


@pytest.mark.parametrize(("name", "title"), [("bleu", "BLEU"), ("chrf", "chrF2"), ("ter", "TER")])
def test_a_resumed_run_finds_the_same_as_an_uninterrupted_one(
    references: list[str], outputs: Outputs, run_of: Callable[[list[str]], Path],
    name: str, title: str,
) -> None:  # fmt: skip
    """After resuming, the outputs of the last best come from a file."""
    run_dir = run_of(outputs[100])
    metric = METRICS[name]([references])
    uninterrupted = BestComparison(run_dir)
    uninterrupted.compare(metric, outputs[100], 100, None)
    found = uninterrupted.compare(metric, outputs[200], 200, 100)
    assert found is not None
    assert found.metric == title
    assert BestComparison(run_dir).compare(metric, outputs[200], 200, 100) == found


def test_where_the_last_best_is_not_known_nothing_is_compared(
    references: list[str], run_of: Callable[[list[str]], Path]
) -> None:
    """In runs of version 0.1; where the file is damaged; where the text is another one."""
    run_dir = run_of(references[:-1])
    metric = METRICS["bleu"]([references])
    assert BestComparison(run_dir).compare(metric, references, 200, 100) is None
    path = run_dir / "outputs" / "step-00000100-valid.jsonl"
    path.write_text('{"output": "cut', encoding="utf-8")
    assert BestComparison(run_dir).compare(metric, references, 200, 100) is None
    path.unlink()
    assert BestComparison(run_dir).compare(metric, references, 200, 100) is None
    decision = BLEU.decide(14.33, 2.0, (12.95, 1.9, 12.95))
    assert str(decision) == "new best: BLEU 14.33 against BLEU 12.95"
    assert decision.figures() == {"new_best": True}
    tied = BLEU.decide(14.33, 1.8, (14.33, 1.9, 14.33))  # equal scores tie
    assert tied.figures() == {"new_best": True, "by": "nll"}


def test_outputs_stay_while_a_checkpoint_needs_them(run_of: Callable[[list[str]], Path]) -> None:
    """Those of the best validation until each checkpoint, from which a run may resume."""
    run_dir = run_of(["a", "ß"])
    for step in (50, 200, 400):
        (run_dir / "outputs" / f"step-{step:08d}-valid.jsonl").touch()
    for step in (150, 300):
        (run_dir / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    drop_other_outputs(run_dir)
    assert valid_output_steps(run_dir) == [100, 200]
    assert read_valid_outputs(run_dir, 100) == ["a", "ß"]
