"""The curves of one or several runs as small pictures: over updates, and over time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mt.evaluation.metrics import METRICS
from mt.inspect.pictures import LINE_STYLES, MUTED, SERIES, inline_svg, new_figure
from mt.report.run_summary import RunSummary
from mt.runs.records import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    Floats = npt.NDArray[np.float64]
    Line = tuple[Floats, Floats, Floats]  # updates, seconds, values

# A curve of more points is cut into this many intervals, of each of which the lowest and the
# highest point are drawn.
INTERVALS = 300
INCHES = (4.6, 2.45)
UNITS = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


@dataclass(frozen=True)
class Figure:
    """The content of a picture: a figure of training lines, of validations, or both."""

    title: str
    unit: str
    train: str = ""  # key of a train line
    valid: str = ""  # key of a valid line
    other_set: str = ""  # the validation set, if it is not the first one
    scale: float = 1.0
    from_zero: bool = False


FIGURES = (
    Figure("Loss", "nats per target token", train="nll", valid="nll"),
    Figure("BLEU", "validation set", valid="bleu"),
    Figure("Learning rate", "", train="lr", from_zero=True),
    Figure("Gradient norm", "before clipping", train="grad_norm", from_zero=True),
    Figure("Speed", "target tokens per second", train="tokens_per_second", from_zero=True),
    Figure("Waiting for data", "% of the time", train="waiting", scale=100.0, from_zero=True),
)


@dataclass(frozen=True)
class Axis:
    """The x axis of a picture: column 0 of a `Line`, updates, or 1, seconds, divided by `size`."""

    name: str
    unit: str
    column: int
    end: float
    size: float


def draw_curves(runs: Sequence[RunSummary]) -> tuple[list[dict[str, str]], str]:
    """Draw every figure of the runs, one colour each; also say how curves were thinned, if so."""
    recorded = {key for run in runs for line in run.metrics.valid for key in line}
    others = [
        Figure(metric.title, "validation set", valid=name)
        for name, metric in METRICS.items()
        if name in recorded and name != "bleu"
    ]
    sets = dict.fromkeys(str(line.get("name")) for run in runs for line in run.metrics.other_valid)
    others += [Figure("BLEU", name, valid="bleu", other_set=name) for name in sets]
    figures = [*FIGURES[:2], *others, *FIGURES[2:]]
    lines = {figure: [_lines(figure, run) for run in runs] for figure in figures}
    # The same in all pictures: the last update of all runs, and the longest time.
    every = [line for of_runs in lines.values() for of_run in of_runs for line in of_run]
    steps, seconds = (max((x[i][-1] for x in every if len(x[i])), default=0.0) for i in (0, 1))
    size, unit = next((unit for unit in UNITS if seconds >= 2 * unit[0]), UNITS[-1])
    both = Axis("by_updates", "updates", 0, steps, 1.0), Axis("by_time", unit, 1, seconds, size)
    pictures = []
    for figure in figures:
        picture = {"title": figure.title, "unit": figure.unit, "by_updates": "", "by_time": ""}
        pictures.append(picture)
        recorded_values = (values for lines_of in lines[figure] for _, _, values in lines_of)
        if not any(np.isfinite(values).any() for values in recorded_values):
            continue
        for x in both:
            name = re.sub(r"\W+", "-", f"{figure.title} {figure.other_set} {x.unit}".lower())
            description = f"{figure.title} over {x.unit}, {len(runs)} run{'s' * (len(runs) > 1)}"
            draw = partial(_draw, figure, runs, lines[figure], x)
            picture[x.name] = inline_svg(name, description, draw)
    most = max((len(run.metrics.train["step"]) for run in runs), default=0)
    thinned = (
        f"Of {most:,} logged points each curve shows the lowest and the highest in each of "
        f"{INTERVALS} equal intervals, so that no spike is lost."
    )
    return pictures, thinned if most > 2 * INTERVALS else ""


def thin(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """The lowest and highest y in each of `INTERVALS` parts of ascending x; one of NaN is a gap."""
    if len(x) <= 2 * INTERVALS:
        return x, y
    edges = np.linspace(x[0], x[-1], INTERVALS + 1)[1:-1]
    kept = [0, len(x) - 1]
    start = 0
    for end in [*np.searchsorted(x, edges, side="right").tolist(), len(x)]:
        if end > start:
            finite = start + np.flatnonzero(np.isfinite(y[start:end]))
            if len(finite):
                kept += [int(finite[y[finite].argmin()]), int(finite[y[finite].argmax()])]
            else:
                kept.append(start)
        start = end
    rows = np.unique(kept)
    return x[rows], y[rows]


def _lines(figure: Figure, run: RunSummary) -> tuple[Line, Line]:
    """The line of training and that of validation; empty arrays where there is none."""
    lines = run.metrics.valid
    if figure.other_set:
        lines = [line for line in run.metrics.other_valid if line.get("name") == figure.other_set]

    def ascending(key: str, column: Callable[[str], Iterable[float]]) -> Line:
        """In the order of the updates; infinite values become gaps."""
        names = ("step", "seconds", key)
        step, seconds, values = (np.fromiter(column(name) if key else (), float) for name in names)
        order = np.argsort(step, kind="stable")
        seconds = np.where(np.isfinite(seconds), seconds, 0.0)[order]
        values = np.where(np.isfinite(values), values * figure.scale, math.nan)[order]
        return step[order], np.maximum.accumulate(seconds), values

    train = ascending(figure.train, run.metrics.train.__getitem__)
    return train, ascending(figure.valid, lambda key: (number(line, key) for line in lines))


def _draw(
    figure: Figure, runs: Sequence[RunSummary], lines: Sequence[tuple[Line, Line]], x: Axis
) -> Canvas:
    """Draw a figure of all runs over one axis."""
    from matplotlib.ticker import MaxNLocator

    canvas = new_figure(*INCHES)
    axes = canvas.subplots()
    canvas.subplots_adjust(left=0.13, right=0.975, top=0.96, bottom=0.2)
    for index, (train, valid) in enumerate(lines):
        colour = SERIES[index % len(SERIES)]
        line = LINE_STYLES[index % len(LINE_STYLES)]
        if len(train[2]):
            faded = 0.5 if figure.valid else 1.0
            # A point between gaps has no line to it.
            has_gaps = len(train[2]) <= INTERVALS and not np.isfinite(train[2][1:]).all()
            marker = "." if has_gaps or len(train[2]) == 1 else ""
            style: Any = {"alpha": faded, "marker": marker, "linestyle": line}
            axes.plot(*thin(train[x.column] / x.size, train[2]), color=colour, **style)
        if len(valid[2]):
            style = {"marker": "o" if len(valid[2]) <= 40 else "", "linestyle": line}
            axes.plot(*thin(valid[x.column] / x.size, valid[2]), color=colour, **style)
    if figure.title == "Loss":
        # A dotted line at each update that ended a stage.
        for run, (train, _) in zip(runs, lines, strict=True):
            for line in run.metrics.stages:
                place = float(line["step"])
                if x.column == 1:
                    place = float(np.interp(place, train[0], train[1])) if len(train[0]) else 0.0
                axes.axvline(place / x.size, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)))
    has_whole_x = x.column == 0
    axes.set_xlabel(x.unit)
    axes.set_xlim(0, x.end / x.size * 1.015 or 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=has_whole_x))
    if has_whole_x:
        axes.xaxis.set_major_formatter(lambda value, _: _short(value))
    if figure.from_zero:
        axes.set_ylim(0, axes.dataLim.y1 * 1.06 or 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    is_rate = figure.train == "lr"
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.2g}" if is_rate else _short(value))
    return canvas


def _short(value: float) -> str:
    """`650`, `12k`, `1.5M`, `0.25`."""
    for least, size, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / size:g}{letter}"
    return f"{value:g}" if abs(value) < 1e3 else f"{value:,.0f}"
