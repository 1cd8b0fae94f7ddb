"""The paired bootstrap: sacreBLEU's p-value, planted differences, means over sentences."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from mt.evaluation.bootstrap import Difference, MetricResampler, compare

WORDS = [f"word{i}" for i in range(60)]


def text_of(seed: int, n_lines: int = 120) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 15))) for _ in range(n_lines)]


def with_errors(lines: list[str], share: float, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [
        " ".join(draw.choice(WORDS) if draw.random() < share else word for word in line.split())
        for line in lines
    ]


@pytest.mark.parametrize(("name", "reference"), [("bleu", BLEU), ("chrf", CHRF)])
@pytest.mark.parametrize("errors", [0.20, 0.26, 0.31])
def test_the_p_value_is_that_of_sacrebleu(
    name: str, reference: type[Metric], errors: float
) -> None:
    ref = text_of(1)
    baseline, system = with_errors(ref, 0.3, 2), with_errors(ref, errors, 3)
    own = MetricResampler(name, ref)
    found = compare(own.resampled(system), own.resampled(baseline))
    named: list[tuple[str, Sequence[str]]] = [("baseline", baseline), ("system", system)]
    _, scores = PairedTest(named, {name: reference()}, [ref], test_type="bs")()
    first, second = next(value for key, value in scores.items() if key != "System")
    assert found.p_value == second.p_value
    assert found.value == pytest.approx(second.score - first.score, abs=1e-9)


def test_a_planted_difference_is_found_and_a_planted_zero_is_not() -> None:
    ref = text_of(4, n_lines=600)
    own = MetricResampler("bleu", ref)
    bad = own.resampled(with_errors(ref, 0.30, 5))
    as_bad = own.resampled(with_errors(ref, 0.30, 6))
    better = own.resampled(with_errors(ref, 0.24, 7))
    assert compare(better, bad).is_significant
    assert not compare(as_bad, bad).is_significant
    itself = compare(bad, bad)
    assert itself == Difference(0.0, 1 / 1001)
    assert not itself.is_significant


def test_a_difference_says_whether_chance_may_be_the_reason() -> None:
    assert Difference(0.3, 0.2137).verdict == "p = 0.21: may be chance"
    assert Difference(-1.2, 1 / 1001).verdict == "p = 0.001: significant"
