"""Keys of texts and pairs, and duplicates found by them in bounded memory: buckets on disk."""

from __future__ import annotations

import re
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Hashes: TypeAlias = npt.NDArray[np.uint64]
# Rows that are kept in memory before they go to the buckets: 48 MB.
ROWS_IN_MEMORY = 2_000_000
# Bits of a position that hold the number of the pair within its corpus.
INDEX_BITS = 40
INDEX_MASK = np.uint64((1 << 40) - 1)

_LOWER = bytes(range(128)).lower() + bytes(range(128, 256))
_ASCII_SIGNS = bytes(code for code in range(128) if not chr(code).isalnum())
# Accents go, as marks that NFKD has set apart. Marks of Indic and South-East Asian scripts are
# vowels, and those of kana make another letter: they stay.
_OTHERS = re.compile(r"[^\x00-\x7f]+")
_SIGNS = re.compile(r"[^\w\u0900-\u1cff\u3099\u309a]+|_+")


def normalised(text: str) -> bytes:
    """A text in lower case, of letters and digits only, without accents, as UTF-8.

    A text of signs only stays as it is: `!` and `?` are not the same.
    """
    folded = text if text.isascii() else _OTHERS.sub(lambda run: _folded(run[0]), text)
    letters = folded.encode("utf-8", "surrogatepass").translate(_LOWER, _ASCII_SIGNS)
    return letters or text.strip().encode("utf-8", "surrogatepass")


@lru_cache(maxsize=1 << 16)  # German has a few umlauts, Russian its frequent words
def _folded(text: str) -> str:
    """Characters that are not ASCII without case, accents and signs; the result may be ASCII."""
    return _SIGNS.sub("", unicodedata.normalize("NFKD", text.casefold()))


def hashes(texts: Iterable[bytes]) -> Hashes:
    """(n,) 64-bit hashes (XXH3) of texts."""
    import xxhash  # here: training on ids, as on a GPU machine without it, must not need it

    return np.array([xxhash.xxh3_64_intdigest(text) for text in texts], np.uint64)


def is_among(values: Hashes, ordered: Hashes) -> npt.NDArray[np.bool_]:
    """(n,) Whether each value is in a sorted array."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    places = np.searchsorted(ordered, values)
    return ordered[np.minimum(places, len(ordered) - 1)] == values


def pair_keys(pairs: Sequence[tuple[str, str]]) -> Hashes:
    """(n, 2) Keys of pairs, 128 bits each (XXH3): equal pairs, and no others, have equal keys.

    Of N different pairs, N²/2^129 are expected to have the key of another. No side has a line feed.
    """
    # A half of a surrogate pair is not UTF-8, and must not be an error here.
    sides = ([text.encode("utf-8", "surrogatepass") for text in pair] for pair in pairs)
    return joined_keys((src, tgt) for src, tgt in sides)


def joined_keys(pairs: Iterable[tuple[bytes, bytes]]) -> Hashes:
    """(n, 2) Keys of pairs in bytes, such as normalised ones."""
    import xxhash

    keys = b"".join([xxhash.xxh3_128_digest(src + b"\n" + tgt) for src, tgt in pairs])
    return np.frombuffer(keys, np.uint64).reshape(-1, 2)


def expected_false_drops(pairs: int) -> float:
    """How many of so many different pairs are expected to be taken for a duplicate of another."""
    return pairs**2 / 2.0**129


def repeated(keys: Hashes, priority: npt.NDArray[np.uint64] | None = None) -> npt.NDArray[np.bool_]:
    """(n,) Whether an equal row comes earlier in `keys`, or has a lower number in `priority`."""
    columns = (keys[:, 1], keys[:, 0])
    order = np.lexsort(columns if priority is None else (priority, *columns))
    ordered = keys[order]
    flags = np.zeros(len(keys), np.bool_)
    flags[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
    return flags


class DuplicateFinder:
    """Finds which pairs of several corpora equal another pair.

    One pair of a group stays: that in the corpus of highest weight, else the first one. Beyond
    `ROWS_IN_MEMORY` pairs, keys lie in 256 files, 24 bytes a pair, and one file at a time is
    sorted: 0.4 GB of memory for a billion pairs.
    """

    def __init__(self, folder: Path, weights: Sequence[float]) -> None:
        """Start without pairs. `weights` are those of the corpora; `folder` is made when needed."""
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        self._folder = folder
        self._sizes = [0] * len(weights)
        # The corpora in the order in which they keep their pairs.
        self._order = sorted(range(len(weights)), key=lambda number: -weights[number])
        # (n, 3): key, key, and which pair: place of its corpus in this order, number within it.
        self._rows = [np.empty((0, 3), np.uint64)]

    def add(self, corpus: int, keys: Hashes) -> None:
        """Add the `pair_keys` of the next pairs of a corpus. Raises OSError."""
        first = (self._order.index(corpus) << INDEX_BITS) + self._sizes[corpus]
        pairs = np.arange(first, first + len(keys), dtype=np.uint64)
        self._rows.append(np.column_stack([keys, pairs]))
        self._sizes[corpus] += len(keys)
        if sum(map(len, self._rows)) >= ROWS_IN_MEMORY:
            self._spill()

    def _spill(self) -> None:
        """Append the rows in memory to the files of their buckets, told by the keys' first byte."""
        self._folder.mkdir(parents=True, exist_ok=True)
        rows = np.concatenate(self._rows)
        buckets = (rows[:, 0] >> np.uint64(56)).astype(np.uint8)
        order = np.argsort(buckets, kind="stable")
        edges = np.searchsorted(buckets[order], np.arange(257))
        for number, bucket in enumerate(np.split(rows[order], edges[1:-1])):
            with (self._folder / f"{number:03}.keys").open("ab") as file:
                file.write(bucket.tobytes())
        del self._rows[1:]

    def dropped(self) -> list[npt.NDArray[np.bool_]]:
        """Of each corpus, (pairs,) whether a pair is a duplicate. Removes the files."""
        flags = [np.zeros(size, np.bool_) for size in self._sizes]
        try:
            if self._folder.is_dir():
                self._spill()
                files = sorted(self._folder.iterdir())
                buckets = (np.fromfile(path, np.uint64).reshape(-1, 3) for path in files)
            else:
                buckets = (rows for rows in [np.concatenate(self._rows)])
            for rows in buckets:
                pairs = rows[repeated(rows[:, :2], rows[:, 2]), 2]
                for place, corpus in enumerate(self._order):
                    repeats = pairs[pairs >> np.uint64(INDEX_BITS) == place]
                    flags[corpus][repeats & INDEX_MASK] = True
        finally:
            del self._rows[1:]
            shutil.rmtree(self._folder, ignore_errors=True)
        return flags
