"""Which checkpoint is the best one: `train.metric`, nll, patience."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import NO_TEST, Mapped, QuickConfig, config_of, log_of, metrics_of
from messages import says

from mt.config.load import config_from_mapping
from mt.evaluation.metrics import Score
from mt.runs.model_folder import Scored, find_model, read_meta
from mt.runs.records import drop_other_outputs, valid_output_steps, valid_path, write_sentences
from mt.training import outcome
from mt.training.checkpoints import TrainState
from mt.training.launch import train
from mt.training.outcome import ValidationResult, rise_note, standstill_note


def scored(metric: str, value: float, nll: float, bleu: float) -> Scored:
    """What a validation with this BLEU, nll and value of the metric counts."""
    scores = {"bleu": Score("BLEU", bleu, ""), metric: Score(metric, value, "")}
    return outcome.scored_by(metric, ValidationResult(nll, scores, []).figures())


def test_the_score_decides_of_equal_ones_and_of_untrained_models_the_nll() -> None:
    for metric, before, now, verdict in [
        # value of the metric, nll, BLEU
        ("bleu", (20.0, 2.0, 20.0), (20.01, 2.1, 20.01), "new best: BLEU 20.01 against BLEU 20.00"),
        ("bleu", (20.0, 2.0, 20.0), (19.9, 1.9, 19.9), "no new best: BLEU 19.90 against"),
        ("bleu", (20.0, 2.0, 20.0), (20.0, 1.9, 20.0), "new best by nll, 1.900 against 2.000"),
        ("bleu", (20.0, 2.0, 20.0), (20.0, 2.0, 20.0), "no new best by nll, 2.000 against 2.000"),
        # Below 1 BLEU the nll alone decides, whatever the metric.
        ("bleu", (0.9, 5.0, 0.9), (0.3, 4.9, 0.3), "new best by nll, 4.900 against 5.000"),
        ("bleu", (0.3, 5.0, 0.3), (0.9, 5.1, 0.9), "no new best by nll, 5.100 against 5.000"),
        ("bleu", (0.9, 5.0, 0.9), (1.0, 5.1, 1.0), "new best: BLEU 1.00 against BLEU 0.90"),
        ("bleu", (1.0, 5.0, 1.0), (0.9, 4.9, 0.9), "no new best: BLEU 0.90 against BLEU 1.00"),
        ("chrf", (9.0, 5.0, 0.1), (8.0, 4.9, 0.2), "new best by nll, 4.900 against 5.000"),
        ("chrf", (40.0, 3.0, 9.0), (40.1, 3.1, 8.0), "new best: chrF2 40.10 against chrF2 40.00"),
        ("nll", (1.9, 1.9, 0.1), (1.8, 1.8, 0.0), "new best: nll 1.800 against nll 1.900"),
        ("nll", (1.7, 1.7, 1.0), (1.8, 1.8, 9.0), "no new best: nll 1.800 against nll 1.700"),
    ]:
        best, later = scored(metric, *before), scored(metric, *now)
        assert outcome.verdict(metric, later, best).startswith(verdict)
        state = TrainState(step=1)
        assert state.add_score(best)
        state.step = 2
        assert state.add_score(later) == verdict.startswith("new")
        expected = (later, 0) if verdict.startswith("new") else (best, 1)
        assert (state.best, state.bad_validations) == expected


@pytest.mark.parametrize("metric", ["nll", "bleu"])
def test_a_first_validation_of_nan_does_not_remain_the_best(metric: str) -> None:
    """Finite weights may give a NaN, in fp16 for one."""
    state = TrainState(step=1)
    for nll in (math.nan, math.nan, 3.0):
        state.add_score(scored(metric, nll, nll, 0.0))
        state.step += 1
    assert state.best_name == "step-00000003"


# --- in a training ----------------------------------------------------------------------------


VALIDATIONS = {"max_steps": 6, "valid_every": 1, "patience": 2, "keep_last": 1, "log_every": 6}


def best_step(run_dir: Path) -> int:
    return int(read_meta(find_model(run_dir), [])["step"])


def test_at_bleu_0_patience_counts_the_nll(
    tiny_mapping: Mapped, scripted_validations: Callable[..., None], tmp_path: Path
) -> None:
    scripted_validations((0.0, 6.0), (0.0, 9.0), (0.0, 12.0))
    outcome = train(config_of(tiny_mapping, NO_TEST, train=VALIDATIONS), tmp_path, "cpu")
    reason = "no better validation in the last 2, at update 3; best model (BLEU 0.00 on the "
    assert outcome.reason.startswith(reason)
    assert log_of(tmp_path).count(" | patience 2 of 2\n") == 1
    assert best_step(tmp_path) == 1


def test_the_metric_chooses_the_best(
    tiny_mapping: Mapped, scripted_validations: Callable[..., None], tmp_path: Path
) -> None:
    for metric, best, said in [
        ("bleu", 3, "BLEU 30.00"), ("chrf", 2, "chrF2 50.00"), ("nll", 2, "nll 2.000"),
    ]:  # fmt: skip
        scripted_validations((10.0, 3.0), (20.0, 2.0), (30.0, 2.5))
        changes = {**VALIDATIONS, "max_steps": 3, "metric": metric}
        config, run = config_of(tiny_mapping, NO_TEST, train=changes), tmp_path / metric
        assert f"best model ({said} on the validation set)" in train(config, run, "cpu").reason
        assert best_step(run) == best
        assert all(("chrf" in line) == (metric == "chrf") for line in metrics_of(run, "valid"))


def test_scores_of_another_metric_do_not_count(
    tiny_mapping: Mapped, scripted_validations: Callable[..., None], tmp_path: Path
) -> None:
    # Step 1, again with the new metric, step 2.
    scripted_validations((90.0, 3.0), (90.0, 3.0), (1.0, 2.0))
    for steps, metric in ((1, "bleu"), (2, "nll")):
        changes = {**VALIDATIONS, "max_steps": steps, "metric": metric}
        train(config_of(tiny_mapping, train=changes, data={"test": []}), tmp_path, "cpu")
    assert "train.metric or the tokenizer of BLEU has changed" in log_of(tmp_path)
    assert best_step(tmp_path) == 2


def test_outputs_stay_while_a_checkpoint_needs_them(tmp_path: Path) -> None:
    """Those of the best validation until each checkpoint, from which a run may resume."""
    for step in (50, 100, 200, 400):
        write_sentences(valid_path(tmp_path, step), [])
    for step in (150, 300):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    drop_other_outputs(tmp_path)
    assert valid_output_steps(tmp_path) == [100, 200]


# --- standing still ---------------------------------------------------------------------------


def lines_of(scores: Sequence[float], losses: Sequence[float], metric: str = "bleu") -> Any:
    """A validation and a log line every 250 updates; a line that a crash cut short."""
    steps = range(250, 250 * len(scores) + 1, 250)
    valid = [
        {"kind": "valid", "step": step, "nll": 1.6, metric: score}
        for step, score in zip(steps, scores, strict=True)
    ]
    train = [
        {"kind": "train", "step": step, "nll": loss}
        for step, loss in zip(steps, losses, strict=False)
    ]
    return [*train, None, *valid]


RISING = [5.0, 20.0, 30.0, 34.8, 37.0, 38.5, 40.0, 40.7, 41.0, 41.5, 42.0, 42.4]
FALLING = [round(5.0 * 0.93**number, 3) for number in range(20)]
STILL = [*RISING, 43.2, 43.4, 43.3, 43.4, 43.2, 43.3, 43.4, 43.4]


def test_a_validation_that_stands_still_while_training_goes_on_is_named() -> None:
    for scores, losses, metric, words in [
        (STILL, FALLING, "bleu", ["since update 3,500 of 5,000", "BLEU 0.30", "from 1.95 to 1.26"]),
        ([s / 10 for s in STILL], FALLING, "nll", ["since update 3,500 of 5,000"]),
        ([5 - s / 10 for s in STILL], FALLING, "nll", ["since update 3,500", "nll 0.015"]),
        ([*RISING, *(43 + n / 5 for n in range(8))], FALLING, "bleu", []),  # it improves
        (STILL, [*FALLING[:10], *[2.6] * 10], "bleu", []),  # training has stopped as well
        (STILL[:17], FALLING[:17], "bleu", []),  # too short a time
        ([*RISING[:9], *[41.0] * 4], FALLING[:13], "bleu", ["since update 2,250 of 3,250"]),
        ([*RISING[:7], *[40.0] * 3], FALLING[:10], "bleu", []),  # too few validations
        ([0.2] * 20, FALLING, "bleu", []),  # nothing is learned yet
        ([], [], "bleu", []),
        (STILL, [], "bleu", []),  # shorter than train.log_every
        ([], FALLING[:0], "nll", []),
    ]:
        config = config_from_mapping({"train": {"metric": metric}}, "test")
        found = standstill_note(lines_of(scores, losses, metric), config)
        assert says(found, *words, "dropout", "fewer") if words else found == ""


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([5.0, 900.0, 492.0], ["nll of 492.00", "than the 5.00 of its beginning", "peak_lr"]),
        ([492.0], ["nll of 492.00", "than the 6.91 of a guess"]),  # among 1,000
        ([500.0, 7.3], ["nll of 7.30", "than the 6.91"]),
        ([1.50, 1.57], []),  # fine-tuning: other sentences
        ([8.5, 7.2], []),
        ([6.0, math.nan], []),
        ([math.nan, 8.0], ["than the 6.91"]),
        ([], []),
    ],
)
def test_a_training_that_ends_worse_is_named(losses: list[float], words: list[str]) -> None:
    found = rise_note(lines_of([3.0] * 9, losses), 1000)
    assert says(found, *words) if words else found == ""


def test_scores_of_an_earlier_validation_set_do_not_count() -> None:
    """The first twelve are of an easier text; on the other one the model improves to the end."""
    lines = lines_of([*RISING, *(20.0 + n for n in range(8))], FALLING)
    valid = [line for line in lines if line and line["kind"] == "valid"]
    config = config_from_mapping({}, "test")
    assert standstill_note(lines, config)
    for n_easy in (12, 16):  # 16: none of the other one before the last updates
        for number, line in enumerate(valid):
            line["name"] = "easy.de" if number < n_easy else "hard.de"
        assert standstill_note(lines, config) == ""


def test_the_note_is_in_the_log_once(
    quick_config: QuickConfig, scripted_validations: Callable[..., None], tmp_path: Path
) -> None:
    """Started again, nothing is said: there is nothing to do."""
    scripted_validations(5.0, 9.0, *[9.1] * 12)
    settings = {"max_steps": 14, "valid_every": 1, "log_every": 1, "keep_last": 1}
    config = quick_config(NO_TEST, train=settings, optim={"warmup_steps": 2})
    for _ in range(2):
        train(config, tmp_path, "cpu")
    (note,) = [line for line in log_of(tmp_path).splitlines() if "note: " in line]
    assert says(note, "since update 9 of 13", "training nll fell")
