"""Lines of text, and the token stores of pairs, in memory."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from itertools import chain

import numpy as np

from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.store import Store
from mt.data.tokens.tokenizer import Tokenizer

WORDS = (
    "der Hund Hunde Häuser Hausboot schläft schlafen Schlaf laufen läuft Lauf 1987 12 nicht , . "
    "the houses hound"
)


def made_lines(n: int = 400) -> list[str]:
    """`n` lines of 1 to 12 words, always the same ones."""
    draw = random.Random(5)
    return [" ".join(draw.choices(WORDS.split(), k=draw.randint(1, 12))) for _ in range(n)]


def pairs_of(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], kept: Sequence[int] = ()
) -> DirectedPairs:
    """The ids of `pairs`, in memory, of several texts of `kept` pairs each."""
    sides = (
        tokenizer.src.encode([src for src, _ in pairs]),
        tokenizer.tgt.encode([tgt for _, tgt in pairs]),
    )
    lengths = np.array([[len(row) for row in rows] for rows in sides], np.int64)
    ids = np.array(
        [*chain.from_iterable(src + tgt for src, tgt in zip(*sides, strict=True))], "<u2"
    )
    return DirectedPairs.of(Store(ids, lengths, tuple(kept) or (len(pairs),), "", ""))


def rows(pairs: DirectedPairs) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of each source and of each target."""
    src, tgt = zip(*pairs.pairs(np.arange(len(pairs))), strict=True)
    return [row.tolist() for row in src], [row.tolist() for row in tgt]


def digest(pairs: DirectedPairs) -> str:
    """SHA-256 of all ids and lengths."""
    parts = (pairs.store.ids, pairs.src_lengths, pairs.tgt_lengths)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
