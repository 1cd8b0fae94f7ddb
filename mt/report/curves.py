"""The curves of one or several runs as small pictures: over updates, and over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mt.report.facts import Run, number
from mt.report.svg import MUTED, inline_svg, page_style, series_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Floats = npt.NDArray[np.float64]

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
    with page_style():
        return Curves([_picture(figure, runs) for figure in figures], thinned)


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


def _picture(figure: Figure, runs: Sequence[Run]) -> Picture:
    lines = [_line(figure, run) for run in runs]
    empty = not any(np.isfinite(y).any() for both in lines for _, _, y in both)
    longest = max((float(s[-1]) for both in lines for _, s, _ in both if len(s)), default=0.0)
    size, unit = next((one for one in UNITS if longest >= 2 * one[0]), UNITS[-1])
    svgs = (
        ("", "")
        if empty
        else (
            _draw(figure, runs, lines, "updates", 0, 1.0),
            _draw(figure, runs, lines, unit, 1, size),
        )
    )
    return Picture(figure.title, figure.unit, *svgs, empty)


def _line(figure: Figure, run: Run) -> tuple[tuple[Floats, Floats, Floats], ...]:
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


def _draw(
    figure: Figure,
    runs: Sequence[Run],
    lines: Sequence[tuple[tuple[Floats, Floats, Floats], ...]],
    unit: str,
    axis: int,
    size: float,
) -> str:
    """Draw over updates (`axis` 0) or time (1); x is divided by `size`."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    canvas = Canvas(figsize=INCHES)
    axes = canvas.subplots()
    canvas.subplots_adjust(left=0.13, right=0.975, top=0.96, bottom=0.2)
    for index, (train, valid) in enumerate(lines):
        colour = series_colour(index)
        if len(train[2]):
            faded = 0.5 if figure.valid else 1.0
            _plot(axes, train[axis] / size, train[2], color=colour, alpha=faded)
        if len(valid[2]):
            marker = "o" if len(valid[2]) <= 40 else ""
            _plot(axes, valid[axis] / size, valid[2], color=colour, marker=marker, markersize=3.5)
    if figure.title == "Loss":
        _mark_rollbacks(axes, runs, lines, axis, size)
    axes.margins(x=0.02)
    if figure.from_zero:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(unit)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=axis == 0))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if axis == 0:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _short(x)))
    if figure.train == "lr":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.2g}"))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _short(y)))
    what = f"{figure.title} over {unit}, {len(runs)} run{'s' * (len(runs) > 1)}"
    return inline_svg(canvas, what)


def _plot(axes: Axes, x: Floats, y: Floats, **style: Any) -> None:
    axes.plot(*thin(x, y), **style)


def _mark_rollbacks(
    axes: Axes,
    runs: Sequence[Run],
    lines: Sequence[tuple[tuple[Floats, Floats, Floats], ...]],
    axis: int,
    size: float,
) -> None:
    """A dotted line at each update that training returned to."""
    for run, (train, _) in zip(runs, lines, strict=True):
        for line in run.metrics.rollbacks:
            x = float(line["step"])
            if axis == 1:
                x = float(np.interp(x, train[0], train[1])) if len(train[0]) else 0.0
            axes.axvline(x / size, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)))


def _short(value: float) -> str:
    """`650`, `12k`, `1.5M`, `0.25`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            divisor = 1e3 if letter == "k" else size
            return f"{value / divisor:g}{letter}"
    return f"{value:g}" if abs(value) < 1e3 else f"{value:,.0f}"
