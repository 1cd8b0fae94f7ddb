"""Whether a new best validation is better than the last best one by more than chance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt.evaluation.bootstrap import MetricResampler, compare
from mt.runs.outputs import read_valid_outputs

if TYPE_CHECKING:
    from mt.evaluation.bootstrap import Difference, Resampled
    from mt.training.validation import Validation


@dataclass(frozen=True)
class NewBest:
    """A validation that became the best one, compared with the best one before."""

    by_nll: bool = False  # the scores are as good as equal, and not compared
    metric: str = ""
    compared_with: int | None = None  # step of the best one before, if it is still known
    difference: Difference | None = None

    def __str__(self) -> str:
        """`new best: +0.30 BLEU over step 1,000, p = 0.21: may be chance`."""
        if self.difference is None:
            return "new best by nll" if self.by_nll else "new best"
        return (
            f"new best: {self.difference.value:+.2f} {self.metric} over step "
            f"{self.compared_with:,}, {self.difference.verdict}"
        )

    def figures(self) -> dict[str, Any]:
        """Its keys in `metrics.jsonl`."""
        figures: dict[str, Any] = {"new_best": True}
        if self.difference is not None:
            figures["compared_with"] = self.compared_with
            figures["difference"] = self.difference.value
            figures["p_value"] = self.difference.p_value
        return figures


class BestComparison:
    """Compares each new best validation with the best one before, by paired bootstrap.

    The metric is `train.metric`, or BLEU where outputs alone do not give it (nll, comet). This
    changes nothing about which checkpoint is the best.
    """

    def __init__(self, validation: Validation, run_dir: Path) -> None:
        self._validation = validation
        self._run_dir = run_dir
        self._resampler: MetricResampler | None = None
        # The step of the best validation, and its resampled scores.
        self._best: tuple[int, Resampled] | None = None

    def new_best(
        self, outputs: list[str], step: int, before: int | None, by_nll: bool = False
    ) -> NewBest:
        """Compare the best validation, with these outputs, to that of step `before`.

        The outputs of `before` are known, or read from the run directory. Where they are not there,
        as in a run of version 0.1, nothing is compared.
        """
        metric = "chrf" if self._validation.config.train.metric == "chrf" else "bleu"
        if self._resampler is None:
            self._resampler = MetricResampler(
                metric, self._validation.ref, self._validation.bleu_tokenizer
            )
        earlier = None if before is None else self._resampled_at(before, self._resampler)
        own = self._resampler.resampled(outputs)
        self._best = (step, own)
        if earlier is None or by_nll:  # the scores are as good as equal, or both are noise
            return NewBest(by_nll)
        difference = compare(own, earlier)
        return NewBest(False, "chrF2" if metric == "chrf" else "BLEU", before, difference)

    def _resampled_at(self, step: int, resampler: MetricResampler) -> Resampled | None:
        if self._best is not None and self._best[0] == step:
            return self._best[1]
        outputs = read_valid_outputs(self._run_dir, step)
        if outputs is None or len(outputs) != len(self._validation.ref):
            return None
        return resampler.resampled(outputs)
