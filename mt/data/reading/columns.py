"""Pick the source and the target column out of the rows of a data set."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt.data.reading.text_files import DELIMITERS, suffix_of
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.config.schema import Source

# Where a row is, for messages ("data/train.jsonl, line 3"), and its cells by column name.
Row = tuple[str, Mapping[str, Any]]


def select_pairs(rows: Iterable[Row], source: Source, where: str) -> Iterator[tuple[str, str]]:
    """The (source, target) cells of each row; no cell has a line break.

    Raises `DataError` where there is no row, a column is missing or a cell is not text.
    """
    row: Mapping[str, Any] | None = None
    for place, row in rows:
        src = lookup(row, source.src)
        tgt = lookup(row, source.tgt)
        if isinstance(src, str) and isinstance(tgt, str):
            yield _text(src, f"{where}.src", place), _text(tgt, f"{where}.tgt", place)
        else:
            raise DataError("\n".join(_column_faults(source, place, row, where)))
    if row is None:
        raise DataError(
            f"{where}.path: {source.path} has no rows, at least one is required. Name a data set "
            "or split that contains text."
        )


def lookup(row: Mapping[str, Any], column: str) -> Any:
    """The cell of a column, whose dots may lead into nested columns; None if there is none.

    A null is an empty text, as an empty line is: nobody has translated it.
    """
    value: Any = row
    for part in [column] if column in row else column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return "" if value is None else value


def _text(cell: str, where: str, place: str) -> str:
    """A cell with spaces for its line breaks: text is handled in lines from here on."""
    try:
        cell.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: {place}: character {error.start + 1:,} of the text is half of a surrogate "
            "pair, not a character. Correct the row or remove it."
        ) from None
    return re.sub(r"\s*\n\s*", " ", cell) if "\n" in cell else cell


def _column_faults(source: Source, place: str, row: Mapping[str, Any], where: str) -> list[str]:
    """What is wrong with the cells of a row that is not two texts, as messages."""
    names: list[str] = []
    for name, value in row.items():
        names += [f"{name}.{key}" for key in value] if isinstance(value, Mapping) else [name]
    faults = []
    for side, column in (("src", source.src), ("tgt", source.tgt)):
        cell = lookup(row, column)
        if column in names and not isinstance(cell, str):
            found = f"{type(cell).__name__} {str(cell)[:40]!r}"
            faults.append(
                f"{where}.{side}: {place}: column {column!r} holds {found}, text is required. "
                "Correct the row or remove it."
            )
        elif not isinstance(cell, str):
            near = difflib.get_close_matches(column, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            has_first_line = suffix_of(Path(str(source.path))) in DELIMITERS
            number = has_first_line and not names[0].isdecimal()
            faults.append(
                f"{where}.{side}: {place}: there is no column {column!r}{hint} Set {side} to one "
                f"of its columns: {', '.join(map(repr, names))}"
                f"{', or to its number, from 1, if these are no names' if number else ''}."
            )
    return faults
