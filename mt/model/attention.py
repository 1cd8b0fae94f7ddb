"""Scaled dot-product attention (Vaswani et al., 2017, section 3.2.1) and dropout, fast on a CPU.

`dropout`, `attend` and `attend_to_cache` call torch's own operations on other devices, and the
first two do so in a compiled model.

Shapes: B sentences, H heads, T queries, S keys, C columns of a cache, N hypotheses, K head width.
Every mask is True where attention is allowed.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from mt.runtime.devices import small_products


def attention_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a mask into a term of scores: 0 where True, else -inf, whose softmax is exactly 0."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)


def causal_mask(length: int, device: torch.device) -> Tensor:
    """Return the mask by which position t attends to positions <= t. (T, T)"""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril_()


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """Return softmax(q k^T / sqrt(K) + bias), of which each row is a distribution over the keys.

    q (B, H, T, K), k (B, H, S, K), bias broadcastable to (B, H, T, S) -> (B, H, T, S)
    """
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias
    return scores.softmax(dim=-1)


def _uses_torch(x: Tensor) -> bool:
    """Whether to call torch's own operation: x is not on a CPU, or torch.compile is tracing."""
    return x.device.type != "cpu" or torch.compiler.is_compiling()


# --- dropout ----------------------------------------------------------------------------------


def dropout(x: Tensor, p: float, training: bool, relu: bool = False) -> Tensor:
    """Set each element to 0 with probability p, else to x / (1 - p) (Srivastava et al., 2014).

    On a CPU, p is rounded to the nearest of 1/256, ..., 255/256, and the scale follows it. `relu`:
    of max(0, x) instead of x, which may be overwritten.
    """
    if not training or p == 0 or _uses_torch(x):
        return F.dropout(x.relu_() if relu else x, p, training)
    apply: Any = (_ReluDropout if relu else _Dropout).apply
    return cast("Tensor", apply(x, _in_256ths(p)))


def _in_256ths(p: float) -> int:
    return min(255, max(1, round(256 * p))) if p else 0


def _draw_bytes(shape: torch.Size) -> Tensor:
    """Draw one random byte per element, eight bytes from each 64-bit number.

    torch's dropout draws 32 bits for each element, which takes half the time of a training step;
    this takes a tenth of that.
    """
    draws = torch.empty((shape.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    return draws.view(torch.uint8)[: shape.numel()].view(shape)


def _keep_factors(draws: Tensor, dropped: int, dtype: torch.dtype) -> Tensor:
    """Return a factor per element: 0 if its byte is below `dropped`, else 256 / (256 - dropped)."""
    # The comparison writes floats, because torch multiplies by booleans ten times slower.
    keep = torch.ge(draws, dropped, out=torch.empty(draws.shape, dtype=dtype))
    return keep.mul_(256 / (256 - dropped))


class _Dropout(torch.autograd.Function):
    """Dropout that saves random bytes, not factors: 0.25 GB and 10 % of time in a small model."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        draws = _draw_bytes(x.shape)
        ctx.save_for_backward(draws)
        ctx.dropped = dropped
        return _keep_factors(draws, dropped, x.dtype).mul_(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (draws,) = ctx.saved_tensors
        return _keep_factors(draws, ctx.dropped, grad.dtype).mul_(grad), None


class _ReluDropout(torch.autograd.Function):
    """ReLU and dropout that save only their output: where it is not 0, x was kept and positive."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        out = _keep_factors(_draw_bytes(x.shape), dropped, x.dtype).mul_(x).relu_()
        ctx.save_for_backward(out)
        ctx.scale = 256 / (256 - dropped)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grad, out, 0).mul_(ctx.scale), None


# --- attention --------------------------------------------------------------------------------


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, p: float = 0.0, causal: bool = False
) -> Tensor:
    """Attention(Q, K, V) of section 3.2.1: q (B, H, T, K), k and v (B, H, S, K) -> (B, H, T, K).

    bias broadcastable to (B, H, T, S). `causal`, without a bias: position t attends to those up to
    t. Each weight is dropped with probability p after the softmax, which the authors' code
    (tensor2tensor) does and the paper does not mention.
    """
    if _uses_torch(q):
        options: dict[str, Any] = {"attn_mask": bias, "dropout_p": p, "is_causal": causal}
        return F.scaled_dot_product_attention(q, k, v, **options)
    if causal:
        bias = attention_bias(causal_mask(q.shape[2], q.device), q.dtype)  # (T, T)
    apply: Any = _Attention.apply
    return cast("Tensor", apply(q, k, v, bias, _in_256ths(p)))


class _Attention(torch.autograd.Function):
    """Attention whose two products are in float32 or wider, and computed by MKL.

    Sentences are short, so these products are small and their shapes keep changing. oneDNN compiles
    code for each new shape, which takes 0.5 ms a product; MKL multiplies in 0.1 to 0.3 ms
    (584 x 14 x 64 and 200 x 5 x 65, two Zen 5 cores). torch's fused kernel is slower than both.

    The dropout mask is kept in the sign bit of the softmax weights, so it costs no memory.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropped: int
    ) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k, v = (x.to(wide).contiguous() for x in (q, k, v))
        bias = None if bias is None else bias.to(wide)
        with small_products():
            weights = attention_weights(q, k, bias)  # (B, H, T, S)
            if dropped:
                keep = _keep_factors(_draw_bytes(weights.shape), dropped, wide)  # 0, or at least 1
                out = (keep * weights) @ v
                weights.copysign_(keep.sub_(0.5))
            else:
                out = weights @ v
        ctx.save_for_backward(q, k, v, weights)
        ctx.dropped = dropped
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        with small_products():
            grad_weights = grad @ v.transpose(-2, -1)  # (B, H, T, S)
            if ctx.dropped:
                keep = 256 / (256 - ctx.dropped)
                grad_v = weights.relu().mul_(keep).transpose(-2, -1) @ grad  # (B, H, S, K)
                # A weight of 0 counts as dropped: the gradient of its score is 0 either way.
                grad_weights = torch.ops.aten.threshold_backward(grad_weights, weights, 0)
                weights, scale = weights.abs(), scale * keep
            else:
                grad_v = weights.transpose(-2, -1) @ grad
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_scores = grad_scores.mul_(scale)
            return grad_scores @ k, grad_scores.transpose(-2, -1) @ q, grad_v, None, None


def attend_to_cache(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Attention of one decoding step: q (B, H, N, K), k and v (B, H, C, K) -> (B, H, N, K).

    bias broadcastable to (B, H, N, C). The result has the dtype of the cache. k and v may be the
    used part of a larger cache; they are not copied, as a copy takes as long as the rest of a step.
    """
    q = q.to(k.dtype)
    if q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    flat = q.flatten(0, 1)  # (B * H, N, K)
    keys, values = k.flatten(0, 1), v.flatten(0, 1)  # views: (B * H, C, K)
    scores = torch.baddbmm(  # (B * H, N, C)
        flat.new_empty(1, 1, 1), flat, keys.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5
    )
    if bias is not None:
        scores.unflatten(0, q.shape[:2]).add_(bias)
    return torch.bmm(scores.softmax(dim=-1), values).unflatten(0, q.shape[:2])
