"""Non-finite gradients: skipped updates, the return to a checkpoint, and giving up."""

from __future__ import annotations

import itertools
import math
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import BLIND, NO_TEST, Mt, QuickConfig, equal_weights, log_of, metrics_of
from messages import says
from run_comparison import checkpoint_of, kept_steps, saved_state, train_until_lost, updates_seen
from torch import Tensor

from mt.config.schema import Config
from mt.errors import CheckpointError, TrainingDivergedError
from mt.model import checkpoint
from mt.runs import model_folder
from mt.training.launch import train
from mt.training.trainer import MAX_SKIPPED_UPDATES, Outcome, Trainer
from mt.training.update import Updater

Poison = Callable[[Callable[[int], bool]], None]
LAST = Path("checkpoints", "last")


@pytest.fixture
def config_of(quick_config: QuickConfig) -> Callable[..., Config]:
    """The tiny config, without validation and tests, with changes to its `train` section."""
    batch = {"tokens_per_update": 100, "tokens_per_batch": 100}
    return lambda **settings: quick_config(BLIND, batch=batch, train={"keep_last": 99} | settings)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Poison:
    """`poisoned(bad)`: the decoder's output is NaN in each update, from 0, for which `bad`."""
    asked: list[Callable[[int], bool]] = []
    real = Trainer.train

    def start(self: Trainer) -> Outcome:
        forward, train_step, updates = (
            self.updater.forward,
            self.updater.train_step,
            itertools.count(),
        )
        is_bad = False

        def with_nan(*inputs: Tensor) -> Tensor:
            hidden: Tensor = forward(*inputs)
            return hidden * math.nan if is_bad else hidden

        def counted(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
            nonlocal is_bad
            is_bad = asked[-1](next(updates))
            return train_step(*arguments)

        self.updater.forward = with_nan
        self.updater.train_step = counted  # type: ignore[method-assign, assignment]
        return real(self)

    monkeypatch.setattr(Trainer, "train", start)
    return asked.append


def test_a_rollback_skips_a_damaged_checkpoint(
    config_of: Callable[..., Config], poisoned: Poison, tmp_path: Path
) -> None:
    """The weights of update 20 are cut short on the disk during the run."""

    def bad(update: int) -> bool:
        if update == 23:
            weights = checkpoint_of(tmp_path, 20) / "model.safetensors"
            weights.write_bytes(weights.read_bytes()[:-1])
        return 4 <= update < 24

    poisoned(bad)
    assert train(config_of(valid_every=4, max_steps=28), tmp_path, "cpu").exit_code == 0
    log = log_of(tmp_path)
    assert says(log, "step-00000020/model.safetensors", "Skipped; trying the checkpoint before it")
    assert "from update 24 back to the weights after update 16, " in log


def test_what_has_changed_since_the_checkpoint_stays_changed(
    quick_config: QuickConfig, poisoned: Poison, tmp_path: Path
) -> None:
    """Another validation set and other data, then back to a checkpoint from before."""

    def bad(update: int) -> bool:
        if update == 20:  # the first one after the rollback
            states.append(saved_state(tmp_path, 4))
        return update < 20

    poisoned(lambda _: False)
    train(quick_config(NO_TEST, train={"max_steps": 4, "valid_every": 4}), tmp_path, "cpu")
    states = [saved_state(tmp_path, 4)]
    poisoned(bad)
    changes = {
        "train": {"max_steps": 28, "valid_every": 28},
        "data": {"valid": {"src": "test.src", "tgt": "test.tgt"}},
        "run": {"seed": 99},
    }
    train(quick_config(NO_TEST, changes), tmp_path, "cpu")
    assert "from update 24 back to the weights after update 4" in log_of(tmp_path)
    before, rewritten, last = *states, saved_state(tmp_path, 28)
    for key in ("plan", "valid_fingerprint"):
        assert before[key] != rewritten[key] == last[key]
    names = [model_folder.step_name(step) for step in (4, 28)]
    assert [list(state["scores"]) for state in (before, rewritten, last)] == [
        names[:1],
        [],
        names[1:],
    ]


MakeNan = Callable[[int], None]


@pytest.fixture
def weight_made_nan(monkeypatch: pytest.MonkeyPatch) -> MakeNan:
    """`weight_made_nan(n)`: a weight is set to NaN once, after update n from now on."""

    def nan_after(n: int) -> None:
        learn, updates = Updater.train_step, itertools.count(1)

        def with_nan(self: Updater, *arguments: Any) -> Any:
            result = learn(self, *arguments)
            if next(updates) == n:
                with torch.no_grad():
                    self.model.decoder_norm.weight[0] = math.nan
            return result

        monkeypatch.setattr(Updater, "train_step", with_nan)

    return nan_after


@pytest.mark.parametrize(("validated", "ema"), [(False, None), (True, 0.5)])
def test_non_finite_weights_are_neither_evaluated_nor_saved(
    quick_config: QuickConfig,
    weight_made_nan: MakeNan,
    tmp_path: Path,
    validated: bool,
    ema: float | None,
) -> None:
    """One checkpoint is kept: saving them would delete the only good one."""
    weight_made_nan(5)
    settings = {"max_steps": 12, "valid_every": 4, "keep_last": 1, "keep_best": 1, "ema": ema}
    config = quick_config(NO_TEST if validated else BLIND, train=settings)
    assert train(config, tmp_path, "cpu").exit_code == 0
    assert (
        "there are non-finite weights: from update 8 back to the weights after update 4, "
        "continuing with the data after those" in log_of(tmp_path)
    )
    assert updates_seen(config, tmp_path, kept_steps(tmp_path)[-1]) == 16
    for folder in model_folder.checkpoints(tmp_path):
        assert all(tensor.isfinite().all() for tensor in checkpoint.load_weights(folder).values())


def test_a_signal_saves_no_non_finite_weights(
    quick_config: QuickConfig,
    weight_made_nan: MakeNan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight_made_nan(5)
    config = quick_config(NO_TEST, train={"max_steps": 8, "valid_every": 4})
    learn, updates = Updater.train_step, itertools.count(1)

    def signalled(self: Updater, *arguments: Any) -> Any:
        result = learn(self, *arguments)
        if next(updates) == 6:
            signal.raise_signal(signal.SIGTERM)
        return result

    monkeypatch.setattr(Updater, "train_step", signalled)
    assert train(config, tmp_path, "cpu").exit_code == 143
    assert "nothing is saved, because there are non-finite weights" in log_of(tmp_path)
    assert kept_steps(tmp_path) == [4]
    assert train(config, tmp_path, "cpu").exit_code == 0
    assert kept_steps(tmp_path) == [4, 8]


def test_resuming_skips_a_checkpoint_with_non_finite_weights(
    config_of: Callable[..., Config], tmp_path: Path
) -> None:
    """Written by an earlier mt, say; where there is no other one, the start ends with a message."""
    config = config_of(max_steps=8, valid_every=4)
    train(config, tmp_path, "cpu")
    for step, found in ((8, "resuming after update 4 "), (4, None)):
        folder = checkpoint_of(tmp_path, step)
        meta, weights = model_folder.read_meta(folder, []), checkpoint.load_weights(folder)
        weights["decoder_norm.weight"][0] = math.nan
        state = checkpoint.load_state(folder)
        checkpoint.save_model_folder(folder, weights, meta, state, replace=True)
        if found:
            train(config, tmp_path, "cpu")
            assert f"{folder}: has non-finite weights. Skipped; trying the checkpoint" in log_of(
                tmp_path
            )
            assert found in log_of(tmp_path)
            shutil.rmtree(checkpoint_of(tmp_path, 8))
            continue
        with pytest.raises(
            CheckpointError,
            match=r"all of its checkpoints are damaged or hold non-finite weights; give",
        ):
            train(config, tmp_path, "cpu")


def test_a_model_with_non_finite_scores_for_a_sentence_is_still_evaluated(
    quick_config: QuickConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights are finite, if large. Training continues and may recover."""
    real = Trainer.validate

    def overflowing(self: Trainer) -> Any:
        weight = self.updater.eval_model.decoder_norm.weight
        before = weight.detach().clone()
        with torch.no_grad():
            weight.fill_(3e38)
        try:
            return real(self)
        finally:
            with torch.no_grad():
                weight.copy_(before)

    monkeypatch.setattr(Trainer, "validate", overflowing)
    config = quick_config(NO_TEST, train={"max_steps": 4, "valid_every": 4})
    assert train(config, tmp_path, "cpu").exit_code == 0
    assert "not translated: the model's output is non-finite | decoding: sentence " in log_of(
        tmp_path
    )
    (line,) = metrics_of(tmp_path, "valid")
    assert (line["nll"], line["bleu"]) == (None, 0.0)


@pytest.fixture
def whole_and_lost(poisoned: Poison, tmp_path: Path) -> Callable[..., list[Path]]:
    """A run with these bad updates, and one that is lost in an update and started once more.

    `bad_then` are those of the second start, from 0. Both end with the same weights.
    """
    whole, lost = runs = [tmp_path / name for name in ("whole", "lost")]

    def trained(config: Config, bad: range, lost_in: int, bad_then: range) -> list[Path]:
        poisoned(bad.__contains__)
        assert train(config, whole, "cpu").exit_code == 0
        train_until_lost(config, lost, lost_in)
        poisoned(bad_then.__contains__)
        train(config, lost, "cpu")
        assert equal_weights(*(checkpoint.load_weights(run / LAST) for run in runs))
        return runs

    return trained


def test_rollback_to_the_last_checkpoint_continues_with_later_data(
    config_of: Callable[..., Config], whole_and_lost: Callable[..., list[Path]]
) -> None:
    """Where a line is logged, every 4 updates. Updates 5 to 24 are non-finite.

    A run that is killed afterwards does not repeat the data.
    """
    config = config_of(valid_every=4, max_steps=28)
    whole, _ = whole_and_lost(config, range(4, 24), 25, range(0))
    assert "from update 24 back to the weights after update 20, " in log_of(whole)
    (line,) = metrics_of(whole, "rollback")
    assert (line["step"], line["from_step"], line["rollbacks"]) == (20, 24, 1)
    assert [updates_seen(config, whole, step) for step in (4, 20, 28)] == [4, 24, 32]


def test_skipped_updates_are_counted_between_checks_and_over_a_restart(
    config_of: Callable[..., Config], whole_and_lost: Callable[..., list[Path]]
) -> None:
    """Updates 6 to 25 are non-finite. The checks after 24 and 28 see 19 in a row, and none."""
    config = config_of(valid_every=4, max_steps=32)
    # The second start goes on after update 12.
    for run in whole_and_lost(config, range(5, 25), 14, range(13)):
        (line,) = metrics_of(run, "rollback")
        assert (line["from_step"], line["rollbacks"]) == (28, 1)


def test_after_three_rollbacks_the_command_gives_up_with_a_diagnosis_and_code_3(
    tiny_config: Path, poisoned: Poison, tmp_path: Path, mt: Mt
) -> None:
    poisoned(lambda update: update >= 4)
    options = "--device cpu --set data.valid=null --set data.test=null --set train.max_steps=999"
    ended = mt("train", "-c", tiny_config, "--run-dir", tmp_path, *options.split())
    assert ended.code == 3
    message = ended.err.rpartition("mt: ")[2].removesuffix("\n")
    assert message in log_of(tmp_path)
    assert ended.err.count(message) == 1
    assert [line["rollbacks"] for line in metrics_of(tmp_path, "rollback")] == [1, 2, 3]
    last = checkpoint_of(tmp_path, 68)
    assert says(
        message,
        "gave up at update 72: 20 updates in a row had a non-finite loss",
        "after 3 times",
        "Precision fp32, learning rate 6.5e-03 (peak_lr 0.01)",  # 1e-2 x sqrt(30 / 72)
        "optim.peak_lr",
        f"the last checkpoint is intact: {last}",
    )
    assert all(tensor.isfinite().all() for tensor in checkpoint.load_weights(last).values())


def test_the_diagnosis_names_the_first_module_with_a_non_finite_output(
    config_of: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here without a checkpoint to go back to, so that the first twenty are the last."""
    real = Trainer.train

    def start(self: Trainer) -> Outcome:
        with torch.no_grad():
            self.updater.model.decoder[0].feed_forward.inner.weight[0] = math.inf
        return real(self)

    monkeypatch.setattr(Trainer, "train", start)
    with pytest.raises(
        TrainingDivergedError, match=r"at update 20: .*; there is no checkpoint to go back"
    ) as failed:
        train(config_of(max_steps=20, log_every=999, valid_every=999), tmp_path, "cpu")
    assert "output in that update is that of decoder.0.feed_forward.inner. " in str(failed.value)
    assert model_folder.checkpoints(tmp_path) == []


def test_a_few_skipped_updates_are_logged_and_survived(
    config_of: Callable[..., Config], poisoned: Poison, tmp_path: Path
) -> None:
    poisoned(lambda update: update % MAX_SKIPPED_UPDATES != 0)  # 19 in a row, again and again
    assert (
        train(config_of(max_steps=60, log_every=10, valid_every=15), tmp_path, "cpu").exit_code == 0
    )
    lines = metrics_of(tmp_path, "train")
    assert [line["skipped"] for line in lines] == [9, 10, 9, 10, 9, 10]
    assert [line["nll"] is None for line in lines] == [False, True] * 3
    assert log_of(tmp_path).count(" left | 9 updates skipped\n") == 3
    assert metrics_of(tmp_path, "rollback") == []
