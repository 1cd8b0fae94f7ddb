"""Masks and weights of scaled dot-product attention (Vaswani et al., 2017, section 3.2.1).

Shapes: B sentences, H heads, T queries, S keys, K head width. Every mask is True where attention
is allowed. The weighted sum is `attend` in `cpu_ops`: how it is computed depends on the device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def attention_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a mask into a term of the scores: 0 where True, -inf where False.

    The softmax then gives exactly 0 where attention is not allowed.
    """
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)


def causal_mask(length: int, device: torch.device) -> Tensor:
    """Position t attends to positions <= t. (T, T)"""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril_()


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(K) + bias): each row is a distribution over the keys.

    q (B, H, T, K), k (B, H, S, K), bias broadcastable to (B, H, T, S); gives (B, H, T, S).
    """
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias
    return scores.softmax(dim=-1)
