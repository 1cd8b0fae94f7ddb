"""Attention weights as text, as a picture, or as an HTML page to explore.

A picture is a map, a grid of all layers and heads, or lines between words. Shapes: L layers, H
heads, T rows (words that look), S columns (words looked at).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from mt.data.reading.words import display_width
from mt.errors import ConfigError
from mt.inspect.pictures import FORMATS, check_picture_file, new_figure, save_figure, save_file
from mt.terminal import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mt.inspect.attention import AttentionOfSentence

    Weights = npt.NDArray[np.floating[Any]]

VIEWS = ("map", "lines", "grid")
# The sides that look and are looked at.
SIDES = {
    "cross": ("target", "source"),
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
}
PAGE_FORMAT = ".html"
# The page. It loads nothing, and follows the reader's light or dark setting.
PAGE = "attention_page.html"
# The page has weights as whole numbers out of so many.
SCALE = 1000
INK = "#1f4e8c"
INCHES_A_WORD = 0.42
# Of several heads: colours that stand apart for most eyes (Okabe and Ito, 2008), and rows between
# the first head's line and the last one's.
HEAD_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c564b",
)  # fmt: skip
APART = 0.5
# Lines thinner than this share of the weight are left out: they hide the others, the more so where
# there are several heads.
LEAST_LINE, LEAST_OF_SEVERAL = 0.05, 0.1
# Words that the text form names for each row.
NAMED = 3


def check_picture(
    view: str, output: Path | None, layer: int | None, heads: Sequence[int] | None
) -> None:
    """Raise ConfigError for options that do not fit together, before any work is done."""
    if view not in VIEWS:
        raise ConfigError(f"--view: must be one of {', '.join(VIEWS)}, found {view!r}")
    if output is None:
        if view != "map":
            raise ConfigError(f"--view {view}: is a picture; name its file with -o")
        return
    check_picture_file(output, (*FORMATS, PAGE_FORMAT))
    if view == "grid" and not is_page(output) and not (layer is None and heads is None):
        raise ConfigError(
            "--layer, --head: not with --view grid, which shows all of them; leave them out"
        )
    if is_page(output) and len(heads or ()) > 1:
        raise ConfigError("--head: a page shows one head at a time, first the one named; name one")


def is_page(output: Path | None) -> bool:
    return output is not None and output.suffix.lower() == PAGE_FORMAT


def read_heads(text: str | None) -> list[int] | None:
    """Read `--head`, `2` or `1,3,4`. Raises ConfigError for anything else."""
    if text is None:
        return None
    if not re.fullmatch(r"\d+(,\d+)*", text, re.ASCII):
        raise ConfigError(f"--head: must be a number, or several such as 1,3,4; found {text!r}")
    return [*dict.fromkeys(map(int, text.split(",")))]


def chosen(weights: Weights, layer: int | None, heads: Sequence[int] | None) -> tuple[Weights, str]:
    """Return the weights (T, S) of a layer and heads, counted from 1, and a title for them.

    It is the mean over the heads, without `heads` over all of the layer. Without a layer it is the
    last but one, whose cross-attention aligns best (Garg et al., 2019, section 3.1). Raises
    ConfigError for what the model does not have.
    """
    n_layers, n_heads = weights.shape[:2]
    if layer is None:
        layer = max(1, n_layers - 1)
    wanted = [("--layer", layer, n_layers), *(("--head", head, n_heads) for head in heads or ())]
    for option, number, most in wanted:
        if not 1 <= number <= most:
            raise ConfigError(f"{option}: the model has 1 to {most}, found {number}")
    if heads is None:
        return weights[layer - 1].mean(0), f"layer {layer}, mean of {n_heads} heads"
    named = f"mean of heads {', '.join(map(str, heads))}" if len(heads) > 1 else f"head {heads[0]}"
    return weights[layer - 1, [head - 1 for head in heads]].mean(0), f"layer {layer}, {named}"


def as_text(weights: Weights, rows: Sequence[str], columns: Sequence[str]) -> str:
    """Return a line for each row of weights (T, S): the columns it looks at most, in percent."""
    width = max(map(display_width, rows))
    lines = []
    for word, row in zip(rows, weights, strict=True):
        best = np.argsort(-row, kind="stable")[:NAMED]
        seen = [f"{columns[i]} {100 * row[i]:.0f} %" for i in best if row[i] >= LEAST_LINE]
        lines.append(f"{word}{' ' * (width - display_width(word))}  {', '.join(seen)}".rstrip())
    return "\n".join(lines)


def save_picture(
    output: Path,
    view: str,
    attention: AttentionOfSentence,
    layer: int | None = None,
    heads: Sequence[int] | None = None,
) -> str:
    """Draw attention into an SVG or PNG file; return a warning about the font, or "".

    The lines of several heads have a colour each; a map shows their mean.

    Raises ConfigError where the layer or head does not exist, or the file cannot be written.
    """
    rows, columns = attention.rows, attention.columns

    def draw() -> Figure:
        sides = "{} (looks) → {} (looked at)".format(*SIDES[attention.kind])
        if view == "grid":
            title = f"{attention.kind} attention: {sides}"
            return _grid(attention.weights, rows, columns, title)
        weights, title = chosen(attention.weights, layer, heads)
        title = f"{attention.kind} attention, {title}\n{sides}"
        if view == "map":
            return _map(weights, rows, columns, title)
        if heads is None or len(heads) == 1:
            return _lines({"": weights}, rows, columns, title)
        apart = {f"head {head}": chosen(attention.weights, layer, [head])[0] for head in heads}
        return _lines(apart, rows, columns, title.replace("mean of ", ""))

    return save_figure(output, draw)


def save_page(
    output: Path,
    attentions: Mapping[str, AttentionOfSentence],
    title: str,
    first: Mapping[str, str | int | None],
) -> None:
    """Write a page on which kind, layer, head and view can be chosen; pointing shows a weight.

    `attentions`: by kind. `first`: the `kind`, `layer`, `head` and `view` that it shows first;
    `layer` and `head` count from 1, None means the last layer but one and the mean of all heads.

    Raises ConfigError where the file cannot be written.
    """
    kinds = {
        kind: {
            "rows": attention.rows,
            "columns": attention.columns,
            "weights": np.rint(attention.weights * SCALE).astype(int).tolist(),
        }
        for kind, attention in attentions.items()
    }
    data = {"scale": SCALE, "first": dict(first), "kinds": kinds}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")  # inside a script only "<" could end it
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    page = environment.get_template(PAGE).render(title=printable(title), data=Markup(text))
    save_file(output, page)


def _map(weights: Weights, rows: Sequence[str], columns: Sequence[str], title: str) -> Figure:
    figure = new_figure(INCHES_A_WORD * len(columns) + 1.5, INCHES_A_WORD * len(rows) + 1)
    axes = figure.subplots()
    mesh = _cells(axes, weights)
    _label(axes, rows, columns)
    axes.set_xlabel(title)
    bar = figure.colorbar(mesh, ax=axes, fraction=0.04, pad=0.03)
    bar.outline.set_visible(False)
    return figure


def _grid(weights: Weights, rows: Sequence[str], columns: Sequence[str], title: str) -> Figure:
    n_layers, n_heads = weights.shape[:2]
    width = max(1.2, 0.17 * len(columns))
    height = max(1.2, 0.17 * len(rows))
    figure = new_figure(n_heads * width + 1, n_layers * height + 1, layout="constrained")
    all_axes = figure.subplots(n_layers, n_heads, squeeze=False)
    for layer, row_of_axes in enumerate(all_axes):
        for head, axes in enumerate(row_of_axes):
            _cells(axes, weights[layer, head])
            _label(axes, rows if head == 0 else (), columns if layer == 0 else (), size=6)
            axes.set_xlabel(f"layer {layer + 1}, head {head + 1}", fontsize=7)
    figure.suptitle(title, fontsize=9)
    return figure


def _lines(
    by_head: Mapping[str, Weights], rows: Sequence[str], columns: Sequence[str], title: str
) -> Figure:
    """Draw the rows' words left, the columns' right, and lines as thick as the weights.

    Several heads have a colour each, and lines beside each other, so that none hides another.
    """
    longest = max(len(rows), len(columns))
    figure = new_figure(4, 0.3 * longest + 0.6)
    axes = figure.subplots()
    axes.axis("off")
    axes.set_xlim(-0.05, 1.05)
    axes.set_ylim(longest - 0.5, -0.8)
    left, right = (np.arange(len(words)) + (longest - len(words)) / 2 for words in (rows, columns))
    for y, word in zip(left, rows, strict=True):
        axes.text(-0.02, y, word, ha="right", va="center")
    for y, word in zip(right, columns, strict=True):
        axes.text(1.02, y, word, ha="left", va="center")
    several = len(by_head) > 1
    least = LEAST_OF_SEVERAL if several else LEAST_LINE
    for number, (name, weights) in enumerate(by_head.items()):
        colour = HEAD_COLOURS[number % len(HEAD_COLOURS)] if several else INK
        place = (number - (len(by_head) - 1) / 2) * APART / len(by_head)
        for i, j in zip(*np.nonzero(weights >= least), strict=True):
            weight = float(weights[i, j])
            style = {"linewidth": 6 * weight / len(by_head) ** 0.5, "alpha": 0.25 + 0.75 * weight}
            axes.plot([0, 1], [left[i] + place, right[j] + place], color=colour, **style)
        if several:
            axes.plot([], [], color=colour, linewidth=3, label=name)
    if several:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=4, frameon=False)
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
