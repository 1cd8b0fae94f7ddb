"""Subword regularisation: each epoch sees the same text split into other tokens.

BPE uses BPE-dropout (Provilkov et al., 2020, section 3), unigram samples from all segmentations
(Kudo, 2018, section 3). SentencePiece can do both, but its version 0.2.3 draws other random numbers
in every process, whatever the seed, and a run must be resumable and repeatable. So mt samples
itself, with NumPy, on whole chunks of ids at a time.

Text is not needed. The ids of the store are split into units, which are ids too: the single
characters of a piece. Bytes, unk, and pieces with a character that is not a piece itself are their
own unit. An algorithm then joins the units of each word into other tokens.

Shapes: U units of a chunk, each word followed by one `end`; K units of the longest piece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mt.config.schema import Config
    from mt.data.tokens.store import Ids, Store
    from mt.data.tokens.tokenizer import Tokenizer

# Lines sampled at a time: the lattice of so many takes some dozens of megabytes.
LINES_PER_CHUNK = 4_000
# A larger alpha gives the best segmentation only, and a much larger one would overflow.
MAX_ALPHA = 1e6
SPACE = "▁"

Array = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class SubwordRegularisation:
    """Makes the store of an epoch: a pure function of (store, tokenizer, alpha, seed, epoch)."""

    def __init__(
        self,
        store: Store,
        tokenizer: Tokenizer,
        config: Config,
        augment: Callable[[int, Event | None], Store] | None = None,
    ) -> None:
        """`config.tokenizer.sampling_alpha` must be set; `augment` makes the text of an epoch.

        Rows that sampling makes longer than `config.data.max_tokens` stay as they were.
        """
        alpha = config.tokenizer.sampling_alpha
        assert alpha is not None
        self.text = augment or (lambda epoch, stop: store)
        self.seed = config.run.seed
        self.max_tokens = config.data.max_tokens
        algorithm = ALGORITHMS[config.tokenizer.type]
        self.src = algorithm(tokenizer.src.scored_pieces(), alpha)
        self.tgt = self.src
        # An imported tokenizer may split the two sides differently over one joint vocabulary.
        if not (tokenizer.joint and tokenizer.has_own_ids):
            self.tgt = algorithm(tokenizer.tgt.scored_pieces(), alpha)

    def __call__(self, epoch: int, stop: Event | None = None) -> Store:
        """All pairs of the store, in its order, in memory; InterruptedError once `stop` is set."""
        store, seeds = self.text(epoch, stop), (self.seed, epoch)
        src, n_src = self._sample_side(self.src, store.src, store.src_lengths, (*seeds, 0), stop)
        tgt, n_tgt = self._sample_side(self.tgt, store.tgt, store.tgt_lengths, (*seeds, 1), stop)
        return replace(store, src=src, tgt=tgt, src_lengths=n_src, tgt_lengths=n_tgt)

    def _sample_side(
        self,
        segmenter: Segmenter,
        ids: Ids,
        lengths: Ids,
        seeds: tuple[int, ...],
        stop: Event | None,
    ) -> tuple[Ids, Ids]:
        """Sample all rows of one side. Returns ids end to end, and lengths (n,)."""
        sampled = bytearray()
        sampled_lengths = []
        start = 0
        for number, first in enumerate(range(0, len(lengths), LINES_PER_CHUNK)):
            if stop is not None and stop.is_set():
                raise InterruptedError("training has ended")
            old_lengths = lengths[first : first + LINES_PER_CHUNK].astype(np.int64)
            old_ids = np.asarray(ids[start : start + old_lengths.sum()], np.int64)
            start += len(old_ids)
            random = np.random.default_rng([*seeds, number])
            new = segmenter.sample(old_ids, old_lengths, random)
            new_ids, new_lengths = self._restore_long_rows(*new, old_ids, old_lengths)
            sampled += new_ids.astype(ids.dtype).tobytes()
            sampled_lengths.append(new_lengths.astype(np.uint32))
        return np.frombuffer(sampled, ids.dtype), np.concatenate(sampled_lengths)

    def _restore_long_rows(
        self, ids: Array, lengths: Array, old_ids: Array, old_lengths: Array
    ) -> tuple[Array, Array]:
        """Put rows that have become longer than `max_tokens` back to what they were."""
        too_long = lengths > self.max_tokens
        if not too_long.any():
            return ids, lengths
        rows = np.split(ids, lengths.cumsum()[:-1])
        old_rows = np.split(old_ids, old_lengths.cumsum()[:-1])
        for row in np.flatnonzero(too_long):
            rows[row] = old_rows[row]
        return np.concatenate(rows), np.where(too_long, old_lengths, lengths)


class Segmenter:
    """Samples another segmentation of rows of token ids that stands for the same text."""

    def __init__(self, vocabulary: Sequence[tuple[str, float]], alpha: float) -> None:
        """`vocabulary`: text ("" for special ids and bytes) and score of each id."""
        self.alpha = alpha
        self.end = len(vocabulary)  # follows each word; no id has this number
        self.scores = np.array([score for _, score in vocabulary])
        self.ids = {text: number for number, (text, _) in enumerate(vocabulary) if text}
        self.units_of = [self._units(number, text) for number, (text, _) in enumerate(vocabulary)]
        self.space = self.ids.get(SPACE, -1)
        self.n_units = np.array([len(units) for units in self.units_of])  # (V,)
        self.units = np.concatenate(self.units_of)  # of all ids, end to end

    def _units(self, number: int, text: str) -> list[int]:
        """The units of an id: its characters, or itself where one of them is not a piece."""
        units = [self.ids.get(character, -1) for character in text]
        return units if units and -1 not in units else [number]

    def sample(
        self, ids: Array, lengths: Array, random: np.random.Generator
    ) -> tuple[Array, Array]:
        """Sample a segmentation of each row; ids end to end, and lengths, all above 0."""
        units, row_ends = self._words(ids, lengths)
        tokens = self.segment(units, random)  # (U,)
        n_tokens_before = np.concatenate([[0], (tokens >= 0).cumsum()])
        return tokens[tokens >= 0], np.diff(n_tokens_before[row_ends], prepend=0)

    def segment(self, units: Array, random: np.random.Generator) -> Array:
        """A segmentation of each word: (U,) the id of the token that starts at a unit, else -1."""
        raise NotImplementedError

    def _words(self, ids: Array, lengths: Array) -> tuple[Array, Array]:
        """Units (U,) with `end` after each word, and the end of each row in them.

        A word begins with a space or at the beginning of a row.
        """
        counts = self.n_units[ids]
        offsets = counts.cumsum() - counts
        first = (self.n_units.cumsum() - self.n_units)[ids]
        units = self.units[np.repeat(first - offsets, counts) + np.arange(counts.sum())]
        row_ends = counts.cumsum()[lengths.cumsum() - 1]
        is_word_start = units == self.space
        is_word_start[0] = True
        is_word_start[row_ends[:-1]] = True
        word = is_word_start.cumsum()  # number of the word of each unit, from 1
        with_ends = np.full(len(units) + word[-1], self.end)
        with_ends[np.arange(len(units)) + word - 1] = units
        return with_ends, row_ends + word[row_ends - 1]


class PairTable:
    """Looks up (a, b) → value for many pairs at once; -1 for pairs that are not in it."""

    def __init__(self, entries: Mapping[tuple[int, int], int], width: int) -> None:
        """`width` must be above every b that is looked up."""
        self.width = width
        keys = np.array([a * width + b for a, b in entries], np.int64)
        order = keys.argsort()
        # The last entry stands for places behind all keys; no pair has the key -1.
        self.keys = np.append(keys[order], -1)
        self.values = np.append(np.array(list(entries.values()), np.int64)[order], -1)

    def __call__(self, a: Array, b: Array) -> Array:
        """The value of each pair (a[i], b[i])."""
        key = a * self.width + b
        place = np.searchsorted(self.keys[:-1], key)
        return np.where(self.keys[place] == key, self.values[place], -1)


class BpeDropout(Segmenter):
    """BPE in which each merge, when it is the best of its word, is skipped with probability alpha.

    A skipped merge is tried again only after one of its two tokens has changed. With alpha = 0 it
    is plain BPE: in each word the best merge first, the leftmost among equal ones.
    """

    def __init__(self, vocabulary: Sequence[tuple[str, float]], alpha: float) -> None:
        """`vocabulary` as for `Segmenter`; a higher score is an earlier merge."""
        super().__init__(vocabulary, alpha)
        self.by_rank = np.argsort(-self.scores, kind="stable")  # (V,) ids, best first
        rank = np.empty_like(self.by_rank)
        rank[self.by_rank] = np.arange(self.end)
        merges = {
            (self.ids[text[:cut]], self.ids[text[cut:]]): int(rank[number])
            for text, number in self.ids.items()
            for cut in range(1, len(text))
            if text[:cut] in self.ids and text[cut:] in self.ids
        }
        self.merge_ranks = PairTable(merges, self.end + 1)

    def segment(self, units: Array, random: np.random.Generator) -> Array:
        """Do one merge of each word per round; words without a merge left are finished."""
        result = np.full(len(units), -1)
        tokens = units.copy()
        place = np.arange(len(units))  # of the tokens in `result`
        # Rank of the merge of each token with the next one; `end` where there is none.
        rank = self._merge_rank(tokens, np.arange(len(tokens)))
        while len(tokens):
            here = np.arange(len(tokens))
            word_starts = np.concatenate([[0], here[tokens == self.end][:-1] + 1])
            # The lowest rank of each word and, in the low bits, the leftmost token that has it.
            best = np.minimum.reduceat(rank << 32 | here, word_starts)
            finished = best >> 32 == self.end
            removed = np.repeat(finished, np.diff(word_starts, append=len(tokens)))
            result[place[removed]] = tokens[removed]

            merged = best[~finished] & (1 << 32) - 1
            skipped = random.random(len(merged)) < self.alpha
            rank[merged[skipped]] = self.end
            merged = merged[~skipped]
            tokens[merged] = self.by_rank[rank[merged]]
            removed[merged + 1] = True

            tokens = tokens[~removed]
            place = place[~removed]
            rank = rank[~removed]
            merged = (~removed).cumsum()[merged] - 1
            changed = np.concatenate([merged, merged[merged > 0] - 1])
            rank[changed] = self._merge_rank(tokens, changed)
        return np.where(result == self.end, -1, result)

    def _merge_rank(self, tokens: Array, where: Array) -> Array:
        """Rank of the merge of the tokens at `where` with their next ones; `end` for no merge."""
        rank = self.merge_ranks(tokens[where], np.append(tokens, self.end)[where + 1])
        return np.where(rank < 0, self.end, rank)


class UnigramSampling(Segmenter):
    """A segmentation drawn from all, with probability proportional to P(segmentation) ** alpha.

    Forward-filtering and backward-sampling (Kudo, 2018, section 3.2) with the direction reversed:
    filtered from the ends of words, sampled from their beginnings.
    """

    def __init__(self, vocabulary: Sequence[tuple[str, float]], alpha: float) -> None:
        """`vocabulary` as for `Segmenter`; scores are log-probabilities."""
        super().__init__(vocabulary, min(alpha, MAX_ALPHA))
        # A trie of all pieces over units; node 0 is its root.
        edges: dict[tuple[int, int], int] = {}
        piece_of_node = [-1]
        for number, units in enumerate(self.units_of):
            node = 0
            for unit in units:
                if (node, unit) not in edges:
                    edges[node, unit] = len(piece_of_node)
                    piece_of_node.append(-1)
                node = edges[node, unit]
            piece_of_node[node] = number
        self.edges = PairTable(edges, self.end + 1)
        self.piece_of_node = np.array(piece_of_node)
        self.max_units = int(self.n_units.max())
        # (V + 1,) The last weight is that of piece -1, which does not exist.
        self.weights = np.append(self.alpha * self.scores, -np.inf)

    def segment(self, units: Array, random: np.random.Generator) -> Array:
        """Draw one token after the other, from the beginning of each word."""
        pieces = self._lattice(units)  # (U, K)
        suffix_sums = self._suffix_sums(units, pieces)
        result = np.full(len(units), -1)
        word_ends = np.flatnonzero(units == self.end)
        here = np.concatenate([[0], word_ends[:-1] + 1])
        while len(here):
            log_sums = self._log_sums(pieces, suffix_sums, here)  # (words, K)
            cumulative = np.exp(log_sums - log_sums.max(axis=1, keepdims=True)).cumsum(axis=1)
            total = cumulative[:, -1]
            # The product can be rounded up to the total itself.
            drawn = np.minimum(random.random(len(here)) * total, np.nextafter(total, 0.0))
            chosen = (cumulative <= drawn[:, None]).sum(axis=1)
            result[here] = pieces[here, chosen]
            here = here + chosen + 1
            here = here[units[here] != self.end]
        return result

    def _lattice(self, units: Array) -> Array:
        """(U, K) The piece made of the next 1 to K units from each unit on, -1 for none."""
        pieces = np.full((len(units), self.max_units), -1)
        padded = np.concatenate([units, np.full(self.max_units, self.end)])
        here = np.arange(len(units))
        node = np.zeros_like(here)
        for length in range(self.max_units):
            node = self.edges(node, padded[here + length])
            here = here[node >= 0]
            node = node[node >= 0]
            pieces[here, length] = self.piece_of_node[node]
        return pieces

    def _suffix_sums(self, units: Array, pieces: Array) -> Floats:
        """(U + K,) Log of the sum over all segmentations from each unit to the end of its word."""
        sums = np.zeros(len(units) + self.max_units)
        word_ends = np.flatnonzero(units == self.end)
        # (U,) units from each unit to the end of its word
        distance = np.repeat(word_ends, np.diff(word_ends, prepend=-1)) - np.arange(len(units))
        by_distance = distance.argsort(kind="stable")
        groups = np.split(by_distance, np.bincount(distance).cumsum()[:-1])
        for n_left, here in enumerate(groups):
            if n_left == 0:  # the ends themselves
                continue
            log_sums = self._log_sums(pieces[:, :n_left], sums, here)
            highest = log_sums.max(axis=1)
            sums[here] = highest + np.log(np.exp(log_sums - highest[:, None]).sum(axis=1))
        return sums

    def _log_sums(self, pieces: Array, suffix_sums: Floats, here: Array) -> Floats:
        """(len(here), K) Log of the sum over the segmentations that begin with each piece."""
        following = here[:, None] + np.arange(1, pieces.shape[1] + 1)
        log_sums: Floats = self.weights[pieces[here]] + suffix_sums[following]
        return log_sums


# By `tokenizer.type`.
ALGORITHMS: dict[str, type[Segmenter]] = {"bpe": BpeDropout, "unigram": UnigramSampling}
