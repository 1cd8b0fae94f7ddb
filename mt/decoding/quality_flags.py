"""What makes a translation suspect, without knowing the right one, and the numbers of lines to be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

# A row of so many equal n-grams, n = 1, 2, 3, 4, is a loop, unless the source has it too.
REPEATS = (4, 3, 3, 3)
# A text with a loop says so many words again; few do, and only they need a closer look.
LEAST_REPEATED = min((most - 1) * n for n, most in enumerate(REPEATS, 1))
# Names, numbers and single words are often right as they stand; a copy counts from so many words on.
LEAST_COPIED = 4
# Pieces of the longer side below which lengths say nothing.
LEAST_COMPARED = 12

FLAGS = {
    "copied": "equal to the source",
    "empty": "nothing came out",
    "looping": "says the same again and again",
    "ratio": "much longer or shorter than the source",
    "truncated": "stopped at the length limit",
}


def flags(
    source: str, output: str, n_src: int, n_tgt: int, *, truncated: bool, max_ratio: float
) -> tuple[str, ...]:
    """Those of `FLAGS` that hold for an output of `n_tgt` pieces of a source of `n_src`, blank lines apart."""
    source_words, words = source.split(), output.split()
    if not source_words:
        return ()
    shorter, longer = sorted((n_src, n_tgt))
    repeated = len(words) - len(set(words))
    found = {
        "copied": len(words) >= LEAST_COPIED and words == source_words,
        "empty": not words,
        "looping": repeated >= LEAST_REPEATED
        and any(
            longest_row(words, n) >= most > longest_row(source_words, n)
            for n, most in enumerate(REPEATS, 1)
        ),
        "ratio": bool(words) and longer >= LEAST_COMPARED and longer > max_ratio * shorter,
        "truncated": truncated,
    }
    return tuple(name for name in FLAGS if found[name])


def longest_row(words: Sequence[str], n: int) -> int:
    """How often an n-gram follows itself, at most: 3 for `a b a b a b` and n = 2."""
    best = 1 if len(words) >= n else 0
    for start in range(n):
        row = 1
        grams = [tuple(words[i : i + n]) for i in range(start, len(words) - n + 1, n)]
        for one, other in pairwise(grams):
            row = row + 1 if one == other else 1
            best = max(best, row)
    return best


@dataclass
class Numbers:
    """Line numbers to be told: how many, and the first ones."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, number: int) -> None:
        self.count += 1
        if len(self.first) < 5:  # of millions of lines, all may be suspect
            self.first.append(number)

    def __str__(self) -> str:
        """`line 3, 1,204`"""
        shown = ", ".join(f"{number:,}" for number in self.first)
        return f"line {shown}{', ...' * (self.count > len(self.first))}"
