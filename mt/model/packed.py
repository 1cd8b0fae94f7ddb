"""Attention over sentences that lie end to end in one row, so that nothing is computed for padding.

A GPU then takes all lengths of an update in one batch: `varlen_attn` (torch's interface to
FlashAttention-2, Dao, 2023, section 3.1) keeps each sentence to itself. scripts/README.md has what
that gains.

Shapes: B sentences, the longest of T tokens, N tokens of all of them, M of those that are attended
to, H heads, K head width. A row of tokens is (1, N), so that the layers take it as a batch of one
long sentence.
"""

from __future__ import annotations

import importlib
import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mt.config.schema import Config
    from mt.data.tokens.batches import Packed
    from mt.runtime.devices import Device

varlen_attn: Any = None  # see `load_varlen_attn`


def attend_packed(
    q: Tensor, k: Tensor, v: Tensor, queries: Packed, keys: Packed, causal: bool
) -> Tensor:
    """Attention within each sentence: q (1, H, N, K), k and v (1, H, M, K) -> (1, H, N, K).

    `causal`: each token attends to those of its sentence up to itself.
    """
    by_token = [part[0].transpose(0, 1) for part in (q, k, v)]  # (N, H, K), (M, H, K) twice
    lengths = queries.starts, keys.starts, queries.longest, keys.longest
    window = (-1, 0 if causal else -1)  # how far to the left and right; -1 is without end
    out: Tensor = varlen_attn(*by_token, *lengths, window_size=window)  # (N, H, K)
    return out.transpose(0, 1)[None]


def load_varlen_attn() -> bool:
    """Load torch's `varlen_attn`, if it has it with the arguments that `attend_packed` gives it.

    Only where it is used, and before anything is compiled: it brings the compiler with it, 800
    modules and 1.4 s.
    """
    global varlen_attn
    with suppress(ImportError):  # torch 2.9 has none; 2.10 has no `window_size`
        attend = importlib.import_module("torch.nn.attention.varlen").varlen_attn
        varlen_attn = attend if "window_size" in inspect.signature(attend).parameters else None
    return varlen_attn is not None


def can_pack(config: Config, device: Device) -> bool:
    """Whether training can do without padding: on a GPU that has FlashAttention-2, in bf16 or fp16.

    Its kernel has no dropout of attention weights.
    """
    model = config.model
    width = model.d_model // model.n_heads
    return (
        device.is_cuda
        and device.precision in ("bf16", "fp16")
        and load_varlen_attn()
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device.device) >= (8, 0)
        and width % 8 == 0
        and width <= 192  # wider ones need a GPU of data centres for the backward pass
        and not model.attention_dropout
    )
