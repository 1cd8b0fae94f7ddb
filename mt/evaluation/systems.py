"""Evaluate systems on a test set: scores, intervals, paired tests and differing lines."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mt.data.reading.words import has_visible
from mt.errors import ConfigError, DataError
from mt.evaluation import significance
from mt.evaluation.bleu_tokenizer import DEFAULT
from mt.evaluation.differences import DifferingLine, largest_differences
from mt.evaluation.metrics import METRICS, Metric, Score, check_lines, check_metrics
from mt.terminal import say

if TYPE_CHECKING:
    from mt.evaluation.comet import Comet


@dataclass(frozen=True)
class EvaluationSet:
    """Reference translations, and what is known of each of their lines."""

    name: str  # empty for the only one of a command
    refs: list[list[str]]
    sources: list[str] | None = None
    direction: tuple[str, str] = ("", "")  # languages; an empty one: as the model tells
    numbers: Sequence[int] = ()  # of its lines in the files, if some are left out
    hyps: Mapping[str, list[str]] = field(default_factory=dict)  # of systems, where files have them

    def with_references(self, called: str) -> EvaluationSet:
        """The lines that have a reference, others are told; `called` names all in a DataError."""

        def chosen(lines: list[str]) -> list[str]:
            return [lines[number - 1] for number in numbers]

        n_lines = len(self.refs[0])
        rows = enumerate(zip(*self.refs, strict=True), start=1)
        numbers = [number for number, row in rows if has_visible("".join(row))]
        if not numbers:
            fault = f"all {n_lines:,} lines are blank, so nothing can be scored"
            fault = fault if n_lines else "has no lines, at least one is required"
            raise DataError(f"{called}: {fault}; give the text of the references")
        if len(numbers) == n_lines:
            return self
        first = min({*range(1, n_lines + 1)}.difference(numbers))
        say(
            f"{self.name or 'references'}: {n_lines - len(numbers):,} of {n_lines:,} lines have no "
            f"reference, the first is line {first:,}; they are not scored"
        )
        refs, sources = [*map(chosen, self.refs)], self.sources and chosen(self.sources)
        hyps = {system: chosen(lines) for system, lines in self.hyps.items()}
        return replace(self, refs=refs, sources=sources, numbers=numbers, hyps=hyps)

    def in_nfc(self) -> EvaluationSet:
        """With all texts in Unicode's NFC, in which models write theirs."""

        def nfc(lines: list[str]) -> list[str]:
            return [unicodedata.normalize("NFC", line) for line in lines]

        hyps = {system: nfc(lines) for system, lines in self.hyps.items()}
        return replace(self, refs=[*map(nfc, self.refs)], hyps=hyps)

    def number(self, line: int) -> int:
        """The number of a line in the files; both count from 1."""
        return self.numbers[line - 1] if self.numbers else line


@dataclass(frozen=True)
class Settings:
    """Metrics to compute, and what to draw; two systems or more are always compared by a test."""

    metrics: Sequence[str]
    tokenize: str = DEFAULT  # for BLEU
    intervals: bool = False
    n_resamples: int = significance.RESAMPLES  # for intervals and tests
    seed: int = significance.SEED
    n_differences: int = 0
    comet: Comet | None = None  # for a metric that needs it
    tgt_lang: str = ""  # for TER, and notes
    nfc: bool = False  # whether the texts are in Unicode's NFC


@dataclass(frozen=True)
class SystemScore:
    """One metric of one system on one test set."""

    metric: str  # such as bleu
    score: Score
    interval: significance.Interval | None = None
    comparison: significance.Comparison | None = None  # with the baseline


@dataclass(frozen=True)
class Evaluation:
    """All systems on one test set; the first one is the baseline."""

    data: EvaluationSet
    settings: Settings
    systems: dict[str, list[SystemScore]]
    differences: dict[str, list[DifferingLine]]  # from the baseline, by system


def evaluate_systems(
    data: EvaluationSet, outputs: Mapping[str, Sequence[str]], settings: Settings,
    own_sets: Mapping[str, EvaluationSet] | None = None,
) -> Evaluation:  # fmt: skip
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
        needs = settings.tokenize, settings.comet, settings.tgt_lang
        metrics = {key: METRICS[name](own.refs, own.sources, *needs) for key, own in sets.items()}
        try:
            for system, score in _by_system(metrics, outputs, settings):
                systems[system].append(score)
        except MemoryError as error:
            raise ConfigError(
                f"resampling {len(data.refs[0]):,} lines does not fit into memory; lower "
                "--resamples, or evaluate fewer lines"
            ) from error
    baseline, *others = outputs
    differences = {}
    if n := settings.n_differences:
        for system in others:
            texts = outputs[baseline], outputs[system]
            differences[system] = largest_differences(*texts, data.refs, n)
    return Evaluation(data, settings, systems, differences)


def _by_system(
    metrics: Mapping[str, Metric], outputs: Mapping[str, Sequence[str]], settings: Settings
) -> Iterator[tuple[str, SystemScore]]:
    baseline: significance.Sample | None = None  # of the first system
    for system, hyps in outputs.items():
        metric = metrics.get(system) or metrics[""]  # which all share
        statistics = metric.statistics(hyps)
        score = metric.score_from(statistics, hyps)
        if settings.nfc:
            score = replace(score, signature=f"{score.signature}|unicode:nfc")
        interval = comparison = None
        if settings.intervals or len(outputs) > 1:
            drawn = settings.n_resamples, settings.seed
            sample = significance.resample(system, metric, statistics, score.signature, *drawn)
            if settings.intervals:
                interval = significance.interval_of(sample.resamples, sample.signature)
            if baseline is None:
                baseline = sample
            else:
                comparison = significance.compare(sample, baseline, metric.lower_is_better)
        yield system, SystemScore(metric.name, score, interval, comparison)
