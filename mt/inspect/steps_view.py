"""The matrices of a sentence, and the steps of its search, as text and as an HTML page."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, FileSystemLoader

from mt.data.reading.words import display_width
from mt.inspect.pictures import save_file
from mt.inspect.steps import MatrixStep, Prefix
from mt.terminal import printable

# Rows and columns of a matrix that are printed, are in a table of the page, and in its heat map.
CORNER = (3, 5)
TABLE = (12, 10)
PIXELS = (64, 192)
NARROW = 120  # a heat map of fewer pixels is drawn with larger cells
WIDTHS = (52, 16)  # columns of the text form: name and formula, shape, and file and line
BLUE, RED, GREY = (31, 78, 140), (179, 58, 30), (128, 128, 128)


def as_text(matrices: Iterable[MatrixStep]) -> str:
    """Return a paragraph for each part of the model: a line for each matrix, then its corner."""
    lines = []
    for part, group in groupby(matrices, key=lambda matrix: matrix.part):
        lines.append(f"{part}:")
        for matrix in group:
            what = f"  {matrix.name} = {matrix.formula}"
            shape = str(matrix.shape).replace(",)", ")")
            lines.append(f"{what:<{WIDTHS[0]}} {shape:<{WIDTHS[1]}} {matrix.place}")
            lines += [f"      {row}" for row in corner(matrix, CORNER)]
        lines.append("")
    return "\n".join(lines[:-1])


def corner(matrix: MatrixStep, size: tuple[int, int]) -> list[str]:
    """Return the first rows and columns of a matrix as text, each row after its token."""
    if matrix.values is None:
        return []
    labels = [printable(label) for label in matrix.rows[: size[0]]]
    if len(matrix.values) == 1:  # the ids of all tokens, or a matrix of one token
        labels = [""]
    width = max(map(display_width, labels), default=0)
    rows = []
    for label, row in zip(labels, matrix.values[: size[0]], strict=True):
        numbers = " ".join(f"{number(value):>7}" for value in row[: size[1]])
        more = " …" * (len(row) > size[1])
        rows.append(f"{label}{' ' * (width - display_width(label))} {numbers}{more}".rstrip())
    return rows


def number(value: np.integer[Any] | np.floating[Any]) -> str:
    if np.isinf(value):
        return "-∞"
    return str(value) if isinstance(value, np.integer) else f"{value:.3f}"


def search_as_text(steps: Sequence[Sequence[Prefix]], text: str) -> str:
    """Return a paragraph for each step: each hypothesis, and the most probable next tokens."""
    lines = []
    for count, prefixes in enumerate(steps, start=1):
        lines.append(f"step {count}:")
        for prefix in prefixes:
            best = "  ".join(f"{printable(token)} {share:.3f}" for token, share in prefix.best)
            lines.append(f"  {printable(' '.join(('<s>', *prefix.tokens)))}  →  {best}")
    return "\n".join([*lines, "", f"output: {printable(text)}"])


def heat_map(values: npt.NDArray[Any]) -> str:
    """Return a PNG as a data URI: blue above 0, red below, by the largest of the matrix."""
    shown = np.asarray(values, np.float64)[: PIXELS[0], : PIXELS[1]]
    finite = np.where(np.isfinite(shown), shown, 0.0)
    strength = np.abs(finite) / max(float(np.abs(finite).max()), 1e-9)  # (rows, columns)
    ink = np.where(finite[..., None] >= 0, BLUE, RED)  # (rows, columns, 3)
    colours = 255 - (255 - ink) * strength[..., None]
    colours = np.where(np.isfinite(shown)[..., None], colours, GREY).astype(np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in colours)  # each without a filter
    size = struct.pack(">IIBBBBB", shown.shape[1], shown.shape[0], 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", size), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def save_page(
    output: Path, title: str, matrices: Iterable[MatrixStep],
    steps: Sequence[Sequence[Prefix]], text: str,
) -> None:  # fmt: skip
    """Write the page. A matrix opens to its first numbers. Raises DataError where it cannot be."""
    groups = groupby(matrices, key=lambda matrix: matrix.part)
    parts = [(part, [*map(_shown, group)]) for part, group in groups]
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    page = environment.get_template("steps_page.html").render(
        title=printable(title), parts=parts, steps=steps, text=printable(text)
    )
    save_file(output, page, "--html")


def _shown(matrix: MatrixStep) -> dict[str, Any]:
    """The fields of a matrix as the template has them."""
    fields: dict[str, Any] = {
        **{name: getattr(matrix, name) for name in ("name", "formula", "place")},
        "shape": " x ".join(map(str, matrix.shape)),
        "numbers": "\n".join(corner(matrix, TABLE)),
    }
    if matrix.values is not None:
        rows, columns = matrix.values[: PIXELS[0], : PIXELS[1]].shape
        cell = max(3, min(12, NARROW // columns))  # pixels; a narrow matrix has wider cells
        size = {"width": cell * columns, "height": max(6, cell) * rows}
        fields |= {"picture": heat_map(matrix.values), **size}
    return fields
