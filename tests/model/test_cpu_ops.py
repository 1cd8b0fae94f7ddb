"""Dropout on a CPU: how much is dropped, what is kept, and its gradient.

Dropout of attention weights is in test_regularisation.
"""

from __future__ import annotations

import math

import pytest
import torch

from mt.model.attention import dropout

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])


@pytest.mark.parametrize("p", [0.004, 0.1, 0.3, 0.5, 0.9])
@DTYPES
def test_dropout_zeros_the_share_p_and_scales_the_rest(p: float, dtype: torch.dtype) -> None:
    """With q = round(256 p) / 256 for p; what is kept is divided by 1 - q, so the mean stays.

    Of n = 200,003 elements the share of zeros is q within 5 standard errors sqrt(q (1 - q) / n).
    Eight elements share one draw, so the same must hold for each eighth of them, and q^2 for the
    share of two zeros 1 to 8 apart.
    """
    torch.manual_seed(5)
    n, q = 200_003, round(256 * p) / 256
    y = dropout(torch.full((n,), 3.0, dtype=dtype), p, training=True)
    assert y.dtype == dtype
    zero = (y == 0).double()
    assert (zero.mean() - q).abs() < 5 * math.sqrt(q * (1 - q) / n)
    for lane in range(8):
        assert (zero[lane::8].mean() - q).abs() < 5 * math.sqrt(q * (1 - q) / (n / 8))
    for distance in range(1, 9):
        both = (zero[:-distance] * zero[distance:]).mean()
        # Each pair shares an element with two others, hence at most three times the variance.
        assert (both - q**2).abs() < 5 * math.sqrt(3 * q**2 * (1 - q**2) / n)
    kept = y[y != 0].unique().double()
    assert len(kept) == 1
    assert abs(kept.item() * (1 - q) / 3 - 1) < 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (9,), (7, 3), (2, 3, 5), (4, 4)])
def test_dropout_takes_any_size_and_repeats_with_the_seed(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    masks = []
    for seed in [*range(30), *range(30)]:
        torch.manual_seed(seed)
        masks.append(dropout(x, 0.5, training=True))
    assert all(mask.shape == shape for mask in masks)
    assert all(torch.equal(a, b) for a, b in zip(masks[:30], masks[30:], strict=True))
    drawn = torch.stack(masks[:30])
    assert (drawn == 0).any(dim=0).all()  # every element is dropped by one seed or another,
    assert (drawn == 2).any(dim=0).all()  # and kept by one: 2 * 2^-30 to fail by chance


@DTYPES
def test_gradient_of_dropout_is_its_mask(dtype: torch.dtype) -> None:
    """Also through a view that is not contiguous."""
    torch.manual_seed(6)
    x = torch.randn(5, 9, dtype=dtype).add_(10).requires_grad_()
    y = dropout(x.t(), 0.25, training=True)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype
    assert torch.equal(x.grad.t(), (y != 0).to(dtype) * torch.tensor(4 / 3, dtype=dtype))
    assert 0 < (y == 0).sum() < y.numel()


@DTYPES
def test_dropout_of_a_relu_is_dropout_after_a_relu(dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    x = torch.randn(50, 9, dtype=dtype)
    x[0, :3] = 0
    found = []
    for relu, before in ((True, torch.clone), (False, torch.relu)):
        leaf = x.clone().requires_grad_()
        torch.manual_seed(8)
        y = dropout(before(leaf), 0.25, training=True, relu=relu)  # the clone may be overwritten
        (gradient,) = torch.autograd.grad((y * torch.arange(9, dtype=dtype)).sum(), leaf)
        found.append((y.detach(), gradient))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.allclose(found[0][1], found[1][1], rtol=2 * torch.finfo(dtype).eps, atol=0)
    assert torch.equal(dropout(x.clone(), 0.25, training=False, relu=True), x.relu())
