"""A model prepared for decoding: its precision, and the key-value caches of a batch.

Shapes: B sentences, N hypotheses of each, S source length, C columns of the cache, H heads, K head
width, D d_model, V vocabulary.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cache, partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mt.data.tokens.tokenizer import PAD
from mt.model.attention import attend_to_cache, attention_bias
from mt.model.transformer import Linear, MultiHeadAttention, Transformer
from mt.runtime.devices import Device, small_products
from mt.search.engine_contract import LEAST_SIZE

# Padded tokens that the encoder reads at a time on a CPU, so that its activations fit into the
# processor's cache.
ENCODER_TOKENS = 512
# The least number of columns that attention reads, and the number that it reads a multiple of where
# it takes a mask; columns added for this are masked. CPU: torch's softmax uses no vector
# instructions on shorter rows. GPU: fast kernels read a mask in aligned rows, in the encoder too.
COLUMNS = {"cpu": (16, 1), "cuda": (1, 8)}
# Steps for which a new cache has room. A full cache is doubled.
FIRST_STEPS = 16

# Keys and values, each (B, H, S, K) or (B, H, C, K).
KeyValue = tuple[Tensor, Tensor]


class Inference:
    """A copy of a model that decodes on one device, in that device's precision."""

    def __init__(self, model: Transformer, device: Device) -> None:
        self.model = copy.deepcopy(model).to(device.device, device.dtype)
        self.model.eval().requires_grad_(False)
        self.model.compute_dtype = device.dtype
        if device.dtype != model.output.weight.dtype:
            # As in training, word and position are added in the precision of the stored weights.
            source, target = copy.deepcopy((model.src_embedding, model.tgt_embedding))
            self.model.src_embedding = source.to(device.device).eval().requires_grad_(False)
            self.model.tgt_embedding = target.to(device.device).eval().requires_grad_(False)
        if device.device.type == "cpu":
            prepack(self.model)
        self.device = device.device

    @property
    def max_tokens(self) -> int:
        """The longest source or target that the positions allow, eos or bos included."""
        return self.model.config.max_positions

    def bytes_per_token(self) -> float:
        """Estimate the memory that decoding takes for each source token and hypothesis.

        It is the sum of the cache of as many target tokens, twice as large when it has just been
        doubled, with the old cache beside it; the keys and values of the source; and a row of
        logits in float32, twice, of a source of `LEAST_SIZE`.
        """
        config = self.model.config
        column = 2 * config.n_decoder_layers * config.d_model * self.model.dtype.itemsize
        logits = self.model.tgt_embedding.tokens.num_embeddings * 8
        return 4 * column + logits / LEAST_SIZE

    @torch.inference_mode()
    def start(self, src: Tensor, src_mask: Tensor, n_hypotheses: int) -> Decoding:
        """Encode a batch: src ids (B, S), src_mask (B, S) True at real tokens."""
        # Pad to as many columns as fast kernels read, if the model has so many positions.
        missing = -src.shape[1] % COLUMNS[self.device.type][1]
        missing = min(missing, self.max_tokens - src.shape[1])
        src = F.pad(src, (0, missing), value=PAD).to(self.device)
        src_mask = F.pad(src_mask, (0, missing)).to(self.device)
        return Decoding(self.model, self._encode(src, src_mask), src_mask, n_hypotheses)

    def _encode(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """(B, S), (B, S) -> (B, S, D); on a CPU a few sentences at a time."""
        if src.is_cuda:
            return self.model.encode(src, src_mask)
        memory = torch.zeros(*src.shape, self.model.config.d_model, dtype=self.model.dtype)
        step = max(1, ENCODER_TOKENS // src.shape[1])
        for i in range(0, len(src), step):
            rows = slice(i, i + step)
            longest = int(src_mask[rows].sum(1).max())
            batch = src[rows, :longest], src_mask[rows, :longest]
            memory[rows, :longest] = self.model.encode(*batch)
        return memory


def fp32_logits(model: Transformer, x: Tensor) -> Tensor:
    """Compute logits in float32, or wider, of x in any precision: (..., D) -> (..., V).

    In bf16, logits from 8 to 32 are multiples of 1/16 or 1/8: the best tokens would often be equal.
    """
    if not x.is_cuda or x.dtype == torch.float32:
        return cast("Tensor", model.output(x.to(torch.promote_types(x.dtype, torch.float32))))
    # The operands stay as they are: the kernel sums in float32 anyway.
    weight, bias = model.output.weight.t(), model.output.bias
    logits = torch.mm(x.flatten(0, -2), weight, out_dtype=torch.float32)
    return (logits if bias is None else logits.add_(bias)).unflatten(0, x.shape[:-1])


class Decoding:
    """The state of one batch being decoded: the `Stepper` that the search drives.

    The hypotheses of a sentence share one cache of keys and values, (B, H, C, K). Each step fills
    the next N columns, one per hypothesis. When the search reorders hypotheses, no cache is copied:
    the mask `ancestors` (B, N, C) tells which columns are a hypothesis's own past, and it attends
    only to those. With N = 1 these are all columns, and no mask is needed.
    """

    def __init__(
        self, model: Transformer, memory: Tensor, src_mask: Tensor, n_hypotheses: int
    ) -> None:
        self.model = model
        self.n_steps = 0
        self.n_columns = 0
        self.min_columns, self.column_multiple = COLUMNS[memory.device.type]
        # On a CPU attention computes in float32 or wider; see `attention`.
        wide = memory.dtype if memory.is_cuda else torch.promote_types(memory.dtype, torch.float32)
        src_bias = attention_bias(src_mask, wide)[:, None, None, :]  # (B, 1, 1, S)
        self.src_bias = self._padded(src_bias, -math.inf, dim=-1)
        # The N hypotheses are N queries to the same keys, so the keys are not repeated N times.
        self.source: list[KeyValue] = []  # per layer 2 x (B, H, S, K)
        for layer in model.decoder_layers:
            both = (x.to(wide) for x in layer.cross_attention.key_value(memory))
            keys, values = (self._padded(x, 0.0, dim=-2) for x in both)
            self.source.append((keys, values))
        rows, heads = len(memory), model.config.n_heads
        columns = self._aligned(n_hypotheses * FIRST_STEPS)
        empty = memory.new_zeros(rows, heads, columns, memory.shape[-1] // heads, dtype=wide)
        self.cache: list[KeyValue] = [  # per layer 2 x (B, H, C, K)
            (empty.clone(), empty.clone()) for _ in model.decoder_layers
        ]
        self.ancestors: Tensor | None = None
        if n_hypotheses > 1:
            self.ancestors = torch.zeros(rows, 1, columns, dtype=torch.bool, device=memory.device)

    @torch.inference_mode()
    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """tokens (B, N), parents (B, N) -> logits (B, N, V); see `Stepper`."""
        new = slice(self.n_columns, self.n_columns + tokens.shape[1])
        if new.stop > (room := self.cache[0][0].shape[2]):
            self._copy_cache(slice(None), room, 2 * room)
            if self.ancestors is not None:
                self.ancestors = F.pad(self.ancestors, (0, room))
        if self.ancestors is not None:  # its parent's past, and the column that it is to write
            index = parents[:, :, None].expand(-1, -1, self.ancestors.shape[2])  # (B, N, C)
            self.ancestors = self.ancestors.gather(1, index)
            hypotheses = torch.arange(parents.shape[1], device=parents.device)  # (N,)
            self.ancestors[:, hypotheses, new.start + hypotheses] = True
        bias = self._own_bias(new.stop, tokens.device)
        here = slice(self.n_steps, self.n_steps + 1)
        x = self.model.tgt_embedding(tokens, self.model.dtype, here)  # (B, N, D)
        with small_products():
            layers = zip(self.model.decoder_layers, self.cache, self.source, strict=True)
            for layer, cache, source in layers:
                own = partial(self._attend_own, layer.self_attention, cache, new, bias)
                other = partial(self._attend_source, layer.cross_attention, source)
                x = layer(x, self_attention=own, cross_attention=other)
            logits = fp32_logits(self.model, self.model.decoder_norm(x))
        self.n_steps += 1
        self.n_columns = new.stop
        return logits

    def _attend_own(
        self, layer: MultiHeadAttention, cache: KeyValue, new: slice, bias: Tensor | None, x: Tensor
    ) -> Tensor:
        """Fill the `new` columns of the cache, attend to the used ones. (B, N, D) -> (B, N, D)"""
        keys, values = cache
        q, keys[:, :, new], values[:, :, new] = layer.project(x)  # 3 x (B, H, N, K)
        used = self._used(new.stop)
        heads = attend_to_cache(q, keys[:, :, :used], values[:, :, :used], bias)  # (B, H, N, K)
        return layer.merge(heads.to(x.dtype))

    def _attend_source(self, attention: MultiHeadAttention, source: KeyValue, x: Tensor) -> Tensor:
        """Attend to the keys and values of the source. (B, N, D) -> (B, N, D)"""
        heads = attend_to_cache(attention.query(x), *source, self.src_bias)  # (B, H, N, K)
        return attention.merge(heads.to(x.dtype))

    def _own_bias(self, n_columns: int, device: torch.device) -> Tensor | None:
        """Return the bias that leaves each hypothesis its own past, without unused columns."""
        used = self._used(n_columns)
        if self.ancestors is not None:
            mask = self.ancestors[:, None, :, :used]  # (B, 1, N, C)
        elif used > n_columns:
            mask = torch.arange(used, device=device) < n_columns  # (C,)
        else:
            return None
        return attention_bias(mask, self.src_bias.dtype)

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """Drop all sentences but `rows` (B',)."""
        self._copy_cache(rows, self._used(self.n_columns), self.cache[0][0].shape[2])
        self.source = [(keys[rows], values[rows]) for keys, values in self.source]
        self.src_bias = self.src_bias[rows]
        if self.ancestors is not None:
            self.ancestors = self.ancestors[rows]

    def _copy_cache(self, rows: Tensor | slice, used: int, room: int) -> None:
        """Move the first columns of these sentences into a cache with room for so many."""

        def copied(cache: Tensor) -> Tensor:
            kept = cache[rows, :, :used]
            new = cache.new_empty(*kept.shape[:2], room, kept.shape[3])
            new[:, :, :used] = kept
            new[:, :, used:] = 0  # masked columns are read too, and 0 times NaN would be NaN
            return new

        self.cache = [(copied(keys), copied(values)) for keys, values in self.cache]

    def _used(self, n_columns: int) -> int:
        """Return how many columns attention reads if the first `n_columns` hold tokens."""
        if self.ancestors is None:
            return max(n_columns, self.min_columns)
        return self._aligned(n_columns)

    def _aligned(self, n_columns: int) -> int:
        """Return how many columns masked attention reads to see the first `n_columns`."""
        whole = -(-n_columns // self.column_multiple) * self.column_multiple
        return max(whole, self.min_columns)

    def _padded(self, x: Tensor, value: float, dim: int) -> Tensor:
        """Extend x by columns of `value` to as many as attention reads; contiguous."""
        missing = self._aligned(x.shape[dim]) - x.shape[dim]
        return F.pad(x, (0, missing) if dim == -1 else (0, 0, 0, missing), value=value).contiguous()


# --- several models -----------------------------------------------------------------------------


class Ensemble:
    """Models of one vocabulary as one `Inference`, whose probabilities are averaged each step."""

    def __init__(self, members: Sequence[Inference]) -> None:
        self.members = members
        self.device = members[0].device
        self.max_tokens = min(member.max_tokens for member in members)

    def bytes_per_token(self) -> float:
        return sum(member.bytes_per_token() for member in self.members)

    def start(self, src: Tensor, src_mask: Tensor, n_hypotheses: int) -> EnsembleDecoding:
        members = [member.start(src, src_mask, n_hypotheses) for member in self.members]
        return EnsembleDecoding(members)


class EnsembleDecoding:
    """The state of one batch whose hypotheses every member extends: a `Stepper`."""

    def __init__(self, members: Sequence[Decoding]) -> None:
        self.members = members

    @torch.inference_mode()
    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """tokens (B, N), parents (B, N) -> log-probabilities up to a constant, (B, N, V) fp32."""
        total, *others = (
            member.step(tokens, parents).float().log_softmax(-1) for member in self.members
        )
        for log_probs in others:
            torch.logaddexp(total, log_probs, out=total)
        return total  # not divided by the number of members, which is a constant

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        for member in self.members:
            member.keep(rows)


# --- fast linear layers for a CPU ---------------------------------------------------------------

# A decoding step multiplies a few rows by every matrix of the model, so packing a matrix into the
# layout of the kernel costs as much as the product. Here they are packed once.

# Number of rows that oneDNN optimises the layout for; 16 to 1,024 differ by 2 % in speed.
TYPICAL_ROWS = 128


class PrepackedLinear(nn.Module):
    """x W^T + b, with W (N, K) in oneDNN's layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TYPICAL_ROWS)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)"""
        product = torch.ops.mkldnn._linear_pointwise
        return cast("Tensor", product(x, self.weight, self.bias, "none", [], ""))


class SplitQueryKeyValue(nn.Module):
    """Stand-in for `query_key_value` of cross-attention, which uses its two parts apart."""

    def __init__(self, query: nn.Module, key_value: nn.Module) -> None:
        super().__init__()
        self.query = query
        self.key_value = key_value

    def part(self, x: Tensor, rows: slice) -> Tensor:
        """Apply the layer of these rows, as `Linear.part` does: the queries' start at 0."""
        return cast("Tensor", (self.key_value if rows.start else self.query)(x))


def prepack(model: Transformer) -> None:
    """Replace every `Linear` of a model, in place, by a prepacked layer if torch can prepack it.

    The model can then only decode, and only on a CPU. The output matrix becomes float32; see
    `fp32_logits`.
    """
    if not can_prepack(model.output.weight.dtype):
        return
    sizes = [model.config.d_model, 2 * model.config.d_model]
    for layer in model.decoder_layers:
        merged = layer.cross_attention.query_key_value
        weights = merged.weight.detach().split(sizes)
        biases = (None, None) if merged.bias is None else merged.bias.detach().split(sizes)
        split = SplitQueryKeyValue(*map(PrepackedLinear, weights, biases))
        layer.cross_attention.query_key_value = split  # type: ignore[assignment]
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Linear):
                wide = torch.float32 if child is model.output else child.weight.dtype
                bias = None if child.bias is None else child.bias.detach().to(wide)
                setattr(module, name, PrepackedLinear(child.weight.detach().to(wide), bias))


@cache
def can_prepack(dtype: torch.dtype) -> bool:
    """Whether torch prepacks matrices of this dtype on this machine, with correct products."""
    generator = torch.Generator().manual_seed(0)
    shapes = (5, 64), (48, 64), (48,)
    x, weight, bias = (torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)
    try:
        product = PrepackedLinear(weight, bias)(x)
    except (AttributeError, RuntimeError):  # no such operator, or not for this dtype or CPU
        return False
    expected = F.linear(x.double(), weight.double(), bias.double())
    error = (product.double() - expected).norm() / expected.norm()
    return float(error) < 4 * torch.finfo(dtype).eps
