"""Duplicate pairs, found by 128-bit keys in bounded memory: buckets of keys on disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

Keys: TypeAlias = npt.NDArray[np.uint64]
Flags: TypeAlias = npt.NDArray[np.bool_]

# Rows that are kept in memory before they go to the buckets: 48 MB.
ROWS_IN_MEMORY = 2_000_000
# Bits of a position that hold the number of the pair within its corpus.
INDEX_BITS = np.uint64(40)
INDEX_MASK = np.uint64((1 << 40) - 1)


def pair_keys(pairs: Sequence[tuple[str, str]]) -> Keys:
    """(n, 2) Keys of pairs, 128 bits each (XXH3): equal pairs, and no others, have equal keys.

    Of N different pairs, N²/2^129 are expected to have the key of another. No side has a line feed.
    """
    digest = xxhash.xxh3_128_digest
    # A half of a surrogate pair is not UTF-8, and must not be an error here.
    keys = b"".join([digest(f"{s}\n{t}".encode("utf-8", "surrogatepass")) for s, t in pairs])
    return np.frombuffer(keys, np.uint64).reshape(-1, 2)


def joined_keys(pairs: Iterable[tuple[bytes, bytes]]) -> Keys:
    """(n, 2) The same of pairs in bytes, such as normalised ones."""
    keys = b"".join([xxhash.xxh3_128_digest(src + b"\n" + tgt) for src, tgt in pairs])
    return np.frombuffer(keys, np.uint64).reshape(-1, 2)


def expected_false_drops(pairs: int) -> float:
    """How many of so many different pairs are expected to be taken for a duplicate of another."""
    return pairs**2 / 2.0**129


def repeated(keys: Keys, priority: npt.NDArray[np.uint64] | None = None) -> Flags:
    """(n,) Whether an equal row comes earlier in `keys`, or has a lower number in `priority`."""
    columns = (keys[:, 1], keys[:, 0])
    order = np.lexsort(columns if priority is None else (priority, *columns))
    ordered = keys[order]
    flags = np.zeros(len(keys), np.bool_)
    flags[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
    return flags


class DuplicateFinder:
    """Finds which pairs of several corpora equal another pair.

    One pair of a group stays: that in the corpus of highest weight, else the first one. Up to
    `ROWS_IN_MEMORY` pairs are sorted in memory. Beyond, their keys lie in 256 files in `folder`, 24
    bytes a pair, and one file at a time is sorted: 0.4 GB of memory for a billion pairs.
    """

    def __init__(self, folder: Path, weights: Sequence[float]) -> None:
        """Start without pairs. `weights` are those of the corpora; `folder` is made when needed."""
        self._folder = folder
        self._sizes = [0] * len(weights)
        order = sorted(range(len(weights)), key=lambda number: -weights[number])
        self._rank = np.empty(len(weights), np.uint64)  # 0: the corpus that keeps its pairs
        self._rank[order] = np.arange(len(weights), dtype=np.uint64)
        self._rows: list[Keys] = []  # (n, 3): key, key, corpus and number within it
        self._n_rows = 0
        self._has_spilled = False

    def add(self, corpus: int, keys: Keys) -> None:
        """Add the `pair_keys` of the next pairs of a corpus. Raises OSError."""
        size = self._sizes[corpus]
        index = np.arange(size, size + len(keys), dtype=np.uint64)
        position = (np.uint64(corpus) << INDEX_BITS) | index
        self._rows.append(np.column_stack([keys, position]))
        self._sizes[corpus] += len(keys)
        self._n_rows += len(keys)
        if self._n_rows >= ROWS_IN_MEMORY:
            self._spill()

    def _spill(self) -> None:
        """Append the rows in memory to the files of their buckets, told by the keys' first byte."""
        if not self._has_spilled:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
            self._has_spilled = True
        rows = np.concatenate(self._rows)
        buckets = (rows[:, 0] >> np.uint64(56)).astype(np.uint8)
        rows = rows[np.argsort(buckets, kind="stable")]
        numbers, starts = np.unique(np.sort(buckets), return_index=True)
        for number, bucket in zip(numbers, np.split(rows, starts[1:]), strict=True):
            with (self._folder / f"{number:03}.keys").open("ab") as file:
                file.write(bucket.tobytes())
        self._rows.clear()
        self._n_rows = 0

    def dropped(self) -> list[Flags]:
        """Of each corpus, (pairs,) whether a pair is a duplicate. Removes the files."""
        flags = [np.zeros(size, np.bool_) for size in self._sizes]
        try:
            if self._has_spilled:
                if self._rows:
                    self._spill()
                for path in sorted(self._folder.iterdir()):
                    self._mark(np.fromfile(path, np.uint64).reshape(-1, 3), flags)
            elif self._rows:
                self._mark(np.concatenate(self._rows), flags)
        finally:
            self.close()
        return flags

    def _mark(self, rows: Keys, flags: list[Flags]) -> None:
        """Set the flags of the duplicates among all rows of some keys."""
        position = rows[:, 2]
        priority = self._rank[position >> INDEX_BITS] << INDEX_BITS | position & INDEX_MASK
        found = position[repeated(rows[:, :2], priority)]
        for corpus, own in enumerate(flags):
            own[found[found >> INDEX_BITS == corpus] & INDEX_MASK] = True

    def close(self) -> None:
        """Forget all pairs, and remove the files."""
        self._rows.clear()
        if self._has_spilled:
            shutil.rmtree(self._folder, ignore_errors=True)
