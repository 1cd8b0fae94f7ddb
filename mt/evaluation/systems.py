"""Evaluate systems on a test set: scores, intervals, paired tests and differing lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mt.errors import ConfigError
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
    RESAMPLES,
    SEED,
    Comparison,
    Interval,
    Values,
    bootstrap_p_value,
    interval_of,
    resample,
    resampled_signature,
)

if TYPE_CHECKING:
    from mt.config.plan import Direction
    from mt.evaluation.comet import Comet


@dataclass(frozen=True)
class EvaluationSet:
    """Reference translations, and what is known of each of their lines."""

    name: str  # empty for the only one of a command
    refs: list[list[str]]
    sources: list[str] | None = None
    direction: Direction | None = None  # None: as the model tells
    numbers: Sequence[int] = ()  # of its lines in the files, if some are left out
    hyps: Mapping[str, list[str]] = field(default_factory=dict)  # of systems, where files have them

    def of_lines(self, numbers: Sequence[int]) -> EvaluationSet:
        """The lines with these numbers, from 1; all of them without any."""

        def chosen(lines: list[str]) -> list[str]:
            return [lines[number - 1] for number in numbers]

        if not numbers:
            return self
        return replace(
            self,
            refs=[*map(chosen, self.refs)],
            sources=None if self.sources is None else chosen(self.sources),
            numbers=numbers,
            hyps={system: chosen(lines) for system, lines in self.hyps.items()},
        )

    def number(self, line: int) -> int:
        """The number of a line in the files; both count from 1."""
        return self.numbers[line - 1] if self.numbers else line


@dataclass(frozen=True)
class Settings:
    """Metrics to compute, and what to draw; two systems or more are always compared by a test."""

    metrics: Sequence[str] = DEFAULT_METRICS
    tokenize: str = DEFAULT  # for BLEU
    intervals: bool = False
    n_resamples: int = RESAMPLES  # for intervals and tests
    seed: int = SEED
    n_differences: int = 0
    comet: Comet | None = None  # for a metric that needs it
    tgt_lang: str = ""  # for TER, and notes


@dataclass(frozen=True)
class SystemScore:
    """One metric of one system on one test set."""

    metric: str  # such as bleu
    score: Score
    interval: Interval | None = None
    comparison: Comparison | None = None  # with the baseline


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
    """Evaluate the outputs of systems, by name, on a test set; the first is the baseline.

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
            for system, score in _by_system(metrics, outputs, settings).items():
                systems[system].append(score)
        except MemoryError as error:
            raise ConfigError(
                f"resampling {len(data.refs[0]):,} lines does not fit into memory; lower "
                "--resamples, or evaluate fewer lines"
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
    outputs: Mapping[str, Sequence[str]],
    settings: Settings,
) -> dict[str, SystemScore]:
    seed, n = settings.seed, settings.n_resamples
    results: dict[str, SystemScore] = {}
    # Of the baseline, which comes first: its name, value, statistics and resamples.
    first: tuple[str, float, Statistics, Values] | None = None
    for system, hyps in outputs.items():
        metric = metrics.get(system) or metrics[""]  # which all share
        statistics = metric.statistics(hyps)
        score = metric.score_from(statistics, hyps)
        signature = resampled_signature(score.signature, n, seed)
        # As resamples compute it: a score may be cut to 100, from 100.00000000000004.
        value = metric.value(statistics.sum(axis=0).tolist())
        interval = comparison = None
        if settings.intervals or len(outputs) > 1:
            resamples = resample(metric, statistics, n, seed)
            if settings.intervals:
                interval = interval_of(resamples, signature)
            if first is None:
                first = system, value, statistics, resamples
            else:
                baseline, value_of_baseline, of_baseline, resamples_of_baseline = first
                difference = value - value_of_baseline
                comparison = Comparison(
                    difference,
                    bootstrap_p_value(difference, resamples, resamples_of_baseline),
                    difference < 0 if metric.lower_is_better else difference > 0,
                    baseline,
                    interval_of(resamples, signature, in_test=True),
                    signature,
                    interval_of(resamples - resamples_of_baseline, "").half_width,
                    int((statistics != of_baseline).any(axis=1).sum()),
                )
        results[system] = SystemScore(metric.name, score, interval, comparison)
    return results
