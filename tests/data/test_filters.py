"""Filters drop the pairs they should, and count each of them once."""

from __future__ import annotations

from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from mt.config.schema import DataConfig
from mt.data.tokens.filters import Counts, keeps_length, with_text


def test_pairs_with_a_blank_side_are_dropped_and_counted_one_at_a_time() -> None:
    pairs = [("a", "b"), ("", "b"), ("a", " \t\r"), ("\u2028\u00a0", "b"), ("a", "▁ ▁"), ("c", "d")]
    counts = Counts()
    stream = with_text(cycle(pairs), counts)
    assert [next(stream) for _ in range(2)] == [("a", "b"), ("c", "d")]
    assert counts == Counts(read=6, empty=4)


def test_length_limits_are_inclusive() -> None:
    data, counts = DataConfig(max_tokens=6, max_length_ratio=2.5), Counts(read=8)
    kept = [(6, 6), (6, 3), (5, 2), (1, 1)]
    assert all(keeps_length(src, tgt, data, counts) for src, tgt in kept)
    assert (counts.too_long, counts.ratio, counts.kept) == (0, 0, 8)
    assert not keeps_length(7, 6, data, counts)
    assert not keeps_length(1, 7, data, counts)  # too long and unequal: one reason, the first
    assert counts.too_long == 2
    assert not keeps_length(6, 2, data, counts)
    assert not keeps_length(1, 3, data, counts)
    assert counts.ratio == 2
    assert not keeps_length(0, 4, data, counts)
    assert counts == Counts(read=8, empty=1, too_long=2, ratio=2)
    assert counts.kept == 3


@given(st.lists(st.tuples(st.sampled_from(["", " ", "a", "b", "a a a"]), st.text(max_size=2))))
def test_every_pair_is_kept_or_counted_once(pairs: list[tuple[str, str]]) -> None:
    data, counts = DataConfig(max_tokens=2, max_length_ratio=1.0), Counts()
    kept = [
        pair
        for pair in with_text(pairs, counts)
        if keeps_length(len(pair[0].split()), len(pair[1].split()), data, counts)
    ]
    assert counts.read == len(pairs)
    assert counts.kept == len(kept)


def test_summary_reads_well() -> None:
    data = DataConfig(max_tokens=256, max_length_ratio=3.0)
    counts = Counts(read=29_000, duplicate=60, too_long=40)
    assert counts.summary(data) == (
        "28,900 of 29,000 pairs kept; dropped: 60 duplicates, 40 longer than 256 tokens"
    )
    assert Counts(read=5).summary(data) == "5 of 5 pairs kept"
    assert Counts(read=9, empty=1, duplicate=1, ratio=2).summary(data) == (
        "5 of 9 pairs kept; dropped: 1 with an empty side, 1 duplicate, 2 with one side over 3 "
        "times the other"
    )
