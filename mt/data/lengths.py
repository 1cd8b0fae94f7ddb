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
