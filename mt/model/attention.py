"""Masks and weights of scaled dot-product attention (Vaswani et al., 2017, section 3.2.1).

The weighted sum is `attend` in `cpu_ops`, because how to compute it depends on the device.

Shapes: B sentences, H heads, T queries, S keys, K head width. Every mask is True where attention
is allowed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def attention_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a mask into a term of the scores: 0 where True, -inf where False.

    The softmax of -inf is exactly 0.
    """
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)


def causal_mask(length: int, device: torch.device) -> Tensor:
    """Return the mask by which position t attends to positions <= t. (T, T)"""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril_()


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """Return softmax(Q K^T / sqrt(K) + bias), of which each row is a distribution over the keys.

    q (B, H, T, K), k (B, H, S, K), bias broadcastable to (B, H, T, S) -> (B, H, T, S)
    """
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias
    return scores.softmax(dim=-1)
