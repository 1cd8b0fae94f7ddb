"""One update by hand: accumulation, clipping, averaging, non-finite gradients, fp16 scaling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import BLIND, MonkeyPatch, TrainerOf, equal_weights
from torch import Tensor

from mt.data.tokens.batches import Update, collate
from mt.model import checkpoint
from mt.runtime.distributed import World
from mt.training import update as updates
from mt.training.trainer import Trainer
from mt.training.update import Updater


def weights(trainer: Trainer) -> dict[str, Tensor]:
    of_model = checkpoint.weights_of(trainer.updater.model)
    return {name: tensor.clone() for name, tensor in of_model.items()}


def gradient_norm(model: torch.nn.Module) -> float:
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return float(torch.cat(grads).norm())


def update_of(trainer: Trainer, *groups: range) -> Update:
    """An update with one micro-batch for each group of sentences."""
    batches = [collate(trainer.plan.pairs.pairs(np.array(group))) for group in groups]
    return Update(0, 0, 1, batches, sum(batch.n_tgt for batch in batches))


def learn(trainer: Trainer, update: Update) -> tuple[float, float]:
    _, nll, norm = trainer.updater.train_step(update, trainer.state.step)
    trainer.state.step += 1
    return float(nll), float(norm)


def test_a_dry_run_computes_the_gradients_of_an_update_and_drops_them(
    trainer_of: TrainerOf, monkeypatch: MonkeyPatch
) -> None:
    updater = (trainer := trainer_of(BLIND, model={"dropout": 0.0})).updater
    update = update_of(trainer, range(20))
    parameters = [one for one in updater.model.parameters() if one.requires_grad]
    updater.accumulate_gradients(update, 0)
    wanted = [one.grad.clone() for one in parameters if one.grad is not None]
    updater.dry_run_step(update.batches[0])
    assert all(one.grad is None for one in parameters)
    monkeypatch.setattr(updater.optimizer, "zero_grad", lambda **_: None)
    updater.dry_run_step(update.batches[0])
    torch.testing.assert_close([one.grad for one in parameters], wanted)


def test_copied_weights_learn_as_cast_ones(trainer_of: TrainerOf, monkeypatch: MonkeyPatch) -> None:
    """To the last bit in bf16: gradients, weights and their average; one copy an update."""
    world = World()
    prepared = trainer_of(BLIND, {"train": {"precision": "bf16", "ema": 0.9}})
    updaters = [
        Updater(prepared.config, prepared.tokenizer, prepared.device, world, print)
        for _ in range(2)
    ]
    update = update_of(prepared, range(20), range(20, 30), range(30, 50))
    copied, real = [0], updates.copy_weights
    for step, (number, updater) in itertools.product(range(3), enumerate(updaters)):

        def copy(*arguments: Any, number: int = number) -> None:
            if number == 0:
                copied[0] += 1
                real(*arguments)

        monkeypatch.setattr(updates, "copy_weights", copy)
        updater.train_step(update, step)
    assert copied == [3]
    layer, other = (each.model.encoder_layers[0].feed_forward.inner for each in updaters)
    assert [copy.dtype for copy in layer.copies or ()] == [torch.bfloat16] * 2
    assert other.copies is None
    for models in ([each.model for each in updaters], [each.eval_model for each in updaters]):
        for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
            assert torch.equal(ours, theirs)
    states = [each.state_dict()["optimizer"]["state"] for each in updaters]
    moments = ([each["exp_avg"] for each in state.values()] for state in states)
    assert all(map(torch.equal, *moments))
    assert not any("cop" in name for name in updaters[0].model.state_dict())
    layer.eval()  # computes with the weights as they are now
    assert torch.equal(layer.cast_to(torch.bfloat16)[0], layer.weight.bfloat16())
    assert layer.copies is not None
    assert not torch.equal(layer.copies[0], layer.weight.bfloat16())


@pytest.mark.parametrize("clip_norm", [0.5, None])
def test_accumulated_is_whole(trainer_of: TrainerOf, clip_norm: float | None) -> None:
    """Updates in one batch or in four of unequal size give the same weights, in double precision.

    The loss is divided by the tokens of the whole update; per micro-batch, short ones would weigh
    more.
    """
    results = []
    for cuts in ([0, 64], [0, 40, 47, 60, 64]):
        trainer = trainer_of(
            BLIND, model={"dropout": 0.0}, optim={"clip_norm": clip_norm, "warmup_steps": 1}
        )
        trainer.updater.model.double().compute_dtype = None
        figures = []
        for start in (0, 64, 128):
            groups = [range(start + a, start + b) for a, b in itertools.pairwise(cuts)]
            figures.append(learn(trainer, update_of(trainer, *groups)))
        results.append((weights(trainer), figures))
    (whole, whole_figures), (parts, parts_figures) = results
    assert whole_figures == [pytest.approx(pair, rel=1e-6) for pair in parts_figures]
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-9, atol=1e-9)
    assert min(norm for _, norm in whole_figures) > 0.5  # so that there is something to clip


def test_the_figures_of_an_update_are_those_of_the_model(trainer_of: TrainerOf) -> None:
    """nll without smoothing and gradient norm before clipping, against torch's own functions."""
    optim = {"clip_norm": 0.01, "label_smoothing": 0.2}
    trainer = trainer_of(BLIND, model={"dropout": 0.0}, optim=optim)
    update = update_of(trainer, range(10))
    (batch,) = update.batches
    scores = trainer.updater.model.output(
        trainer.updater.model(batch.src, batch.tgt_in, batch.src_mask)
    ).flatten(0, 1)[batch.tgt_positions]
    nll = torch.nn.functional.cross_entropy(scores, batch.tgt_out).item()
    torch.nn.functional.cross_entropy(scores, batch.tgt_out, label_smoothing=0.2).backward()
    norm = gradient_norm(trainer.updater.model)
    trainer.updater.optimizer.zero_grad()
    assert learn(trainer, update) == pytest.approx((nll, norm), rel=1e-4)


