"""Lines of text, and the token stores of pairs, in memory."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from itertools import chain

import numpy as np

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


def store_of(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> Store:
    """The token store of `pairs`, in memory."""
    sides = (
        tokenizer.src.encode([src for src, _ in pairs]),
        tokenizer.tgt.encode([tgt for _, tgt in pairs]),
    )
    lengths = np.array([[len(row) for row in rows] for rows in sides], np.int64)
    src, tgt = (np.array(list(chain.from_iterable(rows)), "<u2") for rows in sides)
    return Store(src, tgt, lengths[0], lengths[1], (len(pairs),), "", "")


def rows(store: Store) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of each source and of each target of a store."""
    src, tgt = zip(*(store.pair(i) for i in range(len(store))), strict=True)
    return [row.tolist() for row in src], [row.tolist() for row in tgt]


def digest(store: Store) -> str:
    """SHA-256 of all ids and lengths of a store."""
    parts = (store.src, store.tgt, store.src_lengths, store.tgt_lengths)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
