"""A model made ready to decode: its precision, and the caches of a batch being translated.

The encoder runs once, and so do the projections of its output to the keys and values of every decoder layer.
A step then costs one column of the decoder. Shapes: B sentences, N hypotheses of each, S source length,
t tokens so far, C columns of the cache, H heads, K head width, D d_model, V vocabulary.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from mt.devices import Device
from mt.model.transformer import DecoderLayer, Transformer, attend, attention_bias

# Steps for which a cache has room before it doubles.
FIRST_STEPS = 16


class Inference:
    """A copy of a model for decoding on one device, in its precision; the model itself is left as it is."""

    def __init__(self, model: Transformer, device: Device) -> None:
        first = next(model.parameters())
        same = first.dtype == model.dtype == device.dtype and first.device == device.device and not model.training
        self.model = model
        if not same:
            self.model = copy.deepcopy(model).to(device.device, device.dtype).eval()
            self.model.compute_dtype = None
        self.device = device.device

    @property
    def max_tokens(self) -> int:
        """The longest source or target, eos or bos counted, that the positions reach."""
        return self.model.config.max_positions

    @torch.inference_mode()
    def start(self, src: Tensor, src_mask: Tensor, n_hypotheses: int) -> Decoding:
        """Encode a batch: src ids (B, S), src_mask (B, S) True at real tokens."""
        src, src_mask = src.to(self.device), src_mask.to(self.device)
        memory = self.model.encode(src, src_mask)
        return Decoding(self.model, memory, src_mask, n_hypotheses)


class Decoding:
    """One batch being decoded: the `Stepper` that the search drives.

    Keys and values of the hypotheses of a sentence share one cache (B, H, C, K): step t fills the N columns
    from t * N on, one for each hypothesis. When hypotheses change places nothing is copied; instead each one
    carries the set of columns that are its own past, `ancestors` (B, N, C), and attends only to those. For
    N = 1 every column is, and no mask is needed.
    """

    def __init__(self, model: Transformer, memory: Tensor, src_mask: Tensor, n_hypotheses: int) -> None:
        self.model, self.n = model, n_hypotheses
        self.n_steps = 0
        rows, config = len(memory), model.config
        self.src_bias = attention_bias(src_mask, memory.dtype)[:, None, None, :]  # (B, 1, 1, S)
        # The N hypotheses of a sentence are N queries to the same keys: these are never repeated N times.
        # In the form that `attend` wants, or every step would copy them anew. Per layer 2 x (B, H, S, K)
        wide = memory.dtype if memory.is_cuda else torch.promote_types(memory.dtype, torch.float32)
        self.source = [
            tuple(x.to(wide, memory_format=torch.contiguous_format) for x in layer.cross_attention.key_value(memory))
            for layer in self.layers
        ]
        columns, width = n_hypotheses * FIRST_STEPS, config.d_model // config.n_heads
        empty = memory.new_empty(rows, config.n_heads, columns, width, dtype=wide)
        self.cache = [(empty.clone(), empty.clone()) for _ in self.layers]  # per layer 2 x (B, H, C, K)
        self.ancestors = torch.zeros(rows, n_hypotheses, columns, dtype=torch.bool, device=memory.device)

    @property
    def layers(self) -> list[DecoderLayer]:
        return list(self.model.decoder)  # type: ignore[arg-type]

    @torch.inference_mode()
    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """tokens (B, N), parents (B, N) -> logits (B, N, V); see `Stepper`."""
        first, end = self.n_steps * self.n, (self.n_steps + 1) * self.n
        if end > self.ancestors.shape[2]:
            self._grow()
        bias = None
        if self.n > 1:
            self._descend(parents, first)
            bias = attention_bias(self.ancestors[:, None, :, :end], self.model.dtype)  # (B, 1, N, C)
        x = self.model.tgt_embedding(tokens, self.model.dtype, position=self.n_steps)  # (B, N, D)
        for layer, (keys, values), (src_keys, src_values) in zip(self.layers, self.cache, self.source, strict=True):
            around, attention = layer.around_self_attention, layer.self_attention
            q, k, v = attention.query_key_value(around.before(x)).chunk(3, dim=-1)  # 3 x (B, N, D)
            keys[:, :, first:end], values[:, :, first:end] = attention.heads(k), attention.heads(v)
            own = attend(attention.heads(q), keys[:, :, :end], values[:, :, :end], bias)  # (B, H, N, K)
            x = around.after(x, attention.merge(own.to(x.dtype)))
            around, attention = layer.around_cross_attention, layer.cross_attention
            query = attention.query(around.before(x))  # (B, H, N, K)
            found = attend(query, src_keys, src_values, self.src_bias)
            x = around.after(x, attention.merge(found.to(x.dtype)))
            around = layer.around_feed_forward
            x = around.after(x, layer.feed_forward(around.before(x)))
        self.n_steps += 1
        logits: Tensor = self.model.output(self.model.decoder_norm(x))
        return logits

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences only; rows (B',)."""
        used = self.n_steps * self.n

        def kept(cache: Tensor) -> Tensor:
            smaller = cache.new_empty(len(rows), *cache.shape[1:])
            smaller[:, :, :used] = cache[rows, :, :used]
            return smaller

        self.cache = [(kept(keys), kept(values)) for keys, values in self.cache]
        self.source = [(keys[rows], values[rows]) for keys, values in self.source]
        self.src_bias, self.ancestors = self.src_bias[rows], self.ancestors[rows]

    def _descend(self, parents: Tensor, first: int) -> None:
        """Each hypothesis takes over its parent's past and adds the column it is about to write."""
        index = parents[:, :, None].expand(-1, -1, first)  # (B, N, columns so far)
        self.ancestors[:, :, :first] = self.ancestors[:, :, :first].gather(1, index)
        places = torch.arange(self.n, device=parents.device)
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
