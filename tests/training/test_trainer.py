"""A training as a whole: seeds, precision, its end, its memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
from conftest import BLIND, QuickConfig, TrainerOf, equal_weights, log_of, metrics_of
from messages import raises_saying

from mt.config.schema import TrainConfig
from mt.data.tokens.batches import collate
from mt.errors import ConfigError
from mt.model import checkpoint
from mt.runs.model_folder import read_meta
from mt.runs.run_dir import read_manifest
from mt.runtime.distributed import World
from mt.training.launch import train
from mt.training.trainer import Outcome


def test_without_validation_the_last_model_wins(quick_config: QuickConfig, tmp_path: Path) -> None:
    outcome = train(quick_config(BLIND, train={"max_steps": 3}), tmp_path, "cpu")
    fewer = quick_config(BLIND, train={"max_steps": 2})
    last = tmp_path / "checkpoints" / "last"
    assert outcome == Outcome(f"all 3 updates are done; model: {last}", 0, last)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["last", "step-00000003"]
    assert not (tmp_path / "samples").exists()
    reason = train(fewer, tmp_path, "cpu").reason
    assert reason == f"3 updates were done already, and this config has 2; model: {last}"
    told = train(fewer, tmp_path, "cpu", dry_run=True).reason
    assert "updates to do      0, 0.0 epochs\n" in told


def test_epochs_are_the_same_length_in_updates(quick_config: QuickConfig, tmp_path: Path) -> None:
    """Rates, checkpoints, weights and the length told; started again, there is nothing to do."""
    settings = {"max_steps": 1000, "max_epochs": 0.2, "valid_every": None, "log_every": 1}
    cosine = {"optim": {"schedule": "cosine", "warmup_steps": 2}}
    config = quick_config(BLIND, cosine, train=settings)
    told = train(config, tmp_path / "epochs", "cpu", dry_run=True).reason
    per_epoch, steps = (
        int(match[1])
        for name in ("per epoch", "to do")
        if (match := re.search(rf"updates {name} +(\d+)", told))
    )
    assert steps == round(per_epoch * 0.2) > 4
    same = quick_config(BLIND, cosine, train=settings | {"max_epochs": None, "max_steps": steps})
    runs = tmp_path / "epochs", tmp_path / "updates"
    for run, one in zip((*runs, runs[0]), (config, same, config), strict=True):
        assert f"all {steps} updates are done" in train(one, run, "cpu").reason
    assert f"0.2 epochs of {per_epoch} updates are {steps} updates\n" in log_of(runs[0])
    rates = [[line["lr"] for line in metrics_of(run, "train")] for run in runs]
    assert rates[0] == rates[1]
    assert rates[0][-1] == 0.0
    ours, others = (checkpoint.load_weights(run / "checkpoints" / "last") for run in runs)
    assert equal_weights(ours, others)
    assert read_manifest(runs[0])["max_steps"] == steps
    # A student, or a run on other data, counts its own epochs.
    assert read_meta(runs[0] / "checkpoints" / "last", [])["config"]["train"]["max_steps"] == 1000


@pytest.mark.parametrize(("most", "epochs", "steps"), [(5, 9.0, 5), (99, 1e-6, 1), (7, None, 7)])
def test_whichever_ends_first_is_the_length(
    most: int, epochs: float | None, steps: int, trainer_of: TrainerOf
) -> None:
    settings = {"max_steps": most, "max_epochs": epochs, "valid_every": None}
    trainer = trainer_of(BLIND, train=settings)
    assert trainer.config.train.max_steps == trainer.updater.max_steps == steps
    assert trainer.log.total == steps


def test_a_cosine_needs_epochs_after_its_warm_up(trainer_of: TrainerOf) -> None:
    with raises_saying(ConfigError, "optim.warmup_steps", "train.max_epochs", "found 30", "lower"):
        trainer_of(BLIND, optim={"schedule": "cosine"}, train={"max_epochs": 0.1, "max_steps": 99})


@pytest.mark.parametrize(("most", "every"), [(5000, 250), (5001, 251), (7, 1), (19, 1), (21, 2)])
def test_validations_are_twenty_unless_their_distance_is_given(most: int, every: int) -> None:
    assert TrainConfig(max_steps=most, valid_every=None).updates_between_validations == every
    assert TrainConfig(max_steps=most, valid_every=3).updates_between_validations == 3


def test_the_seed_decides_every_bit(quick_config: QuickConfig, tmp_path: Path) -> None:
    """Weights at the start, the order of the data, and dropout; not the vocabulary: an ensemble of
    two seeds has one, also where that is learnt from a changed part of the text.
    """
    results = []
    text = {"data": {"augment": {"typos": 0.5}}, "tokenizer": {"sample_lines": 500}}
    for number, seed in enumerate((1, 1, 2)):
        run = tmp_path / str(number)
        train(quick_config(BLIND, text, run={"seed": seed}, train={"max_steps": 5}), run, "cpu")
        results.append(checkpoint.load_weights(run / "checkpoints" / "last"))
    assert equal_weights(results[0], results[1])
    matrices = [name for name, tensor in results[0].items() if tensor.dim() > 1]
    assert not any(torch.equal(results[0][name], results[2][name]) for name in matrices)
    vocabularies = {(tmp_path / str(n) / "tokenizer.model").read_bytes() for n in range(3)}
    assert len(vocabularies) == 1


def test_bf16_trains_on_a_cpu_as_fp32_does(quick_config: QuickConfig, tmp_path: Path) -> None:
    nll = {}
    for precision in ("fp32", "bf16"):
        run = tmp_path / precision
        settings = {"precision": precision, "max_steps": 24, "log_every": 8}
        train(quick_config(BLIND, model={"dropout": 0.0}, train=settings), run, "cpu")
        nll[precision] = [line["nll"] for line in metrics_of(run, "train")]
        assert {
            w.dtype for w in checkpoint.load_weights(run / "checkpoints" / "last").values()
        } == {torch.float32}
        assert f"on CPU in {precision}" in log_of(run)
    assert nll["bf16"] == pytest.approx(nll["fp32"], rel=0.02)
    assert nll["bf16"] != nll["fp32"]
    assert nll["bf16"][-1] < 0.7 * nll["bf16"][0]


@torch.no_grad()
def test_validation_loss_is_the_mean_over_every_token(trainer_of: TrainerOf) -> None:
    """In batches as one pair at a time without padding; pairs too long for training count too."""
    trainer = trainer_of(data={"max_tokens": 8})
    validation = trainer.validation
    assert validation is not None
    assert max(validation.pairs.src_lengths) > 8
    assert len(validation.pairs) == 40
    model, total, tokens = trainer.updater.model.eval(), 0.0, 0
    for number in range(40):
        batch = collate([validation.pairs.pair(number)])
        log_p = model.output(model(batch.src, batch.tgt_in, batch.src_mask))[0].log_softmax(-1)
        total -= float(log_p.gather(1, batch.tgt_out[:, None]).sum())
        tokens += len(batch.tgt_out)
    losses = validation.losses(trainer.updater.model.train(), trainer.device, World())
    assert sum(losses) / validation.n_tgt == pytest.approx(total / tokens, rel=1e-5)
