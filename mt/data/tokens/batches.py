"""Batches of token ids, padded or packed; a thread loads those of training ahead of the updates.

Shapes: B sentences in a batch, S and T the longest source and target in it, M source tokens and N
target tokens without padding.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.plan import Indices, Plan, Updates, shard_batches
from mt.data.tokens.store import Ids
from mt.data.tokens.tokenizer import BOS, EOS, PAD


class Packed(NamedTuple):
    """Where the sentences of a row without padding are, which lie end to end."""

    places: Tensor  # (N,) of each token in its sentence, from 0
    starts: Tensor  # (B + 1,) int32: where each sentence starts, and the end of the last one
    longest: int  # no sentence has more tokens


@dataclass(frozen=True)
class Batch:
    """Ids of pairs. `src` = tokens + eos, `tgt_in` = bos + tokens, `tgt_out` = tokens + eos."""

    src: Tensor  # (B, S)
    src_mask: Tensor  # (B, S) True at tokens, False at padding
    tgt_in: Tensor  # (B, T)
    tgt_out: Tensor  # (N,) without padding, row by row
    tgt_positions: Tensor  # (N,) where the tokens of tgt_out are in a flattened (B, T)
    n_src: int  # source tokens with eos, without padding
    n_tgt: int  # target tokens with eos, without padding
    # Of a packed batch: the sentences of src, now (1, M), and of tgt_in, now (1, N).
    packed: tuple[Packed, Packed] | None = None

    @property
    def n_padded(self) -> int:
        return self.src.numel() + self.tgt_in.numel()

    @property
    def shape(self) -> tuple[int, int, int]:
        """B, S and T, of a packed batch too."""
        if self.packed is None:
            return *self.src.shape, self.tgt_in.shape[1]
        src, tgt = self.packed
        return len(src.starts) - 1, src.longest, tgt.longest

    def pack(self, pin: bool = False) -> Batch:
        """This batch in one row, to be computed without padding; with `pin` in pinned memory."""
        src, sources = _in_a_row(self.src)
        tgt_in, targets = _in_a_row(self.tgt_in)
        packed = replace(
            self, src=src, src_mask=torch.ones_like(src, dtype=torch.bool), tgt_in=tgt_in,
            tgt_positions=torch.arange(self.n_tgt, device=src.device), packed=(sources, targets),
        )  # fmt: skip
        return packed._map(Tensor.pin_memory) if pin else packed

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to `device`, without waiting for the copy."""

        def copied(tensor: Tensor) -> Tensor:
            pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
            return pinned.to(device, non_blocking=True)

        return self if device.type == "cpu" else self._map(copied)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        changed: dict[str, Any]
        changed = {name: change(v) for name, v in vars(self).items() if isinstance(v, Tensor)}
        if self.packed is not None:
            sides = [Packed(change(s.places), change(s.starts), s.longest) for s in self.packed]
            changed["packed"] = tuple(sides)
        return replace(self, **changed)


def _in_a_row(ids: Tensor) -> tuple[Tensor, Packed]:
    """The rows of ids (B, L) end to end without padding. (1, N)"""
    real = ids != PAD  # (B, L)
    starts = F.pad(real.sum(1).cumsum(0), (1, 0)).int()  # (B + 1,)
    return ids[real][None], Packed(real.nonzero()[:, 1].contiguous(), starts, ids.shape[1])


def pad_rows(rows: Sequence[npt.NDArray[Any]], first: int | None, last: int | None) -> Indices:
    """Pad rows of ids to the longest, with `first` and `last` around each, if any. (B, T)"""
    extra = (first is not None) + (last is not None)
    lengths = np.array([len(row) for row in rows], np.int64) + extra  # (B,)
    padded = np.full((len(rows), int(lengths.max())), PAD, np.int64)
    columns = np.arange(padded.shape[1]) - (first is not None)
    inside = (columns >= 0) & (columns < (lengths - extra)[:, None])  # (B, T)
    padded[inside] = np.concatenate(rows)
    if first is not None:
        padded[:, 0] = first
    if last is not None:
        padded[np.arange(len(rows)), lengths - 1] = last
    return padded


