"""Which of two validations is the better one: `train.metric` decides, of ties the nll."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mt.evaluation.metrics import METRICS, Metric, Score
from mt.evaluation.significance import (
    Comparison,
    Values,
    bootstrap_p_value,
    chance_difference,
    resample,
)
from mt.runs.outputs import read_valid_outputs
from mt.training.runlog import perplexity, shown_perplexity
from mt.translate.lines import Translation

# Below this BLEU, output is mostly chance matches of frequent words, and the nll tells more.
NOISE_BLEU = 1.0
# Two scores tie if three of four differences that chance makes between their outputs are larger: of
# 500 lines of the demonstration corpus 0.1 to 0.4 BLEU, of 40 lines 0.3 to 1.5. Half of them would
# be twice that, and leave a steady gain to the nll, which rises again while BLEU improves.
TIE = 0.25


@dataclass(frozen=True)
class ValidationResult:
    """The scores of a model on the validation set."""

    nll: float  # nats per target token, without smoothing or dropout
    scores: Mapping[str, Score]  # BLEU, and `train.metric` if it is another one
    outputs: list[str]
    # Of the outputs, with scores, whose last bit depends on the batch.
    translations: list[Translation] = field(default_factory=list)
    # BLEU of the lines of each direction, such as de-en, where `data.valid` has several
    by_direction: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """`nll 1.852 | ppl 6.37 | BLEU 26.91 (cs-de 20.14, de-en 31.50)`."""
        scores = [f"{score.name} {score.value:.2f}" for score in self.scores.values()]
        if self.by_direction:
            each = ", ".join(f"{name} {bleu:.2f}" for name, bleu in self.by_direction.items())
            scores[0] += f" ({each})"
        return " | ".join([f"nll {self.nll:.3f}", f"ppl {shown_perplexity(self.nll)}", *scores])

    def figures(self) -> dict[str, Any]:
        """Its keys in `metrics.jsonl`."""
        values = {name: score.value for name, score in self.scores.items()}
        each = {"bleu_by_direction": dict(self.by_direction)} if self.by_direction else {}
        signature = self.scores["bleu"].signature
        loss = {"nll": self.nll, "perplexity": perplexity(self.nll)}
        return {**loss, **values, **each, "signature": signature}


def lower_is_better(metric: str) -> bool:
    """Whether the lower of two values of `train.metric` is the better one."""
    return metric == "nll" or METRICS[metric].lower_is_better


@dataclass(frozen=True)
class Difference:
    """How a validation differs from the best one before it, on the same sentences."""

    metric: str  # its title
    step: int  # of the best one before
    comparison: Comparison  # by paired bootstrap
    tie: float  # a difference up to this one is a tie

    def __str__(self) -> str:
        """`+0.30 BLEU over step 1,000`."""
        return f"{self.comparison.difference:+.2f} {self.metric} over step {self.step:,}"


@dataclass(frozen=True)
class Decision:
    """Whether a validation is the best one so far, and why."""

    is_best: bool
    why: str = ""  # for the log
    difference: Difference | None = None  # from the best one before, if that has decided
    by_nll: bool = False

    def __str__(self) -> str:
        """`new best: +0.30 BLEU over step 1,000, p = 0.21: may be chance`."""
        return ("new best" if self.is_best else "no new best") + self.why

    def figures(self) -> dict[str, Any]:
        """Its keys in `metrics.jsonl`."""
        if self.difference is None or not self.is_best:
            by_nll = {"by": "nll"} if self.by_nll else {}
            return {"new_best": True, **by_nll} if self.is_best else {}
        compared = self.difference.comparison
        values = {"difference": compared.difference, "p_value": compared.p_value}
        return {"new_best": True, "compared_with": self.difference.step, **values}


@dataclass(frozen=True)
class Criterion:
    """How validations on one text are compared.

    A score is the metric's value, negated for nll and error rates, so that higher is better.
    """

    metric: str  # nll, or one of METRICS

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

    def tie(self, difference: Difference | None) -> float:
        """The largest difference of scores that is a tie; 0 where only equal scores are.

        That is so where nothing was compared, and for a metric that grades every sentence.
        """
        return difference.tie if difference and self._compares(difference) else 0.0

    def _compares(self, difference: Difference) -> bool:
        return self.metric != "nll" and difference.metric == METRICS[self.metric].title

    def is_noise(self, score: float) -> bool:
        """Whether a model with this score has not learned to translate."""
        return self.metric == "bleu" and score <= NOISE_BLEU

    def decide(
        self,
        score: float,
        nll: float,
        best: tuple[float | None, float | None, float | None],
        difference: Difference | None = None,
    ) -> Decision:
        """Decide whether a validation is better than the best one so far.

        `best`: score and nll of that one, and the highest score so far. The lower nll decides where
        scores tie, or are both noise. Version 0.1 did not record the nll of the best one (None):
        then only a higher score is better. The highest score keeps many small losses from adding
        up: a tie must also be one with it.
        """
        best_score, best_nll, highest_score = best
        if best_score is None:
            return Decision(True)
        tie = self.tie(difference)
        is_tie = best_nll is not None and self.metric != "nll" and abs(score - best_score) <= tie
        by_nll = f" by nll, {nll:.3f} against {best_nll or math.nan:.3f}: "
        if best_nll is not None and self.is_noise(max(score, best_score)):
            why = f"{by_nll}BLEU up to {NOISE_BLEU:g} is noise"
            return Decision(nll < best_nll, why, by_nll=True)
        if best_nll is None or not is_tie:
            is_best = score > best_score
            values = f"{self.describe(score)} against {self.describe(best_score)}"
            compared = f"{difference}, {difference.comparison}" if difference else values
            if difference and not self._compares(difference):  # it compares BLEU
                compared = f"{values}; {compared}" if is_best else values
            return Decision(is_best, f": {compared}", difference)
        why = f"{difference or 'no difference'} is a tie, as all up to {tie:.2f}"
        if nll < best_nll and highest_score is not None and score < highest_score - tie:
            return Decision(False, f": {why}, but {self.describe(highest_score)} was reached")
        return Decision(nll < best_nll, by_nll + why, by_nll=True)

    def ranked(
        self, scores: Mapping[str, float], nlls: Mapping[str, float], tie: float
    ) -> list[str]:
        """The names of validations, best first; those that tie with the highest score by nll."""
        highest = max(scores.values(), default=0.0)

        def key(name: str) -> tuple[bool, float, float]:
            score, nll = scores[name], nlls.get(name, math.inf)
            if score >= highest - tie or self.is_noise(highest):
                return False, nll, -score
            return True, -score, nll

        return sorted(scores, key=key)


class BestComparison:
    """Compares each validation with the best one before, by paired bootstrap."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        # The value of a validation and of its resamples, by step: the last one and the best one.
        self._sampled: dict[int, tuple[float, Values]] = {}

    def compare(
        self, metric: Metric, outputs: list[str], step: int, best_step: int | None
    ) -> Difference | None:
        """Compare the validation after update `step`, with these outputs, to the best one.

        The outputs of the best one are known, or read from the run directory. None where they are
        missing, as in a run of version 0.1.
        """
        known = self._sampled.get(best_step) if best_step is not None else None
        if known is None and best_step is not None:
            best_outputs = read_valid_outputs(self._run_dir, best_step)
            if best_outputs is not None and len(best_outputs) == len(metric.refs[0]):
                known = self._sample(metric, best_outputs)
        value, resamples = self._sample(metric, outputs)
        self._sampled = {step: (value, resamples)}
        if known is None or best_step is None:
            return None
        self._sampled[best_step] = known
        difference = value - known[0]
        p_value = bootstrap_p_value(difference, resamples, known[1])
        tie = chance_difference(resamples, known[1], TIE)
        return Difference(metric.title, best_step, Comparison(difference, p_value), tie)

    @staticmethod
    def _sample(metric: Metric, outputs: list[str]) -> tuple[float, Values]:
        statistics = metric.statistics(outputs)
        value = float(metric.value(statistics.sum(axis=0).tolist()))
        return value, resample(metric, statistics)
