"""Learning rates worked out by hand; AdamW and Muon against their formulas."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from messages import raises_saying
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mt.config.schema import ModelConfig, OptimConfig
from mt.errors import CheckpointError
from mt.model.transformer import Transformer
from mt.training import optim
from mt.training.optim import (
    build_optimizer,
    learning_rate,
    n_moments,
    orthogonalized,
    restore_optimizer,
)


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


BOTH = pytest.mark.parametrize("kind", ["adamw", "muon"])


def built(
    model: nn.Module, optim: OptimConfig, dtype: torch.dtype = torch.float32
) -> torch.optim.Optimizer:
    return build_optimizer(model, optim, dtype)


def tiny_model(n_layers: int = 1, **changes: Any) -> Transformer:
    torch.manual_seed(0)
    config = ModelConfig(
        d_model=8,
        n_heads=2,
        n_encoder_layers=n_layers,
        n_decoder_layers=n_layers,
        d_ff=16,
        output_bias=True,
        **changes,
    )
    return Transformer(config, 11, 11, True)


def take_step(optimizer: torch.optim.Optimizer, rate: float = 0.01) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    take_step(optimizer)


@BOTH
def test_moments_are_what_the_optimiser_holds(kind: str) -> None:
    model = tiny_model()
    optimizer = built(model, settings(optimizer=kind))
    step(model, optimizer, 1)
    states = [state.items() for state in optimizer.state.values()]
    held = sum(x.numel() for state in states for name, x in state if name != "step")
    groups = optimizer.param_groups
    assert held == sum(n_moments(group) * p.numel() for group in groups for p in group["params"])


@BOTH
def test_every_parameter_is_learnt_once(kind: str) -> None:
    """The matrix that embeddings and output share is one parameter; a frozen one is left out."""
    model = tiny_model()
    frozen: Any = model.encoder[0].feed_forward.inner.weight.requires_grad_(False)
    optimizer = built(model, settings(optimizer=kind))
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted([*held, id(frozen)]) == sorted(id(p) for p in model.parameters())


def test_without_weight_decay_it_is_adam() -> None:
    ours, theirs = tiny_model(), tiny_model()
    optimizer = built(ours, settings(betas=(0.8, 0.95), eps=1e-7))
    adam = torch.optim.Adam(
        theirs.parameters(), betas=(0.8, 0.95), eps=1e-7, fused=False, foreach=False
    )
    for seed in range(3):
        step(ours, optimizer, seed)
        step(theirs, adam, seed)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-8)


@BOTH
@pytest.mark.parametrize("tied", [True, False])
def test_weight_decay_shrinks_matrices_and_nothing_else(kind: str, tied: bool) -> None:
    """Without a gradient there is only decay: the factor 1 - rate x decay. Not of embeddings."""
    model = tiny_model(tie_embeddings=tied, positions="learned")
    optimizer = built(model, settings(optimizer=kind, weight_decay=0.2))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    take_step(optimizer, 0.5)
    for name, p in model.named_parameters():
        factor = 1.0 if name.endswith("bias") or "norm" in name or "embedding" in name else 0.9
        assert torch.allclose(p, before[name] * factor), name
    assert sum(p.dim() > 1 for p in model.parameters()) > 5


@BOTH
def test_moments_are_restored_and_other_settings_stay(kind: str) -> None:
    model = tiny_model(tie_embeddings=False)
    ours = built(model, settings(optimizer=kind, weight_decay=0.5))
    step(model, ours, 1)
    restored = built(model, settings(optimizer=kind, weight_decay=0.1))
    restore_optimizer(restored, ours.state_dict(), "step-1")
    for one, two in zip(ours.param_groups, restored.param_groups, strict=True):
        assert two["weight_decay"] == one["weight_decay"] / 5
        for p in one["params"]:
            assert all(torch.equal(ours.state[p][k], restored.state[p][k]) for k in ours.state[p])


def test_a_state_of_another_model_is_refused() -> None:
    optimizer = built(nn.Linear(2, 2), settings())
    with raises_saying(CheckpointError, "runs/a/step-1", "optimiser", "does not fit", "--fresh"):
        restore_optimizer(built(tiny_model(), settings()), optimizer.state_dict(), "runs/a/step-1")


# --- orthogonal steps -------------------------------------------------------------------------


def of_a_singular_value(s: float) -> float:
    """What four iterations make of it, one number at a time."""
    for _ in range(4):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return s


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_a_matrix_keeps_its_singular_vectors_and_its_values_come_near_1(
    shape: tuple[int, int],
) -> None:
    matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    matrix /= matrix.norm()
    u, values, vt = np.linalg.svd(matrix.numpy(), full_matrices=False)
    expected = u @ np.diag([of_a_singular_value(s) for s in values]) @ vt
    found = orthogonalized(matrix)
    assert np.abs(found.numpy() - expected).max() < 1e-12
    assert 0.66 < torch.linalg.svdvals(found).min() <= torch.linalg.svdvals(found).max() < 1.21
    low = orthogonalized(matrix.bfloat16()).double()
    assert (low - found).norm() < 0.05 * found.norm()


def test_two_steps_of_a_matrix_by_hand() -> None:
    """Diagonal gradients: m becomes 0.95 m + 0.05 g, and 0.05 g + 0.95 m is orthogonalised."""
    model = nn.Sequential(nn.Linear(2, 3, bias=False))
    optimizer = built(model, settings(optimizer="muon", weight_decay=0.5))
    (weight,) = model.parameters()
    weight.data.fill_(1.0)
    expected, mean = np.ones((3, 2)), np.zeros(2)
    for gradient in ([3.0, 4.0], [0.0, -8.0]):
        weight.grad = torch.zeros(3, 2)
        weight.grad[0, 0], weight.grad[1, 1] = gradient
        take_step(optimizer, 0.1)
        mean = 0.95 * mean + 0.05 * np.array(gradient)
        ahead = 0.05 * np.array(gradient) + 0.95 * mean
        turned = [of_a_singular_value(s) for s in ahead / np.linalg.norm(ahead)]
        expected *= 1 - 0.1 * 0.5
        expected[[0, 1], [0, 1]] -= 0.1 * 0.2 * math.sqrt(3) * np.array(turned)
        assert torch.allclose(weight.detach().double(), torch.from_numpy(expected), atol=1e-6)


def test_only_matrices_inside_the_layers_take_orthogonal_steps() -> None:
    """All but matrices (R, C) follow AdamW; those move by about 0.2 in root mean square."""
    models = {kind: tiny_model() for kind in ("adamw", "muon")}
    before = {name: p.detach().clone() for name, p in models["muon"].named_parameters()}
    for kind, model in models.items():
        step(model, built(model, settings(optimizer=kind)), 1)
    others = dict(models["adamw"].named_parameters())
    turned = set()
    for name, p in models["muon"].named_parameters():
        if torch.equal(p, others[name]):
            continue
        turned.add(name)
        count = 3 if "query_key_value" in name else 1
        for moved in (p - before[name]).detach().chunk(count):
            assert 0.2 * 0.01 * 0.65 < moved.square().mean().sqrt() < 0.2 * 0.01 * 1.25
            assert torch.linalg.svdvals(moved).max() < 0.2 * 0.01 * 1.25 * max(moved.shape) ** 0.5
    layers = [
        name
        for name, p in models["muon"].named_parameters()
        if p.dim() > 1 and name.startswith(("enc", "dec"))
    ]
    assert len(layers) == 10
    assert turned == set(layers)


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1), (torch.float16, 0.02)]
)
def test_orthogonal_steps_in_each_precision(dtype: torch.dtype, error: float) -> None:
    found, exact = tiny_model(), tiny_model()
    before = copy.deepcopy(exact.state_dict())
    for model, precision in ((found, dtype), (exact, torch.float64)):
        step(model, built(model, settings(optimizer="muon"), precision), 1)
    for name, p in found.named_parameters():
        moved = p.detach() - before[name]
        expected = exact.get_parameter(name).detach() - before[name]
        assert (moved - expected).norm() <= error * expected.norm()
        rounded = dtype != torch.float32 and p.dim() > 1 and name.startswith(("enc", "dec"))
        assert (not torch.allclose(moved, expected, rtol=1e-4, atol=1e-6)) == rounded


@pytest.mark.parametrize("scale", [0.0, 1e-37, 1e-20, 1e-10])
def test_gradients_of_next_to_nothing_make_steps_of_next_to_nothing(scale: float) -> None:
    """1e-20 squared is 0 in float32, and so would the norm be."""
    model = tiny_model()
    optimizer = built(model, settings(optimizer="muon"))
    weight: Any = model.encoder[0].feed_forward.inner.weight
    before = weight.detach().clone()
    weight.grad = scale * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    take_step(optimizer)
    assert (weight - before).abs().max() <= 0.01


def test_queries_keys_and_values_take_steps_of_their_own() -> None:
    """A first step depends on the size of no gradient, neither its own nor another matrix's."""
    weights = []
    for scale in (1.0, 1000.0):
        model = tiny_model()
        optimizer = built(model, settings(optimizer="muon"))
        weight: Any = model.encoder[0].attention.query_key_value.weight  # (3 D, D)
        weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
        weight.grad[:8] *= scale
        take_step(optimizer)
        weights.append(weight.detach())
    assert not torch.allclose(
        weights[0], tiny_model().state_dict()["encoder.0.attention.query_key_value.weight"]
    )
    torch.testing.assert_close(weights[1], weights[0])