@pytest.mark.parametrize("clip_norm", [0.25, 100.0, None])
def test_a_long_gradient_is_shortened(trainer_of: TrainerOf, clip_norm: float | None) -> None:
    """Its direction stays; one that is short enough is left as it is."""
    trainer = trainer_of(BLIND, optim={"clip_norm": clip_norm})
    used: list[float] = []
    model, optimizer = trainer.updater.model, trainer.updater.optimizer
    optimizer.register_step_pre_hook(lambda *_: used.append(gradient_norm(model)))
    _, norm = learn(trainer, update_of(trainer, range(20)))
    assert 1 < norm < 100
    assert used == [pytest.approx(clip_norm if clip_norm == 0.25 else norm, rel=1e-4)]


def test_an_update_moves_the_weights_by_the_scheduled_rate(trainer_of: TrainerOf) -> None:
    """Adam's first step is the rate itself where the gradient is not tiny: 1e-2 / 30 in warm-up."""
    trainer = trainer_of(BLIND)
    before = weights(trainer)
    learn(trainer, update_of(trainer, range(50)))
    name = "encoder.0.feed_forward.inner.weight"
    moved = (weights(trainer)[name] - before[name]).abs().flatten()
    assert float(moved.median()) == pytest.approx(1e-2 / 30, rel=1e-3)
    learn(trainer, update_of(trainer, range(50)))
    assert trainer.updater.optimizer.param_groups[0]["lr"] == pytest.approx(2e-2 / 30)


def test_dropout_is_another_at_each_step_and_rank(trainer_of: TrainerOf) -> None:
    trainer = trainer_of(BLIND, optim={"peak_lr": 1e-12})
    update = update_of(trainer, range(20))
    figures = []
    for step, rank in ((0, 0), (0, 0), (1, 0), (0, 1)):
        trainer.updater.world = World(rank=rank)
        trainer.state.step = step
        figures.append(learn(trainer, update))
    first, again, later, elsewhere = figures
    assert again == pytest.approx(first, rel=1e-6)
    assert later != pytest.approx(first, rel=1e-6)
    assert elsewhere != pytest.approx(first, rel=1e-6)


def test_the_average_of_weights_by_hand(trainer_of: TrainerOf) -> None:
    """e = d e + (1 - d) w after update s, from 0, with d = min(train.ema, (1 + s) / (10 + s))."""
    trainer = trainer_of(BLIND, train={"ema": 0.2})
    assert trainer.updater.ema is not None
    expected = {name: tensor.double() for name, tensor in weights(trainer).items()}
    for step, decay in enumerate((1 / 10, 2 / 11, 0.2, 0.2)):
        learn(trainer, update_of(trainer, range(step * 20, step * 20 + 20)))
        for name, tensor in weights(trainer).items():
            expected[name] = decay * expected[name] + (1 - decay) * tensor.double()
    for name, tensor in checkpoint.weights_of(trainer.updater.ema).items():
        torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-7)
    trainer.save()  # offers the average and keeps the weights
    last = trainer.run_dir / "checkpoints" / "last"
    average = checkpoint.weights_of(trainer.updater.ema)
    assert equal_weights(checkpoint.load_weights(last), average)
    assert equal_weights(checkpoint.load_state(last)["weights"], weights(trainer))
    assert not equal_weights(average, weights(trainer))


