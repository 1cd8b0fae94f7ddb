"""Pictures as SVG or PNG files: the same data gives the same bytes, and files appear whole."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt.errors import ConfigError
from mt.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png")
DPI = 150
# Pixels of a side from which on matplotlib refuses to draw.
MOST_PIXELS = 2**16


def check_format(output: Path, formats: tuple[str, ...] = FORMATS) -> None:
    """Raise ConfigError for a kind of file that there is not, before any work is done."""
    if output.suffix.lower() not in formats:
        *others, last = formats
        raise ConfigError(f"-o {output}: must end in {', '.join(others)} or {last}")


def save_figure(output: Path, draw: Callable[[], Figure]) -> str:
    """Write the figure that `draw` makes; return a warning about the font, or "".

    Raises ConfigError where the file cannot be written, or would be too large for a .png.
    """
    import matplotlib as mpl

    # Text stays text in an SVG, and a $ is no formula.
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "mt", "text.parse_math": False}
    with mpl.rc_context(style | {"font.size": 9.0}), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure = draw()
        file = io.BytesIO()
        kind = output.suffix.lower().removeprefix(".")
        metadata = {"Date": None} if kind == "svg" else {}
        largest = max(figure.get_size_inches()) * DPI
        if kind == "png" and largest >= MOST_PIXELS:
            raise ConfigError(
                f"-o {output}: would be {largest:,.0f} pixels wide or high, a .png has fewer than "
                f"{MOST_PIXELS:,}; choose .svg, fewer layers and heads, or a shorter sentence"
            )
        figure.savefig(file, format=kind, dpi=DPI, bbox_inches="tight", metadata=metadata)
    save_page(output, file.getvalue())
    missing = any("missing from" in str(warning.message) for warning in caught)
    if missing and kind == "png":
        return "the font lacks some of the characters; an .svg leaves the font to the viewer"
    return ""


def save_page(output: Path, content: bytes | str) -> None:
    """Write a finished file. Raises ConfigError where it cannot be written."""
    try:
        write_whole(output, content)
    except OSError as error:
        raise ConfigError(f"-o {output}: cannot be written: {error.strerror}") from error
