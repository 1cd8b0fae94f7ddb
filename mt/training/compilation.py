"""torch.compile for training: one graph of the model for batches of all shapes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mt.data.tokens.batches import Batch, Packed, collate
from mt.data.tokens.store import Store
from mt.data.tokens.tokenizer import EOS, PAD
from mt.model import gpu_ops
from mt.model.transformer import Transformer

# Padded tokens of the batch that is compiled first, by which the compiler chooses its kernels:
# enough for it to expect long sums.
PROBE_TOKENS = 8192
MOST_GRAPHS = 16  # of one function; batches need one


def compile_for_all_shapes(model: Transformer) -> Callable[..., Tensor]:
    """Compile a `Transformer` into one graph, and return its `forward`.

    torch.compile makes a graph of its own for each batch of one row, and by default for each pair
    of dimensions that happen to be equal. So the number of rows and both lengths are marked as
    dynamic, which makes them independent of each other, and a batch of one row is computed as two
    equal ones; a packed one gets a second sentence without tokens. For CUDA, Inductor would make
    two more kinds of graphs: for targets of a multiple of 8 columns, which here get one more, and
    for large batches. After `MOST_GRAPHS` for other reasons, torch would silently compute without
    compiling; here `FailOnRecompileLimitHit` is raised.
    """
    torch._dynamo.config.recompile_limit = MOST_GRAPHS
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    triton = importlib.import_module("torch._inductor.config").triton
    if hasattr(triton, "mix_order_reduction_non_strict_mode"):  # in torch 2.13
        # The two sums in the gradient of a layer norm are one kernel in batches of any size, not
        # only from 5 * 2**20 elements on, 10,240 tokens of 512.
        triton.mix_order_reduction_non_strict_mode = True
    compiled = torch.compile(model, backend=gpu_ops.BACKEND)
    max_positions = model.config.max_positions

    @partial(torch.compile, backend=gpu_ops.BACKEND)
    def in_rows(src: Tensor, tgt_in: Tensor, src_mask: Tensor, *sides: Tensor) -> Tensor:
        sources, targets = (
            Packed(places, starts, counted.shape[0])
            for places, starts, counted in (sides[:3], sides[3:])
        )
        return cast("Tensor", model(src, tgt_in, src_mask, (sources, targets)))

    def forward(
        src: Tensor, tgt_in: Tensor, src_mask: Tensor, packed: tuple[Packed, Packed] | None = None
    ) -> Tensor:
        if packed is not None:
            sides = list[Tensor]()
            for places, starts, longest in packed:
                if len(starts) == 2:
                    starts = torch.cat([starts, starts[1:]])
                # Each `longest` would have a graph of its own, were it not the size of a tensor.
                sides += [places, starts, src.new_empty(longest, 0)]
            for part in (src, tgt_in, src_mask, *sides):
                torch._dynamo.maybe_mark_dynamic(part, part.dim() - 1 if part.numel() else 0)
            return cast("Tensor", in_rows(src, tgt_in, src_mask, *sides))
        rows, length = tgt_in.shape
        # Flash attention saves a row for each head, whose alignment Inductor looks at.
        if length % 8 == 0 and length < max_positions:
            tgt_in = F.pad(tgt_in, (0, 1), value=PAD)
        batch = [part.repeat(2, 1) if rows == 1 else part for part in (src, tgt_in, src_mask)]
        for part in batch:
            torch._dynamo.maybe_mark_dynamic(part, [0, 1])
        out: Tensor = compiled(*batch)
        return out[:rows, :length]

    return forward


def probe_batch(store: Store, vocab_size: int, tokens: int) -> Batch:
    """A batch of at most `tokens` padded tokens, in sentences of the usual length of the store."""
    src, tgt = (int(np.median(side)) for side in (store.lengths[0], store.lengths[1]))
    if src == tgt:  # the compiler would take the two lengths for one
        src += 1 if src == 1 else -1
    return made_up_batch(max(2, tokens // (max(src, tgt) + 1)), src, tgt, vocab_size)


def made_up_batch(rows: int, src: int, tgt: int, vocab_size: int) -> Batch:
    """A batch of `rows` equal pairs of `src` and `tgt` tokens, to which bos and eos are added."""
    sides = [np.arange(length) % (vocab_size - EOS - 1) + EOS + 1 for length in (src, tgt)]
    return collate([(sides[0], sides[1])] * rows)
