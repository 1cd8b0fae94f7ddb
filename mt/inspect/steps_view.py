"""The matrices of a sentence, and the steps of its search, as text and as an HTML page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, FileSystemLoader
from matplotlib.image import imsave

from mt.data.reading.words import display_width
from mt.inspect.pictures import save_file
from mt.inspect.steps import MatrixStep, Search, Walk, share_of
from mt.terminal import printable

# Rows and columns of a matrix that are printed, are in a table of the page, and in its heat map.
CORNER = (3, 5)
TABLE = (12, 10)
WHOLE = (12, 12)  # scores and weights of so many tokens are shown whole, with both sides' words
PIXELS = (64, 192)
NARROW = 120  # a heat map of fewer pixels is drawn with larger cells
WIDTHS = (52, 16)  # columns of the text form: name and formula, shape, and file and line
BLUE, RED, GREY = (31, 78, 140), (179, 58, 30), (128, 128, 128)


def as_text(matrices: Iterable[MatrixStep], document: Document | None = None) -> str:
    """Return a paragraph for each part: of each matrix a line, the document's name, the corner."""
    lines = []
    for part, group in groupby(matrices, key=lambda matrix: matrix.part):
        lines.append(f"{part}:{part_in(document, part)}")
        for matrix in group:
            what = f"  {matrix.name} = {matrix.formula}"
            shape = str(matrix.shape).replace(",)", ")")
            lines.append(f"{what:<{WIDTHS[0]}} {shape:<{WIDTHS[1]}} {matrix.place}")
            if named := name_in(document, matrix):
                lines.append(f"      {document}: {named}")
            lines += [f"      {row}" for row in corner(matrix, CORNER)]
        lines.append("")
    return "\n".join(lines[:-1])


def corner(matrix: MatrixStep, size: tuple[int, int]) -> list[str]:
    """Return the first rows and columns as text; scores and weights of few tokens are whole."""
    if matrix.values is None:
        return []
    if whole := matrix.columns and max(map(len, (matrix.rows, matrix.columns))) <= WHOLE[0]:
        size = WHOLE
    labels = [printable(label) for label in matrix.rows[: size[0]]]
    cells = [[number(value) for value in row[: size[1]]] for row in matrix.values[: size[0]]]
    if len(matrix.values) == 1 and not whole:  # the ids of all tokens, or a matrix of one token
        labels = [""]
    if matrix.notes:
        size, cells = (0, matrix.values.shape[1]), [[note] for note in map(printable, matrix.notes)]
        labels = [printable(label) for label in matrix.rows]
    if whole:
        labels = ["", *labels]
        cells = [[printable(column) for column in matrix.columns], *cells]
    labels = labels or [""] * len(cells)
    width = max(map(display_width, labels))
    column = max([7, *(display_width(cell) for cell in cells[0])]) if whole else 7
    more = " …" * (matrix.values.shape[1] > size[1])
    return [
        f"{padded(label, -width)} {' '.join(padded(cell, column) for cell in row)}{more}".rstrip()
        for label, row in zip(labels, cells, strict=True)
    ]


def padded(text: str, width: int) -> str:
    """Return the text on so many columns of a terminal: at the right, for < 0 at the left."""
    blank = " " * (abs(width) - display_width(text))
    return f"{text}{blank}" if width < 0 else f"{blank}{text}"


def number(value: np.integer[Any] | np.floating[Any]) -> str:
    if np.isinf(value):
        return "-∞"
    return str(value) if isinstance(value, np.integer) else f"{value:.3f}"


def search_as_text(search: Search) -> str:
    """Return the hypotheses before each step with their next tokens; then those that ended."""
    lines = []
    for count, prefixes in enumerate(search.steps, start=1):
        lines.append(f"step {count}:")
        for prefix in prefixes:
            words = printable(" ".join(("<s>", *prefix.tokens)))
            best = printable(share_of(prefix.best))
            lines.append(f"  {prefix.log_prob:7.3f}  {words}  →  {best}")
    penalty = f"(tokens + 1)^{search.length_penalty:g}"
    lines += ["", f"ended: ln p, score = ln p / {penalty}; the highest score wins"]
    for tokens, log_prob, score in search.ended:
        lines.append(f"  {log_prob:7.3f} {score:7.3f}  {printable(' '.join(tokens))}")
    return "\n".join([*lines, "", f"output: {printable(search.text)}"])


