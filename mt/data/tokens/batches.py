"""Which sentences each update trains on, and how they are padded into batches.

`Plan` groups sentences of similar length into batches and batches into updates. The plan of an
epoch is a pure function of (store, batch settings, seed, epoch), so a run that resumes at
(epoch, update) does not read what it has already seen.

Shapes: B sentences in a batch, S and T the longest source and target in it, N target tokens
without padding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mt.data.tokens.lengths import Indices, batch_ends, equal_ends, sort_by_length, split_evenly
from mt.data.tokens.tokenizer import BOS, EOS, PAD

if TYPE_CHECKING:
    from mt.config.schema import BatchConfig
    from mt.data.tokens.store import Ids, Store


@dataclass(frozen=True)
class Batch:
    """Padded ids. `src` = tokens + eos, `tgt_in` = bos + tokens, `tgt_out` = tokens + eos."""

    src: Tensor  # (B, S)
    src_mask: Tensor  # (B, S) True at tokens, False at padding
    tgt_in: Tensor  # (B, T)
    tgt_out: Tensor  # (N,) without padding, row by row
    tgt_positions: Tensor  # (N,) where the tokens of tgt_out are in a flattened (B, T)
    n_src: int  # source tokens with eos, without padding
    n_tgt: int  # target tokens with eos, without padding

    @property
    def n_padded(self) -> int:
        """Tokens of both sides, padding included."""
        return self.src.numel() + self.tgt_in.numel()

    def without_targets(self) -> Batch:
        """The same batch with no target tokens: its loss and gradients are 0."""
        return replace(
            self,
            tgt_out=self.tgt_out[:0],
            tgt_positions=self.tgt_positions[:0],
            n_src=0,
            n_tgt=0,
        )

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to `device`, without waiting for the copy."""
        if device.type == "cpu":
            return self

        def copied(tensor: Tensor) -> Tensor:
            pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
            return pinned.to(device, non_blocking=True)

        return replace(
            self,
            src=copied(self.src),
            src_mask=copied(self.src_mask),
            tgt_in=copied(self.tgt_in),
            tgt_out=copied(self.tgt_out),
            tgt_positions=copied(self.tgt_positions),
        )


def pad_rows(rows: Sequence[npt.NDArray[Any]], first: int | None, last: int | None) -> Indices:
    """Pad rows of ids to the longest. (B, T)

    The ids `first` and `last`, where not None, are put before and after each row.
    """
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
    """Make one padded batch of (source ids, target ids) pairs without bos and eos."""
    src = torch.from_numpy(pad_rows([src for src, _ in pairs], None, EOS))
    tgt_in = torch.from_numpy(pad_rows([tgt for _, tgt in pairs], BOS, None))
    tgt_out = torch.from_numpy(pad_rows([tgt for _, tgt in pairs], None, EOS)).flatten()
    positions = (tgt_out != PAD).nonzero().squeeze(1)
    src_mask = src != PAD
    return Batch(
        src=src,
        src_mask=src_mask,
        tgt_in=tgt_in,
        tgt_out=tgt_out[positions],
        tgt_positions=positions,
        n_src=int(src_mask.sum()),
        n_tgt=len(positions),
    )


def gather_batch(store: Store, indices: Indices, pin: bool = False) -> Batch:
    """The batch that `collate` makes of these pairs of the store.

    Without a loop over sentences; NumPy releases the GIL meanwhile, so a thread can do it while
    training runs. With `pin` the batch is in pinned memory, from which it is copied to a GPU while
    training goes on; torch hands out that memory again only after such a copy has ended.
    """
    src_lengths = store.src_lengths[indices]  # (B,)
    tgt_lengths = store.tgt_lengths[indices]
    rows = np.arange(len(indices))
    src, src_view = _empty((len(rows), int(src_lengths.max()) + 1), pin)  # (B, S)
    _gather(store.src, store.src_starts[indices], src_lengths, src_view[:, :-1])
    src_view[:, -1] = PAD
    src_view[rows, src_lengths] = EOS
    tgt_in, tgt_view = _empty((len(rows), int(tgt_lengths.max()) + 1), pin)  # (B, T)
    tgt_view[:, 0] = BOS
    _gather(store.tgt, store.tgt_starts[indices], tgt_lengths, tgt_view[:, 1:])
    n_tgt = int(tgt_lengths.sum()) + len(rows)
    positions, positions_view = _empty((n_tgt,), pin)
    inside = np.arange(tgt_view.shape[1]) <= tgt_lengths[:, None]  # (B, T)
    positions_view[:] = np.flatnonzero(inside)
    tgt_out, out_view = _empty((n_tgt,), pin)
    # Each target is the token that follows its input, and eos at the end of a row.
    out_view[:-1] = tgt_view.ravel()[positions_view[:-1] + 1]
    out_view[(tgt_lengths + 1).cumsum() - 1] = EOS
    src_mask = torch.empty(src.shape, dtype=torch.bool, pin_memory=pin)
    return Batch(
        src=src,
        src_mask=torch.ne(src, PAD, out=src_mask),
        tgt_in=tgt_in,
        tgt_out=tgt_out,
        tgt_positions=positions,
        n_src=int(src_lengths.sum()) + len(rows),
        n_tgt=n_tgt,
    )


def _empty(shape: tuple[int, ...], pin: bool) -> tuple[Tensor, Indices]:
    """A tensor to be filled, and the same memory as an array."""
    tensor = torch.empty(shape, dtype=torch.int64, pin_memory=pin)
    return tensor, tensor.numpy()


def _gather(ids: Ids, starts: Indices, lengths: Indices, out: Indices) -> None:
    """Write the sentences that begin at `starts` into the rows of `out` (B, L), then padding."""
    columns = np.arange(out.shape[1])
    inside = columns < lengths[:, None]  # (B, L)
    places = np.where(inside, starts[:, None] + columns, 0)
    np.multiply(np.asarray(ids).take(places), inside, out=out)  # PAD is 0


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

    def shard(
        self, update: list[Indices], rank: int = 0, world_size: int = 1, pin: bool = False
    ) -> tuple[list[Batch], int]:
        """The micro-batches of an update for `rank`, and the target tokens of the whole update.

        With `pin` they are in pinned memory, from which they are copied to a GPU.
        """
        store = self.store
        shard = shard_batches(store.src_lengths, store.tgt_lengths, update, world_size)[rank]
        batches = [gather_batch(store, batch, pin) for batch in shard if len(batch)]
        if len(batches) < len(shard):
            # A rank without sentences runs a batch without targets: the other ranks wait for it.
            placeholder = gather_batch(store, update[0][:1], pin).without_targets()
            batches += [placeholder] * (len(shard) - len(batches))
        return batches, int((store.tgt_lengths[np.concatenate(update)] + 1).sum())

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
