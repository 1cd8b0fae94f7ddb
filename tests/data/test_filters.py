"""Filters drop the pairs they should, and count each of them once."""

from __future__ import annotations

from itertools import cycle

from mt.config.plan import Limits
from mt.data.tokens.filters import LENGTH_FAULTS, Counts, length_fault, with_text


def test_pairs_with_a_blank_side_are_dropped_and_counted_one_at_a_time() -> None:
    pairs = [("a", "b"), ("", "b"), ("a", " \t\r"), ("\u2028\u00a0", "b"), ("a", "▁ ▁"), ("c", "d")]
    counts = Counts()
    stream = with_text(cycle(pairs), counts)
    assert [next(stream) for _ in range(2)] == [("a", "b"), ("c", "d")]
    assert counts == Counts(read=6, empty=4)


def test_length_limits_are_inclusive() -> None:
    data = Limits(6, 2.5, dedupe=True)
    faults = {
        "": [(6, 6), (6, 3), (5, 2), (1, 1)],
        "too_long": [(7, 6), (1, 7)],  # too long and unequal: one reason, the first
        "ratio": [(6, 2), (1, 3)],
        "empty": [(0, 4)],
    }
    for fault, pairs in faults.items():
        assert [length_fault(*pair, data) for pair in pairs] == [fault] * len(pairs)
    assert {*faults} == {*LENGTH_FAULTS}
    assert Counts(read=8, empty=1, too_long=2, ratio=2).kept == 3


def test_summary_reads_well() -> None:
    data = Limits(256, 3.0, dedupe=True)
    counts = Counts(read=29_000, duplicate=60, too_long=40)
    assert counts.summary(data) == (
        "28,900 of 29,000 pairs kept; dropped: 60 duplicates, 40 longer than 256 tokens"
    )
    assert Counts(read=5).summary(data) == "5 of 5 pairs kept"
    assert Counts(read=9, empty=1, duplicate=1, ratio=2).summary(data) == (
        "5 of 9 pairs kept; dropped: 1 with an empty side, 1 duplicate, 2 with one side over 3 "
        "times the other"
    )
