"""Evaluations as JSON, values unrounded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mt.evaluation.differences import DifferingLine
from mt.evaluation.systems import Evaluation, EvaluationSet, SystemScore

# The key beside the systems under which JSON has the differing lines.
DIFFERENCES = "differences"


def to_json(evaluations: Sequence[Evaluation]) -> str:
    """A JSON object: for each system a list with an object per score, test set by test set.

    Intervals and paired tests are keys of the scores; differing lines are beside the systems.
    """
    tree: dict[str, Any] = {}
    for evaluation in evaluations:
        for system, scores in evaluation.systems.items():
            tree.setdefault(system, []).extend(_score(evaluation.data, score) for score in scores)
    differing = [
        _differing_line(evaluation.data, (next(iter(evaluation.systems)), system), line)
        for evaluation in evaluations
        for system, lines in evaluation.differences.items()
        for line in lines
    ]
    if any(evaluation.differences for evaluation in evaluations):
        tree[DIFFERENCES] = differing
    return json.dumps(tree, indent=2)


def _score(data: EvaluationSet, result: SystemScore) -> dict[str, Any]:
    tree = asdict(result.score)
    if data.name:
        tree["test_set"] = data.name
    if result.interval is not None:
        tree["confidence"] = {"level": 0.95, **asdict(result.interval)}
    if (comparison := result.comparison) is not None:
        keys = "baseline", "difference", "margin", "p_value", "significant", "better", "signature"
        interval = comparison.interval
        tree["paired_bs"] = {key: getattr(comparison, key) for key in keys} | (
            {"mean": interval.mean, "half_width": interval.half_width} if interval else {}
        )
        tree["verdict"] = comparison.verdict
    return tree


def _differing_line(
    data: EvaluationSet, systems: tuple[str, str], line: DifferingLine
) -> dict[str, Any]:
    row = line.line - 1
    tree: dict[str, Any] = {"test_set": data.name} if data.name else {}
    tree |= {"line": data.number(line.line), "references": [ref[row] for ref in data.refs]}
    if data.sources is not None:
        tree["source"] = data.sources[row]
    tree["systems"] = [
        {"system": system, "text": text, "chrf": chrf, "differs": [list(span) for span in spans]}
        for system, text, chrf, spans in zip(
            systems, line.texts, line.chrf, line.spans, strict=True
        )
    ]
    return tree