def collate(pairs: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]]) -> Batch:
    """Make one padded batch of (source ids, target ids) pairs without bos and eos."""
    src = torch.from_numpy(pad_rows([src for src, _ in pairs], None, EOS))
    tgt_in = torch.from_numpy(pad_rows([tgt for _, tgt in pairs], BOS, None))
    tgt_out = torch.from_numpy(pad_rows([tgt for _, tgt in pairs], None, EOS)).flatten()
    positions = (tgt_out != PAD).nonzero().squeeze(1)
    src_mask = src != PAD
    sizes = int(src_mask.sum()), len(positions)
    return Batch(src, src_mask, tgt_in, tgt_out[positions], positions, *sizes)


def gather_batch(pairs: DirectedPairs, indices: Indices, pin: bool = False) -> Batch:
    """The batch that `collate` makes of these pairs, without a loop over sentences.

    NumPy releases the GIL meanwhile, so a thread can do it while training runs. From pinned memory
    it is copied to a GPU while training goes on; torch reuses that only after the copy has ended.
    """
    src_lengths = pairs.src_lengths[indices].astype(np.int64)  # (B,)
    tgt_lengths = pairs.tgt_lengths[indices].astype(np.int64)
    flows, src_starts, tgt_starts = pairs.locate(indices)
    ids = pairs.store.ids
    rows = np.arange(len(indices))
    src, src_view = _empty((len(rows), int(src_lengths.max()) + 1), pin)  # (B, S)
    _gather(ids, src_starts, src_lengths, src_view[:, :-1], pairs.before[flows])
    src_view[:, -1] = PAD
    src_view[rows, src_lengths] = EOS
    tgt_in, tgt_view = _empty((len(rows), int(tgt_lengths.max()) + 1), pin)  # (B, T)
    tgt_view[:, 0] = BOS
    _gather(ids, tgt_starts, tgt_lengths, tgt_view[:, 1:], pairs.before[:0])
    n_tgt = int(tgt_lengths.sum()) + len(rows)
    positions, positions_view = _empty((n_tgt,), pin)
    inside = np.arange(tgt_view.shape[1]) <= tgt_lengths[:, None]  # (B, T)
    positions_view[:] = np.flatnonzero(inside)
    tgt_out, out_view = _empty((n_tgt,), pin)
    # Each target is the token that follows its input, and eos at the end of a row.
    out_view[:-1] = tgt_view.ravel()[positions_view[:-1] + 1]
    out_view[(tgt_lengths + 1).cumsum() - 1] = EOS
    src_mask = torch.ne(src, PAD, out=torch.empty(src.shape, dtype=torch.bool, pin_memory=pin))
    n_src = int(src_lengths.sum()) + len(rows)
    return Batch(src, src_mask, tgt_in, tgt_out, positions, n_src, n_tgt)


def _empty(shape: tuple[int, ...], pin: bool) -> tuple[Tensor, Indices]:
    tensor = torch.empty(shape, dtype=torch.int64, pin_memory=pin)
    return tensor, tensor.numpy()


def _gather(ids: Ids, starts: Indices, lengths: Indices, out: Indices, before: Ids) -> None:
    """Write the sentences that begin at `starts` into the rows of `out` (B, L), then padding.

    The ids of `before` (B, P) come first, those of its padding left out; they count in `lengths`.
    """
    columns = np.arange(out.shape[1])
    inside = columns < lengths[:, None]  # (B, L)
    starts = starts[:, None]
    if before.size:
        n_before = (before > 0).sum(1)[:, None]
        inside &= columns >= n_before
        starts = starts - n_before
    np.multiply(ids.take(np.where(inside, starts + columns, 0)), inside, out=out)  # PAD is 0
    if before.size:
        width = min(before.shape[1], out.shape[1])
        out[:, :width] += before[:, :width]


