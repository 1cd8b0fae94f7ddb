"""Learning rates worked out by hand, and the optimiser."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from messages import raises_saying
from torch import nn

from mt.config.schema import ModelConfig, OptimConfig
from mt.errors import CheckpointError
from mt.model.transformer import Transformer
from mt.training.update import build_optimizer, learning_rate, restore_optimizer


def settings(**values: Any) -> OptimConfig:
    return OptimConfig.model_validate(values)


# --- the learning rate ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "steps", "expected"),
    [
        # A quarter of 8e-4 per step up to step 4; then 8e-4 times 2 over the root of the step.
        (
            {"schedule": "inverse_sqrt", "peak_lr": 8e-4, "warmup_steps": 4},
            (1, 2, 3, 4, 9, 16, 64),
            (2e-4, 4e-4, 6e-4, 8e-4, 16e-4 / 3, 4e-4, 2e-4),
        ),
        (
            {"schedule": "constant", "peak_lr": 8e-4, "warmup_steps": 4},
            (1, 4, 5, 9999),
            (2e-4, 8e-4, 8e-4, 8e-4),
        ),
        # From step 10 to 110, then 0; a quarter of the way is (1 + cos 45 degrees) / 2.
        (
            {"schedule": "cosine", "peak_lr": 2.0, "warmup_steps": 10},
            (5, 10, 35, 60, 85, 110, 111, 500),
            (1.0, 2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5), 0.0, 0.0, 0.0),
        ),
        # d_model 16 gives 1/4; min(1/sqrt(step), step/8) with warm-up 4.
        (
            {"schedule": "noam", "peak_lr": None, "warmup_steps": 4},
            (1, 2, 4, 16, 100),
            (1 / 32, 1 / 16, 1 / 8, 1 / 16, 1 / 40),
        ),
        ({"schedule": "inverse_sqrt", "peak_lr": 3.0, "warmup_steps": 1}, (1, 4), (3.0, 1.5)),
    ],
)
def test_learning_rates_by_hand(
    values: dict[str, Any], steps: tuple[int, ...], expected: tuple[float, ...]
) -> None:
    found = [learning_rate(step, settings(**values), 16, 110) for step in steps]
    assert found == pytest.approx(expected, abs=1e-15)


def test_the_papers_rate_peaks_at_seven_ten_thousandths() -> None:
    """Vaswani et al. (2017), equation 3: d_model 512, 4,000 warm-up steps."""
    noam = settings(schedule="noam", peak_lr=None, warmup_steps=4000)
    same = settings(schedule="inverse_sqrt", peak_lr=(512 * 4000) ** -0.5, warmup_steps=4000)
    steps = range(1, 20_001)
    every = [learning_rate(step, noam, 512, 20_000) for step in steps]
    assert every.index(max(every)) + 1 == 4000
    assert max(every) == pytest.approx(6.99e-4, abs=5e-7)
    assert [learning_rate(step, same, 512, 20_000) for step in steps] == pytest.approx(every)


# --- the optimiser ----------------------------------------------------------------------------


def tiny_model(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 8, "n_heads": 2, "d_ff": 16, "output_bias": True}
    sizes |= {"n_encoder_layers": 1, "n_decoder_layers": 1}
    return Transformer(ModelConfig(**sizes | changes), 11, 11, True)


def take_step(optimizer: torch.optim.Optimizer, rate: float = 0.01) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    take_step(optimizer)


def test_every_parameter_is_learnt_once() -> None:
    """The matrix that embeddings and output share is one parameter."""
    model = tiny_model()
    optimizer = build_optimizer(model, settings())
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())


def test_without_weight_decay_it_is_adam() -> None:
    ours, theirs = tiny_model(), tiny_model()
    optimizer = build_optimizer(ours, settings(betas=(0.8, 0.95), eps=1e-7))
    adam = torch.optim.Adam(
        theirs.parameters(), betas=(0.8, 0.95), eps=1e-7, fused=False, foreach=False
    )
    for seed in range(3):
        step(ours, optimizer, seed)
        step(theirs, adam, seed)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("tied", [True, False])
def test_weight_decay_shrinks_matrices_and_nothing_else(tied: bool) -> None:
    """Without a gradient there is only decay: the factor 1 - rate x decay. Not of embeddings."""
    model = tiny_model(tie_embeddings=tied, positions="learned")
    optimizer = build_optimizer(model, settings(weight_decay=0.2))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    take_step(optimizer, 0.5)
    for name, p in model.named_parameters():
        factor = 1.0 if name.endswith("bias") or "norm" in name or "embedding" in name else 0.9
        assert torch.allclose(p, before[name] * factor), name
    assert sum(p.dim() > 1 for p in model.parameters()) > 5


def test_moments_are_restored_and_other_settings_stay() -> None:
    model = tiny_model(tie_embeddings=False)
    ours = build_optimizer(model, settings(weight_decay=0.5))
    step(model, ours, 1)
    restored = build_optimizer(model, settings(weight_decay=0.1))
    restore_optimizer(restored, ours.state_dict(), "step-1")
    for one, two in zip(ours.param_groups, restored.param_groups, strict=True):
        assert two["weight_decay"] == one["weight_decay"] / 5
        for p in one["params"]:
            assert all(torch.equal(ours.state[p][k], restored.state[p][k]) for k in ours.state[p])


def test_a_state_of_another_model_is_refused() -> None:
    optimizer = build_optimizer(nn.Linear(2, 2), settings())
    with raises_saying(CheckpointError, "runs/a/step-1", "optimiser", "does not fit", "--fresh"):
        restore_optimizer(
            build_optimizer(tiny_model(), settings()), optimizer.state_dict(), "runs/a/step-1"
        )
