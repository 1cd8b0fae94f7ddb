"""Names and sections of each matrix in the five documents that `mt` implements (mt/README.md)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from mt.inspect.steps import MatrixStep

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
