"""BPE-dropout (Provilkov et al., 2020, section 3) on arrays of token ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mt.data.tokens.segmenter import Array, PairTable, Segmenter


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
