"""Which sentences each update trains on: sentences of similar length in batches and updates.

The plan of an epoch is a pure function of (store, batch settings, seed, epoch), so a run that
resumes at (epoch, update) does not read what it has already seen. Needs no torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mt.config.schema import BatchConfig
    from mt.data.tokens.store import Store

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


def bucket(
    src_lengths: Indices, tgt_lengths: Indices, order: Indices, budget: int
) -> list[Indices]:
    """Group the sentences of `order` by length into batches of at most `budget` padded tokens.

    A batch takes rows × longest side, eos included.
    """
    order = sort_by_length(src_lengths, tgt_lengths, order)
    longest = np.maximum(src_lengths[order], tgt_lengths[order]) + 1
    return np.split(order, batch_ends(longest, budget)[:-1])


def shard_batches(
    src_lengths: Indices, tgt_lengths: Indices, batches: list[Indices], world_size: int
) -> list[list[Indices]]:
    """Distribute the batches of an update over the ranks: one list of batches for each rank.

    Every rank gets the same number of batches, and the n-th batches of all ranks have about the
    same size. The sentences are batched again for that, into batches no larger than the largest
    one given. With fewer sentences than ranks some batches are empty.
    """
    if world_size == 1:
        return [batches]
    order = np.concatenate(batches)
    longest = np.maximum(src_lengths, tgt_lengths) + 1
    n_rounds = -(-len(batches) // world_size)
    # Find the smallest budget that gives at most n_rounds × world_size batches.
    low = int(longest[order].max())
    high = max(int(longest[batch].max()) * len(batch) for batch in batches)
    sharded = bucket(src_lengths, tgt_lengths, order, high)
    while low < high:
        budget = (low + high) // 2
        candidate = bucket(src_lengths, tgt_lengths, order, budget)
        if len(candidate) <= n_rounds * world_size:
            high = budget
            sharded = candidate
        else:
            low = budget + 1
    while len(sharded) % world_size:
        sharded.sort(key=len)
        largest = sharded.pop()
        half = len(largest) // 2
        sharded += [largest[:half], largest[half:]]
    sharded.sort(key=lambda batch: -int(longest[batch].max(initial=0)) * len(batch))
    return [sharded[rank::world_size] for rank in range(world_size)]


class Plan:
    """Which sentences each update of each epoch trains on."""

    def __init__(
        self,
        store: Store,
        weights: Sequence[float],
        batch: BatchConfig,
        seed: int,
        resample: Callable[[int, threading.Event], Store] | None = None,
    ) -> None:
        """Store what the plan is made of.

        `weights` says how often each corpus of the store is seen in an epoch, relative to the
        others. `resample`, where given, makes the store of an epoch from its number (subword
        regularisation); it may give up once the event is set.
        """
        self.store = store
        self.seed = seed
        self.batch = batch
        self.resample = resample
        self.weights = [weight / min(weights) for weight in weights]
        self._sampled: tuple[int, Plan] | None = None  # an epoch, and its plan

    def for_epoch(self, epoch: int, stop: threading.Event) -> Plan:
        """The plan over the store of `epoch`: this one, unless subwords are sampled anew."""
        if self.resample is None:
            return self
        if self._sampled is None or self._sampled[0] != epoch:
            store = self.resample(epoch, stop)
            self._sampled = epoch, Plan(store, self.weights, self.batch, self.seed)
        return self._sampled[1]

    def updates(self, epoch: int) -> list[list[Indices]]:
        """The updates of `epoch`, each a list of micro-batches of sentence numbers.

        Every update has as many target tokens, as far as whole sentences allow. So the sentences
        are sorted by length and cut into shares of equal size, a fixed number for each update. A
        share is a batch, or several if it does not fit into one. The number of shares per update is
        the one that gives the fewest batches.
        """
        random = np.random.default_rng([self.seed, epoch])
        order = random.permutation(self._sentences(random))
        order = sort_by_length(self.store.src_lengths, self.store.tgt_lengths, order)
        sizes = self.store.tgt_lengths[order] + 1
        n_updates = max(1, round(int(sizes.sum()) / self.batch.tokens_per_update))
        n_updates = min(n_updates, len(order))
        shares = self._shares(order, sizes, n_updates)
        shares = [shares[i] for i in random.permutation(len(shares))]
        per_update = len(shares) // n_updates
        return [
            [batch for share in shares[start : start + per_update] for batch in share]
            for start in range(0, len(shares), per_update)
        ]

    def _shares(self, order: Indices, sizes: Indices, n_updates: int) -> list[list[Indices]]:
        """Sorted sentences as a multiple of `n_updates` equal shares, each a list of batches."""
        longest = np.maximum(self.store.src_lengths, self.store.tgt_lengths) + 1
        budget = self.batch.budget
        fewest = max(1, int(longest[order].sum()) // (n_updates * budget))
        most = max(1, min(2 * fewest + 1, len(order) // n_updates))
        best: list[list[Indices]] = []
        n_batches = len(order) + 1
        for per_update in range(most, min(fewest, most) - 1, -1):
            ends = equal_ends(sizes, per_update * n_updates)
            rows = np.diff(ends, prepend=0)
            area = rows * np.maximum.reduceat(longest[order], ends - rows)
            shares = [
                [share] if fits else split_evenly(share, longest, budget)
                for share, fits in zip(np.split(order, ends[:-1]), area <= budget, strict=True)
            ]
            if (found := sum(map(len, shares))) < n_batches:
                n_batches = found
                best = shares
        return best

    def _sentences(self, random: np.random.Generator) -> Indices:
        """Sentence numbers of an epoch: each corpus as often as its weight says.

        The corpus with the lowest weight comes once. A weight of 2.25 times that gives two copies
        and a random quarter.
        """
        parts = []
        start = 0
        for n_pairs, weight in zip(self.store.kept, self.weights, strict=True):
            corpus = np.arange(start, start + n_pairs)
            copies, fraction = divmod(weight, 1.0)
            parts += [corpus] * int(copies)
            if fraction:
                parts.append(random.permutation(corpus)[: round(fraction * n_pairs)])
            start += n_pairs
        return np.concatenate(parts)
