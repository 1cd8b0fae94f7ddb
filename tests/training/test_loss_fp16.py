"""The fused loss in float16: its gradients are made before the loss scale reaches them.

Each entry of softmax(z) - target lies in [-1, 1], so float16 holds what matters of it without a
scale. Shown against float64 at a vocabulary of 32,000, from an untrained model to a certain one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mt.training.loss import smoothed_cross_entropy

VOCAB, WIDTH, TOKENS = 32_000, 64, 64
SMOOTHING = 0.1
# GradScaler's first scale, and the target tokens of an update, by which the sum is divided.
FACTOR = 65536 / 25_000
# The loss scale that autocast would apply before its products; 2^12 overflows in the sum over
# tokens of one of the cases below.
SCALE = 2.0**10


def case(certainty: float) -> tuple[Tensor, Tensor, Tensor]:
    """hidden (N, D), weight (V, D) and target (N,); rounded to float16, in float64."""
    torch.manual_seed(1)
    weight = torch.randn(VOCAB, WIDTH, dtype=torch.float64) * WIDTH**-0.5
    target = (torch.rand(TOKENS) ** 4 * VOCAB).long()  # some words are frequent
    hidden = torch.randn(TOKENS, WIDTH, dtype=torch.float64) + certainty * weight[target]
    hidden = F.layer_norm(hidden, (WIDTH,)) * (1 + certainty / 10)
    return hidden.half().double(), weight.half().double(), target


def fused(hidden: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the fused loss with regard to hidden and weight, without the factor."""
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    loss = smoothed_cross_entropy(hidden, weight, None, target, SMOOTHING)
    (loss.smoothed * FACTOR).backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return hidden.grad.double() / FACTOR, weight.grad.double() / FACTOR


def unfused(hidden: Tensor, weight: Tensor, target: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The same as autocast does it: logits and their gradient, times `scale`, in float16."""
    hidden, weight = hidden.half().requires_grad_(), weight.half().requires_grad_()
    logits = (hidden @ weight.t()).float()
    loss = F.cross_entropy(logits, target, label_smoothing=SMOOTHING, reduction="sum")
    (loss * scale).backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return hidden.grad.double() / scale, weight.grad.double() / scale


def test_the_sum_over_many_tokens_does_not_overflow() -> None:
    """150,000 tokens, of which one word is 15 %: no loss scale could mend an infinite gradient."""
    torch.manual_seed(1)
    n, n_words = 150_000, 16
    target = torch.randint(1, n_words, (n,))
    target[: n * 15 // 100] = 0
    weight = torch.randn(n_words, 8, dtype=torch.float64)
    hidden = (torch.randn(n, 8, dtype=torch.float64) / 10 + 4).half().double()
    exact = fused(hidden, weight, target)[1]
    assert exact.abs().max() > torch.finfo(torch.float16).max
    assert error(fused(hidden.half(), weight.float(), target)[1], exact) < 2**-7


def error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def test_float16_gradients_of_words_that_do_not_occur_are_kept() -> None:
    """Their probabilities are near 1 / V = 3e-5, below the smallest normal float16, 6e-5."""
    hidden, weight, target = case(0.0)
    absent = torch.ones(VOCAB, dtype=torch.bool)
    absent[target] = False
    exact = fused(hidden, weight, target)[1][absent]
    ours = fused(hidden.half(), weight.float(), target)[1][absent]
    scaled = unfused(hidden, weight, target, SCALE)[1][absent]
    assert error(ours, exact) < 2**-9
    assert error(ours, exact) < 4 * error(scaled, exact)
