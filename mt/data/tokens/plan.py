"""Which sentences each update trains on, in batches of similar length.

The updates of an epoch are a pure function of (pairs, weights, tokens per update, seed, epoch), so
a run resumes at (epoch, update) without reading what it has seen. The tokens per batch only say how
an update is cut into micro-batches. Needs no torch.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mt.config.plan import DataPlan, Stage, StageEnd
from mt.config.schema import BatchConfig
from mt.errors import DataError

if TYPE_CHECKING:  # brings all that reads corpora, which translating does without
    from mt.data.tokens.directions import DirectedPairs

# Of an epoch, whose order takes 4 bytes for each; more is surely a mistake.
MOST_SENTENCES = 2**32


def sampling_weights(data: DataPlan, stage: Stage, kept: Sequence[int]) -> list[float]:
    """How often a pair of each flow is drawn in a stage; `kept`: their pairs after cleaning.

    A flow's part of the sentences is in proportion to (weight × pairs)^(1 / temperature), as in
    Arivazhagan et al. (2019), section 4. DataError without pairs, or if an epoch fills the memory.
    """
    weights = [flow.weight for flow in stage.flows]
    sizes = [weight * n_pairs for weight, n_pairs in zip(weights, kept, strict=True)]
    if data.temperature != 1:
        largest = max(sizes) or 1.0
        sizes = [(size / largest) ** (1 / data.temperature) for size in sizes]
        part = 1 / (sum(sizes) or 1)
        sizes = [part * size for size in sizes]
        weights = [size / (n_pairs or 1) for size, n_pairs in zip(sizes, kept, strict=True)]
    used = [(weights[i], i) for i, flow in enumerate(stage.flows) if kept[i] and flow.weight]
    if not used:
        raise DataError(
            "data.stages: must each have a text with pairs, but of the texts of one no pair is "
            "left (data.dedupe: all in others?); give another text of data.train a weight there"
        )
    lowest, number = min(used)
    if sum(sizes) > lowest * MOST_SENTENCES:
        raise DataError(
            f"{stage.flows[number].name}: comes whole once an epoch, which would have more than "
            f"{MOST_SENTENCES:,} sentences, as it is {sizes[number] / sum(sizes):.1g} of them; "
            "raise its weight or data.temperature, or remove the text"
        )
    return weights


def sentences_of_epoch(weights: Sequence[float], kept: Sequence[int]) -> list[int]:
    """Sentences of each flow in an epoch: the one with the lowest weight comes whole, once."""
    flows = list(zip(weights, kept, strict=True))
    lowest = min(weight for weight, n_pairs in flows if n_pairs and weight)
    return [round(n_pairs * weight / lowest) for weight, n_pairs in flows]


def describe_stage(
    data: DataPlan, number: int, end: StageEnd, kept: Sequence[int], drawn: Sequence[int]
) -> Iterator[str]:
    """Where a stage ends, and its mixture."""
    until = "to the end"
    if end.updates is not None:
        until = f"until {end.updates:,} update{'s' * (end.updates != 1)}"
    elif end.epochs is not None:
        until = f"until {round(end.epochs, 3):g} epoch{'s' * (end.epochs != 1)}"
    yield f"data.stages[{number}]: stage {number + 1} of {len(data.stages)}, {until}"
    yield from describe_mixture(data, data.stages[number], kept, drawn)


def describe_mixture(
    data: DataPlan, stage: Stage, kept: Sequence[int], drawn: Sequence[int]
) -> Iterator[str]:
    """Describe an epoch, and the part of each of several flows as declared and as drawn."""
    total = sum(drawn)
    yield f"an epoch: {total:,} sentences; it ends when the text drawn least has been seen once"
    if len(stage.flows) == 1:
        return
    for flow, n_pairs, n_drawn in zip(stage.flows, kept, drawn, strict=True):
        heat = f", temperature {data.temperature:g}" * (data.temperature != 1)
        yield (
            f"{flow.name} ({data.corpora[flow.corpus].shown}, {flow.direction}): weight "
            f"{flow.weight:g}{heat}: {n_drawn / total:.2%} of an epoch, {n_drawn:,} "
            f"sentences of {n_pairs:,} pairs"
        )


Lengths: TypeAlias = "npt.NDArray[np.integer[Any]]"
Indices: TypeAlias = "npt.NDArray[np.integer[Any]]"

# Groups of sentences in an update of at least TOKENS_FOR_STRATA target tokens, each from another
# quarter of the training text by length: from one group alone, its gradient would be that of short
# sentences, or of long ones. On a CPU small batches cost time (an estimated 11 % for four of 512
# tokens in the shape of multi30k.yaml), four of 2,048 instead of two of 4,096 none (0.90 of the
# time, with 6 % of noise: d_model 512, bf16, two layer pairs, Zen 4, 23 November 2026).
N_STRATA = 4
TOKENS_FOR_STRATA = 8192
# Padded tokens whose computation takes as long as what a batch takes whatever its size.
TOKENS_PER_LAUNCH = 200
# Most sentences of a batch: half of what attention on CUDA takes as a dimension of its grid. Its
# error for more, "invalid configuration argument", does not look like too little memory.
MOST_ROWS = 65_535 // 2


def batch_ends(lengths: Lengths, budget: int) -> list[int]:
    """The ends of batches of at most `budget` padded tokens; a longer sentence is one by itself."""
    ends = []
    start = 0
    while start < len(lengths):
        window = lengths[start : start + max(1, min(MOST_ROWS, budget // int(lengths[start])))]
        area = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
        start += max(1, int(np.searchsorted(area, budget, side="right")))
        ends.append(start)
    return ends


def sort_by_length(
    src_lengths: Lengths, tgt_lengths: Lengths, order: Indices,
    random: np.random.Generator | None = None,
) -> Indices:  # fmt: skip
    """Sort the sentences of `order` by target length, then source length, up and down in turn.

    So neighbours are similar on both sides. Pairs with equal lengths keep the order given, or with
    `random` get a random one. Lengths above 65,535 count as that.
    """
    # NumPy sorts 16 bits by radix. Sentences of one target length at a time fit into the caches:
    # 20 million take 1.6 s of a Zen 4 core, where shuffling all of them before sorting took 4.4.
    most = 2**16 - 1
    tgt = np.minimum(tgt_lengths[order], most).astype(np.uint16)
    order = order[np.argsort(tgt, kind="stable")]
    for length, group in enumerate(np.split(order, np.bincount(tgt).cumsum()[:-1])):
        if random is not None:
            random.shuffle(group)
        src = np.minimum(src_lengths[group], most).astype(np.uint16)
        group[:] = group[np.argsort(src if length % 2 == 0 else most - src, kind="stable")]
    return order


def equal_ends(sizes: Lengths, n_parts: int) -> Indices:
    """The ends of `n_parts` parts, of equal size and not empty, of sentences of these sizes."""
    # Twice the middle of each sentence, in place: of 20 million they take 160 MB.
    middles = sizes.cumsum(dtype=np.int64)
    middles *= 2
    middles -= sizes
    numbers = np.arange(n_parts)
    shares = (middles[-1] + sizes[-1]) * (numbers + 1) / n_parts
    ends = np.searchsorted(middles, shares, side="right")
    # At least one sentence each: no cut before the one that precedes it, nor too close to the end.
    ends = np.maximum.accumulate(np.maximum(ends, 1) - numbers) + numbers
    return np.minimum(ends, len(sizes) - numbers[::-1])


def split_evenly(longest: Lengths, budget: int) -> list[int]:
    """As `batch_ends`, into equally many sentences where that takes at most one batch more."""
    n = len(longest)
    fewest = -(-int(longest.sum()) // budget)
    for n_parts in range(fewest, min(fewest + 2, n)):
        ends = n * np.arange(1, n_parts + 1) // n_parts
        rows = np.diff(ends, prepend=0)
        areas = rows * np.maximum.reduceat(longest, ends - rows)
        if areas.max() <= budget and rows.max() <= MOST_ROWS:
            return list(map(int, ends))
    return batch_ends(longest, budget)


def micro_batches(longest: Sequence[Lengths], budget: int) -> list[int]:
    """Cut the shares of an update into batches of at most `budget` padded tokens.

    `longest`: for each share the lengths of the longer sides. Neighbouring shares become one batch
    where padding the shorter ones takes less time than another batch. Returns the index after the
    last sentence of each batch, counted over all shares.
    """
    tops = [int(share.max()) for share in longest]
    rows = np.cumsum([0, *map(len, longest)]).tolist()
    # The best way to cut the first n shares: cost in padded tokens, and starts of groups of shares.
    best: list[tuple[int, list[int]]] = [(0, [])]
    for end in range(1, len(longest) + 1):
        options = []
        for start, (cost, starts) in enumerate(best):
            area = (rows[end] - rows[start]) * max(tops[start:end])
            cost += area + -(-area // budget) * TOKENS_PER_LAUNCH
            options.append((cost, [*starts, start]))
        best.append(min(options))
    ends: list[int] = []
    starts = best[-1][1]
    for start, end in zip(starts, [*starts[1:], len(longest)], strict=True):
        group = np.concatenate(longest[start:end])
        ends += [rows[start] + place for place in split_evenly(group, budget)]
    return ends


def round_robin(sizes: Lengths, n_parts: int) -> list[Indices]:
    """Deal sentences like cards, the largest first: the places in `sizes` of each part's."""
    order = np.argsort(sizes, kind="stable")[::-1]
    return [order[part::n_parts] for part in range(n_parts)]


