"""Draw the BLEU of models by their number of pairs: the table below `TITLE` on a page.

python scripts/draw_pairs.py            # writes data/pictures/pairs.svg

The first column is the number of pairs, each other one a curve.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mt.inspect.pictures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "configs" / "experiments.md"
TITLE = "## How many pairs"
PICTURE = ROOT / "data" / "pictures" / "pairs.svg"

Points = list[tuple[float, float]]


def curves(page: str) -> dict[str, Points]:
    """The points (pairs, BLEU) of each curve, of the first table below `TITLE`."""
    table = re.findall(r"^\|(.*)\|$", page.split(f"{TITLE}\n")[1].split("|\n\n")[0] + "|", re.M)
    names, _, *rows = ([cell.strip() for cell in row.split("|")] for row in table)
    return {
        name: [
            (float(row[0].replace(",", "")), float(row[column].split()[0]))
            for row in rows
            if row[column]
        ]
        for column, name in enumerate(names)
        if column
    }


def draw(points_of: dict[str, Points]) -> Figure:
    """All curves, pairs on a logarithmic axis."""
    figure = new_figure(6.0, 3.4)
    axes = figure.subplots()
    for (name, points), marker in zip(points_of.items(), "osD^v", strict=False):
        axes.plot(*zip(*points, strict=True), marker=marker, label=name)
    axes.set_xscale("log")
    axes.set_xlabel("sentence pairs")
    axes.set_ylabel("BLEU, test set")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(frameon=False, loc="lower right")
    return figure


if __name__ == "__main__":
    save_figure(PICTURE, lambda: draw(curves(PAGE.read_text(encoding="utf-8"))))
