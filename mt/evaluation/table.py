"""Evaluations as text and as JSON: scores, which differences are real, differing lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from mt.data.reading.words import display_width
from mt.evaluation.differences import DifferingLine, mark
from mt.evaluation.significance import FEWEST_LINES, LEVEL, Interval
from mt.evaluation.systems import Evaluation, EvaluationSet, SystemScore
from mt.terminal import printable

# Marks of words that only the baseline, or only the other system has: those of
# `git diff --word-diff`, and its colours.
Marks: TypeAlias = tuple[tuple[str, str], tuple[str, str]]
PLAIN_MARKS: Marks = (("[-", "-]"), ("{+", "+}"))
COLOUR_MARKS: Marks = (("\033[31m", "\033[0m"), ("\033[32m", "\033[0m"))


def _interval(interval: Interval | None) -> str:
    return "" if interval is None else f"{interval.mean:.2f} ± {interval.half_width:.2f}"


def format_evaluation(
    evaluation: Evaluation, in_colour: bool = False, with_margins: bool = False
) -> str:
    """All of an evaluation as text, in which names and texts are `printable`."""
    systems = evaluation.systems
    name = evaluation.data.name
    if len(systems) == 1 and not name:
        (scores,) = systems.values()
        blocks = [_lines(scores)]
    else:
        blocks = [f"{name}: {len(evaluation.data.refs[0]):,} lines"] if name else []
        blocks += [_table(systems, with_margins), "\n".join(_legend(evaluation))]
    blocks = list(map(printable, blocks))
    marks = COLOUR_MARKS if in_colour else PLAIN_MARKS
    differences = evaluation.differences.items()
    blocks += [_differing_lines(evaluation, *differing, marks) for differing in differences]
    return "\n\n".join(blocks)


def _lines(scores: Sequence[SystemScore]) -> str:
    """A line for each score of a system, with value and signature, and one for each note."""
    names = [result.score.name for result in scores]
    values = [f"{result.score.value:.2f}" for result in scores]
    lines = []
    for result, name, value in zip(scores, names, values, strict=True):
        name = f"{name:<{max(map(len, names))}}"
        head = f"{name} {value:>{max(map(len, values))}}"
        if result.interval is None:
            lines.append(f"{head}  {result.score.signature}")
        else:
            lines.append(f"{head} (μ = {_interval(result.interval)})  {result.interval.signature}")
        if result.score.note:
            lines.append(f"{name} note: {result.score.note}")
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]], n_left: int) -> str:
    """Rows of cells, a heading first, as columns; the first `n_left` columns are left-aligned.

    So is a last column of words. A column without a cell below its heading is left out.
    """
    lines = [""] * len(rows)
    for number, column in enumerate(zip(*rows, strict=True)):
        if not any(column[1:]):
            continue
        width = max(map(display_width, column))
        left = number < n_left or not any(c.isdigit() for cell in column[1:] for c in cell)
        for row, cell in enumerate(column):
            space = " " * (width - display_width(cell))
            lines[row] += (cell + space if left else space + cell) + "  "
    return "\n".join(line.rstrip() for line in lines)


def _table(systems: Mapping[str, Sequence[SystemScore]], with_margins: bool) -> str:
    """A row for each metric and system."""
    heading = ["metric", "system", "score", "95 % interval", "difference", "p (bootstrap)"]
    rows = [[*heading, "verdict"]]
    for of_metric in zip(*systems.values(), strict=True):
        for number, (system, result) in enumerate(zip(systems, of_metric, strict=True)):
            test = result.comparison
            difference = "" if test is None else f"{test.difference:+.2f}"
            if with_margins and test is not None:
                difference += f" ± {test.margin:.2f}"
            # Of two equal scores sacreBLEU gives its smallest, as if they differed.
            p_value = f"{test.p_value:.4f}" if test and test.difference else ""
            name = "" if number else result.score.name
            cells = [name, system, f"{result.score.value:.2f}", _interval(result.interval)]
            rows.append([*cells, difference, p_value, test.verdict if test else ""])
    return aligned(rows, n_left=2)


def _legend(evaluation: Evaluation) -> Iterator[str]:
    """Meanings of the verdicts; samples and seeds; notes on scores; signatures."""
    settings = evaluation.settings
    baseline, *_ = evaluation.systems
    *_, last = evaluation.systems.values()
    drawn = f"{settings.n_resamples:,} resamples, seed {settings.seed}"
    if any(result.comparison for result in last):
        yield (
            f"better, worse: than {baseline}, p < {LEVEL}, {FEWEST_LINES} lines or more differ; "
            "may be chance: this test set cannot tell the two apart"
        )
    if any(result.interval for result in last):
        yield f"95 % interval: bootstrap, {drawn}"
    if any(result.comparison for result in last):
        yield f"p (bootstrap): paired bootstrap, {drawn}"
    for system, scores in evaluation.systems.items():
        for result in scores:
            if result.score.note:
                yield f"{result.score.name} note: {system}: {result.score.note}"
    for result in evaluation.systems[baseline]:
        yield f"{result.score.name}|{result.score.signature}"


def _differing_lines(
    evaluation: Evaluation, system: str, lines: Sequence[DifferingLine], marks: Marks
) -> str:
    """The lines with source, references and both translations, differing words marked."""
    data = evaluation.data
    baseline, system = printable(next(iter(evaluation.systems))), printable(system)
    if not lines:
        return f"{baseline} and {system} do not differ in any line"
    lines_whose = "1 line whose" if len(lines) == 1 else f"{len(lines):,} lines whose"
    blocks = [f"{lines_whose} chrF differs most from {baseline}, worst for {system} first"]
    width = max(map(display_width, ("reference", baseline, system)))
    for line in lines:
        row = line.line - 1
        texts = [("source", printable(data.sources[row]))] if data.sources else []
        texts += [("reference", printable(ref[row])) for ref in data.refs]
        sides = zip((baseline, system), line.texts, line.spans, marks, strict=True)
        texts += [(name, mark(printable(text), spans, *pair)) for name, text, spans, pair in sides]
        values = " → ".join(f"{value:.2f}" for value in line.chrf)
        rows = [f"  {name}{' ' * (width - display_width(name))}  {text}" for name, text in texts]
        blocks.append("\n".join([f"line {data.number(line.line):,}: chrF {values}", *rows]))
    return "\n\n".join(blocks)


# --- as JSON, values unrounded ---------------------------------------------------------------


def to_json(evaluations: Sequence[Evaluation]) -> str:
    """A JSON object: a list of scores by system, and the differing lines beside the systems."""
    tree: dict[str, Any] = {}
    differing = []
    for evaluation in evaluations:
        for system, scores in evaluation.systems.items():
            tree.setdefault(system, []).extend(_score(evaluation.data, score) for score in scores)
        baseline = next(iter(evaluation.systems))
        for system, lines in evaluation.differences.items():
            both = baseline, system
            differing += [_differing_line(evaluation.data, both, line) for line in lines]
    if any(evaluation.differences for evaluation in evaluations):
        tree["differences"] = differing
    return json.dumps(tree, indent=2)


def _score(data: EvaluationSet, result: SystemScore) -> dict[str, Any]:
    tree = asdict(result.score)
    if data.name:
        tree["test_set"] = data.name
    if result.interval is not None:
        tree["confidence"] = {"level": 0.95, **asdict(result.interval)}
    if (comparison := result.comparison) is not None:
        keys = "baseline", "difference", "margin", "p_value", "significant", "better"
        tree["paired_bs"] = {key: getattr(comparison, key) for key in keys}
        keys_of_interval = "signature", "mean", "half_width"
        tree["paired_bs"] |= {key: getattr(comparison.interval, key) for key in keys_of_interval}
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
    columns = zip(systems, line.texts, line.chrf, line.spans, strict=True)
    tree["systems"] = [
        {"system": system, "text": text, "chrf": chrf, "differs": spans}
        for system, text, chrf, spans in columns
    ]
    return tree
