"""Judge systems on a test set: scores, intervals, paired tests, slices and differing lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mt.errors import ConfigError
from mt.evaluation.bleu_tokenizer import DEFAULT
from mt.evaluation.differences import Difference, largest_differences
from mt.evaluation.metrics import SACREBLEU, Score, score_corpus
from mt.evaluation.significance import (
    SAMPLES,
    SEED,
    Comparison,
    Interval,
    confidence_intervals,
    paired_test,
)
from mt.evaluation.slices import Slicing, score_slices

if TYPE_CHECKING:
    from mt.evaluation.comet import Comet


@dataclass(frozen=True)
class EvaluationSet:
    """Reference translations, and what is known of each of their lines."""

    name: str  # empty for the only one of a command
    refs: list[list[str]]
    sources: list[str] | None = None
    slicings: list[Slicing] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    """What is computed, with which seed and how many samples."""

    metrics: Sequence[str] = SACREBLEU
    tokenize: str = DEFAULT  # for BLEU
    n_resamples: int | None = None  # of confidence intervals; None for no intervals
    n_samples: Mapping[str, int] = field(default_factory=lambda: dict(SAMPLES))  # by paired test
    seed: int | None = SEED
    n_differences: int = 0
    comet: Comet | None = None  # if it is one of the metrics

    @property
    def testable(self) -> list[str]:
        """The metrics with statistics of each line: for intervals, paired tests and slices."""
        return [name for name in dict.fromkeys(self.metrics) if name in SACREBLEU]


@dataclass(frozen=True)
class Judged:
    """One metric of one system on one test set."""

    metric: str  # such as bleu
    score: Score
    interval: Interval | None
    comparisons: dict[str, Comparison]  # with the baseline, by paired test
    slices: dict[str, list[float]]  # a value for each slice, by `Slicing.by`

    @property
    def verdict(self) -> str:
        """What all paired tests say of the difference from the baseline; empty without a test."""
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
    systems: dict[str, list[Judged]]
    differences: dict[str, list[Difference]]  # from the baseline, by system


def evaluate_systems(
    data: EvaluationSet, outputs: Mapping[str, Sequence[str]], settings: Settings
) -> Evaluation:
    """Judge the outputs of systems, by name, on a test set. Paired tests need at least two.

    Raises DataError for line counts that differ, ConfigError if memory runs out.
    """
    try:
        return _evaluate(data, outputs, settings)
    except MemoryError as error:
        raise ConfigError(
            f"resampling {len(data.refs[0]):,} lines does not fit into memory; lower "
            "--confidence-n, --paired-bs-n or --paired-ar-n, or evaluate fewer lines"
        ) from error


def _evaluate(
    data: EvaluationSet, outputs: Mapping[str, Sequence[str]], settings: Settings
) -> Evaluation:
    names = settings.testable
    tests = settings.n_samples if len(outputs) > 1 else {}
    compared = {
        test: _by_system(
            paired_test(
                outputs,
                data.refs,
                names,
                settings.tokenize,
                test=test,
                n_samples=n_samples,
                seed=settings.seed,
            )
        )
        for test, n_samples in tests.items()
        if names
    }
    systems = {}
    for system, hyps in outputs.items():
        scores = score_corpus(hyps, data.refs, names, settings.tokenize) if names else []
        intervals = _intervals(hyps, data, settings)
        slices = {
            slicing.by: score_slices(hyps, data.refs, slicing, names, settings.tokenize)
            for slicing in data.slicings
        }
        systems[system] = [
            Judged(
                name,
                score,
                intervals.get(name),
                {
                    test: found[system, name]
                    for test, found in compared.items()
                    if (system, name) in found
                },
                {by: values[name] for by, values in slices.items()},
            )
            for name, score in zip(names, scores, strict=True)
        ]
    for system, judged in _by_comet(data, outputs, settings).items():
        systems[system].append(judged)
    baseline, *others = outputs
    differences = {
        system: largest_differences(
            outputs[baseline], outputs[system], data.refs, settings.n_differences
        )
        for system in others
        if settings.n_differences
    }
    return Evaluation(data, systems, differences)


def _by_comet(
    data: EvaluationSet, outputs: Mapping[str, Sequence[str]], settings: Settings
) -> dict[str, Judged]:
    """What COMET says of each system; nothing if it is not asked."""
    if settings.comet is None or data.sources is None:
        return {}
    tests = settings.n_samples if len(outputs) > 1 else {}
    found = settings.comet.evaluate(
        data.sources, outputs, data.refs, settings.n_resamples, tests.get("bs"), settings.seed
    )
    return {system: Judged("comet", *result, {}) for system, result in found.items()}


def _intervals(hyps: Sequence[str], data: EvaluationSet, settings: Settings) -> dict[str, Interval]:
    if settings.n_resamples is None:
        return {}
    return confidence_intervals(
        hyps,
        data.refs,
        settings.testable,
        settings.tokenize,
        n_resamples=settings.n_resamples,
        seed=settings.seed,
    )


def _by_system(found: Mapping[str, Sequence[Comparison]]) -> dict[tuple[str, str], Comparison]:
    return {(one.system, one.metric): one for column in found.values() for one in column}
