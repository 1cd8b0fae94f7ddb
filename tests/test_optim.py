"""Learning rates worked out by hand, and an optimiser that is plain Adam but for what should decay."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

from mt.config import ModelConfig, OptimConfig
from mt.errors import CheckpointError
from mt.model.transformer import Transformer
from mt.training.optim import build_optimizer, learning_rate, restore_optimizer


def settings(**values: Any) -> OptimConfig:
    return OptimConfig.model_validate(values)


def rates(optim: OptimConfig, *steps: int, d_model: int = 512, max_steps: int = 110) -> list[float]:
    return [learning_rate(step, optim, d_model, max_steps) for step in steps]


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
        ({"schedule": "constant", "peak_lr": 8e-4, "warmup_steps": 4}, (1, 4, 5, 9999), (2e-4, 8e-4, 8e-4, 8e-4)),
        # From step 10 to 110: a quarter of the way is (1 + cos 45 degrees) / 2.
        (
            {"schedule": "cosine", "peak_lr": 2.0, "warmup_steps": 10},
            (5, 10, 35, 60, 85, 110),
            (1.0, 2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5), 0.0),
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
def test_learning_rates_by_hand(values: dict[str, Any], steps: tuple[int, ...], expected: tuple[float, ...]) -> None:
    assert rates(settings(**values), *steps, d_model=16) == pytest.approx(expected, abs=1e-15)


def test_the_papers_rate_peaks_at_seven_ten_thousandths() -> None:
    """Vaswani et al. (2017), equation 3: d_model 512, 4,000 warm-up steps."""
    noam = settings(schedule="noam", peak_lr=None, warmup_steps=4000)
    every = rates(noam, *range(1, 20_001))
    assert every.index(max(every)) + 1 == 4000
    assert max(every) == pytest.approx(512**-0.5 * 4000**-0.5)
    assert max(every) == pytest.approx(6.99e-4, abs=5e-7)
    same = settings(schedule="inverse_sqrt", peak_lr=(512 * 4000) ** -0.5, warmup_steps=4000)
    assert rates(same, *range(1, 20_001)) == pytest.approx(every, rel=1e-12)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "noam", "cosine", "constant"])
def test_every_schedule_rises_to_its_peak_without_a_jump(schedule: str) -> None:
    optim = settings(schedule=schedule, peak_lr=None if schedule == "noam" else 1e-3, warmup_steps=1000)
    every = rates(optim, *range(1, 3001), max_steps=3000)
    peak = every[999]
    assert peak == max(every)
    assert all(a < b for a, b in itertools.pairwise(every[:1000]))
    jumps = [abs(a - b) for a, b in itertools.pairwise(every)]
    assert max(jumps) <= peak / 1000 * (1 + 1e-9)  # no step is longer than one of the warm-up


def test_cosine_stays_at_the_end_where_a_run_is_prolonged() -> None:
    assert rates(settings(schedule="cosine", peak_lr=1.0, warmup_steps=10), 111, 500) == pytest.approx([0, 0])


# --- the optimiser ----------------------------------------------------------------------------


def tiny_model() -> Transformer:
    torch.manual_seed(0)
    config = ModelConfig(d_model=8, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, d_ff=16, output_bias=True)
    return Transformer(config, 11, 11, True)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, rate: float = 0.01) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()


def test_every_parameter_is_learnt_once() -> None:
    """The matrix that embeddings and output share is one parameter."""
    model = tiny_model()
    held = [id(p) for group in build_optimizer(model, settings()).param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())


def test_without_weight_decay_it_is_adam() -> None:
    """Two roads: ours, and torch's unfused Adam."""
    ours, theirs = tiny_model(), tiny_model()
    optimizer = build_optimizer(ours, settings(betas=(0.8, 0.95), eps=1e-7))
    adam = torch.optim.Adam(theirs.parameters(), betas=(0.8, 0.95), eps=1e-7, fused=False, foreach=False)
    for seed in range(3):
        step(ours, optimizer, seed)
        step(theirs, adam, seed)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-8)


def test_weight_decay_shrinks_matrices_and_nothing_else() -> None:
    """Without a gradient there is only decay: the factor 1 - rate x decay."""
    model = tiny_model()
    optimizer = build_optimizer(model, settings(weight_decay=0.2))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for group in optimizer.param_groups:
        group["lr"] = 0.5
    optimizer.step()
    for name, p in model.named_parameters():
        factor = 1.0 if name.endswith("bias") or "norm" in name else 0.9
        assert torch.allclose(p, before[name] * factor), name
    assert sum(p.dim() > 1 for p in model.parameters()) > 5


def test_a_restored_optimiser_goes_on_with_its_moments() -> None:
    model = tiny_model()
    optimizer = build_optimizer(model, settings())
    step(model, optimizer, 1)
    again = tiny_model()
    again.load_state_dict(model.state_dict())
    restored = build_optimizer(again, settings())
    restore_optimizer(restored, copy.deepcopy(optimizer.state_dict()), "step-1")
    for each, its in ((model, optimizer), (again, restored)):
        step(each, its, 2)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_settings_of_a_restored_optimiser_are_those_of_the_config() -> None:
    """A run that goes on with another weight decay or other betas does so in earnest."""
    model = tiny_model()
    saved = build_optimizer(model, settings())
    step(model, saved, 1)
    changed = build_optimizer(model, settings(weight_decay=0.3, betas=(0.5, 0.6), eps=1e-5))
    restore_optimizer(changed, saved.state_dict(), "step-1")
    matrices, vectors = changed.param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.3, 0.0)
    assert (matrices["betas"], matrices["eps"]) == ((0.5, 0.6), 1e-5)
    weight = model.output.weight
    assert torch.equal(changed.state[weight]["exp_avg"], saved.state[weight]["exp_avg"])


def test_a_state_of_another_model_is_refused() -> None:
    optimizer = build_optimizer(nn.Linear(2, 2), settings())
    with pytest.raises(CheckpointError) as error:
        restore_optimizer(build_optimizer(tiny_model(), settings()), optimizer.state_dict(), "runs/a/step-1")
    message = str(error.value)
    assert message.startswith("runs/a/step-1: the optimiser's state does not fit the model (")
    assert message.endswith("use another checkpoint, or start over with --fresh")
