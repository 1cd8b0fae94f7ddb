"""Names and sections of each matrix in the five documents that `mt` implements (mt/README.md)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from mt.inspect.steps import CROSS, MatrixStep

Document = Literal["B", "C", "D", "M", "S"]
# The names of matrices, with the part in front where they differ by part; sections of parts of the
# model, without the number of their layer.
NAMES, SECTIONS = "names.tsv", "sections.tsv"
# fmt: off
# What names of the decoder have instead, and then those of its cross-attention, in B alone.
IN_DECODER = {
    "Z_X^encoder": "Z_Y^(decoder_out)", "x + sub_layer2(x)": "y + sub_layer3(y)",
    "Z'_X": "Z''_Y", "Z_X": "Z_Y", "+ X": "+ Y", "Z_ℓ": "Z_Y^(ℓ)", "R of the next encoder": "",
}
IN_CROSS = {"S_ℓ": "Q_ℓ K_ℓ^T / √64", "[Z_1 ... Z_8]": "", "Z_Y^(ℓ)": "", "_ℓ": "^(decoder)"}
# fmt: on


@cache
def _table(file: str) -> dict[str, dict[str, str]]:
    """The cells of a table beside this file, by row and document."""
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    (_, *documents), *rows = (line.split("\t") for line in text.splitlines())
    return {name: dict(zip(documents, cells, strict=True)) for name, *cells in rows}


def part_in(document: Document | None, part: str) -> str:
    """Say where the document has this part of the model; "" without a document."""
    kind = part.rpartition(", ")[2]
    sections = _table(SECTIONS).get(f"decoder {kind}" if part.startswith("decoder") else kind)
    if document is None or sections is None:  # a layer that is not shown
        return ""
    section = sections[document]
    return f"  ({document}, {section})" if section else f"  (not in {document})"


def name_in(document: Document | None, matrix: MatrixStep) -> str:
    """Return the document's name of a matrix; "" where it has none."""
    if document is None or f"({document}," not in part_in(document, matrix.part):
        return ""
    kind, names = matrix.part.rpartition(", ")[2], _table(NAMES)
    cells = names.get(f"{kind}/{matrix.name}") or names.get(matrix.name, {})
    name = cells.get(document, "")
    if matrix.part.startswith("decoder"):
        for written, there in (IN_DECODER | (IN_CROSS if kind == CROSS else {})).items():
            name = name.replace(written, there)
    return name
