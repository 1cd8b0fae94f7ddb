"""Subword regularisation: each epoch of training sees the same text in other tokens.

BPE-dropout for BPE (Provilkov et al. 2020, section 3), sampling from all segmentations for unigram (Kudo 2018,
section 3). SentencePiece can do both, but its version 0.2.3 draws other random numbers in every process, whatever the
seed: a run could not be resumed or repeated. So it is done here, on whole chunks of ids at a time.

Text never comes up: the ids of the store are taken apart into units, which are ids too (the single characters of a
piece; bytes, unk and whatever else cannot be taken apart stand for themselves), and units are put together anew.

Shapes: U units of a chunk, each word followed by one `end`; K units of the longest piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mt.config.schema import Config
    from mt.data.store import Ids, Store
    from mt.data.tokenizer import Tokenizer

# Lines sampled at a time: a lattice of so many takes some dozens of megabytes.
CHUNK = 4_000
# A smoothing above it leaves the best segmentation only, and far above it floats would overflow.
SHARPEST = 1e6
SPACE = "▁"

Array = npt.NDArray[np.int64]


class Sampling:
    """The store of an epoch: pure in (store, tokenizer, alpha, seed, epoch), and in nothing else."""

    def __init__(self, store: Store, tokenizer: Tokenizer, config: Config) -> None:
        """`config.tokenizer.sampling_alpha` must be set; rows are held to `config.data.max_tokens`."""
        self.store, self.seed, self.longest = store, config.run.seed, config.data.max_tokens
        kind = BpeDropout if config.tokenizer.type == "bpe" else UnigramSampling
        alpha = config.tokenizer.sampling_alpha
        assert alpha is not None
        self.src = kind(tokenizer.src_vocabulary(), alpha)
        self.tgt = self.src if tokenizer.joint else kind(tokenizer.tgt_vocabulary(), alpha)

    def __call__(self, epoch: int, stop: Event | None = None) -> Store:
        """All pairs of the store in the order of the store, in memory; InterruptedError when `stop` is set."""
        store = self.store
        src, src_lengths = self._side(
            self.src, store.src, store.src_lengths, (self.seed, epoch, 0), stop
        )
        tgt, tgt_lengths = self._side(
            self.tgt, store.tgt, store.tgt_lengths, (self.seed, epoch, 1), stop
        )
        return replace(
            store,
            src=src,
            tgt=tgt,
            src_lengths=src_lengths,
            tgt_lengths=tgt_lengths,
            src_starts=src_lengths.cumsum() - src_lengths,
            tgt_starts=tgt_lengths.cumsum() - tgt_lengths,
        )

    def _side(
        self,
        segmenter: Segmenter,
        ids: Ids,
        lengths: Array,
        seeds: tuple[int, ...],
        stop: Event | None,
    ) -> tuple[Ids, Array]:
        """All rows of one side anew: ids end to end, and lengths (n,)."""
        sampled, new_lengths, start = bytearray(), [], 0
        for number, first in enumerate(range(0, len(lengths), CHUNK)):
            if stop is not None and stop.is_set():
                raise InterruptedError("training has ended")
            old = lengths[first : first + CHUNK]
            rows = np.asarray(ids[start : start + old.sum()], np.int64)
            start += len(rows)
            row_ids, row_lengths = segmenter.sample(
                rows, old, np.random.default_rng([*seeds, number])
            )
            row_ids, row_lengths = _held_to(self.longest, row_ids, row_lengths, rows, old)
            sampled += row_ids.astype(ids.dtype).tobytes()
            new_lengths.append(row_lengths)
        return np.frombuffer(sampled, ids.dtype), np.concatenate(new_lengths)


def _held_to(
    longest: int, ids: Array, lengths: Array, old_ids: Array, old_lengths: Array
) -> tuple[Array, Array]:
    """Rows that sampling has made longer than `longest` are put back to what they were."""
    long = lengths > longest
    if not long.any():
        return ids, lengths
    rows = np.split(ids, lengths.cumsum()[:-1])
    old_rows = np.split(old_ids, old_lengths.cumsum()[:-1])
    kept = [old if is_long else row for row, old, is_long in zip(rows, old_rows, long, strict=True)]
    return np.concatenate(kept), np.where(long, old_lengths, lengths)


class Segmenter:
    """What both algorithms share: rows of ids → words of units → rows of other ids for the same text."""

    def __init__(self, vocabulary: Sequence[tuple[str, float]], alpha: float) -> None:
        """`vocabulary`: text ("" for special ids and bytes) and score of each id."""
        self.alpha, self.end = alpha, len(vocabulary)
        self.scores = np.array([score for _, score in vocabulary])
        self.ids = {text: number for number, (text, _) in enumerate(vocabulary) if text}
        self.spelled = [self._spell(number, text) for number, (text, _) in enumerate(vocabulary)]
        self.space = self.ids.get(SPACE, -1)
        self.n_units = np.array([len(units) for units in self.spelled])  # (V,)
        self.units = np.concatenate(self.spelled)  # of all ids, end to end

    def _spell(self, number: int, text: str) -> list[int]:
        """The units of an id: its characters; itself where one of them is no piece of its own."""
        units = [self.ids.get(character, -1) for character in text]
        return units if units and -1 not in units else [number]

    def sample(
        self, ids: Array, lengths: Array, random: np.random.Generator
    ) -> tuple[Array, Array]:
        """Rows of ids (end to end, and their lengths, all above 0) → the same rows in sampled tokens."""
        units, row_ends = self._words(ids, lengths)
        chosen = self.choose(units, random)  # (U,)
        seen = np.concatenate([[0], (chosen >= 0).cumsum()])
        ends = seen[row_ends]
        return chosen[chosen >= 0], np.diff(ends, prepend=0)

    def choose(self, units: Array, random: np.random.Generator) -> Array:
        """A segmentation of each word: (U,) the id of the token that begins here, -1 where none does."""
        raise NotImplementedError

    def _words(self, ids: Array, lengths: Array) -> tuple[Array, Array]:
        """Units (U,) with an `end` after each word, and where in them each row ends. A word begins with a space."""
        counts = self.n_units[ids]
        offsets = counts.cumsum() - counts
        first = (self.n_units.cumsum() - self.n_units)[ids]
        units = self.units[np.repeat(first - offsets, counts) + np.arange(counts.sum())]
        begins = units == self.space
        row_ends = counts.cumsum()[lengths.cumsum() - 1]
        begins[0] = True
        begins[row_ends[:-1]] = True
        words = begins.cumsum()  # (units,) the number of the word, from 1
        spaced = np.full(len(units) + words[-1], self.end)
        spaced[np.arange(len(units)) + words - 1] = units
        return spaced, row_ends + words[row_ends - 1]


class Table:
    """(a, b) → c for many pairs at once, -1 where there is none."""

    def __init__(self, entries: dict[tuple[int, int], int], width: int) -> None:
        """`width` must be above every b that is asked for."""
        self.width = width
        keys = np.array([a * width + b for a, b in entries], np.int64)
        order = keys.argsort()
        # One more, which no key equals, for what lies behind the last.
        self.keys = np.append(keys[order], -1)
        self.values = np.append(np.array(list(entries.values()), np.int64)[order], -1)

    def __call__(self, a: Array, b: Array) -> Array:
        wanted = a * self.width + b
        place = np.searchsorted(self.keys[:-1], wanted)
        return np.where(self.keys[place] == wanted, self.values[place], -1)


class BpeDropout(Segmenter):
    """BPE in which each merge, when its turn comes, is passed over with probability `alpha`.

    A merge that was passed over comes up again only when one of its two sides has become another. At alpha = 0 it is
    BPE: in each word the best merge first, the leftmost of equals.
    """

    def __init__(self, vocabulary: Sequence[tuple[str, float]], alpha: float) -> None:
        super().__init__(vocabulary, alpha)
        self.best_first = np.argsort(-self.scores, kind="stable")  # (V,) ids by rank
        rank = np.empty_like(self.best_first)
        rank[self.best_first] = np.arange(self.end)
        pairs = {
            (self.ids[text[:cut]], self.ids[text[cut:]]): int(rank[number])
            for text, number in self.ids.items()
            for cut in range(1, len(text))
            if text[:cut] in self.ids and text[cut:] in self.ids
        }
        self.world = Table(pairs, self.end + 1)

    def choose(self, units: Array, random: np.random.Generator) -> Array:
        """In each round one merge of each word; words that are done leave."""
        chosen = np.full(len(units), -1)
        tokens, place = units.copy(), np.arange(len(units))
        rank = self._rank(
            tokens, np.arange(len(tokens))
        )  # of the merge of a token with the next; `end`: none
        while len(tokens):
            here = np.arange(len(tokens))
            starts = np.concatenate([[0], here[tokens == self.end][:-1] + 1])  # of the words
            best = np.minimum.reduceat(rank << 32 | here, starts)
            done = best >> 32 == self.end
            leaving = np.repeat(done, np.diff(starts, append=len(tokens)))
            chosen[place[leaving]] = tokens[leaving]
            merges = best[~done] & (1 << 32) - 1
            passed = random.random(len(merges)) < self.alpha
            rank[merges[passed]] = self.end
            merges = merges[~passed]
            tokens[merges] = self.best_first[rank[merges]]
            leaving[merges + 1] = True
            tokens, place, rank = tokens[~leaving], place[~leaving], rank[~leaving]
            merges = (~leaving).cumsum()[merges] - 1
            around = np.concatenate([merges, merges[merges > 0] - 1])
            rank[around] = self._rank(tokens, around)
        return np.where(chosen == self.end, -1, chosen)

    def _rank(self, tokens: Array, where: Array) -> Array:
        rank = self.world(tokens[where], np.append(tokens, self.end)[where + 1])
        return np.where(rank < 0, self.end, rank)


class UnigramSampling(Segmenter):
    """A segmentation drawn from all with probability proportional to P(segmentation) ** `alpha`.

    Forward-filtering, backward-sampling (Kudo 2018, section 3.2), here from the ends of words to their beginnings.
    """

    def __init__(self, vocabulary: Sequence[tuple[str, float]], alpha: float) -> None:
        super().__init__(vocabulary, min(alpha, SHARPEST))
        # A trie of all pieces over units, node 0 its root.
        edges: dict[tuple[int, int], int] = {}
        pieces = [-1]
        for number, units in enumerate(self.spelled):
            node = 0
            for unit in units:
                if (node, unit) not in edges:
                    edges[node, unit] = len(pieces)
                    pieces.append(-1)
                node = edges[node, unit]
            pieces[node] = number
        self.edges, self.pieces = Table(edges, self.end + 1), np.array(pieces)
        self.longest = int(self.n_units.max())
        # (V + 1,) the last for -1, no piece
        self.weights = np.append(self.alpha * self.scores, -np.inf)

    def choose(self, units: Array, random: np.random.Generator) -> Array:
        """From the beginning of each word on, one token after the other."""
        pieces = self._lattice(units)  # (U, K)
        after = self._sums(units, pieces)
        chosen = np.full(len(units), -1)
        ends = np.flatnonzero(units == self.end)
        here = np.concatenate([[0], ends[:-1] + 1])
        while len(here):
            logs = self._logs(pieces, after, here)  # (words, K)
            up_to = np.exp(logs - logs.max(axis=1, keepdims=True)).cumsum(axis=1)
            total = up_to[:, -1]
            # The product can be rounded up to the total itself.
            drawn = np.minimum(random.random(len(here)) * total, np.nextafter(total, 0.0))
            length = (up_to <= drawn[:, None]).sum(axis=1)
            chosen[here] = pieces[here, length]
            here = here + length + 1
            here = here[units[here] != self.end]
        return chosen

    def _lattice(self, units: Array) -> Array:
        """(U, K) the piece of the next 1 to K units from each place on, -1 where there is none."""
        pieces = np.full((len(units), self.longest), -1)
        padded = np.concatenate([units, np.full(self.longest, self.end)])
        here = np.arange(len(units))
        node = np.zeros_like(here)
        for length in range(self.longest):
            node = self.edges(node, padded[here + length])
            here, node = here[node >= 0], node[node >= 0]
            pieces[here, length] = self.pieces[node]
        return pieces

    def _sums(self, units: Array, pieces: Array) -> npt.NDArray[Any]:
        """(U + K,) log of the sum over all segmentations from each place to the end of its word."""
        after = np.zeros(len(units) + self.longest)
        ends = np.flatnonzero(units == self.end)
        left = np.repeat(ends, np.diff(ends, prepend=-1)) - np.arange(
            len(units)
        )  # (U,) units to the end
        by_left = left.argsort(kind="stable")
        for n_left, here in enumerate(np.split(by_left, np.bincount(left).cumsum()[:-1])):
            if n_left == 0:  # the ends themselves
                continue
            logs = self._logs(pieces[:, :n_left], after, here)
            top = logs.max(axis=1)
            after[here] = top + np.log(np.exp(logs - top[:, None]).sum(axis=1))
        return after

    def _logs(self, pieces: Array, after: npt.NDArray[Any], here: Array) -> npt.NDArray[Any]:
        """(len(here), K) log of the sum over what begins with each piece that is possible here."""
        following = here[:, None] + np.arange(1, pieces.shape[1] + 1)
        logs: npt.NDArray[Any] = self.weights[pieces[here]] + after[following]
        return logs
