"""Intervals and paired tests: differences that were planted, and every message."""

from __future__ import annotations

import os
import random

import pytest
from conftest import ROOT

from mt.errors import ConfigError, DataError
from mt.evaluation.metrics import score_corpus
from mt.evaluation.significance import (
    confidence_intervals,
    default_seed,
    paired_test,
)

REF = (ROOT / "data" / "demo" / "test.en").read_text(encoding="utf-8").splitlines()


def damaged(lines: list[str], rows: list[int], seed: int) -> list[str]:
    """The lines; in those rows one word is another one."""
    draw = random.Random(seed)
    result = list(lines)
    for row in rows:
        words = result[row].split()
        words[draw.randrange(len(words))] = "else"
        result[row] = " ".join(words)
    return result


# 150 of 500 lines have one wrong word, at a place that is drawn.
ROWS = random.Random(1).sample(range(len(REF)), 180)
BASELINE = damaged(REF, ROWS[:150], 1)
# Planted: one BLEU less, by 17 more wrong words; and no difference, other places drawn.
ONE_LESS = damaged(BASELINE, ROWS[150:167], 3)
AS_GOOD = damaged(REF, ROWS[:150], 2)


@pytest.mark.parametrize("test", ["bs", "ar"])
def test_a_planted_difference_is_found_and_none_where_none_is(test: str) -> None:
    systems = {"base": BASELINE, "less": ONE_LESS, "alike": AS_GOOD, "same": list(BASELINE)}
    found = paired_test(systems, [REF], test=test, n_samples=1000)
    less, alike, same = found["bleu"]
    assert [one.system for one in found["bleu"]] == ["less", "alike", "same"]
    assert less.difference == pytest.approx(-1, abs=0.1)
    assert less.p_value < 0.01
    assert less.significant
    assert not less.better
    assert abs(alike.difference) < 0.3
    assert alike.p_value > 0.1
    assert not alike.significant
    # sacreBLEU gives two equal files the smallest p-value there is; no difference is not real.
    assert same.difference == 0
    assert not same.significant
    assert f"|{test}:1000|seed:12345|" in less.signature


def test_lower_is_better_for_ter() -> None:
    comparison = paired_test(
        {"a": ONE_LESS, "b": BASELINE}, [REF], ["ter", "chrf", "bleu"], n_samples=50
    )
    assert {name: one.better for name, (one,) in comparison.items()} == dict.fromkeys(
        ("ter", "chrf", "bleu"), True
    )
    assert comparison["ter"][0].difference < 0 < comparison["chrf"][0].difference


def test_intervals_hold_the_score_and_narrow_with_the_square_root_of_the_lines() -> None:
    (score,) = score_corpus(BASELINE, [REF], ["bleu"])
    whole = confidence_intervals(BASELINE, [REF])["bleu"]
    assert abs(whole.mean - score.value) < whole.half_width
    four = confidence_intervals(BASELINE * 4, [REF * 4])["bleu"]
    assert four.half_width == pytest.approx(whole.half_width / 2, rel=0.1)


def test_a_seed_gives_the_same_figures_and_leaves_the_environment_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    seven = confidence_intervals(BASELINE, [REF], n_resamples=50, seed=7)
    assert "SACREBLEU_SEED" not in os.environ
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    assert confidence_intervals(BASELINE, [REF], n_resamples=50, seed=default_seed()) == seven
    assert confidence_intervals(BASELINE, [REF], n_resamples=50, seed=12345) != seven
    assert os.environ["SACREBLEU_SEED"] == "7"
    drawn = [confidence_intervals(BASELINE, [REF], n_resamples=50, seed=None) for _ in range(2)]
    assert drawn[0] != drawn[1]
    monkeypatch.setenv("SACREBLEU_SEED", "none")
    assert default_seed() is None
    for text in ("x", "0", "-1", ""):
        monkeypatch.setenv("SACREBLEU_SEED", text)
        with pytest.raises(ConfigError, match=f"^SACREBLEU_SEED: .*, found '{text}'; correct"):
            default_seed()


def test_messages() -> None:
    with pytest.raises(DataError, match="two systems are needed to compare, found one"):
        paired_test({"a": BASELINE}, [REF])
    with pytest.raises(DataError, match="reference 1 has 2 lines, the hypotheses have 500"):
        paired_test({"a": BASELINE, "b": AS_GOOD}, [REF[:2]])
    with pytest.raises(ConfigError, match="--seed: must be 1 or more, found 0"):
        confidence_intervals(BASELINE, [REF], seed=0)
    with pytest.raises(ConfigError, match="resamples: must be 2 or more, found 1"):
        confidence_intervals(BASELINE, [REF], n_resamples=1)
    with pytest.raises(DataError, match="sacreBLEU can test bleu, chrf, ter, found comet"):
        confidence_intervals(BASELINE, [REF], ["comet"])