def shard_of(
    plan: Plan, update: list[Indices], rank: int = 0, world_size: int = 1, pin: bool = False
) -> tuple[list[Batch], int]:
    """The micro-batches of an update for `rank`, none or more, and the update's target tokens."""
    pairs, packed = plan.pairs, plan.packed
    shard = shard_batches(pairs.src_lengths, pairs.tgt_lengths, update, world_size, packed)[rank]
    batches = [
        gather_batch(pairs, part).pack(pin) if packed else gather_batch(pairs, part, pin)
        for part in shard
        if len(part)
    ]
    return batches, int((pairs.tgt_lengths[np.concatenate(update)] + 1).sum())


CPU = torch.device("cpu")
# Updates that are loaded ahead of training.
PREFETCH = 4


@dataclass(frozen=True)
class Update:
    """The micro-batches of one update for this rank, and its position in the training data."""

    epoch: int
    number: int  # within the epoch, from 0
    of: int  # updates in the epoch
    batches: list[Batch]
    n_tgt: int  # target tokens of the whole update, over all ranks: its loss is divided by this
    augmented: str = ""  # what `data.augment` has changed in the epoch

    @property
    def last(self) -> bool:
        return self.number == self.of - 1


@dataclass(eq=False)
class Prefetcher:
    """Updates without end from a given position on, loaded ahead by a thread inside the context."""

    plan: Plan
    epoch: int  # the first update: its epoch, and its number in that
    number: int
    rank: int = 0
    world_size: int = 1
    device: torch.device = CPU  # where the batches will be copied to
    waited: float = field(default=0.0, init=False)  # seconds that training has waited for data

    def __post_init__(self) -> None:
        self._queue: queue.Queue[Update | BaseException] = queue.Queue(maxsize=PREFETCH)
        self._stop = threading.Event()
        self._next: Update | BaseException | None = None  # taken from the queue by `ready`
        self._thread = threading.Thread(target=self._load, daemon=True)

    def __enter__(self) -> Prefetcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        while self._thread.is_alive():
            # The thread may be waiting for space in the queue.
            if not self._queue.empty():
                self._queue.get_nowait()
            self._thread.join(0.05)

    def ready(self, seconds: float) -> bool:
        """Wait `seconds` for the next update, minutes for an epoch's first; is it loaded?"""
        if self._next is None:
            start = time.perf_counter()
            with suppress(queue.Empty):
                self._next = self._queue.get(timeout=seconds)
            self.waited += time.perf_counter() - start
        return self._next is not None

    def __iter__(self) -> Iterator[Update]:
        while True:
            while self._stop.is_set() or not self.ready(1.0):
                has_more = self._thread.is_alive() or not self._queue.empty()
                if self._stop.is_set() or not has_more:
                    raise RuntimeError("a Prefetcher loads updates only inside its `with` block")
            item, self._next = self._next, None
            assert item is not None
            if isinstance(item, BaseException):
                raise item
            yield item

    def _load(self) -> None:
        """Put updates, or what went wrong, into the queue until `_stop` is set."""
        epoch, number = self.epoch, self.number
        try:
            pin = self.device.type == "cuda"
            if pin:
                torch.cuda.set_device(self.device)  # of this thread
            # While the updates of one epoch are loaded, the next one is planned.
            with ThreadPoolExecutor(1) as planner:
                next_epoch = planner.submit(self._planned, epoch)
                while not self._stop.is_set():
                    plan, updates = next_epoch.result()
                    next_epoch = planner.submit(self._planned, epoch + 1)
                    augmented, ranks = plan.pairs.store.augmented, (self.rank, self.world_size)
                    for n in range(number, len(updates)):
                        loaded = shard_of(plan, updates[n], *ranks, pin)
                        self._put(Update(epoch, n, len(updates), *loaded, augmented))
                        if self._stop.is_set():
                            return
                    epoch += 1
                    number = 0
        except BaseException as error:
            self._put(error)

    def _planned(self, epoch: int) -> tuple[Plan, Updates]:
        plan = self.plan.for_epoch(epoch, self._stop)
        return plan, plan.updates(epoch)

    def _put(self, item: Update | BaseException) -> None:
        """Put an item into the queue, waiting for space unless `_stop` is set."""
        while not self._stop.is_set():
            with suppress(queue.Full):
                self._queue.put(item, timeout=0.1)
                return
