"""Attention over a row of sentences, tiled by tokens instead of by sentences; needs Triton.

FlashAttention gives each sentence tiles of its own, most of which are empty where sentences are
short. Here a tile is some tokens of the row, whatever sentences they belong to, and it visits only
the tokens of those sentences. Scores of tokens of other sentences are masked by the number of their
sentence. The backward pass has a kernel for the queries and another for keys and values, so that
nothing is added with atomics. Proved with Triton's interpreter; never run on a GPU.

Shapes: N queries, M keys, H heads of width D. Scores are in powers of 2.
"""

# mypy: ignore-errors
# ruff: noqa: N803, PLR0913 (a kernel takes pointers, strides and constants, in capitals as usual)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_of(start, end, stride, head, SIZE: tl.constexpr, D: tl.constexpr):
    """Numbers of a tile's tokens, which of them are before `end`, and places of their values."""
    tokens = start + tl.arange(0, SIZE)
    places = tokens[:, None] * stride + head * D + tl.arange(0, D)[None, :]
    return tokens, tokens < end, places


@triton.jit
def masked_scores(q, k, queries, keys, q_sentence, k_sentence, scale, CAUSAL: tl.constexpr):
    """Scores of (queries, keys), -inf where a query does not see the key."""
    seen = q_sentence[:, None] == k_sentence[None, :]
    if CAUSAL:
        seen = seen & (queries[:, None] >= keys[None, :])
    return tl.where(seen, tl.dot(q, tl.trans(k)) * scale, float("-inf"))


@triton.jit
def forward(
    Q, K, V, OUT, LSE, Q_SENTENCE, K_SENTENCE, FIRST, END, q_stride, k_stride, n, scale,
    CAUSAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The output of a tile of queries of a head, and the logarithm of the sum of their scores."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    rows, row_ok, places = tile_of(tile * QUERIES, n, q_stride, head, QUERIES, D)
    q = tl.load(Q + places, mask=row_ok[:, None], other=0.0)
    q_sentence = tl.load(Q_SENTENCE + rows, mask=row_ok, other=-1)
    first = tl.load(FIRST + tile)
    end = tl.load(END + tile)
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    out = tl.zeros([QUERIES, D], tl.float32)
    for start in range(first, end, KEYS):
        cols, col_ok, places = tile_of(start, end, k_stride, head, KEYS, D)
        k = tl.load(K + places, mask=col_ok[:, None], other=0.0)
        v = tl.load(V + places, mask=col_ok[:, None], other=0.0)
        k_sentence = tl.load(K_SENTENCE + cols, mask=col_ok, other=-2)
        x = masked_scores(q, k, rows, cols, q_sentence, k_sentence, scale, CAUSAL)
        higher = tl.maximum(top, tl.max(x, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)  # no key of its sentence so far
        p = tl.exp2(x - finite[:, None])
        shrink = tl.exp2(top - finite)
        total = total * shrink + tl.sum(p, 1)
        out = out * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        top = higher
    divisor = tl.where(total == 0.0, 1.0, total)
    _, _, places = tile_of(tile * QUERIES, n, H * D, head, QUERIES, D)
    out = (out / divisor[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + places, out, mask=row_ok[:, None])
    lse = tl.where(total == 0.0, 0.0, top + tl.log2(divisor))
    tl.store(LSE + head * n + rows, lse, mask=row_ok)


@triton.jit
def backward_queries(
    Q, K, V, GRAD, GRAD_Q, LSE, DELTA, Q_SENTENCE, K_SENTENCE, FIRST, END,
    q_stride, k_stride, n, scale, norm,
    CAUSAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of queries. DELTA: the sum of output times its gradient."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    rows, row_ok, places = tile_of(tile * QUERIES, n, q_stride, head, QUERIES, D)
    _, _, packed = tile_of(tile * QUERIES, n, H * D, head, QUERIES, D)
    q = tl.load(Q + places, mask=row_ok[:, None], other=0.0)
    grad = tl.load(GRAD + packed, mask=row_ok[:, None], other=0.0)
    q_sentence = tl.load(Q_SENTENCE + rows, mask=row_ok, other=-1)
    lse = tl.load(LSE + head * n + rows, mask=row_ok, other=0.0)
    delta = tl.load(DELTA + head * n + rows, mask=row_ok, other=0.0)
    first = tl.load(FIRST + tile)
    end = tl.load(END + tile)
    total = tl.zeros([QUERIES, D], tl.float32)
    for start in range(first, end, KEYS):
        cols, col_ok, places = tile_of(start, end, k_stride, head, KEYS, D)
        k = tl.load(K + places, mask=col_ok[:, None], other=0.0)
        v = tl.load(V + places, mask=col_ok[:, None], other=0.0)
        k_sentence = tl.load(K_SENTENCE + cols, mask=col_ok, other=-2)
        x = masked_scores(q, k, rows, cols, q_sentence, k_sentence, scale, CAUSAL)
        p = tl.exp2(x - lse[:, None])
        d = p * (tl.dot(grad, tl.trans(v)) - delta[:, None])
        total += tl.dot(d.to(k.dtype), k)
    tl.store(GRAD_Q + packed, (total * norm).to(GRAD_Q.dtype.element_ty), mask=row_ok[:, None])


@triton.jit
def backward_keys(
    Q, K, V, GRAD, GRAD_K, GRAD_V, LSE, DELTA, Q_SENTENCE, K_SENTENCE, FIRST, END,
    q_stride, k_stride, n, m, scale, norm,
    CAUSAL: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    H: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values; FIRST and END are of queries."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    cols, col_ok, places = tile_of(tile * KEYS, m, k_stride, head, KEYS, D)
    k = tl.load(K + places, mask=col_ok[:, None], other=0.0)
    v = tl.load(V + places, mask=col_ok[:, None], other=0.0)
    k_sentence = tl.load(K_SENTENCE + cols, mask=col_ok, other=-2)
    first = tl.load(FIRST + tile)
    end = tl.load(END + tile)
    grad_k = tl.zeros([KEYS, D], tl.float32)
    grad_v = tl.zeros([KEYS, D], tl.float32)
    for start in range(first, end, QUERIES):
        rows, row_ok, places = tile_of(start, end, q_stride, head, QUERIES, D)
        _, _, packed = tile_of(start, end, H * D, head, QUERIES, D)
        q = tl.load(Q + places, mask=row_ok[:, None], other=0.0)
        grad = tl.load(GRAD + packed, mask=row_ok[:, None], other=0.0)
        q_sentence = tl.load(Q_SENTENCE + rows, mask=row_ok, other=-1)
        lse = tl.load(LSE + head * n + rows, mask=row_ok, other=0.0)
        delta = tl.load(DELTA + head * n + rows, mask=row_ok, other=0.0)
        x = masked_scores(q, k, rows, cols, q_sentence, k_sentence, scale, CAUSAL)
        p = tl.exp2(x - lse[:, None])
        grad_v += tl.dot(tl.trans(p.to(grad.dtype)), grad)
        d = p * (tl.dot(grad, tl.trans(v)) - delta[:, None])
        grad_k += tl.dot(tl.trans(d.to(q.dtype)), q)
    _, _, packed = tile_of(tile * KEYS, m, H * D, head, KEYS, D)
    grad_k = (grad_k * norm).to(GRAD_K.dtype.element_ty)
    tl.store(GRAD_K + packed, grad_k, mask=col_ok[:, None])
    tl.store(GRAD_V + packed, grad_v.to(GRAD_V.dtype.element_ty), mask=col_ok[:, None])
