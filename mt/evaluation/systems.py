"""Evaluate systems on a test set: scores, intervals, paired tests, slices and differing lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mt.errors import ConfigError, DataError
from mt.evaluation.bleu_tokenizer import DEFAULT
from mt.evaluation.differences import DifferingLine, largest_differences
from mt.evaluation.metrics import (
    DEFAULT_METRICS,
    METRICS,
    Metric,
    Score,
    Statistics,
    check_lines,
    check_metrics,
)
from mt.evaluation.significance import (
    SAMPLES,
    SEED,
    Comparison,
    Interval,
    Values,
    bootstrap_p_value,
    interval_of,
    randomisation_p_value,
    resample,
    sampled_signature,
    signature_on,
)
from mt.evaluation.slices import Slicing

if TYPE_CHECKING:
    from mt.evaluation.comet import Comet


class TextDirection(NamedTuple):
    """The languages that a text is translated from and into; None: as the model tells."""

    source: str | None = None
    to: str | None = None


ANY_DIRECTION = TextDirection()


@dataclass(frozen=True)
class EvaluationSet:
    """Reference translations, and what is known of each of their lines."""

    name: str  # empty for the only one of a command
    refs: list[list[str]]
    sources: list[str] | None = None
    slicings: list[Slicing] = field(default_factory=list)
    direction: TextDirection = ANY_DIRECTION
    numbers: Sequence[int] = ()  # of its lines in the files, if some are left out
    test_set: tuple[str, str] | None = None  # name and languages, of one of sacreBLEU

    def number(self, line: int) -> int:
        """The number of a line in the files; both count from 1."""
        return self.numbers[line - 1] if self.numbers else line


@dataclass(frozen=True)
class Settings:
    """Metrics and tests to compute, with the seed and the number of samples."""

    metrics: Sequence[str] = DEFAULT_METRICS
    tokenize: str = DEFAULT  # for BLEU
    n_resamples: int | None = None  # of confidence intervals; None for no intervals
    n_samples: Mapping[str, int] = field(default_factory=lambda: dict(SAMPLES))  # by paired test
    seed: int | None = SEED  # None for another one each time
    n_differences: int = 0
    comet: Comet | None = None  # for a metric that needs it
    tgt_lang: str = ""  # for TER, and notes


@dataclass(frozen=True)
class SystemScore:
    """One metric of one system on one test set."""

    metric: str  # such as bleu
    score: Score
    interval: Interval | None = None
    comparisons: dict[str, Comparison] = field(default_factory=dict)  # by paired test
    slices: dict[str, list[float]] = field(default_factory=dict)  # values, by `Slicing.by`

    @property
    def verdict(self) -> str:
        """The verdict of all paired tests on the difference; empty without a test."""
        if not self.comparisons:
            return ""
        tests = list(self.comparisons.values())
        if tests[0].difference == 0:
            return "same score"
        if not all(test.significant for test in tests):
            return "may be chance"
        return "better" if tests[0].better else "worse"


@dataclass(frozen=True)
class Evaluation:
    """All systems on one test set; the first one is the baseline."""

    data: EvaluationSet
    settings: Settings
    systems: dict[str, list[SystemScore]]
    differences: dict[str, list[DifferingLine]]  # from the baseline, by system


def evaluate_systems(
    data: EvaluationSet,
    outputs: Mapping[str, Sequence[str]],
    settings: Settings,
    own_sets: Mapping[str, EvaluationSet] | None = None,
) -> Evaluation:
    """Evaluate the outputs of systems, by name, on a test set. Paired tests need at least two.

    `own_sets`: the set of each system, where they are perturbations of `data`, line by line. Raises
    DataError for an unknown metric and for line counts that differ, ConfigError if memory runs out.
    """
    check_metrics(settings.metrics)
    for hyps in outputs.values():
        check_lines(hyps, data.refs)
    systems: dict[str, list[SystemScore]] = {system: [] for system in outputs}
    sets = own_sets or {"": data}
    for name in dict.fromkeys(settings.metrics):
        metrics = {
            system: METRICS[name](
                own.refs, own.sources, settings.tokenize, settings.comet, settings.tgt_lang
            )
            for system, own in sets.items()
        }
        try:
            for system, score in _by_system(metrics, sets, outputs, settings).items():
                systems[system].append(score)
        except MemoryError as error:
            raise ConfigError(
                f"resampling {len(data.refs[0]):,} lines does not fit into memory; lower "
                "--confidence-n, --paired-bs-n or --paired-ar-n, or evaluate fewer lines"
            ) from error
    baseline, *others = outputs
    n = settings.n_differences
    differences = {
        system: largest_differences(outputs[baseline], outputs[system], data.refs, n)
        for system in others
        if n
    }
    return Evaluation(data, settings, systems, differences)


def _by_system(
    metrics: Mapping[str, Metric],
    sets: Mapping[str, EvaluationSet],
    outputs: Mapping[str, Sequence[str]],
    settings: Settings,
) -> dict[str, SystemScore]:
    seed = settings.seed
    if seed is None:  # one for all systems, so that their resamples are the same
        seed = int(np.random.default_rng().integers(2**32))
    tests = settings.n_samples if len(outputs) > 1 else {}
    n_resamples = {n for n in (settings.n_resamples, tests.get("bs")) if n is not None}
    results: dict[str, SystemScore] = {}
    # Of the baseline, which comes first: its name, value, statistics and resamples.
    first: tuple[str, float, Statistics, dict[int, Values]] | None = None
    for system, hyps in outputs.items():
        metric = metrics.get(system) or metrics[""]  # which all share
        data = sets.get(system) or sets[""]
        statistics = metric.statistics(hyps)
        score = metric.score_from(statistics, hyps)
        if data.test_set is not None:
            score = replace(score, signature=signature_on(score.signature, *data.test_set))
        # As the trials compute it: a score may be cut to 100, from 100.00000000000004.
        value = metric.value(statistics.sum(axis=0).tolist())
        sign = partial(sampled_signature, score.signature, seed=settings.seed)
        resamples = {n: resample(metric, statistics, n, seed) for n in n_resamples}
        interval = None
        if (n := settings.n_resamples) is not None:
            interval = interval_of(resamples[n], sign("bs", n))
        comparisons = {}
        if first is not None:
            baseline, value_of_baseline, of_baseline, resamples_of_baseline = first
            difference = value - value_of_baseline
            better = difference < 0 if metric.lower_is_better else difference > 0
            n_lines = int((statistics != of_baseline).any(axis=1).sum())
            for test, n in tests.items():
                in_test, margin = None, None
                if test == "bs":
                    p_value = bootstrap_p_value(difference, resamples[n], resamples_of_baseline[n])
                    in_test = interval_of(resamples[n], sign(test, n), in_test=True)
                    margin = interval_of(resamples[n] - resamples_of_baseline[n], "").half_width
                else:
                    both = statistics, of_baseline
                    p_value = randomisation_p_value(metric, difference, *both, n, seed)
                comparisons[test] = Comparison(
                    difference, p_value, better, baseline, in_test, sign(test, n), margin, n_lines
                )
        slices = {by.by: _slice_values(metric, statistics, by) for by in data.slicings}
        results[system] = SystemScore(metric.name, score, interval, comparisons, slices)
        first = first or (system, value, statistics, resamples)
    return results


def _slice_values(metric: Metric, statistics: Statistics, slicing: Slicing) -> list[float]:
    """The value of each slice by itself."""
    n_lines = sum(len(part.lines) for part in slicing.slices)
    if n_lines != len(statistics):
        raise DataError(
            f"slices by {slicing.by} have {n_lines:,} lines, the hypotheses have "
            f"{len(statistics):,}; slice the sources of the same test set"
        )
    values = (
        metric.value(statistics[list(part.lines)].sum(axis=0).tolist()) for part in slicing.slices
    )
    # Rounding may leave 100.00000000000004; only an error rate can be higher.
    return [float(value if metric.lower_is_better else min(value, 100.0)) for value in values]
