"""Pictures of attention weights: a map, a grid of all layers and heads, or lines between words.

Shapes: L layers, H heads, T rows (words that look), S columns (words looked at).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mt.errors import ConfigError
from mt.inspect.pictures import FORMATS, check_format, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Weights = npt.NDArray[np.floating[Any]]

VIEWS = ("map", "lines", "grid")
PAGE_FORMAT = ".html"
INK = "#1f4e8c"
INCHES_A_WORD = 0.42
# Lines thinner than this share of the weight are left out: they hide the others.
LEAST_LINE = 0.05
# Words that the text form names for each row.
NAMED = 3


def check_picture(view: str, output: Path) -> None:
    """Raise ConfigError for a view or a kind of file that there is not, before any work is done."""
    if view not in VIEWS:
        raise ConfigError(f"--view: must be one of {', '.join(VIEWS)}, found {view!r}")
    check_format(output, (*FORMATS, PAGE_FORMAT))


def chosen(weights: Weights, layer: int | None, head: int | None) -> tuple[Weights, str]:
    """Return the weights (T, S) of a layer and head, counted from 1, and a title for them.

    Without a head it is the mean over the heads of the layer. Without a layer it is the last but
    one, whose cross-attention aligns best (Garg et al., 2019, section 3.1). Raises ConfigError for
    what the model does not have.
    """
    n_layers, n_heads = weights.shape[:2]
    if layer is None:
        layer = max(1, n_layers - 1)
    for option, number, most in (("--layer", layer, n_layers), ("--head", head, n_heads)):
        if number is not None and not 1 <= number <= most:
            raise ConfigError(f"{option}: the model has 1 to {most}, found {number}")
    if head is None:
        return weights[layer - 1].mean(0), f"layer {layer}, mean of {n_heads} heads"
    return weights[layer - 1, head - 1], f"layer {layer}, head {head}"


def as_text(weights: Weights, rows: Sequence[str], columns: Sequence[str]) -> str:
    """Return a line for each row of weights (T, S): the columns it looks at most, in percent."""
    width = max(map(len, rows))
    lines = []
    for word, row in zip(rows, weights, strict=True):
        best = np.argsort(-row, kind="stable")[:NAMED]
        seen = [f"{columns[i]} {100 * row[i]:.0f} %" for i in best if row[i] >= LEAST_LINE]
        lines.append(f"{word:<{width}}  {', '.join(seen)}".rstrip())
    return "\n".join(lines)


def save_picture(
    output: Path,
    view: str,
    weights: Weights,
    rows: Sequence[str],
    columns: Sequence[str],
    layer: int | None = None,
    head: int | None = None,
) -> str:
    """Draw weights (L, H, T, S) into an SVG or PNG file; return a warning about the font, or "".

    Raises ConfigError where the layer or head does not exist, or the file cannot be written.
    """
    check_picture(view, output)

    def draw() -> Figure:
        if view == "grid":
            return _grid(weights, rows, columns)
        one, title = chosen(weights, layer, head)
        return (_map if view == "map" else _lines)(one, rows, columns, title)

    return save_figure(output, draw)


def _map(weights: Weights, rows: Sequence[str], columns: Sequence[str], title: str) -> Figure:
    from matplotlib.figure import Figure

    size = (INCHES_A_WORD * len(columns) + 1.5, INCHES_A_WORD * len(rows) + 1)
    figure = Figure(figsize=size)
    axes = figure.subplots()
    mesh = _cells(axes, weights)
    _label(axes, rows, columns)
    axes.set_xlabel(title)
    bar = figure.colorbar(mesh, ax=axes, fraction=0.04, pad=0.03)
    bar.outline.set_visible(False)
    return figure


def _grid(weights: Weights, rows: Sequence[str], columns: Sequence[str]) -> Figure:
    from matplotlib.figure import Figure

    n_layers, n_heads = weights.shape[:2]
    width = max(1.2, 0.17 * len(columns))
    height = max(1.2, 0.17 * len(rows))
    figure = Figure(figsize=(n_heads * width + 1, n_layers * height + 1), layout="constrained")
    all_axes = figure.subplots(n_layers, n_heads, squeeze=False)
    for layer, row_of_axes in enumerate(all_axes):
        for head, axes in enumerate(row_of_axes):
            _cells(axes, weights[layer, head])
            _label(axes, rows if head == 0 else (), columns if layer == 0 else (), size=6)
            axes.set_xlabel(f"layer {layer + 1}, head {head + 1}", fontsize=7)
    return figure


def _lines(weights: Weights, rows: Sequence[str], columns: Sequence[str], title: str) -> Figure:
    """Draw the rows' words left, the columns' right, and lines as thick as the weights."""
    from matplotlib.figure import Figure

    longest = max(len(rows), len(columns))
    figure = Figure(figsize=(4, 0.3 * longest + 0.6))
    axes = figure.subplots()
    axes.axis("off")
    axes.set_xlim(-0.05, 1.05)
    axes.set_ylim(longest - 0.5, -0.8)
    left, right = (np.arange(len(words)) + (longest - len(words)) / 2 for words in (rows, columns))
    for y, word in zip(left, rows, strict=True):
        axes.text(-0.02, y, word, ha="right", va="center")
    for y, word in zip(right, columns, strict=True):
        axes.text(1.02, y, word, ha="left", va="center")
    for i, j in zip(*np.nonzero(weights >= LEAST_LINE), strict=True):
        weight = float(weights[i, j])
        ends = [left[i], right[j]]
        axes.plot([0, 1], ends, color=INK, linewidth=6 * weight, alpha=0.25 + 0.75 * weight)
    axes.set_title(title, fontsize=9)
    return figure


def _cells(axes: Axes, weights: Weights) -> Any:
    axes.set_aspect("equal")
    axes.invert_yaxis()
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes.pcolormesh(weights, cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=0.3)


def _label(axes: Axes, rows: Sequence[str], columns: Sequence[str], size: float = 9) -> None:
    """Words at the left and above; none where there are none."""
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False, labelsize=size)
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=45, ha="left")
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
