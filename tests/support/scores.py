"""Scores of plain lists of lines, as `mt evaluate` computes them."""

from __future__ import annotations

from collections.abc import Sequence

from mt.evaluation.bleu_tokenizer import DEFAULT
from mt.evaluation.metrics import Score
from mt.evaluation.systems import EvaluationSet, Settings, evaluate_systems


def score_corpus(
    hyps: Sequence[str], refs: list[list[str]], metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    tokenize: str = DEFAULT,
) -> list[Score]:  # fmt: skip
    """One score per metric, in their order; `refs`: one or more whole reference translations."""
    evaluation = evaluate_systems(EvaluationSet("", refs), {"": hyps}, Settings(metrics, tokenize))
    return [one.score for one in evaluation.systems[""]]