@pytest.mark.parametrize("at_once", [1, 5])
def test_matrices_of_one_shape_are_updated_together_as_one_by_one(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    models = [tiny_model(), tiny_model()]
    for model, elements in zip(models, (1 << 20, at_once * 64), strict=True):
        monkeypatch.setitem(optim.STACK_ELEMENTS, "cpu", elements)
        optimizer = built(model, settings(optimizer="muon", weight_decay=0.1))
        for number in range(3):
            step(model, optimizer, number + 1)
    together, apart = (model.state_dict() for model in models)
    torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-7)


def test_orthogonal_steps_take_as_many_products_for_any_number_of_layers() -> None:
    """Every product is a kernel to be started on a GPU, thousands if it were one a matrix."""

    class Counter(TorchDispatchMode):
        products = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.products += func in (torch.ops.aten.baddbmm.default, torch.ops.aten.bmm.default)
            return func(*args, **kwargs or {})

    counts = []
    for n_layers in (1, 3):
        model = tiny_model(n_layers)
        optimizer = built(model, settings(optimizer="muon"))
        with Counter() as counter:
            step(model, optimizer, 1)
        counts.append(counter.products)
    n_shapes = 4  # an attention's merged matrices and its output, and both of a feed-forward
    assert counts == [4 * 3 * n_shapes] * 2  # four iterations of three products
