"""Sentence lengths cut into batches of similar padded size. Needs no torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


def batch_ends(lengths: Indices, budget: int) -> list[int]:
    """Split a sequence of sentence lengths into batches of at most `budget` padded tokens.

    Returns the index after the last sentence of each batch. A batch takes rows × longest row. A
    sentence longer than the budget is a batch of its own.
    """
    ends = []
    start = 0
    while start < len(lengths):
        window = lengths[start : start + max(1, budget // int(lengths[start]))]
        area = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
        start += max(1, int(np.searchsorted(area, budget, side="right")))
        ends.append(start)
    return ends


def sort_by_length(src_lengths: Indices, tgt_lengths: Indices, order: Indices) -> Indices:
    """Sort the sentences of `order` so that neighbours are similar on both sides.

    By target length, and among equal target lengths by source length, rising and falling in turn.
    Pairs with equal lengths keep the order given.
    """
    src = src_lengths[order]
    tgt = tgt_lengths[order]
    alternating = np.where(tgt % 2 == 0, src, -src)
    return order[np.lexsort((alternating, tgt))]


def equal_ends(sizes: Indices, n_parts: int) -> Indices:
    """Cut a sequence of sentences of these sizes into parts of equal size, none of them empty.

    Each cut is where it comes closest to equal shares. Returns the index after the last sentence of
    each of the `n_parts` parts, of which there may be no more than sentences.
    """
    ends_of = sizes.cumsum()
    shares = ends_of[-1] * np.arange(1, n_parts + 1) / n_parts
    before = np.searchsorted(ends_of, shares)  # the sentence that reaches the share
    too_far = ends_of[before] - shares > shares - (ends_of - sizes)[before]
    ends = before + 1 - too_far
    ends[-1] = len(sizes)
    # At least one sentence each: no cut before the one that precedes it, nor too close to the end.
    numbers = np.arange(n_parts)
    ends = np.maximum.accumulate(np.maximum(ends, 1) - numbers) + numbers
    return np.minimum(ends, len(sizes) - numbers[::-1])


def split_evenly(batch: Indices, longest: Indices, budget: int) -> list[Indices]:
    """Split a batch into the fewest parts of equally many sentences that the budget allows.

    A part takes rows × longest row, with `longest` for every sentence of the store. A sentence
    longer than the budget is a part of its own.
    """
    for n_parts in range(1, len(batch)):
        parts = np.array_split(batch, n_parts)
        if all(len(part) * int(longest[part].max()) <= budget for part in parts):
            return parts
    return [batch[i : i + 1] for i in range(len(batch))]
