"""Minimum Bayes risk, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mt.errors import ConfigError
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


def test_the_output_most_like_the_others() -> None:
    """Means against the other two: a (60 + 10) / 2, b (50 + 40) / 2, c (10 + 30) / 2."""
    assert choose(["a", "b", "c"], SCRIPTED) == (1, 45.0)
    assert choose(["c", "b", "a"], SCRIPTED) == (1, 45.0)


def test_a_text_counts_as_often_as_it_was_drawn() -> None:
    """c twice: a (60 + 10 + 10) / 3, b (50 + 40 + 40) / 3, c (10 + 30 + 100) / 3."""
    place, utility = choose(["a", "b", "c", "c"], SCRIPTED)
    assert (place, utility) == (2, pytest.approx(140 / 3))


def test_the_first_of_equals_and_the_only_one() -> None:
    assert choose(["b", "b"], SCRIPTED) == (0, 100.0)
    assert choose(["x"], SCRIPTED) == (0, 100.0)


@pytest.mark.parametrize("name", ["chrf", "bleu"])
def test_by_the_metrics_of_sacrebleu(name: str) -> None:
    outputs = [
        "a man sleeps",
        "two women sing a song",
        "a man sleeps there",
        "the man sleeps there",
    ]
    utility = metric(name)
    means = [
        sum(utility.sentence_score(one, [other]).score for other in outputs if other != one) / 3
        for one in outputs
    ]
    assert choose(outputs, utility) == (2, pytest.approx(means[2]))
    assert max(means) == means[2]
    assert choose(["", "", ""], utility).place == 0


def test_no_other_utility() -> None:
    with pytest.raises(ConfigError) as error:
        metric("ter")
    assert str(error.value) == "--mbr: must be chrf or bleu, found 'ter'"
