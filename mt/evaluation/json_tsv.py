"""Evaluations as JSON and as TSV, values unrounded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mt.evaluation.differences import Difference
from mt.evaluation.significance import TESTS
from mt.evaluation.systems import Evaluation, EvaluationSet, Judged

# The key beside the systems under which JSON has the differing lines.
DIFFERENCES = "differences"

_COLUMNS = (
    "test_set",
    "system",
    "metric",
    "slice_by",
    "slice",
    "lines",
    "value",
    "mean",
    "half_width",
    "difference",
    *(f"p_{test}" for test in TESTS),
    "verdict",
    "signature",
)


def to_json(evaluations: Sequence[Evaluation]) -> str:
    """A JSON object: for each system a list with an object per score, test set by test set.

    Intervals, paired tests and slices are keys of the scores; differing lines have a key beside
    the systems.
    """
    tree: dict[str, Any] = {}
    for evaluation in evaluations:
        for system, judged in evaluation.systems.items():
            tree.setdefault(system, []).extend(_score(evaluation.data, one) for one in judged)
    differing = [
        _difference(evaluation.data, (next(iter(evaluation.systems)), system), one)
        for evaluation in evaluations
        for system, found in evaluation.differences.items()
        for one in found
    ]
    if differing:
        tree[DIFFERENCES] = differing
    return json.dumps(tree, indent=2)


def to_tsv(evaluations: Sequence[Evaluation]) -> str:
    """A line of headings, then one for each score: of a test set, and of each of its slices."""
    lines = ["\t".join(_COLUMNS)]
    for evaluation in evaluations:
        for system, judged in evaluation.systems.items():
            for one in judged:
                for row in _rows(evaluation.data, one):
                    row |= {"system": system, "metric": one.metric}
                    cells = [str(row.get(column, "")) for column in _COLUMNS]
                    lines.append("\t".join(" ".join(cell.split()) for cell in cells))
    return "\n".join(lines)


def _score(data: EvaluationSet, judged: Judged) -> dict[str, Any]:
    tree = asdict(judged.score)
    if data.name:
        tree["test_set"] = data.name
    if judged.interval is not None:
        tree["confidence"] = {"level": 0.95, **asdict(judged.interval)}
    for test, comparison in judged.comparisons.items():
        tree[f"paired_{test}"] = {
            "baseline": comparison.baseline,
            "difference": comparison.difference,
            "p_value": comparison.p_value,
            "significant": comparison.significant,
            "better": comparison.better,
            "signature": comparison.signature,
        }
        if comparison.interval is not None:
            tree[f"paired_{test}"] |= {
                "mean": comparison.interval.mean,
                "half_width": comparison.interval.half_width,
            }
    if judged.verdict:
        tree["verdict"] = judged.verdict
    if judged.slices:
        tree["slices"] = {
            slicing.by: [
                {"slice": part.label, "lines": len(part.lines), "value": value}
                for part, value in zip(slicing.slices, judged.slices[slicing.by], strict=True)
            ]
            for slicing in data.slicings
        }
    return tree


def _difference(
    data: EvaluationSet, systems: tuple[str, str], difference: Difference
) -> dict[str, Any]:
    row = difference.line - 1
    tree: dict[str, Any] = {"test_set": data.name} if data.name else {}
    tree |= {"line": difference.line, "references": [ref[row] for ref in data.refs]}
    if data.sources is not None:
        tree["source"] = data.sources[row]
    tree["systems"] = [
        {"system": system, "text": text, "chrf": chrf, "differs": [list(span) for span in spans]}
        for system, text, chrf, spans in zip(
            systems, difference.texts, difference.chrf, difference.spans, strict=True
        )
    ]
    return tree


def _rows(data: EvaluationSet, judged: Judged) -> list[dict[str, Any]]:
    row: dict[str, Any] = {
        "test_set": data.name,
        "lines": len(data.refs[0]),
        "value": judged.score.value,
        "verdict": judged.verdict,
        "signature": judged.score.signature,
    }
    if judged.interval is not None:
        row |= {"mean": judged.interval.mean, "half_width": judged.interval.half_width}
    for test, comparison in judged.comparisons.items():
        row |= {"difference": comparison.difference, f"p_{test}": comparison.p_value}
    rows = [row]
    for slicing in data.slicings:
        rows += [
            {
                "test_set": data.name,
                "slice_by": slicing.by,
                "slice": part.label,
                "lines": len(part.lines),
                "value": value,
                "signature": judged.score.signature,
            }
            for part, value in zip(slicing.slices, judged.slices.get(slicing.by, []), strict=False)
        ]
    return rows
