"""Which pairs are worth training on: filters, each with its count."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mt.data.tokenizer import normalize_line

if TYPE_CHECKING:
    from mt.config.schema import DataConfig


@dataclass
class Counts:
    """Pairs read, and pairs dropped for each reason; a dropped pair has exactly one reason."""

    read: int = 0
    empty: int = 0
    duplicate: int = 0
    too_long: int = 0
    ratio: int = 0

    @property
    def kept(self) -> int:
        return self.read - self.empty - self.duplicate - self.too_long - self.ratio

    def summary(self, data: DataConfig) -> str:
        """One line, such as `9 of 10 pairs kept; dropped: 1 longer than 256 tokens`."""
        drops = [
            (self.empty, "with an empty side"),
            (self.duplicate, "duplicate" if self.duplicate == 1 else "duplicates"),
            (self.too_long, f"longer than {data.max_tokens:,} tokens"),
            (self.ratio, f"with one side over {data.max_length_ratio:g} times the other"),
        ]
        said = ", ".join(f"{count:,} {reason}" for count, reason in drops if count)
        kept = f"{self.kept:,} of {self.read:,} pairs kept"
        return f"{kept}; dropped: {said}" if said else kept


def clean_text(
    pairs: Iterable[tuple[str, str]], dedupe: bool, counts: Counts
) -> Iterator[tuple[str, str]]:
    """Pass on the pairs that hold text on both sides and, with `dedupe`, did not come before.

    A duplicate equals an earlier pair on both sides, character for character. Each pair passed on
    is remembered as a 64-bit hash: about 80 MB per million pairs, and one wrong match to be
    expected in some thousand corpora of 100 million pairs.
    """
    seen: set[bytes] = set()
    for src, tgt in pairs:
        counts.read += 1
        if not (normalize_line(src) and normalize_line(tgt)):
            counts.empty += 1
            continue
        if dedupe:
            # No side holds a line feed, so the joined text belongs to one pair only.
            key = hashlib.blake2b(f"{src}\n{tgt}".encode(), digest_size=8).digest()
            if key in seen:
                counts.duplicate += 1
                continue
            seen.add(key)
        yield src, tgt


def keeps_length(n_src: int, n_tgt: int, data: DataConfig, counts: Counts) -> bool:
    """Whether a pair of so many tokens (eos not counted) is kept; if not, `counts` says why.

    Kept are 1 to `max_tokens` tokens a side, the longer side at most `max_length_ratio` times the
    shorter one.
    """
    shorter, longer = sorted((n_src, n_tgt))
    if shorter == 0:
        counts.empty += 1
    elif longer > data.max_tokens:
        counts.too_long += 1
    elif longer > data.max_length_ratio * shorter:
        counts.ratio += 1
    else:
        return True
    return False
