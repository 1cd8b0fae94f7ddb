"""Split a text: take sentences for validation and tests out of it, at random, in whole groups.

Two pairs belong to one group if they have a sentence in common, or one that differs only in case,
accents and signs. A sentence of a group that is held out is in no pair that stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mt.data.tokens.duplicates import Hashes, hashes, normalised
from mt.errors import DataError

# Groups of more pairs, such as those of "Yes.", are not held out.
MOST_IN_GROUP = 8
# Pairs that are hashed at a time.
BLOCK = 10_000
# What becomes of a pair: it stays, or goes to the first, second, ... set; or is in none of them,
# as a pair of another text that has a sentence of a set.
STAYS, LEFT_OUT = 0, -1
Parts = npt.NDArray[np.int8]


def split_pairs(
    texts: Sequence[Iterable[tuple[str, str]]], sizes: Sequence[int], seed: int, where: str
) -> list[Parts]:
    """For each pair of each text its part, see `STAYS`; the sets are drawn from the first text.

    `sizes` are the pairs of the sets, and `where` names them in messages. Memory: about 40 bytes
    for each pair. Raises DataError if so many pairs cannot be held out.
    """
    sides = [_hashes_of(pairs) for pairs in texts]
    ends = np.cumsum([len(src) for src, _ in sides])
    src, tgt = (np.concatenate([side[n] for side in sides]) for n in (0, 1))
    has_text = (src > 0) & (tgt > 0)
    groups = np.full(len(src), -1)
    groups[has_text] = groups_of(src[has_text], tgt[has_text])
    first = groups[: ends[0]]
    numbers, counts = np.unique(first[first >= 0], return_counts=True)
    in_all = np.bincount(groups[has_text], minlength=1)[numbers]
    is_small = in_all <= MOST_IN_GROUP
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
    blocks: tuple[list[Hashes], list[Hashes]] = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    rest = iter(pairs)
    while block := list(islice(rest, BLOCK)):
        for side, into in enumerate(blocks):
            texts = [normalised(pair[side]) for pair in block]
            into.append(hashes(texts) * np.array([bool(text) for text in texts]))
    return np.concatenate(blocks[0]), np.concatenate(blocks[1])


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
    with ExitStack() as files:
        sides = [
            [
                files.enter_context((folder / f"{name}.{ending}").open("a", encoding="utf-8"))
                for ending in ("src", "tgt")
            ]
            for name in names
        ]
        for pair, part in zip(pairs, parts.tolist(), strict=True):
            if part >= STAYS:
                for side, file in zip(pair, sides[part], strict=True):
                    file.write(side + "\n")
