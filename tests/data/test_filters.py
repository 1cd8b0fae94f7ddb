"""Filters drop the pairs they should, and count each of them once."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from mt.config.schema import DataConfig
from mt.data.cleaning.filters import Counts, DuplicateFilter, clean_text, keeps_length


def cleaned(
    pairs: list[tuple[str, str]], dedupe: bool = True
) -> tuple[list[tuple[str, str]], Counts]:
    counts = Counts()
    return list(clean_text(pairs, counts, DuplicateFilter() if dedupe else None)), counts


def test_pairs_with_a_blank_side_are_dropped_and_counted() -> None:
    pairs = [("a", "b"), ("", "b"), ("a", " \t\r"), ("\u2028\u00a0", "b"), ("a", "▁ ▁"), ("c", "d")]
    kept, counts = cleaned(pairs)
    assert kept == [("a", "b"), ("c", "d")]
    assert counts == Counts(read=6, empty=4)


def test_only_pairs_equal_on_both_sides_are_duplicates_and_the_first_stays_in_place() -> None:
    pairs = [("a", "b"), ("a", "c"), ("d", "b"), ("a", "b"), ("A", "b"), ("a", "b "), ("a", "c")]
    kept, counts = cleaned(pairs)
    assert kept == [("a", "b"), ("a", "c"), ("d", "b"), ("A", "b"), ("a", "b ")]
    assert counts == Counts(read=7, duplicate=2)


def test_moving_a_word_across_the_sides_makes_no_duplicate() -> None:
    pairs = [("a b", "c"), ("a", "b c"), ("ab", "c"), ("a", "bc")]
    assert cleaned(pairs)[0] == pairs


def test_without_dedupe_duplicates_stay() -> None:
    kept, counts = cleaned([("a", "b")] * 3, dedupe=False)
    assert kept == [("a", "b")] * 3
    assert counts == Counts(read=3)


def test_a_corpus_of_higher_weight_keeps_its_pairs_although_it_comes_later() -> None:
    """Weights 2, 1, 5, 3: a pair stays where the weight is highest, else where it is first."""
    corpora = [
        (2.0, [("a", "x"), ("b", "x"), ("c", "x"), ("d", "x")]),
        (1.0, [("a", "x"), ("e", "x"), ("f", "x")]),
        (5.0, [("b", "x"), ("f", "x"), ("f", "x")]),
        (3.0, [("b", "x"), ("c", "x"), ("e", "x")]),
    ]
    duplicates = DuplicateFilter()
    for weight, pairs in corpora[2:]:
        duplicates.reserve(pairs, weight)
    kept = []
    for weight, pairs in corpora:
        counts = Counts()
        kept.append("".join(src for src, _ in clean_text(pairs, counts, duplicates, weight)))
        assert counts.kept == len(kept[-1])
    assert kept == ["ad", "", "bf", "ce"]


def test_pairs_pass_one_at_a_time() -> None:
    def endless() -> Iterator[tuple[str, str]]:
        n = 0
        while True:
            n += 1
            yield str(n // 2), "x"

    counts = Counts()
    stream = clean_text(endless(), counts, DuplicateFilter())
    assert [next(stream)[0] for _ in range(4)] == ["0", "1", "2", "3"]
    assert (counts.read, counts.duplicate) == (6, 2)  # 0, 1, 1, 2, 2, 3


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
        for pair in clean_text(pairs, counts, DuplicateFilter())
        if keeps_length(len(pair[0].split()), len(pair[1].split()), data, counts)
    ]
    assert counts.read == len(pairs)
    assert counts.kept == len(kept) == len(set(kept))


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
