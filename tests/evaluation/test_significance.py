"""Intervals and paired tests: sacreBLEU's figures, differences that were planted, seeds."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from conftest import ROOT, lines_of
from corpora import damaged
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from mt.evaluation.significance import Comparison, Interval, interval_of
from mt.evaluation.systems import EvaluationSet, Settings, SystemScore, evaluate_systems

REF = lines_of(ROOT / "data" / "demo" / "test.en")


# 150 of 500 lines have one wrong word, at a place that is drawn.
ROWS = random.Random(1).sample(range(len(REF)), 180)
BASELINE = damaged(REF, ROWS[:150], seed=1)
# Planted: one BLEU less, by 17 more wrong words; and no difference, other places drawn.
ONE_LESS = damaged(BASELINE, ROWS[150:167], seed=3)
AS_GOOD = damaged(REF, ROWS[:150], seed=2)


def evaluated(
    systems: Mapping[str, list[str]], refs: list[list[str]], *metrics: str, **settings: object
) -> list[list[SystemScore]]:
    """The scores of each system, by each metric."""
    given = Settings(metrics or ("bleu",), **settings)  # type: ignore[arg-type]
    return list(evaluate_systems(EvaluationSet("", refs), systems, given).systems.values())


def test_a_planted_difference_is_found_and_none_where_none_is() -> None:
    systems = {"base": BASELINE, "less": ONE_LESS, "alike": AS_GOOD, "same": list(BASELINE)}
    first, *others = (score.comparison for (score,) in evaluated(systems, [REF]))
    assert first is None
    less, alike, same = filter(None, others)
    assert less.difference == pytest.approx(-1, abs=0.1)
    assert less.p_value < 0.01
    assert less.significant
    assert not less.better
    assert abs(alike.difference) < 0.3
    assert alike.p_value > 0.1
    assert not alike.significant
    # sacreBLEU gives two equal files the smallest p-value there is; no difference is not real.
    assert (same.difference, same.p_value) == (0, 1 / 1001)
    assert not same.significant
    assert "|bs:1000|seed:12345|" in less.interval.signature
    verdicts = [test.verdict for test in (less, alike, same)]
    assert verdicts == ["worse", "may be chance", "same score"]


def test_the_p_values_are_those_of_sacrebleu() -> None:
    """By every metric; 1,000 resamples are not whole blocks of draws."""
    named: list[tuple[str, Sequence[str]]] = [("less", ONE_LESS[:150]), ("alike", AS_GOOD[:150])]
    metrics: dict[str, Metric] = {"bleu": BLEU(), "chrf": CHRF(), "chrf++": CHRF(word_order=2)}
    metrics["ter"] = TER()
    _, columns = PairedTest(named, metrics, [REF[:150]], test_type="bs", n_samples=1000)()
    _, ours = evaluated(dict(named), [REF[:150]], *metrics)  # type: ignore[arg-type]
    for score in ours:
        theirs = columns[score.score.name][1]
        assert score.comparison
        assert score.comparison.p_value == theirs.p_value  # type: ignore[union-attr]
        assert score.score.value == theirs.score  # type: ignore[union-attr]


def test_the_p_values_of_a_perfect_system_are_those_of_sacrebleu() -> None:
    """Its BLEU is 100.00000000000004, shown as 100: no sample may seem to exceed the difference."""
    named: list[tuple[str, Sequence[str]]] = [
        ("less", damaged(REF[:6], [0, 2, 3], seed=1)),
        ("all", REF[:6]),
    ]
    _, columns = PairedTest(named, {"bleu": BLEU()}, [REF[:6]], test_type="bs", n_samples=1000)()
    _, (ours,) = evaluated(dict(named), [REF[:6]])  # type: ignore[arg-type]
    assert ours.score.value == 100
    assert ours.comparison
    assert ours.comparison.p_value == columns["BLEU"][1].p_value


def test_intervals_hold_the_score_and_narrow_with_the_square_root_of_the_lines() -> None:
    ((whole,),) = evaluated({"": BASELINE}, [REF], intervals=True)
    ((four,),) = evaluated({"": BASELINE * 4}, [REF * 4], intervals=True)
    assert whole.interval
    assert four.interval
    assert abs(whole.interval.mean - whole.score.value) < whole.interval.half_width
    assert four.interval.half_width == pytest.approx(whole.interval.half_width / 2, rel=0.1)


def test_the_interval_is_half_of_what_the_middle_95_percent_span() -> None:
    """Also of resamples from 0: 974 - 25."""
    values = np.random.default_rng(1).permutation(np.arange(1000.0))
    assert interval_of(values, "s") == Interval(499.5, 474.5, "s")
    narrow = np.random.default_rng(0).normal(30, 1, 1000).astype(np.float32)
    means = [interval_of(narrow, "", in_test).mean for in_test in (False, True)]
    ordered = np.sort(narrow)
    assert means == [np.float32(ordered.astype(np.float64).mean()), ordered.mean()]
    assert means[0] != means[1]


def test_a_seed_gives_the_same_figures() -> None:
    def drawn(seed: int) -> SystemScore:
        ((one,),) = evaluated({"": BASELINE}, [REF], intervals=True, n_resamples=50, seed=seed)
        return one

    assert drawn(7) == drawn(7) != drawn(8)
    # One seed for all systems of an evaluation: equal systems never differ.
    both = evaluated({"a": BASELINE, "b": BASELINE}, [REF], intervals=True, n_resamples=50)
    assert both[0][0].interval == both[1][0].interval


@pytest.mark.parametrize(
    ("n_lines", "verdict"), [(1, "may be chance"), (5, "may be chance"), (6, "worse")]
)
def test_few_lines_that_differ_show_nothing(n_lines: int, verdict: str) -> None:
    """The exact p-value of n lines that all are worse is 2 / 2^n; the bootstrap's is smaller."""
    assert Comparison(-1.0, 0.01, False, "", Interval(0.0, 0.0), 0.0, n_lines).verdict == verdict
