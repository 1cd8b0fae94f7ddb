"""Evaluations as JSON and as TSV, values unrounded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from mt.evaluation.differences import DifferingLine
from mt.evaluation.significance import TESTS
from mt.evaluation.systems import Evaluation, EvaluationSet, SystemScore

# The key beside the systems under which JSON has the differing lines.
DIFFERENCES = "differences"

_COLUMNS = (
    *("test_set", "system", "metric", "slice_by", "slice", "lines", "value", "mean", "half_width"),
    *("difference", *(f"p_{test}" for test in TESTS), "verdict", "signature"),
)


def to_json(evaluations: Sequence[Evaluation]) -> str:
    """A JSON object: for each system a list with an object per score, test set by test set.

    Intervals, paired tests and slices are keys of the scores; differing lines have a key beside
    the systems.
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


def to_tsv(evaluations: Sequence[Evaluation]) -> str:
    """A line of headings, then one for each score: of a test set, and of each of its slices."""
    lines = ["\t".join(_COLUMNS)]
    for evaluation in evaluations:
        for system, scores in evaluation.systems.items():
            for score in scores:
                for row in _rows(evaluation.data, score):
                    row |= {"test_set": evaluation.data.name, "system": system}
                    cells = [str(row.get(column, "")) for column in _COLUMNS]
                    lines.append("\t".join(" ".join(cell.split()) for cell in cells))
    return "\n".join(lines)


def _score(data: EvaluationSet, result: SystemScore) -> dict[str, Any]:
    tree = asdict(result.score)
    if data.name:
        tree["test_set"] = data.name
    if result.interval is not None:
        tree["confidence"] = {"level": 0.95, **asdict(result.interval)}
    for test, comparison in result.comparisons.items():
        keys = "baseline", "difference", "margin", "p_value", "significant", "better", "signature"
        interval = comparison.interval
        tree[f"paired_{test}"] = {key: getattr(comparison, key) for key in keys} | (
            {"mean": interval.mean, "half_width": interval.half_width} if interval else {}
        )
    if result.verdict:
        tree["verdict"] = result.verdict
    if result.slices:
        tree["slices"] = {
            slicing.by: [
                {"slice": part.label, "lines": len(part.lines), "value": value}
                for part, value in zip(slicing.slices, result.slices[slicing.by], strict=True)
            ]
            for slicing in data.slicings
        }
    return tree


def _rows(data: EvaluationSet, result: SystemScore) -> Iterator[dict[str, Any]]:
    """The same values by column, keys of no column among them: the score, then its slices."""
    tree = _score(data, result)
    row = tree.get("confidence", {}) | tree | {"metric": result.metric, "lines": len(data.refs[0])}
    for test, comparison in result.comparisons.items():
        row |= {"difference": comparison.difference, f"p_{test}": comparison.p_value}
    yield row
    for by, parts in tree.get("slices", {}).items():
        for part in parts:
            which = {"slice_by": by, "metric": result.metric}
            yield part | which | {"signature": result.score.signature}


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
