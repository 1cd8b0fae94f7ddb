"""Matplotlib figures as SVG that stands inside an HTML page, in the page's own colours and font.

Figures are drawn with the colours below, which become CSS variables of the page, so that one
picture serves light, dark and paper.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours as they are drawn, and what they become. None of them is one that matplotlib draws with.
MUTED = "#010101"
RULE = "#010102"
N_SERIES = 8
VARIABLES = {MUTED: "var(--muted)", RULE: "var(--rule)"} | {
    f"#0102{i:02x}": f"var(--series-{i + 1})" for i in range(N_SERIES)
}
_numbers = itertools.count(1)


def series_colour(index: int) -> str:
    """The colour to draw series `index` with, from 0; after eight they begin again."""
    return f"#0102{index % N_SERIES:02x}"


@contextmanager
def page_style() -> Iterator[None]:
    """Draw with thin grey axes, and text as text."""
    import matplotlib as mpl

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "mt",
        "text.parse_math": False,
        "font.size": 9.0,
        "text.color": MUTED,
        "axes.edgecolor": RULE,
        "axes.labelcolor": MUTED,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": RULE,
        "grid.linewidth": 0.6,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.major.size": 3.0,
        "ytick.major.size": 0.0,
        "lines.linewidth": 1.5,
        "lines.solid_capstyle": "round",
        "path.simplify": True,
    }
    with mpl.rc_context(style):
        yield


def inline_svg(figure: Figure, description: str) -> str:
    """A figure as an `<svg>` element that scales with the page; its ids are unique in a process.

    `description`: what a screen reader says.
    """
    file = io.BytesIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue().decode("utf-8")
    text = text[text.index("<svg") :]
    # Its own style sheet would apply to the whole page.
    text = re.sub(r"<(metadata|style)\b.*?</\1>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*</defs>\s*", "", text)
    prefix = f"f{next(_numbers)}-"
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}\1"', text)
    text = re.sub(r'(xlink:href="|url\()#', rf"\1#{prefix}", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r" ?font-family: [^;\"]*;?", "", text)
    for drawn, variable in VARIABLES.items():
        text = text.replace(drawn, variable)
    opening = re.match(r"<svg\b[^>]*>", text)
    assert opening is not None
    box = re.search(r'viewBox="[^"]*"', opening[0])
    assert box is not None
    label = escape(description, quote=True)
    return (
        f'<svg {box[0]} role="img" aria-label="{label}" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink">{text[opening.end() :].strip()}'
    )
