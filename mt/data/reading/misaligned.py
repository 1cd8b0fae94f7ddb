"""Find runs of pairs that are not translations of each other, by lengths and numbers along a text.

Between a line that is missing on one side and one further down on the other, each line stands
beside the translation of another. Its length then tells nothing of the length of its pair, which is
what the likelihood ratio of each pair measures (Gale and Church, 1993); a run is where their sum
grows (CUSUM; Page, 1954).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
# Pairs that are looked at together; fewer than the least say little.
MOST_PAIRS, LEAST_PAIRS = 500_000, 50
# Sum of log-likelihood ratios from which a run counts. In 289,379 aligned pairs of Multi30k and
# Tatoeba there is none; 50 lines that are moved by one or three are found in 398 of 400 places.
LEAST_SUM = 12.0
# Of a single pair: the most by its lengths, and what other and common numbers say.
MOST_BY_LENGTH, OTHER_NUMBERS, COMMON_NUMBERS = 2.0, 2.0, -3.0
# Added to lengths, and to the spread of their logarithms: short texts may differ more.
CHARACTERS_ADDED, SPREAD_ADDED = 5, 0.05
# Lines by which one side may have moved.
SHIFTS = (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5)
_NUMBER = re.compile(r"\d+")


class Run(NamedTuple):
    """Pairs, by the lines of the first and the last, and where the translations are: lines on."""

    first: int
    last: int
    shift: int  # 0: unknown

    def __str__(self) -> str:
        """`101 to 150 (the targets are 1 line further down)`."""
        n, where = abs(self.shift), "down" if self.shift > 0 else "up"
        moved = f" (the targets are {n} line{'s' * (n > 1)} further {where})" if n else ""
        return f"{self.first:,} to {self.last:,}{moved}"


@dataclass
class AlignmentCheck:
    """Collects the lengths of pairs, and whether their numbers differ, and finds the runs."""

    lines: array[int] = field(default_factory=lambda: array("Q"))
    lengths: tuple[array[int], array[int]] = field(default_factory=lambda: (array("L"), array("L")))
    numbers: array[float] = field(default_factory=lambda: array("f"))
    runs: list[Run] = field(default_factory=list)

    def add(self, line: int, src: str, tgt: str) -> None:
        """Add a pair with text on both sides."""
        self.lines.append(line)
        for text, lengths in zip((src, tgt), self.lengths, strict=True):
            lengths.append(len(text) - text.count("\u200b"))  # between some words of Khmer
        # In any digits; only the last ones of a long number, as int() has a limit.
        numbers, others = ([int(n[-18:]) for n in _NUMBER.findall(text)] for text in (src, tgt))
        ratio = 0.0
        if numbers and others:
            ratio = OTHER_NUMBERS if set(numbers).isdisjoint(others) else COMMON_NUMBERS
        self.numbers.append(ratio)
        if len(self.lines) == MOST_PAIRS:
            self.finish()

    def finish(self) -> list[Run]:
        """Look at the pairs added since the last call; returns all runs so far."""
        if len(self.lines) >= LEAST_PAIRS:
            src, tgt = (np.log(np.array(side) + CHARACTERS_ADDED) for side in self.lengths)
            for first, last, shift in _runs(src, tgt, np.array(self.numbers)):
                self.runs.append(Run(self.lines[first], self.lines[last], shift))
        for column in (self.lines, *self.lengths, self.numbers):
            del column[:]
        return self.runs


def _runs(src: Values, tgt: Values, numbers: Values) -> Iterator[tuple[int, int, int]]:
    """Yield first and last pair, and shift, of each run; `src`, `tgt`: logarithms of lengths."""
    # Where most of a text has moved, its lengths agree at another shift.
    fits = (_fit(*_shifted(src, tgt, shift)) for shift in SHIFTS)
    centre, spread = min(fits, key=lambda fit: fit[1])
    sums = np.concatenate([[0.0], (_ratios(src, tgt, centre, spread) + numbers).cumsum()])
    sums -= np.minimum.accumulate(sums)
    starts = np.flatnonzero(sums == 0).tolist()
    for start, end in zip(starts, [*starts[1:], len(sums)], strict=True):
        last = start + int(sums[start:end].argmax())
        if sums[last] < LEAST_SUM:
            continue
        run = slice(start, last)
        # Lines that are translated more freely, or at greater length, still go together.
        local = np.median(tgt[run] - src[run])
        if (_ratios(src[run], tgt[run], local, spread) + numbers[run]).sum() < LEAST_SUM / 2:
            continue
        shifted = {shift: _shifted(src, tgt, shift, run) for shift in SHIFTS[1:]}
        means = {n: _ratios(*sides, centre, spread).mean() for n, sides in shifted.items()}
        shift = min(means, key=means.__getitem__)
        yield start, last - 1, shift if means[shift] < 0 else 0


def _shifted(
    src: Values, tgt: Values, shift: int, rows: slice = slice(None)
) -> tuple[Values, Values]:
    numbers = np.arange(len(src))[rows]
    numbers = numbers[(numbers + shift >= 0) & (numbers + shift < len(tgt))]
    return src[numbers], tgt[numbers + shift]


def _fit(src: Values, tgt: Values) -> tuple[float, float]:
    longer = tgt - src
    centre = float(np.median(longer))
    return centre, 1.4826 * float(np.median(abs(longer - centre))) + SPREAD_ADDED


def _ratios(src: Values, tgt: Values, centre: float, spread: float) -> Values:
    """Log-likelihood ratio of each target's length: of any line, to that of its translation."""
    any_spread = tgt.std() + SPREAD_ADDED
    of_any = -(((tgt - tgt.mean()) / any_spread) ** 2) / 2 - np.log(any_spread)
    of_pair = -(((tgt - src - centre) / spread) ** 2) / 2 - np.log(spread)
    return np.clip(of_any - of_pair, -MOST_BY_LENGTH, MOST_BY_LENGTH)
