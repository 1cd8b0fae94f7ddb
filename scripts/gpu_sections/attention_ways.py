"""Ways to compute attention without padding: what training does today, and what might replace it.

Each takes the place of `mt.model.gpu_ops.attend_packed`. Nobody has timed them on a GPU yet, so
they live here.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpu_sections.decision import EFFICIENT, TODAY
from gpu_sections.report import NotJudgedError
from gpu_sections.setting import Setting
from mt.data.tokens.batches import Packed
from mt.model import transformer
from mt.model.gpu_ops import attend_packed

Way = Callable[[Tensor, Tensor, Tensor, Packed, Packed, bool], Tensor]
KEYS = 32  # of a tile, whatever its queries


class Ranges(NamedTuple):
    """See `tile_ranges`."""

    first: Tensor
    end: Tensor
    other_first: Tensor
    other_end: Tensor


def attend_efficient(
    q: Tensor, k: Tensor, v: Tensor, queries: Packed, keys: Packed, causal: bool
) -> Tensor:
    """torch's memory-efficient attention, whose tiles are half as large as FlashAttention's."""
    by_token = [part.transpose(1, 2) for part in (q, k, v)]  # (1, N, H, K)
    starts = queries.starts, keys.starts, queries.longest, keys.longest
    from_top_left = int(causal)
    attend = torch.ops.aten._efficient_attention_forward
    out: Tensor = attend(*by_token, None, *starts, 0.0, from_top_left, True)[0]
    return out.transpose(1, 2)


def tile_ranges(starts: Tensor, others: Tensor, n: int, size: int) -> Ranges:
    """Of each tile of `size` of n tokens: its ends, and those of the tokens that it must visit.

    Tokens are in the sentences that begin at `starts` (B + 1,), the visited ones in the same
    sentences at `others`. All are int32 (tiles,); ends are behind the last token.
    """
    # One tile more, perhaps empty: a batch of one tile would be another graph.
    first = torch.arange(0, n + size, size, device=starts.device, dtype=starts.dtype)
    end = (first + size).clamp(max=n)
    sentence = torch.searchsorted(starts, torch.stack([first, end - 1]), right=True)
    return Ranges(first, end, others[sentence[0] - 1], others[sentence[1]])


def sentence_of(starts: Tensor, n: int) -> Tensor:
    """The number of each token's sentence. (n,) int32"""
    tokens = torch.arange(n, device=starts.device, dtype=starts.dtype)
    return torch.searchsorted(starts, tokens, right=True, out_int32=True)


def attend_rows(
    q: Tensor, k: Tensor, v: Tensor, queries: Packed, keys: Packed, causal: bool, tile: int
) -> Tensor:
    """Attention tiled by tokens (`row_attention`), `tile` queries at a time."""
    n, m = q.size(2), k.size(2)
    of_queries = tile_ranges(queries.starts, keys.starts, n, tile)
    of_keys = tile_ranges(keys.starts, queries.starts, m, KEYS)
    key_end, query_first = of_queries.other_end, of_keys.other_first
    if causal:  # no key after a query
        key_end = torch.minimum(key_end, of_queries.end)
        query_first = torch.maximum(query_first, of_keys.first)
    ranges = of_queries.other_first, key_end, query_first, of_keys.other_end
    sentences = sentence_of(queries.starts, n), sentence_of(keys.starts, m)
    by_token = [part[0].transpose(0, 1) for part in (q, k, v)]  # (N, H, K), (M, H, K) twice
    out, _ = row_attention(*by_token, *sentences, *ranges, causal, tile)
    return out.transpose(0, 1)[None]


def _strided(part: Tensor) -> Tensor:
    """`part` (N, H, K) with heads that lie side by side, copied only if need be."""
    heads_follow = part.stride(2) == 1 and part.stride(1) == part.size(2)
    return part if heads_follow else part.contiguous()


