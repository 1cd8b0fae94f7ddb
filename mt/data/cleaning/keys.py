"""Texts without what does not tell them apart: case, punctuation, spaces, accents."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

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
    folded = text if text.isascii() else _OTHERS.sub(_fold, text)
    letters = folded.encode("utf-8", "surrogatepass").translate(_LOWER, _ASCII_SIGNS)
    return letters or text.strip().encode("utf-8", "surrogatepass")


def _fold(run: re.Match[str]) -> str:
    return _folded(run[0])


@lru_cache(maxsize=1 << 16)  # German has a few umlauts, Russian its frequent words
def _folded(text: str) -> str:
    """Characters that are not ASCII without case, accents and signs; the result may be ASCII."""
    return _SIGNS.sub("", unicodedata.normalize("NFKD", text.casefold()))


def hashes(texts: Iterable[bytes]) -> Hashes:
    """(n,) 64-bit hashes (XXH3) of texts."""
    return np.array([xxhash.xxh3_64_intdigest(text) for text in texts], np.uint64)


def is_among(values: Hashes, ordered: Hashes) -> npt.NDArray[np.bool_]:
    """(n,) Whether each value is in a sorted array."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    places = np.searchsorted(ordered, values)
    return ordered[np.minimum(places, len(ordered) - 1)] == values
