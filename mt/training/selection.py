"""Which of two validations is the better one (`train.metric`), and whether by more than chance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mt.evaluation.metrics import METRICS, LineMetric, Score
from mt.evaluation.significance import Comparison, Values, bootstrap_p_value, resample
from mt.runs.outputs import read_valid_outputs
from mt.translate.lines import Translation

# Below this BLEU, output is mostly chance matches of frequent words, and the nll tells more.
NOISE_BLEU = 1.0


@dataclass(frozen=True)
class ValidationResult:
    """The scores of a model on the validation set."""

    nll: float  # nats per target token, without smoothing or dropout
    scores: Mapping[str, Score]  # BLEU, and `train.metric` if it is another one
    outputs: list[str]
    # Of the outputs, with scores, whose last bit depends on the batch.
    translations: list[Translation] = field(default_factory=list, compare=False)


def lower_is_better(metric: str) -> bool:
    """Whether the lower of two values of `train.metric` is the better one."""
    return metric == "nll" or METRICS[metric].lower_is_better


@dataclass(frozen=True)
class Criterion:
    """How validations on one text are compared.

    A score is the metric's value, negated for nll and error rates, so that higher is better.
    """

    metric: str  # nll, or one of METRICS
    n_sentences: int  # of the validation set

    def score(self, result: ValidationResult) -> float:
        """The score of a validation."""
        value = result.nll if self.metric == "nll" else result.scores[self.metric].value
        return -value if lower_is_better(self.metric) else value

    def describe(self, score: float) -> str:
        """`BLEU 31.20` or `nll 1.234`, for messages."""
        value = -score if lower_is_better(self.metric) else score
        if self.metric == "nll":
            return f"nll {value:.3f}"
        return f"{METRICS[self.metric].title} {value:.2f}"

    @property
    def resolution(self) -> float:
        """The smallest difference of scores that means anything: one sentence, right or wrong.

        A metric that grades every sentence tells smaller differences, like the nll.
        """
        exact = self.metric == "nll" or METRICS[self.metric].grades_sentences
        return 0.0 if exact else 100.0 / self.n_sentences

    @property
    def noise(self) -> float:
        """The score up to which a model has not learned to translate."""
        return NOISE_BLEU if self.metric == "bleu" else float("-inf")

    def is_better(
        self,
        score: float,
        nll: float,
        best_score: float | None,
        best_nll: float | None,
        highest_score: float | None = None,
    ) -> bool:
        """Whether a validation is better than the best one so far.

        The lower nll decides where scores differ by less than the resolution, or are both below the
        noise. Version 0.1 did not record the nll of the best one (None): then only a higher score
        is better. `highest_score` of all validations keeps many small losses from adding up: a tie
        must also be one with it.
        """
        if best_score is None:
            return True
        if best_nll is None:
            return score > best_score
        if max(score, best_score) <= self.noise:
            return nll < best_nll
        if not self.is_tie(score, best_score):
            return score > best_score
        highest = best_score if highest_score is None else highest_score
        return nll < best_nll and score >= highest - self.resolution

    def is_tie(self, score: float, best_score: float) -> bool:
        """Whether two scores are so close, or so low, that the nll decides."""
        both_noise = max(score, best_score) <= self.noise
        return both_noise or abs(score - best_score) <= self.resolution

    def counts_for_patience(self, best_score: float | None) -> bool:
        """Whether a validation that is no better uses up patience: once BLEU is above noise."""
        return best_score is not None and best_score > self.noise


# --- more than chance? ------------------------------------------------------------------------


@dataclass(frozen=True)
class NewBest:
    """A validation that became the best one, compared with the best one before."""

    by_nll: bool = False  # the scores are as good as equal, and not compared
    metric: str = ""
    compared_with: int | None = None  # step of the best one before, if it is still known
    comparison: Comparison | None = None

    def __str__(self) -> str:
        """`new best: +0.30 BLEU over step 1,000, p = 0.21: may be chance`."""
        if self.comparison is None:
            return "new best by nll" if self.by_nll else "new best"
        verdict = "significant" if self.comparison.significant else "may be chance"
        return (
            f"new best: {self.comparison.difference:+.2f} {self.metric} over step "
            f"{self.compared_with:,}, p = {self.comparison.p_value:.2g}: {verdict}"
        )

    def figures(self) -> dict[str, Any]:
        """Its keys in `metrics.jsonl`."""
        if self.comparison is None:
            return {"new_best": True}
        difference = {"compared_with": self.compared_with, "difference": self.comparison.difference}
        return {"new_best": True, **difference, "p_value": self.comparison.p_value}


class BestComparison:
    """Compares each new best validation with the best one before, by paired bootstrap.

    This changes nothing about which checkpoint is the best.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        # The step of the best validation, its value, and the values of its resamples.
        self._best: tuple[int, float, Values] | None = None

    def new_best(
        self,
        metric: LineMetric,
        outputs: list[str],
        step: int,
        before: int | None,
        by_nll: bool = False,
    ) -> NewBest:
        """Compare the best validation, with these outputs, to that of step `before`.

        The outputs of `before` are known, or read from the run directory. Where they are missing,
        as in a run of version 0.1, nothing is compared.
        """
        earlier = None if before is None else self._sampled_at(metric, before)
        self._best = self._sampled(metric, step, outputs)
        if earlier is None or by_nll:  # the scores are as good as equal, or both are noise
            return NewBest(by_nll)
        _, value, resamples = self._best
        _, earlier_value, earlier_resamples = earlier
        difference = value - earlier_value
        p_value = bootstrap_p_value(difference, resamples, earlier_resamples)
        return NewBest(False, metric.title, before, Comparison(difference, p_value))

    def _sampled_at(self, metric: LineMetric, step: int) -> tuple[int, float, Values] | None:
        if self._best is not None and self._best[0] == step:
            return self._best
        outputs = read_valid_outputs(self._run_dir, step)
        if outputs is None or len(outputs) != len(metric.refs[0]):
            return None
        return self._sampled(metric, step, outputs)

    @staticmethod
    def _sampled(metric: LineMetric, step: int, outputs: list[str]) -> tuple[int, float, Values]:
        statistics = metric.statistics(outputs)
        value = float(metric.value(statistics.sum(axis=0).tolist()))
        return step, value, resample(metric, statistics)
