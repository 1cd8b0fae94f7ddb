"""Duplicates, and sets held out in whole groups: brute force agrees."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import raises_saying

from mt.data.tokens.duplicates import (
    LEFT_OUT,
    STAYS,
    duplicates_of,
    groups_of,
    normalised,
    pair_keys,
    split_pairs,
)
from mt.errors import DataError

Pairs = list[tuple[str, str]]
WORDS = st.sampled_from(["a", "b", "A", "a b", "ä", ""])


def kept(corpora: list[tuple[float, Pairs]]) -> list[Pairs]:
    """What stays of each corpus."""
    keys = [pair_keys(pairs) for _, pairs in corpora]
    dropped = duplicates_of(keys, [weight for weight, _ in corpora])
    return [
        [pair for pair, drop in zip(pairs, flags, strict=True) if not drop]
        for (_, pairs), flags in zip(corpora, dropped, strict=True)
    ]


def kept_in_memory(corpora: list[tuple[float, Pairs]]) -> list[Pairs]:
    best: dict[tuple[str, str], tuple[float, int, int]] = {}
    places = [
        (pair, (-weight, number, index))
        for number, (weight, pairs) in enumerate(corpora)
        for index, pair in enumerate(pairs)
    ]
    for pair, place in places:
        best[pair] = min(place, best.get(pair, place))
    stays: list[Pairs] = [[] for _ in corpora]
    for pair, place in places:
        if best[pair] == place:
            stays[place[1]].append(pair)
    return stays


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from([1.0, 2.0, 0.5]), st.lists(st.tuples(WORDS, WORDS), max_size=12)),
        min_size=1,
        max_size=4,
    )
)
def test_a_pair_stays_in_the_corpus_of_highest_weight_else_where_it_is_first(
    corpora: list[tuple[float, Pairs]],
) -> None:
    assert kept(corpora) == kept_in_memory(corpora)


def test_keys_have_128_bits_that_tell_sides_apart() -> None:
    keys = pair_keys([("a b", "c"), ("a", "b c"), ("ab", "c"), ("a", "bc"), ("a b", "c")])
    assert keys.shape == (5, 2)
    assert keys.dtype == np.uint64
    assert len(np.unique(keys, axis=0)) == 4
    assert len(np.unique(pair_keys([(str(n), "") for n in range(1000)])[:, 1])) == 1000


def drawn_pairs(count: int, seed: int = 0) -> Pairs:
    """Pairs of which many have a sentence in common, in other spelling."""
    draw = random.Random(seed)
    return [
        (f"Satz {draw.randrange(count)}{draw.choice('.!?')}", f"line {draw.randrange(count)}")
        for _ in range(count)
    ]


def roots(src: list[int], tgt: list[int]) -> list[int]:
    """The group of each pair by union and find."""
    parents: dict[int, int] = {}

    def root(sentence: int) -> int:
        while parents.setdefault(sentence, sentence) != sentence:
            sentence = parents[sentence]
        return sentence

    for left, right in zip(src, tgt, strict=True):
        parents[root(left)] = root(right)
    return [root(left) for left in src]


@pytest.mark.parametrize("count", [1, 2, 100, 2000])
def test_groups_are_connected_components(count: int) -> None:
    rng = np.random.default_rng(count)
    src, tgt = rng.integers(1, count + 1, (2, count)).astype(np.uint64)
    groups = groups_of(src, tgt).tolist()
    expected = roots(src.tolist(), tgt.tolist())
    pairs = set(zip(groups, expected, strict=True))
    assert len(pairs) == len(set(groups)) == len(set(expected))


def test_a_long_chain_is_one_group() -> None:
    chain = np.random.default_rng(0).permutation(np.arange(1, 50_001, dtype=np.uint64))
    assert len(set(groups_of(chain[:-1], chain[1:]).tolist())) == 1


def test_no_sentence_of_a_set_stays_in_any_text() -> None:
    texts = [drawn_pairs(3000), drawn_pairs(3000, seed=1)]
    texts[0][5] = ("", "no source")
    parts = split_pairs(texts, [70, 30], seed=3, where="data.valid[0]")
    assert [int((parts[0] == number).sum()) for number in (1, 2)] == [70, 30]
    assert set(parts[1].tolist()) == {STAYS, LEFT_OUT}
    assert parts[0][5] == STAYS

    def sentences(number: int, of: int = 0) -> set[bytes]:
        pairs = zip(texts[of], parts[of], strict=True)
        return {normalised(side) for pair, part in pairs if part == number for side in pair}

    for kept in (sentences(STAYS), sentences(STAYS, of=1), sentences(2)):
        assert kept.isdisjoint(sentences(1))
    again = split_pairs(texts, [70, 30], seed=3, where="")
    other = split_pairs(texts, [70, 30], seed=4, where="")
    assert (again[0] == parts[0]).all()
    assert (other[0] != parts[0]).any()
    chosen = np.flatnonzero(parts[0])
    assert chosen[0] < 1000 < 2000 < chosen[-1]  # not the first lines


def test_a_set_that_cannot_be_held_out_is_refused() -> None:
    same: Pairs = [("ja", f"yes {n}") for n in range(100)]  # one group
    for pairs, size, parts in (
        (drawn_pairs(100), 51, ("51 of 100", "at most half")),
        (same, 1, ("1 of 100", "of the 0 whose")),
        ([], 1, ("1 of 0",)),
        (same[:9], 1, ("1 of 9", "of the 0 whose", "no more than 8 pairs")),
    ):
        with raises_saying(DataError, "data.valid[0]", *parts):
            split_pairs([pairs], [size], 0, "data.valid[0]")


def test_groups_stay_whole_even_if_a_set_stays_smaller() -> None:
    largest = [(word, f"{word} {n}") for word in ("ja", "nein") for n in range(8)]
    (parts,) = split_pairs([largest], [8], 0, "")
    assert np.bincount(parts).tolist() == [8, 8]
    twice = [pair for n in range(20) for pair in [(f"Satz {n}", f"line {n}")] * 2]
    (parts,) = split_pairs([twice], [5, 7], 0, "")
    assert np.bincount(parts).tolist() == [30, 4, 6]
    assert (parts[::2] == parts[1::2]).all()
