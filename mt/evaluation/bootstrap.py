"""Paired bootstrap between two translations of one text, fast enough to run while a model trains.

It has the resamples, statistics and formulas of `significance.paired_test`, so its p-values are
sacreBLEU's too (Koehn, 2004). It sums the statistics of many resamples in a matrix product, and
keeps the references' n-grams and the resampled scores of a system for the next comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mt.evaluation.bleu_tokenizer import DEFAULT
from mt.evaluation.metrics import sacrebleu_metric
from mt.evaluation.significance import LEVEL, RESAMPLES, SEED

# Resamples drawn at a time: memory stays small for any number of sentences.
BLOCK = 100

Statistics = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """How much better one system is than another, and how likely chance alone does as much."""

    value: float
    p_value: float

    @property
    def is_significant(self) -> bool:
        """Whether chance is an unlikely reason. sacreBLEU gives equal systems the lowest p."""
        return self.p_value < LEVEL and self.value != 0

    @property
    def verdict(self) -> str:
        """`p = 0.21: may be chance`."""
        verdict = "significant" if self.is_significant else "may be chance"
        return f"p = {self.p_value:.2g}: {verdict}"


class MetricResampler:
    """A metric of sacreBLEU over resamples of one reference text."""

    def __init__(self, metric: str, ref: Sequence[str], tokenize: str = DEFAULT) -> None:
        """`metric`: bleu or chrf; `tokenize`: sacreBLEU's tokenizer for BLEU."""
        self._metric = sacrebleu_metric(metric, tokenize, [ref])

    def resampled(self, hyps: Sequence[str]) -> Resampled:
        """Score translations and their resamples."""
        statistics = self._metric._extract_corpus_statistics(hyps, None)
        return resample(np.array(statistics, dtype=np.float64), self._scores)

    def _scores(self, sums: Statistics) -> Statistics:
        """The score of each row, which holds the sums of the statistics of a text."""
        # sacreBLEU's formula is for lists: with arrays it takes three times as long.
        rows = sums.tolist()
        return np.array([self._metric._compute_score_from_stats(row).score for row in rows])


@dataclass(frozen=True)
class Resampled:
    """The score of a system, and its score on each of the resamples."""

    score: float
    resamples: Statistics  # (n_resamples,)


def resample(
    statistics: Statistics,
    scores: Callable[[Statistics], Statistics],
    n_resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Resampled:
    """Score a system and its resamples, which are the same ones for every text of as many lines.

    `statistics`: of each sentence (sentences, n); `scores`: from sums of them (texts, n) to the
    scores of these texts.
    """
    n = len(statistics)
    draw = np.random.default_rng(seed)
    sums = [statistics.sum(axis=0, keepdims=True)]
    for start in range(0, n_resamples, BLOCK):
        size = min(BLOCK, n_resamples - start)
        indices = draw.choice(n, size=(size, n), replace=True)
        indices += np.arange(size)[:, None] * n
        # How often each sentence is in each resample: (size, sentences)
        counts = np.bincount(indices.ravel(), minlength=size * n).reshape(size, n)
        sums.append(counts.astype(np.float64) @ statistics)
    score, *resamples = scores(np.concatenate(sums)).tolist()
    return Resampled(score, np.array(resamples))


def compare(system: Resampled, baseline: Resampled) -> Difference:
    """Compare a system with a baseline over the same lines, by paired bootstrap."""
    difference = system.score - baseline.score
    by_chance = np.abs(system.resamples - baseline.resamples)
    by_chance -= by_chance.mean()
    p_value = (int((by_chance > abs(difference)).sum()) + 1) / (len(by_chance) + 1)
    return Difference(difference, p_value)
