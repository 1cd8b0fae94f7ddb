"""Which of two validations is the better one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mt.evaluation.metrics import METRICS, Score
from mt.training.runlog import perplexity, shown_perplexity
from mt.translate.lines import Translation

# Below this BLEU, output is mostly chance matches of frequent words, and the nll tells more.
LEAST_BLEU = 1.0
# Of a validation: the score, higher being better, its nll, and whether the score decides yet.
Scored: TypeAlias = tuple[float, float, bool]


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


def rank(scored: Scored) -> tuple[bool, float, float]:
    """A key to sort validations by, of which the greatest is the best.

    The higher score is better, of equal scores the lower nll. Below `LEAST_BLEU` the lower nll is
    better, whatever the metric, and any validation above it is better than those below.
    """
    score, nll, decides = scored
    return (True, score, -nll) if decides else (False, -nll, score)


@dataclass(frozen=True)
class Criterion:
    """How validations are scored and described by `train.metric`."""

    metric: str  # nll, or one of METRICS

    def scored(self, result: ValidationResult) -> Scored:
        """The score of a validation: the metric's value, negated for nll and error rates.

        NaN, which compares as neither better nor worse, becomes the worst score.
        """
        value = result.nll if self.metric == "nll" else result.scores[self.metric].value
        score = -value if lower_is_better(self.metric) else value
        score = -math.inf if math.isnan(score) else score
        nll = math.inf if math.isnan(result.nll) else result.nll
        return score, nll, self.metric == "nll" or result.scores["bleu"].value >= LEAST_BLEU

    def describe(self, score: float) -> str:
        """`BLEU 31.20` or `nll 1.234`, for messages."""
        value = -score if lower_is_better(self.metric) else score
        if self.metric == "nll":
            return f"nll {value:.3f}"
        return f"{METRICS[self.metric].title} {value:.2f}"

    def verdict(self, scored: Scored, best: Scored | None) -> str:
        """`new best: BLEU 31.20 against BLEU 30.90`: a validation, and the best one before it."""
        if best is None:
            return "new best"
        text = "new best" if rank(scored) > rank(best) else "no new best"
        score, nll, decides = scored
        best_score, best_nll, best_decides = best
        if score == best_score or not (decides or best_decides):
            return f"{text} by nll, {nll:.3f} against {best_nll:.3f}"
        return f"{text}: {self.describe(score)} against {self.describe(best_score)}"
