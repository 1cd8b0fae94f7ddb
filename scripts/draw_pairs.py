"""Draw BLEU by the number of pairs, from the first table below `TITLE` in configs/experiments.md.

    python scripts/draw_pairs.py            # writes data/pictures/pairs.svg

The first column is the number of pairs, each other one a curve.
"""

from __future__ import annotations

import re
from itertools import cycle
from pathlib import Path
from typing import Any

from mt.inspect.pictures import saved_figure

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "configs" / "experiments.md"
TITLE = "## How many pairs"
PICTURE = ROOT / "data" / "pictures" / "pairs.svg"

Points = list[tuple[float, float]]


def curves(page: str) -> dict[str, Points]:
    """Return the points (pairs, BLEU) of each curve, by its name."""
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


def draw(axes: Any, points_of: dict[str, Points]) -> None:
    """Draw each curve over a logarithmic axis of pairs."""
    for (name, points), marker in zip(points_of.items(), cycle("osD^v"), strict=False):
        # Dashed: between the points nobody has measured.
        axes.plot(*zip(*points, strict=True), marker=marker, linestyle="--", label=name, gid=name)
    axes.set_xscale("log")
    axes.set_xlabel("sentence pairs")
    axes.set_ylabel("BLEU of the test set")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(frameon=False, loc="lower right")


if __name__ == "__main__":
    with saved_figure(PICTURE, 6.0, 3.4) as figure:
        draw(figure.subplots(), curves(PAGE.read_text(encoding="utf-8")))
