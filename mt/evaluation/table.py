"""Evaluations as text: scores, which differences are real, slices, differing lines in colour."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mt.evaluation.differences import Difference, mark
from mt.evaluation.significance import LEVEL, TESTS, Comparison, Interval
from mt.evaluation.slices import Slicing
from mt.evaluation.systems import Evaluation, EvaluationSet, Judged

# Marks of words that only the baseline, or only the other system has: those of
# `git diff --word-diff`, and its colours.
PLAIN_MARKS = (("[-", "-]"), ("{+", "+}"))
COLOUR_MARKS = (("\033[31m", "\033[0m"), ("\033[32m", "\033[0m"))


@dataclass(frozen=True)
class Style:
    """How an evaluation is printed: decimal places, and whether in colour."""

    digits: int = 2
    colour: bool = False

    def number(self, value: float, sign: str = "") -> str:
        """A score or a difference of scores."""
        return f"{value:{sign}.{self.digits}f}"

    def interval(self, interval: Interval | None) -> str:
        """A confidence interval, mean ± half its width."""
        if interval is None:
            return ""
        return f"{self.number(interval.mean)} ± {self.number(interval.half_width)}"


def format_evaluation(evaluation: Evaluation, style: Style) -> str:
    """All of an evaluation as text, without a newline at its end."""
    systems = evaluation.systems
    name = evaluation.data.name
    n_lines = len(evaluation.data.refs[0])
    blocks = [f"{name}: {n_lines:,} lines"] if name else []
    if len(systems) == 1 and not name:
        (judged,) = systems.values()
        blocks = [_lines(judged, style)]
    else:
        blocks.append("\n\n".join(filter(None, [_scores(systems, style), _legend(systems)])))
    blocks += _slices(evaluation, style)
    for system, differences in evaluation.differences.items():
        blocks.append(
            _differences(evaluation.data, next(iter(systems)), system, differences, style)
        )
    return "\n\n".join(blocks)


def _lines(judged: Sequence[Judged], style: Style) -> str:
    """A line for each score of a system, with value and signature, and one for each note."""
    names = [one.score.name for one in judged]
    values = [style.number(one.score.value) for one in judged]
    lines = []
    for one, name, value in zip(judged, names, values, strict=True):
        head = f"{name:<{max(map(len, names))}} {value:>{max(map(len, values))}}"
        if one.interval is None:
            lines.append(f"{head}  {one.score.signature}")
        else:
            lines.append(f"{head} (μ = {style.interval(one.interval)})  {one.interval.signature}")
        if one.score.note:
            lines.append(f"{name:<{max(map(len, names))}} note: {one.score.note}")
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]], n_left: int) -> str:
    """Rows of cells, a heading first, as columns; the first `n_left` columns are left-aligned.

    So is a last column of words. A column without a cell below its heading is left out.
    """
    columns = list(zip(*rows, strict=True))
    lines = [""] * len(rows)
    for number, column in enumerate(columns):
        if not any(column[1:]):
            continue
        width = max(map(display_width, column))
        left = number < n_left or not any(c.isdigit() for cell in column[1:] for c in cell)
        for row, cell in enumerate(column):
            space = " " * (width - display_width(cell))
            lines[row] += (cell + space if left else space + cell) + "  "
    return "\n".join(line.rstrip() for line in lines)


def display_width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)


def _scores(systems: dict[str, list[Judged]], style: Style) -> str:
    """A row for each metric and system."""
    titles = [f"p ({name.split()[-1]})" for name in TESTS.values()]
    head = ["metric", "system", "score", "95 % interval", "difference", *titles, "verdict"]
    rows = [head]
    for place, first in enumerate(next(iter(systems.values()))):
        for number, (system, judged) in enumerate(systems.items()):
            one = judged[place]
            tests = one.comparisons
            difference = next((test.difference for test in tests.values()), None)
            rows.append(
                [
                    "" if number else first.score.name,
                    system,
                    style.number(one.score.value),
                    style.interval(one.interval),
                    "" if difference is None else style.number(difference, "+"),
                    *(_p_value(tests.get(test)) for test in TESTS),
                    one.verdict,
                ]
            )
    return aligned(rows, n_left=2)


def _p_value(comparison: Comparison | None) -> str:
    """Of two equal scores none: sacreBLEU gives them its smallest, as if they differed."""
    if comparison is None or comparison.difference == 0:
        return ""
    return f"{comparison.p_value:.4f}"


def _legend(systems: dict[str, list[Judged]]) -> str:
    """What the verdicts mean; notes on scores; signatures."""
    baseline, *_ = systems
    last = list(systems.values())[-1]
    lines = []
    if any(one.comparisons for one in last):
        lines.append(
            f"better, worse: than {baseline}, p < {LEVEL} by each test; may be chance: this test "
            "set cannot tell the two apart"
        )
    if intervals := [one.interval for one in last if one.interval]:
        lines.append(f"95 % interval: bootstrap, {_draws(intervals[0].signature, 'bs')}")
    for test, title in TESTS.items():
        if found := [one.comparisons[test] for one in last if test in one.comparisons]:
            lines.append(f"p ({title.split()[-1]}): {title}, {_draws(found[0].signature, test)}")
    for system, judged in systems.items():
        lines += [
            f"{one.score.name} note: {system}: {one.score.note}" for one in judged if one.score.note
        ]
    first = next(iter(systems.values()))
    lines += [f"{one.score.name}|{one.score.signature}" for one in first]
    return "\n".join(lines)


def _draws(signature: str, test: str) -> str:
    """How often was drawn, with which seed, after a signature of sacreBLEU."""
    fields = dict(part.split(":", 1) for part in signature.split("|"))
    kind = "resamples" if test == "bs" else "trials"
    return f"{int(fields[test]):,} {kind}, seed {fields['seed']}"


def _slices(evaluation: Evaluation, style: Style) -> list[str]:
    """For each slicing one table of all metrics, or with several systems one for each metric."""
    blocks = []
    for slicing in evaluation.data.slicings:
        # (metric, system) -> a value for each slice
        values = {
            (one.score.name, system): one.slices[slicing.by]
            for system, judged in evaluation.systems.items()
            for one in judged
            if slicing.by in one.slices
        }
        metrics = list(dict.fromkeys(metric for metric, _ in values))
        if len(evaluation.systems) == 1:
            columns = {metric: column for (metric, _), column in values.items()}
            blocks.append(_slice_table(slicing, slicing.title, columns, style))
            continue
        for metric in metrics:
            columns = {
                system: column for (name, system), column in values.items() if name == metric
            }
            blocks.append(_slice_table(slicing, f"{metric} by {slicing.title}", columns, style))
    return blocks


def _slice_table(
    slicing: Slicing, title: str, columns: Mapping[str, Sequence[float]], style: Style
) -> str:
    rows = [
        [
            part.label,
            f"{len(part.lines):,}",
            *(style.number(column[i]) for column in columns.values()),
        ]
        for i, part in enumerate(slicing.slices)
    ]
    return f"{title}\n{aligned([['', 'lines', *columns], *rows], n_left=1)}"


def _differences(
    data: EvaluationSet,
    baseline: str,
    system: str,
    differences: Sequence[Difference],
    style: Style,
) -> str:
    """The lines with source, references and both translations, differing words marked."""
    if not differences:
        return f"{baseline} and {system} do not differ in any line"
    lines_whose = "1 line whose" if len(differences) == 1 else f"{len(differences):,} lines whose"
    blocks = [f"{lines_whose} chrF differs most from {baseline}, worst for {system} first"]
    marks = COLOUR_MARKS if style.colour else PLAIN_MARKS
    names = ["source", *["reference"] * len(data.refs), baseline, system]
    width = max(map(display_width, names))
    for one in differences:
        row = one.line - 1
        texts = [
            printable(data.sources[row] if data.sources else ""),
            *(printable(ref[row]) for ref in data.refs),
            *(
                mark(printable(text), spans, *own)
                for text, spans, own in zip(one.texts, one.spans, marks, strict=True)
            ),
        ]
        lines = [
            f"  {name}{' ' * (width - display_width(name))}  {text}"
            for name, text in zip(names, texts, strict=True)
            if name != "source" or data.sources
        ]
        values = " → ".join(style.number(value) for value in one.chrf)
        blocks.append("\n".join([f"line {one.line:,}: chrF {values}", *lines]))
    return "\n\n".join(blocks)


def printable(text: str) -> str:
    """The text with control characters, which could move a terminal's cursor, as U+FFFD."""
    return "".join("\ufffd" if unicodedata.category(c) == "Cc" else c for c in text)
