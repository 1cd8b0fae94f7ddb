"""Attention without padding on a CPU, and the config of a small model."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

DATA: dict[str, Any] = {"data": {"train": [{"src": "none", "tgt": "none"}]}}
SMALL = {"d_model": 32, "n_heads": 4, "d_ff": 64, "n_encoder_layers": 2, "n_decoder_layers": 2}


def attend_each(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, key_starts: Tensor, longest: int,
    longest_key: int, *, window_size: tuple[int, int],
) -> Tensor:  # fmt: skip
    """`varlen_attn`, a sentence at a time. q (N, H, K), k and v (M, H, K) -> (N, H, K)"""
    assert starts.dtype == key_starts.dtype == torch.int32
    assert (starts.diff().max(), key_starts.diff().max()) <= (longest, longest_key)
    parts = []
    for (a, b), (c, d) in zip(
        *(each.unfold(0, 2, 1).tolist() for each in (starts, key_starts)), strict=True
    ):
        query, key, value = (x.transpose(0, 1) for x in (q[a:b], k[c:d], v[c:d]))  # (H, T, K)
        out = F.scaled_dot_product_attention(query, key, value, is_causal=window_size == (-1, 0))
        parts.append(out.transpose(0, 1))
    return torch.cat(parts)
