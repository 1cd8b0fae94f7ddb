"""Leaks: sentences of validation and test sets that stand in training text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mt.data.tokens.duplicates import Hashes, is_among, sentence_hashes

SOURCE, TARGET, PAIR = 1, 2, 4  # bits of the flags of a pair
Pairs = Sequence[tuple[str, str]]
NONE: Hashes = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class Found:
    """Hashes of normalised sentences; 0 is an empty line of an evaluation set, and cannot leak."""

    src: Hashes = field(default_factory=lambda: NONE)
    tgt: Hashes = field(default_factory=lambda: NONE)
    pairs: Hashes = field(default_factory=lambda: NONE)  # of both sides together

    def __add__(self, other: Found) -> Found:
        return Found(*map(np.union1d, vars(self).values(), vars(other).values()))


@dataclass(frozen=True)
class LeakCount:
    """Sentences of one evaluation set, and how many of them stand in training text."""

    sentences: int
    sources: int  # whose source is the source of a training pair
    targets: int
    pairs: int  # whose source and target are those of one training pair

    def summary(self) -> str:
        """A sentence for people."""
        return (
            f"of {self.sentences:,} sentences, {self.sources:,} stand in the corpora as sources, "
            f"{self.targets:,} as targets and {self.pairs:,} in whole pairs"
        )


class LeakIndex:
    """The sentences of evaluation sets, as `normalised` has them, to look training pairs up."""

    def __init__(self, sets: Mapping[str, Pairs], lines: Collection[str] = ()) -> None:
        """Index sets by name; `lines`: those of single lines, of which two make a whole pair."""
        self.sets: dict[str, Found] = {}
        for name, pairs in sets.items():
            src, tgt = (sentence_hashes(pair[side] for pair in pairs) for side in (0, 1))
            self.sets[name] = Found(src, tgt, pair_hashes(src, tgt) * (src > 0) * (tgt > 0))
        self._every = sum(self.sets.values(), Found())
        self._lines = sum((self.sets[name] for name in lines), Found()).src

    def flags(self, src: Hashes, tgt: Hashes) -> npt.NDArray[np.uint8]:
        """(n,) `SOURCE`, `TARGET` and `PAIR` of training pairs, by the hashes of their sides."""
        in_src, in_tgt = is_among(src, self._every.src), is_among(tgt, self._every.tgt)
        in_both = in_src & in_tgt
        src, tgt = src[in_both], tgt[in_both]
        is_pair = is_among(pair_hashes(src, tgt), self._every.pairs)
        in_both[in_both] = is_pair | self._are_lines(src, tgt)
        return (in_src * SOURCE + in_tgt * TARGET + in_both * PAIR).astype(np.uint8)

    def found(self, src: Hashes, tgt: Hashes, flags: npt.NDArray[np.uint8]) -> Found:
        """The sentences of evaluation sets that these training pairs contain."""
        both = (flags & PAIR) > 0
        lines = both & self._are_lines(src, tgt)  # whose own pairs are twice the same line
        pairs = [pair_hashes(side[lines], side[lines]) for side in (src, tgt)]
        pairs.append(pair_hashes(src[both], tgt[both]))
        return Found(
            np.unique(src[(flags & SOURCE) > 0]),
            np.unique(tgt[(flags & TARGET) > 0]),
            np.unique(np.concatenate(pairs)),
        )

    def _are_lines(self, src: Hashes, tgt: Hashes) -> npt.NDArray[np.bool_]:
        return is_among(src, self._lines) & is_among(tgt, self._lines)

    def counts(self, leaking: Found) -> dict[str, LeakCount]:
        """Count the sentences of each set that were found."""
        counts = {}
        for name, texts in self.sets.items():
            columns = zip(vars(texts).values(), vars(leaking).values(), strict=True)
            found = [int(is_among(column, ordered).sum()) for column, ordered in columns]
            counts[name] = LeakCount(len(texts.src), *found)
        return counts


def pair_hashes(src: Hashes, tgt: Hashes) -> Hashes:
    """(n,) One hash of the hashes of both sides, which is another if they are exchanged."""
    return src * np.uint64(0x9E3779B97F4A7C15) ^ tgt