def heat_map(values: npt.NDArray[Any]) -> str:
    """Return a PNG as a data URI: blue above 0, red below, by the largest of the matrix."""
    shown = np.asarray(values, np.float64)[: PIXELS[0], : PIXELS[1]]
    finite = np.where(np.isfinite(shown), shown, 0.0)
    strength = np.abs(finite) / max(float(np.abs(finite).max()), 1e-9)  # (rows, columns)
    ink = np.where(finite[..., None] >= 0, BLUE, RED)  # (rows, columns, 3)
    colours = 255 - (255 - ink) * strength[..., None]
    colours = np.where(np.isfinite(shown)[..., None], colours, GREY).astype(np.uint8)
    png = io.BytesIO()
    imsave(png, colours, format="png")
    return f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"


def save_arrays(output: Path, walk: Walk) -> None:
    """Write every matrix, of all heads and layers, and every weight, by part and name."""
    arrays = {f"{one.part}/{one.name}": one.whole for one in (*walk.matrices, *walk.others)}
    content = io.BytesIO()
    np.savez(content, **arrays, **walk.weights)
    save_file(output, content.getvalue(), "--npz")


def save_page(
    output: Path, title: str, matrices: Iterable[MatrixStep],
    search: Search | None, document: Document | None,
) -> None:  # fmt: skip
    """Write the page. A matrix opens to its first numbers. Raises DataError where it cannot be."""
    parts = [
        (f"{part}{part_in(document, part)}", [_shown(one, document) for one in group])
        for part, group in groupby(matrices, key=lambda matrix: matrix.part)
    ]
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    page = environment.get_template("steps_page.html").render(
        title=printable(title), parts=parts, search=search
    )
    save_file(output, page, "--html")


def _shown(matrix: MatrixStep, document: Document | None) -> dict[str, Any]:
    """The fields of a matrix as the template has them."""
    fields: dict[str, Any] = {
        **{name: getattr(matrix, name) for name in ("name", "formula", "place")},
        "shape": " x ".join(map(str, matrix.shape)),
        "numbers": "\n".join(corner(matrix, TABLE)),
        "in_document": name_in(document, matrix),
    }
    if matrix.values is not None:
        rows, columns = matrix.values[: PIXELS[0], : PIXELS[1]].shape
        cell = max(3, min(12, NARROW // columns))  # pixels; a narrow matrix has wider cells
        size = {"width": cell * columns, "height": max(6, cell) * rows}
        fields |= {"picture": heat_map(matrix.values), **size}
    return fields


# --- names and sections in the five documents that `mt` implements (mt/README.md) -------------

Document = Literal["B", "C", "D", "M", "S"]
# Names of matrices, with the part in front where they differ by part; and sections of the parts.
NAMES, SECTIONS = "names.tsv", "sections.tsv"


@cache
def _table(file: str) -> dict[str, dict[str, str]]:
    """The cells of a table beside this file, by row and document."""
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    (_, *documents), *rows = (line.split("\t") for line in text.splitlines())
    return {name: dict(zip(documents, cells, strict=True)) for name, *cells in rows}


def _row(part: str) -> str:
    """The row of a part: `decoder feed-forward` of `decoder layer 2, feed-forward`."""
    kind = part.rpartition(", ")[2]
    return f"decoder {kind}" if part.startswith("decoder") else kind


def part_in(document: Document | None, part: str) -> str:
    """Say where the document has this part of the model; "" without a document."""
    sections = _table(SECTIONS).get(_row(part))
    if document is None or sections is None:  # a layer that is not shown
        return ""
    section = sections[document]
    return f"  ({document}, {section})" if section else f"  (not in {document})"


def name_in(document: Document | None, matrix: MatrixStep) -> str:
    """Return the document's name of a matrix; "" where it has none."""
    if document is None or f"({document}," not in part_in(document, matrix.part):
        return ""
    names, name = _table(NAMES), matrix.name
    return (names.get(f"{_row(matrix.part)}/{name}") or names.get(name, {})).get(document, "")
