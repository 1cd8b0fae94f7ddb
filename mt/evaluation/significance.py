"""Confidence intervals, and the test of which differences between systems are real.

The bootstrap (Koehn, 2004) with the draws and formulas of sacreBLEU, so that the same seed gives
the figures of the `sacrebleu` command; its `PairedTest` knows no COMET and no margin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mt.evaluation.metrics import Metric, Statistics

# sacreBLEU's defaults.
SEED = 12345
RESAMPLES = 1_000
LEVEL = 0.05  # a difference with a smaller p-value is called significant
# Of fewer lines that differ no swapping shows anything: five all for one system have p = 2 / 2^5.
# sacreBLEU's p-value, which counts no ties, would be the smallest there is.
FEWEST_LINES = 6
BLOCK = 32  # resamples drawn at a time

Values = NDArray[np.floating]


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval, mean ± half_width, of a score's bootstrap resamples."""

    mean: float
    half_width: float
    signature: str = ""  # of the metric, with the seed and the number of resamples


@dataclass(frozen=True)
class Comparison:
    """How much one system differs from a baseline by one metric, tested by the paired bootstrap."""

    difference: float  # the value minus the baseline's
    p_value: float  # of a difference at least as large, if the systems were equally good
    better: bool  # whether the value is better, significantly or not
    baseline: str
    interval: Interval  # of the value, by the resamples of the test
    margin: float  # half of the 95 % interval of the difference, by the resamples
    n_lines: int  # that differ in their statistics

    @property
    def significant(self) -> bool:
        """Whether chance is unlikely. sacreBLEU gives equal systems the smallest p-value."""
        return self.difference != 0 and self.n_lines >= FEWEST_LINES and self.p_value < LEVEL

    @property
    def verdict(self) -> str:
        """`same score`, `may be chance`, `better` or `worse`, as tables have it."""
        if self.difference == 0:
            return "same score"
        if not self.significant:
            return "may be chance"
        return "better" if self.better else "worse"


class Sample(NamedTuple):
    """The value of a system by a metric, and those of its bootstrap resamples."""

    system: str
    value: float
    statistics: Statistics  # (lines, n)
    resamples: Values  # in single precision, as sacreBLEU has them
    signature: str  # of the metric, with the resamples and the seed where sacreBLEU puts them


def resample(
    system: str, metric: Metric, statistics: Statistics, signature: str, n_resamples: int, seed: int
) -> Sample:
    """Draw resamples of a text's statistics, the same lines for every text of as many lines."""
    n = len(statistics)
    draw = np.random.default_rng(seed)
    values: list[float] = []
    for start in range(0, n_resamples, BLOCK):
        size = min(BLOCK, n_resamples - start)
        indices = draw.choice(n, size=(size, n), replace=True)
        indices += np.arange(size)[:, None] * n
        # How often each line is in each resample: (size, lines)
        counts = np.bincount(indices.ravel(), minlength=size * n).reshape(size, n)
        sums = (counts.astype(np.float64) @ statistics).astype(np.float32)
        values += [metric.value(row) for row in sums]
    first, separator, rest = signature.partition("|")
    drawn = f"{first}|bs:{n_resamples}|seed:{seed}{separator}{rest}"
    # As resamples compute it: a score may be cut to 100, from 100.00000000000004.
    value = metric.value(statistics.sum(axis=0).tolist())
    return Sample(system, value, statistics, np.array(values), drawn)


def interval_of(resamples: Values, signature: str, in_test: bool = False) -> Interval:
    """The 95 % interval of resamples; `in_test` rounds the mean as sacreBLEU's paired test does."""
    ordered = np.sort(resamples)
    cut = len(ordered) // 40
    half = 0.5 * (ordered[-cut - 1] - ordered[cut])
    mean = ordered.mean() if in_test else ordered.mean(dtype=np.float64).astype(ordered.dtype)
    return Interval(float(mean), float(half), signature)


def compare(sample: Sample, baseline: Sample, lower_is_better: bool) -> Comparison:
    """Test the difference of two systems by the paired bootstrap."""
    difference = sample.value - baseline.value
    by_resample = sample.resamples - baseline.resamples
    by_chance = np.abs(by_resample)
    n_larger = int((by_chance - by_chance.mean() > abs(difference)).sum())
    p_value = (n_larger + 1) / (len(by_chance) + 1)
    better = difference < 0 if lower_is_better else difference > 0
    interval = interval_of(sample.resamples, sample.signature, in_test=True)
    margin = interval_of(by_resample, "").half_width
    n_lines = int((sample.statistics != baseline.statistics).any(axis=1).sum())
    return Comparison(difference, p_value, better, baseline.system, interval, margin, n_lines)
