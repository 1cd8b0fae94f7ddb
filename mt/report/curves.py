"""The curves of one or several runs as small pictures: over updates, and over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mt.inspect.pictures import MUTED, inline_svg, series_colour
from mt.report.facts import Run
from mt.runs.metrics import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    Floats = npt.NDArray[np.float64]
    # (updates, seconds, values) of training and of validation.
    Lines = tuple[tuple[Floats, Floats, Floats], tuple[Floats, Floats, Floats]]

# A curve of more points is cut into this many intervals, of each of which the lowest and the
# highest point are drawn.
INTERVALS = 300
INCHES = (4.6, 2.45)
UNITS = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


@dataclass(frozen=True)
class Figure:
    """What one picture shows: a figure of training lines, of validations, or both."""

    title: str
    unit: str
    train: str = ""  # key of a train line
    valid: str = ""  # key of a valid line
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
CHRF = Figure("chrF2", "validation set", valid="chrf")


@dataclass(frozen=True)
class Axis:
    """The x axis of a picture: column 0 of `Lines`, updates, or 1, seconds, divided by `size`."""

    unit: str
    column: int
    end: float
    size: float


@dataclass(frozen=True)
class Picture:
    """A figure drawn twice."""

    title: str
    unit: str
    by_updates: str  # SVG
    by_time: str
    empty: bool  # nothing has been recorded of it


@dataclass(frozen=True)
class Curves:
    """All pictures, and what was left out of them."""

    pictures: list[Picture]
    thinned: str  # how curves were thinned; empty if they were not


def draw_curves(runs: Sequence[Run]) -> Curves:
    """Draw every figure of the runs, one colour each; NaN is a gap."""
    figures = [*FIGURES]
    if any("chrf" in line for run in runs for line in run.metrics.valid):
        figures.insert(2, CHRF)
    most = max((len(run.metrics.train["step"]) for run in runs), default=0)
    thinned = ""
    if most > 2 * INTERVALS:
        thinned = (
            f"Of {most:,} logged points each curve shows the lowest and the highest in each of "
            f"{INTERVALS} equal intervals, so that no spike is lost."
        )
    lines = {figure: [_line(figure, run) for run in runs] for figure in figures}
    # The same in all pictures: the last update of all runs, and the longest time.
    ends = [
        max((part[axis][-1] for of_figure in lines.values() for both in of_figure for part in both
             if len(part[axis])), default=0.0)
        for axis in (0, 1)
    ]  # fmt: skip
    pictures = [_picture(figure, runs, lines[figure], ends) for figure in figures]
    return Curves(pictures, thinned)


def thin(x: Floats, y: Floats, intervals: int = INTERVALS) -> tuple[Floats, Floats]:
    """Keep the lowest and highest y in each of so many equal intervals of x, in the order of x.

    An interval of NaN only keeps one, so that the gap stays. x must ascend.
    """
    if len(x) <= 2 * intervals:
        return x, y
    edges = np.linspace(x[0], x[-1], intervals + 1)[1:-1]
    kept = [0, len(x) - 1]
    start = 0
    for end in [*np.searchsorted(x, edges, side="right").tolist(), len(x)]:
        if end > start:
            part = y[start:end]
            finite = np.flatnonzero(np.isfinite(part))
            if len(finite):
                values = part[finite]
                kept += [start + int(finite[values.argmin()]), start + int(finite[values.argmax()])]
            else:
                kept.append(start)
        start = end
    rows = np.unique(kept)
    return x[rows], y[rows]


def _picture(
    figure: Figure, runs: Sequence[Run], lines: Sequence[Lines], ends: Sequence[float]
) -> Picture:
    """Draw a figure over updates and over time, up to `ends`."""
    if not any(np.isfinite(y).any() for both in lines for _, _, y in both):
        return Picture(figure.title, figure.unit, "", "", empty=True)
    size, unit = next((one for one in UNITS if ends[1] >= 2 * one[0]), UNITS[-1])
    by_updates, by_time = (
        inline_svg(
            f"{figure.title.lower().replace(' ', '-')}-{x.unit}",
            f"{figure.title} over {x.unit}, {len(runs)} run{'s' * (len(runs) > 1)}",
            partial(_draw, figure, runs, lines, x),
        )
        for x in (Axis("updates", 0, ends[0], 1.0), Axis(unit, 1, ends[1], size))
    )
    return Picture(figure.title, figure.unit, by_updates, by_time, empty=False)


def _line(figure: Figure, run: Run) -> Lines:
    """(updates, seconds, values) of training and of validation; empty arrays for neither."""
    nothing: Floats = np.empty(0)
    train = valid = (nothing, nothing, nothing)
    if figure.train:
        columns = run.metrics.train
        step, seconds, values = (
            np.array(columns[key]) for key in ("step", "seconds", figure.train)
        )
        train = (step, seconds, values * figure.scale)
    if figure.valid:
        rows = [
            (number(line, "step"), number(line, "seconds"), number(line, figure.valid))
            for line in run.metrics.valid
        ]
        columns_of_valid = np.array(rows, np.float64).reshape(-1, 3).T
        valid = (columns_of_valid[0], columns_of_valid[1], columns_of_valid[2] * figure.scale)
    return _ascending(train), _ascending(valid)


def _ascending(line: tuple[Floats, Floats, Floats]) -> tuple[Floats, Floats, Floats]:
    """In the order of the updates; infinite values become gaps."""
    order = np.argsort(line[0], kind="stable")
    step, seconds, values = (column[order] for column in line)
    seconds = np.where(np.isfinite(seconds), seconds, 0.0)
    return step, np.maximum.accumulate(seconds), np.where(np.isfinite(values), values, math.nan)


def _draw(figure: Figure, runs: Sequence[Run], lines: Sequence[Lines], x: Axis) -> Canvas:
    """Draw a figure of all runs over one axis."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    canvas = Canvas(figsize=INCHES)
    axes = canvas.subplots()
    canvas.subplots_adjust(left=0.13, right=0.975, top=0.96, bottom=0.2)
    for index, (train, valid) in enumerate(lines):
        colour = series_colour(index)
        if len(train[2]):
            faded = 0.5 if figure.valid else 1.0
            # A point between gaps has no line to it.
            has_gaps = len(train[2]) <= INTERVALS and not np.isfinite(train[2][1:]).all()
            style = {"alpha": faded, "marker": "." if has_gaps or len(train[2]) == 1 else ""}
            _plot(axes, train[x.column] / x.size, train[2], color=colour, **style)
        if len(valid[2]):
            marker = "o" if len(valid[2]) <= 40 else ""
            _plot(axes, valid[x.column] / x.size, valid[2], color=colour, marker=marker)
    if figure.title == "Loss":
        _mark_rollbacks(axes, runs, lines, x)
    axes.set_xlim(0, x.end / x.size * 1.015 or 1.0)
    if figure.from_zero:
        axes.set_ylim(0, axes.dataLim.y1 * 1.06 or 1.0)
    axes.set_xlabel(x.unit)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=x.column == 0))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if x.column == 0:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    if figure.train == "lr":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.2g}"))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _short(y)))
    return canvas


def _plot(axes: Axes, x: Floats, y: Floats, **style: Any) -> None:
    axes.plot(*thin(x, y), markersize=3.0, **style)


def _mark_rollbacks(axes: Axes, runs: Sequence[Run], lines: Sequence[Lines], x: Axis) -> None:
    """A dotted line at each update that training returned to."""
    for run, (train, _) in zip(runs, lines, strict=True):
        for line in run.metrics.rollbacks:
            place = float(line["step"])
            if x.column == 1:
                place = float(np.interp(place, train[0], train[1])) if len(train[0]) else 0.0
            axes.axvline(place / x.size, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)))


def _short(value: float) -> str:
    """`650`, `12k`, `1.5M`, `0.25`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            divisor = 1e3 if letter == "k" else size
            return f"{value / divisor:g}{letter}"
    return f"{value:g}" if abs(value) < 1e3 else f"{value:,.0f}"
