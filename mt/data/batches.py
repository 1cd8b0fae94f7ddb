"""Lengths become a plan, a plan becomes padded batches.

The plan of an epoch is a pure function of (store, batch settings, seed, epoch): a run that resumes at
(epoch, update) needs to read nothing it has already seen.

Shapes: B sentences of a batch, S and T the longest source and target in it, N real target tokens.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mt.data.tokenizer import BOS, EOS, PAD

if TYPE_CHECKING:
    from mt.config.schema import BatchConfig
    from mt.data.store import Store

Indices = npt.NDArray[np.int64]
# Updates that the prefetch thread may be ahead of training.
AHEAD = 4


@dataclass(frozen=True)
class Batch:
    """Padded ids. `src` = tokens + eos, `tgt_in` = bos + tokens, `tgt_out` = tokens + eos."""

    src: Tensor  # (B, S)
    src_mask: Tensor  # (B, S) True at real tokens
    tgt_in: Tensor  # (B, T)
    tgt_out: Tensor  # (N,) the real tokens only, row by row
    real: Tensor  # (N,) where they stand in a flattened (B, T)
    n_src: int  # real tokens, eos counted
    n_tgt: int

    @property
    def n_padded(self) -> int:
        """Tokens of both sides, padding included."""
        return self.src.numel() + self.tgt_in.numel()

    def without_targets(self) -> Batch:
        """The batch with no token that counts: its loss and gradients are 0."""
        return replace(self, tgt_out=self.tgt_out[:0], real=self.real[:0], n_src=0, n_tgt=0)

    def to(self, device: torch.device) -> Batch:
        """The batch on `device`."""
        if device.type == "cpu":
            return self
        moved = [
            tensor.pin_memory().to(device, non_blocking=True)
            for tensor in (self.src, self.src_mask, self.tgt_in, self.tgt_out, self.real)
        ]
        src, src_mask, tgt_in, tgt_out, real = moved
        return Batch(src, src_mask, tgt_in, tgt_out, real, self.n_src, self.n_tgt)


def pad_rows(
    rows: Sequence[npt.NDArray[Any]], first: int | None, last: int | None
) -> npt.NDArray[np.int64]:
    """Rows of ids, each between `first` and `last` where given, padded to the longest. (B, T)"""
    extra = (first is not None) + (last is not None)
    lengths = np.array([len(row) for row in rows], np.int64) + extra  # (B,)
    padded = np.full((len(rows), int(lengths.max())), PAD, np.int64)
    start = int(first is not None)
    columns = np.arange(padded.shape[1])
    inside = (columns >= start) & (columns < (lengths - extra + start)[:, None])  # (B, T)
    padded[inside] = np.concatenate(rows)
    if first is not None:
        padded[:, 0] = first
    if last is not None:
        padded[np.arange(len(rows)), lengths - 1] = last
    return padded


def collate(pairs: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]]) -> Batch:
    """One padded batch of id pairs (without bos and eos)."""
    src = torch.from_numpy(pad_rows([s for s, _ in pairs], None, EOS))
    tgt_in = torch.from_numpy(pad_rows([t for _, t in pairs], BOS, None))
    tgt_out = torch.from_numpy(pad_rows([t for _, t in pairs], None, EOS)).flatten()
    real = (tgt_out != PAD).nonzero().squeeze(1)
    src_mask = src != PAD
    return Batch(src, src_mask, tgt_in, tgt_out[real], real, int(src_mask.sum()), len(real))


def cut(longest: npt.NDArray[np.int64], budget: int) -> list[int]:
    """Where to cut a sequence of lengths so that rows x longest stays within `budget`. Ends of the batches.

    A single sentence longer than the budget is a batch of its own.
    """
    ends, start = [], 0
    while start < len(longest):
        window = longest[start : start + max(1, budget // int(longest[start]))]
        area = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
        start += max(1, int(np.searchsorted(area, budget, side="right")))
        ends.append(start)
    return ends


def bucket(
    src_lengths: Indices, tgt_lengths: Indices, order: Indices, budget: int
) -> list[Indices]:
    """Batches of `order`'s sentences with like lengths: rows x longest side (eos counted) within `budget`.

    Sorted by target length, and inside one target length by source length, up and down in turn, so that
    neighbours are alike on both sides; equal pairs keep the order given.
    """
    src, tgt = src_lengths[order], tgt_lengths[order]
    snake = np.where(tgt % 2 == 0, src, -src)
    order = order[np.lexsort((snake, tgt))]
    longest = np.maximum(src_lengths[order], tgt_lengths[order]) + 1
    return np.split(order, cut(longest, budget)[:-1])


def shard_batches(
    src_lengths: Indices, tgt_lengths: Indices, batches: list[Indices], count: int
) -> list[list[Indices]]:
    """The sentences of an update dealt to `count` ranks: to each as many batches, at each turn of like size.

    They are cut anew, into batches no larger than the largest that was given. Where there are fewer sentences than
    ranks some batches are empty.
    """
    if count == 1:
        return [batches]
    order = np.concatenate(batches)
    longest = np.maximum(src_lengths, tgt_lengths) + 1
    turns = -(-len(batches) // count)
    low, high = (
        int(longest[order].max()),
        max(int(longest[batch].max()) * len(batch) for batch in batches),
    )
    pieces = bucket(src_lengths, tgt_lengths, order, high)
    while low < high:  # the smallest budget that makes no more pieces than there are places
        budget = (low + high) // 2
        tried = bucket(src_lengths, tgt_lengths, order, budget)
        low, high, pieces = (
            (low, budget, tried) if len(tried) <= turns * count else (budget + 1, high, pieces)
        )
    while len(pieces) % count:
        pieces.sort(key=len)
        largest = pieces.pop()
        pieces += [largest[: len(largest) // 2], largest[len(largest) // 2 :]]
    pieces.sort(key=lambda piece: -int(longest[piece].max(initial=0)) * len(piece))
    return [pieces[rank::count] for rank in range(count)]


class Plan:
    """Which sentences each update of each epoch learns from."""

    def __init__(
        self,
        store: Store,
        weights: Sequence[float],
        batch: BatchConfig,
        seed: int,
        sampling: Callable[[int, threading.Event], Store] | None = None,
    ) -> None:
        """`weights`: how often each corpus of the store is seen in an epoch, relative to the others.

        `sampling`, where given, makes the store of an epoch from its number; it may give up once the event is set.
        """
        self.store, self.seed, self.batch, self.sampling = store, seed, batch, sampling
        self.weights = [weight / min(weights) for weight in weights]

    def of_epoch(self, epoch: int, stop: threading.Event) -> Plan:
        """The plan over the store of `epoch`: this one, unless subwords are sampled."""
        if self.sampling is None:
            return self
        return Plan(self.sampling(epoch, stop), self.weights, self.batch, self.seed)

    def updates(self, epoch: int) -> list[list[Indices]]:
        """Updates of `epoch`, each a list of micro-batches of sentence numbers."""
        random = np.random.default_rng([self.seed, epoch])
        order = random.permutation(self._sentences(random))
        batches = bucket(self.store.src_lengths, self.store.tgt_lengths, order, self.batch.budget)
        batches = [batches[i] for i in random.permutation(len(batches))]
        n_tokens = int((self.store.tgt_lengths[order] + 1).sum())
        n_updates = min(len(batches), max(1, round(n_tokens / self.batch.tokens_per_update)))
        ends = np.linspace(0, len(batches), n_updates + 1).round().astype(int)
        return [batches[a:b] for a, b in pairwise(ends)]

    def share(
        self, update: list[Indices], rank: int = 0, count: int = 1
    ) -> tuple[list[Batch], int]:
        """The micro-batches of an update that are for rank `rank` of `count`; the target tokens of all of it."""
        store = self.store
        mine = shard_batches(store.src_lengths, store.tgt_lengths, update, count)[rank]
        batches = [collate([store.pair(i) for i in batch]) for batch in mine if len(batch)]
        # A rank for which no sentence is left must go through the motions all the same: the others wait for it.
        batches += [collate([store.pair(update[0][0])]).without_targets()] * (
            len(mine) - len(batches)
        )
        return batches, int((store.tgt_lengths[np.concatenate(update)] + 1).sum())

    def _sentences(self, random: np.random.Generator) -> Indices:
        """All sentences of the least weighted corpus once, of the others as often as they weigh."""
        parts, start = [], 0
        for kept, weight in zip(self.store.kept, self.weights, strict=True):
            corpus = np.arange(start, start + kept)
            whole, share = divmod(weight, 1.0)
            parts += [corpus] * int(whole)
            if share:
                parts.append(random.permutation(corpus)[: round(share * kept)])
            start += kept
        return np.concatenate(parts)


@dataclass(frozen=True)
class Update:
    """The micro-batches of one update that are this rank's, and where it stands in the run's data."""

    epoch: int
    number: int  # within the epoch, from 0
    of: int  # updates of the epoch
    batches: list[Batch]
    n_tgt: int  # target tokens of the whole update, over all ranks: what its loss is divided by

    @property
    def last(self) -> bool:
        """Whether it is the last of its epoch."""
        return self.number == self.of - 1


class Prefetcher:
    """Updates from a position on, for ever, made ready by a thread: the share of rank `rank` of `count`.

    A context manager: leaving it ends the thread. `waited` counts the seconds that training stood waiting.
    """

    def __init__(self, plan: Plan, epoch: int, number: int, rank: int = 0, count: int = 1) -> None:
        self.plan, self.rank, self.count, self.waited = plan, rank, count, 0.0
        self._queue: queue.Queue[Update | BaseException] = queue.Queue(maxsize=AHEAD)
        self._stop, self._begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(epoch, number), daemon=True)

    def __enter__(self) -> Prefetcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        while self._thread.is_alive():  # it may be waiting for a free place
            with_item = not self._queue.empty()
            if with_item:
                self._queue.get_nowait()
            self._thread.join(0.05)

    def ready(self, seconds: float) -> bool:
        """Whether the first update is ready; waits so long for it, since a first epoch may be sampled for minutes."""
        start = time.perf_counter()
        ready = self._begun.wait(seconds)
        self.waited += time.perf_counter() - start
        return ready

    def __iter__(self) -> Iterator[Update]:
        while True:
            start = time.perf_counter()
            item = self._queue.get()
            self.waited += time.perf_counter() - start
            if isinstance(item, BaseException):
                raise item
            yield item

    def _fill(self, epoch: int, number: int) -> None:
        try:
            # While the updates of one epoch are made, the store of the next is sampled.
            with ThreadPoolExecutor(1) as ahead:
                coming = ahead.submit(self.plan.of_epoch, epoch, self._stop)
                while not self._stop.is_set():
                    plan = coming.result()
                    coming = ahead.submit(self.plan.of_epoch, epoch + 1, self._stop)
                    updates = plan.updates(epoch)
                    for here in range(number, len(updates)):
                        batches, n_tgt = plan.share(updates[here], self.rank, self.count)
                        self._put(Update(epoch, here, len(updates), batches, n_tgt))
                        if self._stop.is_set():
                            return
                    epoch, number = epoch + 1, 0
        except BaseException as error:
            self._put(error)

    def _put(self, item: Update | BaseException) -> None:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return self._begun.set()
            except queue.Full:
                continue
