"""What BPE-dropout and unigram sampling share: token ids to words of units, and back to token ids.

Text is not needed. The ids of the store are split into units, which are ids too: the single
characters of a piece. Bytes, unk, and pieces with a character that is not a piece itself are their
own unit. An algorithm then joins the units of each word into other tokens.

Shapes: U units of a chunk, each word followed by one `end`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]

SPACE = "▁"


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
