"""Sampling of unigram segmentations (Kudo, 2018, section 3) on arrays of token ids.

Shapes: U units of a chunk, K units of the longest piece.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mt.data.tokens.segmenter import Array, PairTable, Segmenter

# A larger alpha gives the best segmentation only, and a much larger one would overflow.
MAX_ALPHA = 1e6

Floats = npt.NDArray[np.float64]


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
