"""Duplicates are found by keys exactly as sets of texts would find them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mt.data.tokens.duplicates import duplicates_of, pair_keys

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
