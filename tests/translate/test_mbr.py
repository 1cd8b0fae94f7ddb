"""Minimum Bayes risk, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mt.translate.mbr import choose, metric

# utility[output][right]
TABLE = {
    "a": {"a": 100, "b": 60, "c": 10},
    "b": {"a": 50, "b": 100, "c": 40},
    "c": {"a": 10, "b": 30, "c": 100},
}
SCRIPTED: Any = SimpleNamespace(
    sentence_score=lambda out, refs: SimpleNamespace(score=TABLE[out][refs[0]])
)


@pytest.mark.parametrize(
    ("outputs", "place"),
    [
        # Means against the other two: a (60 + 10) / 2, b (50 + 40) / 2, c (10 + 30) / 2.
        ("abc", 1),
        ("cba", 1),
        # As often as drawn: a (60 + 10 + 10) / 3, b (50 + 40 + 40) / 3, c (10 + 30 + 100) / 3.
        ("abcc", 2),
        ("bb", 0),  # the first of equals
        ("a", 0),
    ],
)
def test_the_output_most_like_the_others(outputs: str, place: int) -> None:
    assert choose(list(outputs), SCRIPTED) == place


@pytest.mark.parametrize("name", ["chrf", "bleu"])
def test_by_the_metrics_of_sacrebleu(name: str) -> None:
    outputs = ["a man sleeps", "two women sing", "a man sleeps there", "the man sleeps there"]
    utility = metric(name)
    means = [
        sum(utility.sentence_score(one, [other]).score for other in outputs if other != one) / 3
        for one in outputs
    ]
    assert choose(outputs, utility) == 2
    assert max(means) == means[2]
    assert choose(["", "", ""], utility) == 0
