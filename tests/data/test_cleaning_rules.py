"""Rules of data.clean: scores worked out by hand, and decisions by thresholds."""

from __future__ import annotations

import numpy as np
import pytest

from mt.config.schema import Clean
from mt.data.cleaning.rules import RULES, PairScorer, decide, reason

OFF: dict[str, None] = {rule.key: None for rule in RULES if rule.key}
COLUMN = {rule.name: number for number, rule in enumerate(RULES)}


def score(rule: str, src: str, tgt: str, src_lang: str = "de", tgt_lang: str = "en") -> float:
    """The score of a pair by one rule, at the defaults."""
    scores = PairScorer(Clean(), src_lang, tgt_lang).scores([(src, tgt)])
    return round(float(scores[0, COLUMN[rule]]), 4)


@pytest.mark.parametrize(
    ("rule", "src", "tgt", "expected"),
    [
        ("empty", "", " ", 2),
        ("empty", "a", "", 1),
        ("words", "a b", "a  b c ", 3),
        ("words", "ab", "我们吃饭", 2),  # four characters without spaces: two words
        ("characters", "ab cd", "x", 5),
        ("word_ratio", "a b c", "a b c d e f g h i", (9 + 3) / (3 + 3)),
        ("char_ratio", "ab", "x" * 20, (20 + 10) / (2 + 10)),
        ("char_ratio", "我们", "x" * 6, 1),  # a Chinese character counts three
    ],
)
def test_score(rule: str, src: str, tgt: str, expected: float) -> None:
    assert score(rule, src, tgt) == round(expected, 4)


def test_thresholds_decide_without_scoring_again() -> None:
    pairs = [("a b c", "a b"), ("a b c d", "a b"), ("", "x y z z z"), ("a b", "a b")]
    scores = PairScorer(Clean(), "de", "en").scores(pairs)
    limits = Clean.model_validate(OFF | {"max_words": 3})
    words, empty = COLUMN["words"], COLUMN["empty"]
    # The third pair is rejected by two rules and counted under the first.
    assert decide(scores, limits).tolist() == [-1, words, empty, -1]
    assert decide(scores, Clean.model_validate(OFF)).tolist() == [-1, -1, empty, -1]
    assert reason(words, float(scores[1, words]), limits) == "4 words, more than 3"


def test_a_rule_that_is_off_is_not_measured() -> None:
    scores = PairScorer(Clean.model_validate(OFF), "de", "en").scores([("a", "b")] * 3)
    assert np.isnan(np.delete(scores, COLUMN["empty"], axis=1)).all()
    assert scores.shape == (3, len(RULES))
    assert decide(scores[:0], Clean()).shape == (0,)