@torch.library.custom_op("gpu_check::row_attention", mutates_args=())
def row_attention(  # noqa: PLR0913 (an operator of torch takes no tuples of tensors)
    q: Tensor, k: Tensor, v: Tensor, q_sentence: Tensor, k_sentence: Tensor,
    key_first: Tensor, key_end: Tensor, query_first: Tensor, query_end: Tensor,
    causal: bool, tile: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output (N, H, K), and the logarithms of the sums of scores (H, N), for the gradient."""
    from gpu_sections import row_attention as kernels

    q, k, v = map(_strided, (q, k, v))
    n, heads, width = q.shape
    assert k.stride(0) == v.stride(0), "keys and values are halves of one product"
    out = torch.empty((n, heads, width), dtype=q.dtype, device=q.device)
    lse = torch.empty((heads, n), dtype=torch.float32, device=q.device)
    kernels.forward[(len(key_first), heads)](
        q, k, v, out, lse, q_sentence, k_sentence, key_first, key_end, q.stride(0), k.stride(0),
        n, math.log2(math.e) / math.sqrt(width), causal, tile, KEYS, heads, width,
    )  # fmt: skip
    return out, lse


@torch.library.custom_op("gpu_check::row_attention_backward", mutates_args=())
def row_attention_backward(  # noqa: PLR0913
    grad: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor,
    q_sentence: Tensor, k_sentence: Tensor,
    key_first: Tensor, key_end: Tensor, query_first: Tensor, query_end: Tensor,
    causal: bool, tile: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v."""
    from gpu_sections import row_attention as kernels

    grad = grad.contiguous()
    q, k, v = map(_strided, (q, k, v))
    n, heads, width = q.shape
    norm = 1 / math.sqrt(width)
    delta = (out.float() * grad.float()).sum(-1).t().contiguous()  # (H, N)
    grads = [torch.empty_like(part, memory_format=torch.contiguous_format) for part in (q, k, v)]
    sentences = q_sentence, k_sentence
    strides, scale = (q.stride(0), k.stride(0)), norm * math.log2(math.e)
    sizes = causal, tile, KEYS, heads, width
    kernels.backward_queries[(len(key_first), heads)](
        q, k, v, grad, grads[0], lse, delta, *sentences, key_first, key_end, *strides,
        n, scale, norm, *sizes,
    )  # fmt: skip
    kernels.backward_keys[(len(query_first), heads)](
        q, k, v, grad, *grads[1:], lse, delta, *sentences, query_first, query_end, *strides,
        n, len(k), scale, norm, *sizes,
    )  # fmt: skip
    return grads[0], grads[1], grads[2]


@row_attention.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    return out, torch.empty((q.size(1), q.size(0)), dtype=torch.float32, device=q.device)


@row_attention_backward.register_fake
def _(grad: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Any:
    return tuple(torch.empty(part.shape, dtype=part.dtype, device=q.device) for part in (q, k, v))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.tile = inputs
    ctx.save_for_backward(*output, *tensors)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    grads = row_attention_backward(grad, *ctx.saved_tensors, ctx.causal, ctx.tile)
    return *grads, *[None] * 8


row_attention.register_autograd(_differentiate, setup_context=_keep)

WAYS: dict[str, Way] = {
    TODAY: attend_packed,
    EFFICIENT: attend_efficient,
    "A, 32 queries": partial(attend_rows, tile=32),
    "A, 64 queries": partial(attend_rows, tile=64),
}


def require(way: str, setting: Setting) -> None:
    """Raise NotJudgedError if this way cannot be computed here."""
    if not setting.is_cuda:
        raise NotJudgedError("attention without padding needs a GPU")
    if way.startswith("A,") and importlib.util.find_spec("triton") is None:
        raise NotJudgedError("Triton is not installed")


@contextmanager
def attending(way: str) -> Iterator[None]:
    """Inside, the model attends to rows of sentences in this way."""
    module: Any = transformer
    module.attend_packed = WAYS[way]
    try:
        yield
    finally:
        module.attend_packed = attend_packed
