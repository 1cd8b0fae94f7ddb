"""Keys of texts and pairs; duplicates found by them, and sets held out in whole groups by them.

Pairs belong to one group if they share a sentence, or differ only in its case, accents and signs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mt.errors import DataError

Hashes: TypeAlias = npt.NDArray[np.uint64]
Flags: TypeAlias = npt.NDArray[np.bool_]

_LOWER = bytes(range(128)).lower() + bytes(range(128, 256))
_ASCII_SIGNS = bytes(code for code in range(128) if not chr(code).isalnum())
# Accents go, as marks that NFKD has set apart. Marks of Indic and South-East Asian scripts are
# vowels, and those of kana make another letter: they stay.
_OTHERS = re.compile(r"[^\x00-\x7f]+")
_SIGNS = re.compile(r"[^\w\u0900-\u1cff\u3099\u309a]+|_+")


def normalised(text: str) -> bytes:
    """A text of lower-case letters and digits, without accents, as UTF-8; one of signs as it is."""
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


def sentence_hashes(sentences: Iterable[str]) -> Hashes:
    """(n,) Hashes of sentences as `normalised` has them; 0: an empty one."""
    texts = list(map(normalised, sentences))
    return hashes(texts) * np.array([*map(bool, texts)], np.bool_)


def is_among(values: Hashes, ordered: Hashes) -> Flags:
    """(n,) Whether each value is in a sorted array."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    return ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values


def pair_keys(pairs: Sequence[tuple[str, str]]) -> Hashes:
    """(n, 2) Keys of pairs without line feeds (XXH3, 128 bits): of N pairs, N²/2^129 collide."""
    # A half of a surrogate pair is not UTF-8, and must not be an error here.
    sides = ([text.encode("utf-8", "surrogatepass") for text in pair] for pair in pairs)
    return joined_keys((src, tgt) for src, tgt in sides)


def joined_keys(pairs: Iterable[tuple[bytes, bytes]]) -> Hashes:
    """(n, 2) Keys of pairs in bytes, such as normalised ones."""
    import xxhash

    keys = b"".join([xxhash.xxh3_128_digest(src + b"\n" + tgt) for src, tgt in pairs])
    return np.frombuffer(keys, np.uint64).reshape(-1, 2)


def repeated(keys: Hashes) -> Flags:
    """(n,) Whether an equal row comes earlier in `keys`."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    flags = np.zeros(len(keys), np.bool_)
    flags[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
    return flags


def heaviest_first(weights: Sequence[float]) -> list[int]:
    return sorted(range(len(weights)), key=lambda number: -weights[number])


def duplicates_of(corpora: Sequence[Hashes], weights: Sequence[float]) -> list[Flags]:
    """Of each corpus, (pairs,) whether a pair equals one that stays: the first of the heaviest."""
    order = heaviest_first(weights)
    flags = repeated(np.concatenate([corpora[number] for number in order]))
    ends = np.cumsum([len(corpora[number]) for number in order])
    parts = dict(zip(order, np.split(flags, ends[:-1]), strict=True))
    return [parts[number] for number in range(len(weights))]


# Groups of more pairs, such as those of "Yes.", are not held out.
MOST_IN_GROUP = 8
# Pairs that are hashed at a time.
BLOCK = 10_000
# What becomes of a pair: it stays, or goes to the first, second, ... set; a pair of another text
# that has a sentence of a set is left out.
STAYS, LEFT_OUT = 0, -1
Parts = npt.NDArray[np.int8]


def split_pairs(
    texts: Sequence[Iterable[tuple[str, str]]], sizes: Sequence[int], seed: int, where: str
) -> list[Parts]:
    """For each pair of each text its part, see `STAYS`; the sets are drawn from the first text.

    Memory: about 40 bytes for each pair. Raises DataError if so many pairs cannot be held out.
    """
    sides = [_hashes_of(pairs) for pairs in texts]
    ends = np.cumsum([len(src) for src, _ in sides])
    src, tgt = (np.concatenate([side[n] for side in sides]) for n in (0, 1))
    has_text = (src > 0) & (tgt > 0)
    groups = np.full(len(src), -1)
    groups[has_text] = groups_of(src[has_text], tgt[has_text])
    first = groups[: ends[0]]
    numbers, counts = np.unique(first[first >= 0], return_counts=True)
    is_small = np.bincount(groups[has_text], minlength=1)[numbers] <= MOST_IN_GROUP
    numbers, counts = numbers[is_small], counts[is_small]
    if sum(sizes) > min(len(first) // 2, counts.sum()):
        raise DataError(
            f"{where}: would hold out {sum(sizes):,} of {len(first):,} pairs, and at most half may "
            f"be, of the {counts.sum():,} whose sentences are in no more than {MOST_IN_GROUP} "
            "pairs. Hold out fewer, or name files"
        )
    order = np.random.default_rng(seed).permutation(len(numbers))
    parts = np.zeros(len(groups), np.int8)
    for number, rows in enumerate(_drawn(counts, order, sizes), start=1):
        parts[np.isin(groups, numbers[rows])] = number
    parts[ends[0] :][parts[ends[0] :] > 0] = LEFT_OUT
    return np.split(parts, ends[:-1])


def _drawn(
    counts: npt.NDArray[np.int64], order: npt.NDArray[np.int64], sizes: Sequence[int]
) -> Iterator[list[int]]:
    """Yield the places of the groups of each set, in a random order, until it has its size."""
    rest = list(order)
    for size in sizes:
        chosen, passed = [], []
        while size and rest:
            place = rest.pop()
            if counts[place] <= size:
                chosen.append(place)
                size -= counts[place]
            else:
                passed.append(place)
        rest += passed[::-1]
        yield chosen


def _hashes_of(pairs: Iterable[tuple[str, str]]) -> tuple[Hashes, Hashes]:
    """(n,) Hashes of the sources and of the targets of a text; 0: an empty side."""
    src, tgt = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    rest = iter(pairs)
    while block := list(islice(rest, BLOCK)):
        for sentences, into in zip(zip(*block, strict=True), (src, tgt), strict=True):
            into.append(sentence_hashes(sentences))
    return np.concatenate(src), np.concatenate(tgt)


def groups_of(src: Hashes, tgt: Hashes) -> npt.NDArray[np.int64]:
    """(n,) The group of each pair: the connected components of sentences that pairs join.

    The smallest label of two sentences spreads over their pair, and labels point to labels, so that
    a chain of n sentences needs about log n rounds (Shiloach and Vishkin, 1982).
    """
    sentences, places = np.unique(np.concatenate([src, tgt]), return_inverse=True)
    left, right = np.split(places, 2)
    labels = np.arange(len(sentences))
    while True:
        before = labels.copy()
        lower = np.minimum(labels[left], labels[right])
        for ends in (left, right):
            np.minimum.at(labels, ends, lower)
            np.minimum.at(labels, before[ends], lower)
        labels = labels[labels]
        if np.array_equal(labels, before):
            return labels[left]


def write_parts(
    pairs: Iterator[tuple[str, str]], parts: Parts, folder: Path, names: list[str]
) -> None:
    """Append each pair to the files of its part, which have these names, in their order."""
    with ExitStack() as stack:
        files = [
            stack.enter_context((folder / f"{name}.{side}").open("a", encoding="utf-8"))
            for name in names
            for side in ("src", "tgt")
        ]
        for pair, part in zip(pairs, parts.tolist(), strict=True):
            if part >= STAYS:
                for text, file in zip(pair, files[2 * part : 2 * part + 2], strict=True):
                    file.write(text + "\n")
