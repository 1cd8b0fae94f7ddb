"""Non-finite gradients: skipped updates, and giving up with the last checkpoint intact."""

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
from conftest import BLIND, NO_TEST, MonkeyPatch, Mt, QuickConfig, equal_weights, log_of, metrics_of
from messages import says
from run_comparison import checkpoint_of, kept_steps, train_until_lost
from torch import Tensor

from mt.errors import CheckpointError, TrainingDivergedError
from mt.model import checkpoint
from mt.runs import model_folder
from mt.training.launch import train
from mt.training.trainer import MAX_SKIPPED_UPDATES, Outcome, Trainer
from mt.training.update import Updater

Poison = Callable[[Callable[[int], bool]], None]
LAST = Path("checkpoints", "last")


@pytest.fixture
def config_of(quick_config: QuickConfig) -> QuickConfig:
    """The tiny config, without validation and tests, with changes to its `train` section."""
    batch = {"tokens_per_update": 100, "tokens_per_batch": 100}
    return lambda **settings: quick_config(BLIND, batch=batch, train={"keep_last": 99} | settings)


@pytest.fixture
def poisoned(monkeypatch: MonkeyPatch) -> Poison:
    """`poisoned(bad)`: the decoder's output is NaN in each update, from 0, for which `bad`."""
    asked: list[Callable[[int], bool]] = []
    real = Trainer.train

    def start(self: Trainer) -> Outcome:
        forward, train_step = self.updater.forward, self.updater.train_step
        updates, is_bad = itertools.count(), False

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


MakeNan = Callable[[int], None]


@pytest.fixture
def weight_made_nan(monkeypatch: MonkeyPatch) -> MakeNan:
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
    quick_config: QuickConfig, weight_made_nan: MakeNan, tmp_path: Path, validated: bool,
    ema: float | None,
) -> None:  # fmt: skip
    """One checkpoint is kept: saving them would delete the only good one."""
    weight_made_nan(5)
    settings = {"max_steps": 12, "valid_every": 4, "keep_last": 1, "keep_best": 1, "ema": ema}
    config = quick_config(NO_TEST if validated else BLIND, train=settings)
    with pytest.raises(TrainingDivergedError, match="gave up at update 8: there are non-finite w"):
        train(config, tmp_path, "cpu")
    assert kept_steps(tmp_path) == [4]
    assert len(metrics_of(tmp_path, "valid")) == validated
    assert train(config, tmp_path, "cpu").exit_code == 0
    for folder in model_folder.checkpoints(tmp_path):
        assert all(tensor.isfinite().all() for tensor in checkpoint.load_weights(folder).values())


def test_a_signal_saves_no_non_finite_weights(
    quick_config: QuickConfig, weight_made_nan: MakeNan, tmp_path: Path, monkeypatch: MonkeyPatch
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


def test_resuming_skips_non_finite_checkpoints(config_of: QuickConfig, tmp_path: Path) -> None:
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
            skipped = f"{folder}: has non-finite weights. Skipped; trying the checkpoint"
            assert says(log_of(tmp_path), skipped, found)
            shutil.rmtree(checkpoint_of(tmp_path, 8))
            continue
        with pytest.raises(
            CheckpointError,
            match=r"all of its checkpoints are damaged or hold non-finite weights; give",
        ):
            train(config, tmp_path, "cpu")


def test_a_model_with_non_finite_scores_for_a_sentence_is_still_evaluated(
    quick_config: QuickConfig, tmp_path: Path, monkeypatch: MonkeyPatch
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
    said = "not translated: an output is non-finite | decoding: sentence "
    assert said in log_of(tmp_path)
    (line,) = metrics_of(tmp_path, "valid")
    assert (line["nll"], line["bleu"]) == (None, 0.0)


def test_after_twenty_in_a_row_the_command_gives_up_with_code_3(
    tiny_config: Path, poisoned: Poison, tmp_path: Path, mt: Mt
) -> None:
    """The last checkpoint is intact, and a start with a lower rate continues from it."""
    poisoned(lambda update: update >= 4)
    options = "--device cpu --set data.valid=null --set data.test=null --set train.max_steps=40"
    command = ["train", "-c", tiny_config, "--run-dir", tmp_path, *options.split()]
    ended = mt(*command)
    assert ended.code == 3
    message = ended.err.rpartition("mt: ")[2].removesuffix("\n")
    assert message in log_of(tmp_path)
    assert ended.err.count(message) == 1
    *_, last = kept_steps(tmp_path)
    folder = checkpoint_of(tmp_path, last)
    assert says(
        message,
        "gave up at update 24: 20 updates in a row had a non-finite loss",
        "Precision fp32, learning rate 8.0e-03 (peak_lr 0.01)",  # 1e-2 x 24 / 30
        "optim.peak_lr",
        "optim.warmup_steps",
        f"the last checkpoint is intact: {folder}",
    )
    assert all(tensor.isfinite().all() for tensor in checkpoint.load_weights(folder).values())
    poisoned(lambda _: False)
    resumed = mt(*command, "--set", "optim.peak_lr=1e-3")
    assert resumed.code == 0
    assert f"resuming after update {last} " in resumed.err
    assert kept_steps(tmp_path)[-1] == 40


def test_skipped_updates_are_counted_between_checks_and_over_a_restart(
    config_of: QuickConfig, poisoned: Poison, tmp_path: Path
) -> None:
    """Updates 6 to 25 are non-finite. The checks after 24 and 28 see 19 in a row, and none.

    The second run is lost in update 14, and goes on after update 12.
    """
    config = config_of(valid_every=4, max_steps=32)
    whole, lost = (tmp_path / name for name in ("whole", "lost"))
    poisoned(range(5, 25).__contains__)
    with pytest.raises(TrainingDivergedError, match="gave up at update 28"):
        train(config, whole, "cpu")
    train_until_lost(config, lost, 14)
    poisoned(range(13).__contains__)
    with pytest.raises(TrainingDivergedError, match="gave up at update 28"):
        train(config, lost, "cpu")
    assert equal_weights(*(checkpoint.load_weights(run / LAST) for run in (whole, lost)))


def test_without_a_checkpoint_the_message_says_so(
    config_of: QuickConfig, poisoned: Poison, tmp_path: Path
) -> None:
    poisoned(lambda _: True)
    with pytest.raises(TrainingDivergedError, match=r"at update 20: .*; there is no checkpoint"):
        train(config_of(max_steps=20, log_every=999, valid_every=999), tmp_path, "cpu")
    assert model_folder.checkpoints(tmp_path) == []


def test_a_few_skipped_updates_are_logged_and_survived(
    config_of: QuickConfig, poisoned: Poison, tmp_path: Path
) -> None:
    poisoned(lambda update: update % MAX_SKIPPED_UPDATES != 0)  # 19 in a row, again and again
    config = config_of(max_steps=60, log_every=10, valid_every=15)
    assert train(config, tmp_path, "cpu").exit_code == 0
    lines = metrics_of(tmp_path, "train")
    assert [line["skipped"] for line in lines] == [9, 10, 9, 10, 9, 10]
    assert [line["nll"] is None for line in lines] == [False, True] * 3
    assert log_of(tmp_path).count(" left | 9 updates skipped\n") == 3
