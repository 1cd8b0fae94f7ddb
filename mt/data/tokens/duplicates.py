"""Keys of texts and pairs, and duplicates found by them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Hashes: TypeAlias = npt.NDArray[np.uint64]

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


def repeated(keys: Hashes) -> npt.NDArray[np.bool_]:
    """(n,) Whether an equal row comes earlier in `keys`."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    flags = np.zeros(len(keys), np.bool_)
    flags[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
    return flags


def duplicates_of(
    corpora: Sequence[Hashes], weights: Sequence[float]
) -> list[npt.NDArray[np.bool_]]:
    """Of each corpus, (pairs,) whether a pair equals another one, by their `pair_keys`.

    One pair of a group stays: that in the corpus of the highest weight, else the first one. Takes
    about 50 bytes of memory for each pair.
    """
    order = sorted(range(len(weights)), key=lambda number: -weights[number])
    flags = repeated(np.concatenate([corpora[number] for number in order]))
    ends = np.cumsum([len(corpora[number]) for number in order])
    parts = dict(zip(order, np.split(flags, ends[:-1]), strict=True))
    return [parts[number] for number in range(len(weights))]
