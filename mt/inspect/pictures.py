"""Matplotlib figures as SVG or PNG files, or inside a page; the same data gives the same bytes."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mt.errors import ConfigError, DataError
from mt.files import write_whole
from mt.terminal import printable, say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png")
GENERATOR = "mt inspect"  # stands in every picture and page, which another may replace
DPI = 150
# Of curves in turn, so that one below another shows through its gaps.
LINE_STYLES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5)))
MOST_PIXELS = 2**16  # pixels of a side from which on matplotlib refuses to draw
# Text stays text in an SVG, and a $ is no formula.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mt",
    "text.parse_math": False,
    "font.size": 9.0,
}
# Inside a page a figure takes the page's colours, so that one picture serves light, dark and paper.
# It is drawn with these (MUTED and RULE also by PAGE_STYLE), which become CSS variables.
MUTED = "#010101"
RULE = "#010102"
SERIES = [f"#0102{i:02x}" for i in range(8)]  # colours of curves; a ninth has the first again
VARIABLES = {MUTED: "var(--muted)", RULE: "var(--rule)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, start=1)
}
PAGE_STYLE = Path(__file__).with_name("page.mplstyle")


def check_picture_file(
    output: Path | None, formats: tuple[str, ...] = FORMATS, option: str = "-o"
) -> None:
    """Raise MtError, before any work is done, if `output` has no known suffix, or must stay."""
    if output is None:
        return
    if output.suffix.lower() not in formats:
        known = " or ".join(", ".join(formats).rsplit(", ", 1))
        raise ConfigError(f"{option} {output}: must end in {known}")
    check_replaceable(output, GENERATOR, option)


def check_replaceable(output: Path, generator: str, option: str = "-o") -> None:
    """Raise DataError if the file `output`, of `option`, was not written by command `generator`."""
    if str(output) == "-" or output.is_dir():
        raise DataError(f"{option} {output}: must be a file; name one")
    if not output.is_file():
        return
    head = b""
    with suppress(OSError), output.open("rb") as file:
        head = file.read(2000)
    marks = (
        f'<meta name="generator" content="{generator}">',  # of HTML
        f"<dc:title>{generator}</dc:title>",  # of SVG
        f"Software\0{generator}",  # of PNG
    )
    if not any(mark.encode() in head for mark in marks):
        raise DataError(
            f"{option} {output}: exists and was not written by {generator}, so it is not replaced; "
            "name another file, or remove it first"
        )


def draw_cells(
    axes: Axes, values: npt.NDArray[Any], rows: Sequence[str], columns: Sequence[str],
    darkest: float = 1, size: float = 9,
) -> Any:  # fmt: skip
    """Draw values from 0 to `darkest` as cells, with words at the left and above."""
    axes.set_aspect("equal")
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False, labelsize=size)
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=45, ha="left")
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
    style: Any = {"cmap": "Blues", "edgecolors": "white", "linewidth": 0.3}
    return axes.pcolormesh(values, vmin=0, vmax=darkest, **style)


def new_figure(width: float, height: float, **options: Any) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), **options)


@contextmanager
def saved_figure(output: Path, width: float, height: float, **options: Any) -> Iterator[Figure]:
    """An empty figure, which is written to a file after the block. Says so. Raises MtError."""
    import matplotlib as mpl

    kind = output.suffix.lower().removeprefix(".")
    with mpl.rc_context(STYLE), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield (figure := new_figure(width, height, **options))
        largest = max(figure.get_size_inches()) * DPI
        if kind == "png" and largest >= MOST_PIXELS:
            raise ConfigError(
                f"-o {output}: would be {largest:,.0f} pixels wide or high, a .png has fewer than "
                f"{MOST_PIXELS:,}; choose .svg, fewer layers and heads, or a shorter sentence"
            )
        content = _content(figure, kind, dpi=DPI, bbox_inches="tight")
    save_file(output, content)
    note = "written"
    if kind == "png" and any("missing from" in str(warning.message) for warning in caught):
        note = "the font lacks some of the characters; an .svg leaves the font to the viewer"
    say(f"{output}: {note}")


def save_file(output: Path, content: bytes | str, option: str = "-o") -> None:
    """Write a file, which `option` named, completely or not at all. Raises DataError."""
    try:
        write_whole(output, content)
    except OSError as error:
        raise DataError(
            f"{option} {output}: cannot be written: {error.strerror}; name a file elsewhere"
        ) from error


def inline_svg(name: str, description: str, draw: Callable[[], Figure]) -> str:
    """The figure as an `<svg>` that scales with its page; `name` begins its ids, once in a page."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE, PAGE_STYLE):
        text = _content(draw(), "svg", transparent=True).decode("utf-8")
    text = text[text.index("<svg") :]
    # Its own style sheet would apply to the whole page.
    text = re.sub(r"<(metadata|style)\b.*?</\1>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*</defs>\s*", "", text)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(xlink:href="|url\()#', rf"\1#{name}-", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r" ?font-family: [^;\"]*;?", "", text)
    for drawn, variable in VARIABLES.items():
        text = text.replace(drawn, variable)
    opening = re.match(r'<svg\b[^>]*(viewBox="[^"]*")[^>]*>', text)
    assert opening is not None
    return (
        f'<svg {opening[1]} role="img" aria-label="{escape(description, quote=True)}" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink">{text[opening.end() :].strip()}'
    )


def _content(figure: Figure, kind: str, **options: Any) -> bytes:
    """Render a figure as `svg`, without its date, or `png`."""
    file = io.BytesIO()
    metadata = {"Date": None, "Creator": GENERATOR} if kind == "svg" else {"Software": GENERATOR}
    figure.savefig(file, format=kind, metadata=metadata, **options)
    content = file.getvalue()
    # XML has no control characters, and the text drawn may have come from anywhere.
    return printable(content.decode("utf-8")).encode("utf-8") if kind == "svg" else content