def packed_batches(sizes: Lengths, budget: int) -> list[Indices]:
    """Deal sentences of `sizes` tokens on the longer side into few batches of `budget` tokens."""
    budget = max(budget, int(sizes.max()))
    parts = round_robin(sizes, max(-(-int(sizes.sum()) // budget), -(-len(sizes) // MOST_ROWS)))
    while max(int(sizes[part].sum()) for part in parts) > budget:
        parts = round_robin(sizes, len(parts) + 1)
    return parts


def bucket(
    src_lengths: Lengths, tgt_lengths: Lengths, order: Indices, budget: int
) -> list[Indices]:
    """Group sentences by length into batches of at most `budget` padded tokens, eos included."""
    order = sort_by_length(src_lengths, tgt_lengths, order)
    longest = np.maximum(src_lengths[order], tgt_lengths[order]) + 1
    return np.split(order, batch_ends(longest, budget)[:-1])


def shard_batches(
    src_lengths: Lengths, tgt_lengths: Lengths, batches: list[Indices], world_size: int,
    packed: bool = False,
) -> list[list[Indices]]:  # fmt: skip
    """Distribute the batches of an update over the ranks: one list of batches for each rank.

    Every rank gets as many batches, the n-th ones of all ranks of about the same size: sentences
    are batched again, into batches no larger than the largest one given (`packed` ones about as
    large). With fewer sentences than ranks some batches are empty.
    """
    if world_size == 1:
        return [batches]

    def longest(batch: Indices) -> Lengths:
        return np.maximum(src_lengths[batch], tgt_lengths[batch]) + 1

    def area(batch: Indices) -> int:
        return len(batch) * int(longest(batch).max(initial=0))

    most = -(-len(batches) // world_size) * world_size
    if packed:
        sentences = np.concatenate(batches)
        dealt = [sentences[part] for part in round_robin(longest(sentences), most)]
        return [dealt[rank::world_size] for rank in range(world_size)]
    order = sort_by_length(src_lengths, tgt_lengths, np.concatenate(batches))
    lengths = longest(order)
    # The smallest budget that gives at most so many batches; the largest batch given is enough.
    budgets = range(int(lengths.max()), max(map(area, batches)))
    place = bisect_left(budgets, True, key=lambda budget: len(batch_ends(lengths, budget)) <= most)
    sharded = np.split(order, batch_ends(lengths, budgets.start + place)[:-1])
    while len(sharded) % world_size:
        sharded.sort(key=len)
        sharded += np.array_split(sharded.pop(), 2)
    sharded.sort(key=area, reverse=True)
    return [sharded[rank::world_size] for rank in range(world_size)]


@dataclass(frozen=True)
class Updates:
    """The updates of an epoch, each a list of micro-batches of sentence numbers, cut when taken."""

    pairs: DirectedPairs
    order: Indices  # sentences by length
    ends: Indices  # of their shares, after a 0
    shares: Indices  # (updates, shares)
    budget: int
    packed: bool

    def __len__(self) -> int:
        return len(self.shares)

    def __iter__(self) -> Iterator[list[Indices]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> list[Indices]:
        shares = [self.order[self.ends[i] : self.ends[i + 1]] for i in self.shares[number]]
        src, tgt = self.pairs.src_lengths, self.pairs.tgt_lengths
        longest = [np.maximum(src[share], tgt[share]) + 1 for share in shares]
        sentences = np.concatenate(shares)
        if not self.packed:
            return np.split(sentences, micro_batches(longest, self.budget)[:-1])
        return [sentences[part] for part in packed_batches(np.concatenate(longest), self.budget)]


@dataclass(eq=False)
class Plan:
    """Which sentences each update of each epoch trains on."""

    pairs: DirectedPairs
    weights: Sequence[float]  # how often an epoch sees each flow, relative to the others
    batch: BatchConfig
    seed: int
    # Makes the augmented pairs of an epoch; may give up once the event is set. None: `pairs`.
    resample: Callable[[int, threading.Event], DirectedPairs] | None = None
    packed: bool = False  # without padding, so that an update need not be cut by length

    def __post_init__(self) -> None:
        self.drawn = sentences_of_epoch(self.weights, self.pairs.kept)  # from each flow
        self._sampled: tuple[int, Plan] | None = None  # an epoch, and its plan
        self._planned: tuple[int, Updates] | None = None  # the last epoch that was asked for

    def for_epoch(self, epoch: int, stop: threading.Event) -> Plan:
        """The plan over the pairs of `epoch`: this one, unless each epoch has its own."""
        if self.resample is None:
            return self
        if self._sampled is None or self._sampled[0] != epoch:
            self._sampled = epoch, replace(self, pairs=self.resample(epoch, stop), resample=None)
        return self._sampled[1]

    def forget_epoch(self) -> None:
        self._sampled = None

    def updates(self, epoch: int) -> Updates:
        """The updates of `epoch`, of equally many target tokens as far as whole sentences allow.

        The epoch is sorted by length and cut into strata, `N_STRATA` or one, each stratum into as
        many equal shares as there are updates. An update gets a random share of each stratum.
        """
        if self._planned is not None and self._planned[0] == epoch:
            return self._planned[1]
        random = np.random.default_rng([self.seed, epoch])
        src_lengths, tgt_lengths = self.pairs.src_lengths, self.pairs.tgt_lengths
        order = sort_by_length(src_lengths, tgt_lengths, self._sentences(random), random)
        sizes = tgt_lengths[order] + 1
        per_update = self.batch.tokens_per_update
        n_updates = min(max(1, round(int(sizes.sum()) / per_update)), len(order))
        n_strata = min(N_STRATA if per_update >= TOKENS_FOR_STRATA else 1, len(order) // n_updates)
        ends = np.append(0, equal_ends(sizes, n_strata * n_updates))
        strata = [random.permutation(n_updates) + n_updates * i for i in range(n_strata)]
        cut = self.batch.budget, self.packed
        self._planned = epoch, Updates(self.pairs, order, ends, np.stack(strata, 1), *cut)
        return self._planned[1]

    def n_tokens(self, batch: Indices) -> tuple[int, int]:
        """Source and target tokens that are computed for a batch, padding included."""
        sides = (each[batch] + 1 for each in (self.pairs.src_lengths, self.pairs.tgt_lengths))
        src, tgt = (int(s.sum()) if self.packed else int(s.max()) * len(batch) for s in sides)
        return src, tgt

    def _sentences(self, random: np.random.Generator) -> Indices:
        """Sentences of an epoch; at 2.25 times the lowest weight, two copies and a quarter."""
        parts = []
        start = 0
        for n_pairs, n_drawn in zip(self.pairs.kept, self.drawn, strict=True):
            flow = np.arange(start, start + n_pairs, dtype=np.uint32)
            copies, n_more = divmod(n_drawn, max(1, n_pairs))
            parts += [flow] * copies
            if n_more:
                parts.append(random.permutation(flow)[:n_more])
            start += n_pairs
        return np.concatenate(parts)