def test_fix_norm_turns_the_rows_of_the_output_and_keeps_their_lengths(
    trainer_of: TrainerOf,
) -> None:
    trainer = trainer_of(BLIND, optim={"fix_norm": True, "warmup_steps": 1})
    model = trainer.updater.model
    model.output.weight.data[7] = 0.0
    matrices = model.output.weight, model.decoder_layers[0].feed_forward.inner.weight
    rows, others = (matrix.detach().clone() for matrix in matrices)
    for _ in range(3):
        learn(trainer, update_of(trainer, range(20)))
    rows_now, others_now = (matrix.detach() for matrix in matrices)
    torch.testing.assert_close(rows_now.norm(dim=-1), rows.norm(dim=-1))
    assert (torch.cosine_similarity(rows_now, rows) < 0.995).sum() > 1  # more than that of zeros
    assert not torch.allclose(others_now.norm(dim=-1), others.norm(dim=-1), rtol=0.01)


def poison(trainer: Trainer, bad: Callable[[int], bool], value: float = math.nan) -> None:
    """Make the decoder's output non-finite in the updates for which `bad(updates done)`."""
    real = trainer.updater.forward

    def poisoned(*inputs: Tensor) -> Tensor:
        hidden: Tensor = real(*inputs)
        return hidden * value if bad(trainer.state.step) else hidden

    trainer.updater.forward = poisoned


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_gradient_changes_nothing(trainer_of: TrainerOf, value: float) -> None:
    """Neither weights nor moments nor Adam's step count: the next update is as without it."""
    optim = {"schedule": "constant", "warmup_steps": 1, "weight_decay": 0.1, "fix_norm": True}
    changes = {"model": {"dropout": 0.0}, "optim": optim}
    clean, poisoned = trainer_of(BLIND, changes), trainer_of(BLIND, changes)
    poison(poisoned, lambda step: step == 1, value)
    good, bad = update_of(clean, range(30)), update_of(clean, range(30, 60))
    learn(clean, good)
    learn(clean, good)
    learn(poisoned, good)
    before = weights(poisoned)
    assert not math.isfinite(learn(poisoned, bad)[1])
    assert int(poisoned.updater.skipped) == 1
    assert equal_weights(weights(poisoned), before)
    learn(poisoned, good)
    assert int(poisoned.updater.skipped) == 0
    assert equal_weights(weights(poisoned), weights(clean))


def test_scaled_gradients_come_to_the_same(trainer_of: TrainerOf) -> None:
    """As fp16 does it: scaled by a power of two, unscaled before clipping, skipped if infinite."""
    changes = {
        "model": {"dropout": 0.0},
        "optim": {"clip_norm": 0.5, "schedule": "constant", "warmup_steps": 1},
    }
    plain, scaled = trainer_of(BLIND, changes), trainer_of(BLIND, changes)
    scaled.updater.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    poison(scaled, lambda step: step == 1, math.inf)
    update = update_of(plain, range(20), range(20, 50))
    first = learn(plain, update)
    assert learn(scaled, update) == pytest.approx(first, rel=1e-6)
    learn(scaled, update)
    assert int(scaled.updater.skipped) == 1
    assert scaled.updater.scaler.get_scale() == 512.0
    assert learn(scaled, update) == pytest.approx(learn(plain, update), rel=1e-6)
    assert equal_weights(weights(scaled), weights(plain))


def test_a_run_resumed_in_fp16_starts_with_a_fresh_scale(trainer_of: TrainerOf) -> None:
    """And one that was in fp16 before keeps its scale."""
    trainer = trainer_of(BLIND)
    learn(trainer, update_of(trainer, range(20)))
    trainer.save()
    trainer.updater.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    trainer.resume()
    assert trainer.updater.scaler.get_scale() == 256.0
    trainer.save()
    trainer.updater.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    trainer.resume()
    assert trainer.updater.scaler.get_scale() == 256.0
