"""Which of two validations is the better one, and when patience counts (`train.metric`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import assert_never

if TYPE_CHECKING:
    from mt.config.schema import Metric
    from mt.evaluation.metrics import Score
    from mt.training.validation import ValidationResult

# Below this BLEU, output is mostly chance matches of frequent words, and the nll tells more.
NOISE_BLEU = 1.0
SCORE_NAMES = {"bleu": "BLEU", "chrf": "chrF2", "comet": "COMET"}


@dataclass(frozen=True)
class Criterion:
    """How validations on one text are compared.

    A score is the metric's value, or -nll for the metric nll, so that higher is better.
    """

    metric: Metric
    n_sentences: int  # of the validation set

    def score(self, result: ValidationResult) -> float:
        """The score of a validation."""
        match self.metric:
            case "nll":
                return -result.nll
            case "bleu":
                score: Score | None = result.bleu
            case "chrf":
                score = result.chrf
            case "comet":
                score = result.comet
            case _:
                assert_never(self.metric)
        assert score is not None, f"the validation has not computed {self.metric}"
        return score.value

    def describe(self, score: float) -> str:
        """`BLEU 31.20` or `nll 1.234`, for messages."""
        if self.metric == "nll":
            return f"nll {-score:.3f}"
        return f"{SCORE_NAMES[self.metric]} {score:.2f}"

    @property
    def resolution(self) -> float:
        """The smallest difference of scores that means anything: one sentence, right or wrong.

        COMET grades every sentence, so it tells smaller differences, like the nll.
        """
        return 0.0 if self.metric in ("nll", "comet") else 100.0 / self.n_sentences

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

        Differences below the resolution, or both below the noise, go by nll. Version 0.1 did not
        record the nll of the best one (None): then only a higher score is better.
        `highest_score` of all validations keeps many small losses from adding up: a tie must also
        be one with it.
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
