"""Drop pairs that are unfit for training, and count them by reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from mt.data.reading.text_files import normalize_line

if TYPE_CHECKING:
    from mt.config.plan import Limits

# Fields of `Counts`; no fault comes first.
LENGTH_FAULTS = ("", "empty", "too_long", "ratio")


@dataclass
class Counts:
    """Pairs read, and pairs dropped by reason; a dropped pair has exactly one reason."""

    read: int = 0
    empty: int = 0
    duplicate: int = 0
    too_long: int = 0
    ratio: int = 0

    @property
    def kept(self) -> int:
        return self.read - self.empty - self.duplicate - self.too_long - self.ratio

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def reasons(self, limits: Limits) -> list[str]:
        """Why pairs were dropped, such as `1 longer than 256 tokens`."""
        reasons = [
            (self.empty, "with an empty side"),
            (self.duplicate, "duplicate" if self.duplicate == 1 else "duplicates"),
            (self.too_long, f"longer than {limits.max_tokens:,} tokens"),
            (self.ratio, f"with one side over {limits.max_length_ratio:g} times the other"),
        ]
        return [f"{count:,} {reason}" for count, reason in reasons if count]

    def summary(self, limits: Limits) -> str:
        """One line, such as `9 of 10 pairs kept; dropped: 1 longer than 256 tokens`."""
        dropped = ", ".join(self.reasons(limits))
        kept = f"{self.kept:,} of {self.read:,} pairs kept"
        return f"{kept}; dropped: {dropped}" if dropped else kept


def with_text(pairs: Iterable[tuple[str, str]], counts: Counts) -> Iterator[tuple[str, str]]:
    """Yield the pairs that have text on both sides; count all, and the others as empty."""
    for src, tgt in pairs:
        counts.read += 1
        if normalize_line(src) and normalize_line(tgt):
            yield src, tgt
        else:
            counts.empty += 1


def length_fault(n_src: int, n_tgt: int, limits: Limits) -> str:
    """Why a pair with these numbers of tokens (without eos) is dropped: one of `LENGTH_FAULTS`.

    Each side must have 1 to `max_tokens` tokens, and the longer side at most `max_length_ratio`
    times the tokens of the shorter one. "" means that the pair is kept.
    """
    shorter, longer = (n_src, n_tgt) if n_src < n_tgt else (n_tgt, n_src)
    if shorter == 0:
        return "empty"
    if longer > limits.max_tokens:
        return "too_long"
    return "ratio" if longer > limits.max_length_ratio * shorter else ""
