"""Which checkpoint is the best one: `train.metric`, ties by nll, and when patience counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import config_of, log_of, metrics_of
from hypothesis import given
from hypothesis import strategies as st

from mt.evaluation.metrics import Score
from mt.model.checkpoint import find_model, read_meta
from mt.training import validation
from mt.training.checkpoints import TrainState
from mt.training.launch import train
from mt.training.selection import Criterion, ValidationResult

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


def test_the_resolution_is_one_sentence_of_the_validation_set() -> None:
    assert Criterion("bleu", 1000).resolution == Criterion("chrf", 1000).resolution == 0.1
    assert Criterion("bleu", 40).resolution == 2.5


@given(st.floats(-20, -0.1), st.floats(-20, -0.1))
def test_the_metric_nll_compares_exactly(score: float, best: float) -> None:
    assert Criterion("nll", 10).is_better(score, -score, best, -best) == (score > best)


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


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`scripted((bleu, nll), ...)`: the results of the validations to come; chrF is always 50."""

    def script(*results: tuple[float, float]) -> None:
        left = iter(results)

        def evaluate(self: validation.Validation, *_: Any) -> ValidationResult:
            value, nll = next(left)
            scores = {"bleu": Score("BLEU", value, "scripted")}
            if self.config.train.metric == "chrf":
                scores["chrf"] = Score("chrF2", 50.0, "scripted")
            return ValidationResult(nll, scores, self.ref)

        monkeypatch.setattr(validation.Validation, "evaluate", evaluate)

    return script


def best_step(run_dir: Path) -> int:
    return int(read_meta(find_model(run_dir), [])["step"])


def test_falling_nll_at_bleu_0_is_an_improvement(
    tiny_mapping: Mapping[str, Any], scripted: Callable[..., None], tmp_path: Path
) -> None:
    """Version 0.1 stopped after the third of these, and its best model was the first."""
    scripted(*((0.0, 6.0 - step / 10) for step in range(6)))
    config = config_of(tiny_mapping, train=VALIDATIONS, data={"test": []})
    outcome = train(config, tmp_path, "cpu")
    assert outcome.reason.startswith("all 6 updates are done; best model (BLEU 0.00 on the ")
    assert best_step(tmp_path) == 6


def test_below_noise_a_rising_nll_does_not_end_training(
    tiny_mapping: Mapping[str, Any], scripted: Callable[..., None], tmp_path: Path
) -> None:
    scripted(*((0.0, 6.0 + step / 10) for step in range(6)))
    config = config_of(tiny_mapping, train=VALIDATIONS, data={"test": []})
    assert train(config, tmp_path, "cpu").reason.startswith("all 6 updates are done")
    assert best_step(tmp_path) == 1


@pytest.mark.parametrize(
    ("metric", "best", "said"),
    [("bleu", 3, "BLEU 30.00"), ("chrf", 2, "chrF2 50.00"), ("nll", 2, "nll 2.000")],
)
def test_the_metric_chooses_the_best(
    metric: str,
    best: int,
    said: str,
    tiny_mapping: Mapping[str, Any],
    scripted: Callable[..., None],
    tmp_path: Path,
) -> None:
    scripted((10.0, 3.0), (20.0, 2.0), (30.0, 2.5))
    changes = {**VALIDATIONS, "max_steps": 3, "metric": metric}
    outcome = train(config_of(tiny_mapping, train=changes, data={"test": []}), tmp_path, "cpu")
    assert f"best model ({said} on the validation set)" in outcome.reason
    assert best_step(tmp_path) == best
    assert all(("chrf" in line) == (metric == "chrf") for line in metrics_of(tmp_path, "valid"))


def test_scores_of_another_metric_do_not_count(
    tiny_mapping: Mapping[str, Any], scripted: Callable[..., None], tmp_path: Path
) -> None:
    scripted((90.0, 3.0), (90.0, 3.0), (1.0, 2.0))  # step 1, again with the new metric, step 2
    for steps, metric in ((1, "bleu"), (2, "nll")):
        changes = {**VALIDATIONS, "max_steps": steps, "metric": metric}
        train(config_of(tiny_mapping, train=changes, data={"test": []}), tmp_path, "cpu")
    assert "data.valid, train.metric or the tokenizer of BLEU has changed" in log_of(tmp_path)
    assert best_step(tmp_path) == 2


def test_a_state_of_version_0_1_has_no_nll_of_its_best() -> None:
    saved = {"step": 4, "best_score": 7.0, "best_step": 2, "judged_on": "text"}
    state = TrainState.from_saved(saved)
    assert (state.best_score, state.best_nll, state.valid_fingerprint) == (7.0, None, "text")
    state.add_score(7.0, 1.0, BLEU)
    assert (state.best_step, state.bad_validations) == (2, 1)
    state.add_score(7.5, 1.0, BLEU)
    assert (state.best_step, state.best_nll) == (4, 1.0)
