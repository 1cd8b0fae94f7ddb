"""A model made ready to decode: its precision, and the caches of a batch being translated.

The encoder runs once, and so do the projections of its output to the keys and values of every decoder layer.
A step then costs one column of the decoder. Shapes: B sentences, N hypotheses of each, S source length,
t tokens so far, C columns of the cache, H heads, K head width, D d_model, V vocabulary.
"""

from __future__ import annotations

import copy
import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from mt.decoding.cpu_linear import pack
from mt.model.transformer import DecoderLayer, Transformer, attention_bias
from mt.runtime.devices import Device, small_products

# Padded tokens that the encoder reads at a time on a CPU, so that what lies between its layers stays in the cache.
ENCODER_TOKENS = 512
# Attention to fewer columns than this is filled up with masked ones: torch's CPU softmax goes one by one through rows
# shorter than a vector, 82 us for 340 rows of 14 and 14 us for 340 rows of 28.
LEAST_COLUMNS = 16
# Steps for which a cache has room before it doubles.
FIRST_STEPS = 16


class Inference:
    """A copy of a model for decoding on one device, in its precision; the model itself is left as it is."""

    def __init__(self, model: Transformer, device: Device) -> None:
        self.model = (
            copy.deepcopy(model).to(device.device, device.dtype).eval().requires_grad_(False)
        )
        self.model.compute_dtype = device.dtype
        if not device.is_cuda:
            pack(self.model, device.precision)
        self.device = device.device

    @property
    def max_tokens(self) -> int:
        """The longest source or target, eos or bos counted, that the positions reach."""
        return self.model.config.max_positions

    @torch.inference_mode()
    def start(self, src: Tensor, src_mask: Tensor, n_hypotheses: int) -> Decoding:
        """Encode a batch: src ids (B, S), src_mask (B, S) True at real tokens."""
        src, src_mask = src.to(self.device), src_mask.to(self.device)
        return Decoding(self.model, self._encode(src, src_mask), src_mask, n_hypotheses)

    def _encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """(B, S), (B, S) -> (B, S, D); on a CPU some sentences at a time."""
        if src.is_cuda:
            return self.model.encode(src, src_mask)
        memory = torch.zeros(*src.shape, self.model.config.d_model, dtype=self.model.dtype)
        step = max(1, ENCODER_TOKENS // src.shape[1])
        for i in range(0, len(src), step):
            rows = slice(i, i + step)
            longest = int(src_mask[rows].sum(1).max())
            memory[rows, :longest] = self.model.encode(
                src[rows, :longest], src_mask[rows, :longest]
            )
        return memory


class Decoding:
    """One batch being decoded: the `Stepper` that the search drives.

    Keys and values of the hypotheses of a sentence share one cache (B, H, C, K): each step fills the next N columns,
    one for each hypothesis. When hypotheses change places nothing is copied; instead each one
    carries the set of columns that are its own past, `ancestors` (B, N, C), and attends only to those. For
    N = 1 every column is, and no mask is needed.
    """

    def __init__(
        self, model: Transformer, memory: Tensor, src_mask: Tensor, n_hypotheses: int
    ) -> None:
        self.model, self.several = model, n_hypotheses > 1
        self.layers = cast("list[DecoderLayer]", list(model.decoder))
        self.n_steps = self.n_columns = 0
        rows, config = len(memory), model.config
        # The two products of attention are in float32 at least on a CPU; see `_CpuAttention`.
        wide = memory.dtype if memory.is_cuda else torch.promote_types(memory.dtype, torch.float32)
        self.src_bias = attention_bias(src_mask, wide)[:, None, None, :]  # (B, 1, 1, S)
        self.least = 1 if memory.is_cuda else LEAST_COLUMNS
        self.src_bias = self._widened(self.src_bias, -math.inf, dim=-1)
        # The N hypotheses of a sentence are N queries to the same keys: these are never repeated N times.
        self.source = [
            tuple(
                self._widened(x.to(wide), 0.0, dim=-2)
                for x in layer.cross_attention.key_value(memory)
            )
            for layer in self.layers
        ]  # per layer 2 x (B, H, S, K)
        columns, width = (
            max(n_hypotheses * FIRST_STEPS, self.least),
            config.d_model // config.n_heads,
        )
        empty = memory.new_zeros(rows, config.n_heads, columns, width, dtype=wide)
        self.cache = [
            (empty.clone(), empty.clone()) for _ in self.layers
        ]  # per layer 2 x (B, H, C, K)
        self.ancestors = torch.zeros(rows, 1, columns, dtype=torch.bool, device=memory.device)

    @torch.inference_mode()
    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """tokens (B, N), parents (B, N) -> logits (B, N, V); see `Stepper`."""
        first, end = self.n_columns, self.n_columns + tokens.shape[1]
        if end > self.ancestors.shape[2]:
            self._grow()
        used, bias = max(end, self.least), None
        if self.several:
            self._descend(parents, first)
            bias = attention_bias(
                self.ancestors[:, None, :, :used], self.src_bias.dtype
            )  # (B, 1, N, C)
        elif used > end:
            bias = attention_bias(
                torch.arange(used, device=tokens.device) < end, self.src_bias.dtype
            )  # (C,)
        x = self.model.tgt_embedding(tokens, self.model.dtype, position=self.n_steps)  # (B, N, D)
        with small_products():
            for layer, (keys, values), (src_keys, src_values) in zip(
                self.layers, self.cache, self.source, strict=True
            ):
                around, attention = layer.around_self_attention, layer.self_attention
                q, k, v = attention.query_key_value(around.before(x)).chunk(
                    3, dim=-1
                )  # 3 x (B, N, D)
                keys[:, :, first:end], values[:, :, first:end] = (
                    attention.heads(k),
                    attention.heads(v),
                )
                own = attend(
                    attention.heads(q), keys[:, :, :used], values[:, :, :used], bias
                )  # (B, H, N, K)
                x = around.after(x, attention.merge(own.to(x.dtype)))
                around, attention = layer.around_cross_attention, layer.cross_attention
                found = attend(
                    attention.query(around.before(x)), src_keys, src_values, self.src_bias
                )  # (B, H, N, K)
                x = around.after(x, attention.merge(found.to(x.dtype)))
                around = layer.around_feed_forward
                x = around.after(x, layer.feed_forward(around.before(x)))
            self.n_steps, self.n_columns = self.n_steps + 1, end
            logits: Tensor = self.model.output(self.model.decoder_norm(x))
        return logits

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences only; rows (B',)."""
        used = max(self.n_columns, self.least)

        def kept(cache: Tensor) -> Tensor:
            smaller = cache.new_empty(len(rows), *cache.shape[1:])
            smaller[:, :, :used] = cache[rows, :, :used]
            return smaller

        self.cache = [(kept(keys), kept(values)) for keys, values in self.cache]
        self.source = [(keys[rows], values[rows]) for keys, values in self.source]
        self.src_bias, self.ancestors = self.src_bias[rows], self.ancestors[rows]

    def _widened(self, x: Tensor, value: float, dim: int) -> Tensor:
        """x, contiguous, with as many more columns of `value` as are missing."""
        missing = max(0, self.least - x.shape[dim])
        return F.pad(x, (0, missing) if dim == -1 else (0, 0, 0, missing), value=value).contiguous()

    def _descend(self, parents: Tensor, first: int) -> None:
        """Each hypothesis takes over its parent's past and adds the column it is about to write."""
        index = parents[:, :, None].expand(-1, -1, self.ancestors.shape[2])  # (B, N, C)
        self.ancestors = self.ancestors.gather(1, index)
        places = torch.arange(parents.shape[1], device=parents.device)
        self.ancestors[:, places, first + places] = True

    def _grow(self) -> None:
        """Double the room of every cache."""
        room = self.ancestors.shape[2]
        self.ancestors = torch.cat([self.ancestors, torch.zeros_like(self.ancestors)], dim=2)

        def grown(cache: Tensor) -> Tensor:
            larger = cache.new_empty(*cache.shape[:2], 2 * room, cache.shape[3])
            larger[:, :, :room] = cache
            return larger

        self.cache = [(grown(keys), grown(values)) for keys, values in self.cache]


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Attention of a step's queries (B, H, N, K) to a cache, k and v (B, H, C, K) -> (B, H, N, K), in its dtype.

    `bias` broadcastable to (B, H, N, C). The cache may be the used part of a larger one: it is multiplied where it
    lies, for a copy of it takes as long as the whole rest of a step.
    """
    q = q.to(k.dtype)
    if q.is_cuda:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    flat = q.flatten(0, 1)  # (B * H, N, K)
    none = flat.new_empty(1, 1, 1)
    keys, values = k.flatten(0, 1), v.flatten(0, 1)  # views: (B * H, C, K)
    scores = torch.baddbmm(
        none, flat, keys.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5
    )  # (B * H, N, C)
    if bias is not None:
        scores.unflatten(0, q.shape[:2]).add_(bias)
    return torch.bmm(scores.softmax(dim=-1), values).unflatten(0, q.shape[:2])
