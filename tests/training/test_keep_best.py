"""Which checkpoints are kept, which is the best, and when patience ends a training."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import NO_TEST, MonkeyPatch, QuickConfig, TrainerOf, equal_weights, log_of, metrics_of
from messages import says
from run_comparison import kept_steps
from torch import Tensor

from mt.model import checkpoint
from mt.report.run_summary import read_run
from mt.runs import model_folder
from mt.training import launch
from mt.training.checkpoints import keep_best, set_link
from mt.training.launch import train


def test_patience_ends_a_run_that_was_restarted_and_the_best_is_kept(
    quick_config: QuickConfig, scripted_validations: Callable[..., None], tmp_path: Path
) -> None:
    """5, 9, 7, 8, 9: the second 9 is no better, and the third validation without a better score."""
    scripted_validations(5.0, 9.0, 7.0, 8.0, 9.0)
    settings = {"max_steps": 50, "valid_every": 1, "patience": 3, "keep_last": 1, "keep_best": 1}
    train(quick_config(NO_TEST, train=settings | {"max_steps": 3}), tmp_path, "cpu")
    outcome = train(quick_config(NO_TEST, train=settings), tmp_path, "cpu")
    best = tmp_path / "checkpoints" / "best"
    assert (outcome.exit_code, outcome.best) == (0, best)
    assert says(outcome.reason, "last 3, at update 5", "best model (BLEU 9.00", f"): {best}")
    assert log_of(tmp_path).rstrip().endswith(outcome.reason)
    assert best.resolve().name == "step-00000002"
    names = ["best", "last", "step-00000002", "step-00000005"]
    assert sorted(os.listdir(tmp_path / "checkpoints")) == names
    assert model_folder.read_meta(best, [])["score"] == 9.0
    # The same command again learns nothing more.
    assert train(quick_config(NO_TEST, train=settings), tmp_path, "cpu").reason == outcome.reason
    assert len(metrics_of(tmp_path, "valid")) == 5


def test_keep_last_newest_and_keep_best_best_are_kept(
    quick_config: QuickConfig, scripted_validations: Callable[..., None], tmp_path: Path
) -> None:
    scripted_validations(3.0, 9.0, 1.0, 8.0, 2.0, 4.0)
    settings = {"max_steps": 6, "valid_every": 1, "patience": None, "keep_last": 2, "keep_best": 2}
    train(quick_config(NO_TEST, train=settings), tmp_path, "cpu")
    assert kept_steps(tmp_path) == [2, 4, 5, 6]


def test_one_ranking_keeps_checkpoints_names_the_best_and_averages(
    quick_config: QuickConfig, scripted_validations: Callable[..., None], tmp_path: Path
) -> None:
    for number, (validations, best) in enumerate([
        # BLEU and nll; the last one is kept for being the last.
        ([(9.0, 3.0), (9.0, 2.0), (9.0, 2.5), (1.0, 1.0)], [2, 3]),
        # Below 1 BLEU the nll decides, and such a model is never better than one above.
        ([(0.4, 3.0), (0.1, 2.0), (0.2, 2.5), (0.9, 4.0)], [2, 3]),
        ([(0.9, 2.5), (0.4, 2.0), (1.1, 5.0), (0.8, 4.0)], [2, 3]),
    ]):  # fmt: skip
        scripted_validations(*validations)
        settings = {"max_steps": 4, "valid_every": 1, "keep_last": 1, "keep_best": 2}
        run = tmp_path / str(number)
        run.mkdir()
        train(quick_config(NO_TEST, train=settings), run, "cpu")
        assert kept_steps(run) == [*best, 4]
        assert checkpoint.average_run(run, 2, run / "mean", by_score=True) == best
        first = checkpoint.average_run(run, 1, run / "first", by_score=True)
        named_best = (run / "checkpoints" / "best").resolve().name
        assert [model_folder.step_name(step) for step in first] == [named_best]
        (valid,) = read_run(run, "run").scored
        assert valid.step == first[0]


def test_a_checkpoint_caused_by_a_signal_displaces_no_other(trainer_of: TrainerOf) -> None:
    trainer = trainer_of(train={"valid_every": 4, "keep_last": 2, "keep_best": 0, "max_steps": 20})
    seen = []
    for step, score in ((4, 1.0), (8, 2.0), (9, None), (10, None), (12, 3.0)):
        trainer.state.step = step
        if score is not None:
            trainer.state.add_score((score, 1.0, True))
        trainer.save()
        seen.append(kept_steps(trainer.run_dir))
    assert seen == [[4], [4, 8], [4, 8, 9], [4, 8, 10], [8, 12]]


def test_the_best_is_kept_although_keep_best_is_0(
    quick_config: QuickConfig, scripted_validations: Callable[..., None], tmp_path: Path,
    monkeypatch: MonkeyPatch,
) -> None:  # fmt: skip
    scripted_validations(9.0, 1.0, 2.0)
    tested: list[dict[str, Tensor]] = []

    def score_tests(_: Any, best: Path, *__: Any) -> None:
        tested.append(checkpoint.load_weights(best.resolve()))

    monkeypatch.setattr(launch, "score_tests", score_tests)
    settings = {"max_steps": 3, "valid_every": 1, "keep_last": 1, "keep_best": 0}
    train(quick_config(train=settings), tmp_path, "cpu")
    first, third = model_folder.checkpoints(tmp_path)
    assert (first.name, third.name) == ("step-00000001", "step-00000003")
    assert model_folder.find_model(tmp_path) == first.resolve()
    assert equal_weights(tested[0], checkpoint.load_weights(first))
    assert not equal_weights(tested[0], checkpoint.load_weights(third))


def test_what_was_best_stays_where_what_decides_changes_twice(tmp_path: Path) -> None:
    names = []
    for step in (1, 2, 2):
        best = tmp_path / "checkpoints" / f"step-0000000{step}"
        best.mkdir(parents=True, exist_ok=True)
        set_link(tmp_path, "best", best)
        names.append(keep_best(tmp_path, step=9))
        assert (best.parent / names[-1]).samefile(best)
    assert names == ["best-until-9", "best-until-9-later", "best-until-9-later"]


def test_scores_on_another_validation_set_do_not_count(
    quick_config: QuickConfig, scripted_validations: Callable[..., None], tmp_path: Path
) -> None:
    """Otherwise no model would ever be better than one evaluated on an easier text."""
    scripted_validations(90.0, 10.0, 30.0, 20.0)
    settings: dict[str, Any] = {"valid_every": 1, "patience": 2, "keep_last": 1}
    train(quick_config(train={**settings, "max_steps": 1}), tmp_path, "cpu")
    other = {"valid": {"src": "test.src", "tgt": "test.tgt"}}
    outcome = train(quick_config(train={**settings, "max_steps": 3}, data=other), tmp_path, "cpu")
    message = "data.valid, train.metric or the tokenizer of BLEU has changed: the scores so far"
    assert message in log_of(tmp_path)
    assert "best model (BLEU 30.00 on the validation set)" in outcome.reason
    assert model_folder.find_model(tmp_path).name == "step-00000002"
    longer = quick_config(
        train={**settings, "max_steps": 3}, data=other, model={"max_positions": 99}
    )
    train(longer, tmp_path, "cpu")
    assert log_of(tmp_path).count(message) == 1
    assert says(log_of(tmp_path), message, "stays as checkpoints/best-until-1")
    assert (tmp_path / "checkpoints" / "best-until-1").resolve(strict=True).name == "step-00000001"
    without: dict[str, list[Any]] = {"valid": [], "test": []}
    settings |= {"patience": None, "max_steps": 4}
    outcome = train(quick_config(train=settings, data=without), tmp_path, "cpu")
    assert outcome.best == tmp_path / "checkpoints" / "last"
    assert model_folder.find_model(tmp_path).name == "step-00000004"
    assert (tmp_path / "checkpoints" / "best-until-3").resolve(strict=True).name == "step-00000002"
