"""Pick the source and the target column out of the rows of a data set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mt.data.reading.text_files import Damage
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.config.schema import Source

# Where a row is, for messages ("data/train.jsonl, line 3"), and its cells by column name.
Row = tuple[str, Mapping[str, Any]]

LEFT_OUT = "rows left out that cannot be read"
# Halves of a UTF-16 pair: JSON can spell them as escapes, UTF-8 cannot hold them.
SURROGATES = re.compile("[\\ud800-\\udfff]")


class NoRowsError(DataError):
    """A data set has no row; of several files, one may have none."""


def select_pairs(
    rows: Iterable[Row], source: Source, where: str, damage: Damage
) -> Iterator[tuple[str, str]]:
    """The (source, target) cells of each row; no cell has a line break.

    Raises `NoRowsError` where there is no row, `DataError` where a column is missing or a cell is
    not text. Where the source says `errors: skip`, such rows are left out, unless all are.
    """
    row: Mapping[str, Any] | None = None
    fault: DataError = NoRowsError(
        f"{where}.path: {source.path} has no rows, at least one is required. Name a data set "
        "or split that contains text."
    )
    n_pairs = 0
    for place, row in rows:
        src = lookup(row, source.src)
        tgt = lookup(row, source.tgt)
        try:
            if not (isinstance(src, str) and isinstance(tgt, str)):
                raise DataError("\n".join(_column_faults(source, place, row, where, n_pairs > 0)))
            src = _text(src, f"{where}.src", place, source.errors, damage)
            tgt = _text(tgt, f"{where}.tgt", place, source.errors, damage)
        except DataError as error:
            if source.errors != "skip":
                raise
            damage.add(LEFT_OUT, place)
            fault = fault if n_pairs else error
            continue
        n_pairs += 1
        yield src, tgt
    if not n_pairs and row is None and damage.count(LEFT_OUT):
        raise DataError(
            f"{where}.path: {source.path} has no row left. {'; '.join(damage.messages())}."
        )
    if not n_pairs:
        raise fault


def lookup(row: Mapping[str, Any], column: str) -> Any:
    """The cell of a column, whose dots may lead into nested columns; None if there is none.

    A null, also on the way, is an empty text, as an empty line is: nobody has translated it.
    """
    parts = [column] if column in row else column.split(".")
    nested = row.get("translation", ())  # the type that the datasets library has for translations
    if parts[0] not in row and (nested is None or isinstance(nested, Mapping)):
        parts = ["translation", column]
    value: Any = row
    for part in parts:
        if value is None:
            break
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return "" if value is None else value


def _text(cell: str, where: str, place: str, errors: str, damage: Damage) -> str:
    """A cell with spaces for its line breaks: text is handled in lines from here on."""
    try:
        cell.encode()
    except UnicodeEncodeError as error:
        if errors != "replace":
            raise DataError(
                f"{where}: {place}: character {error.start + 1:,} of the text is half of a "
                "surrogate pair, not a character. Correct the row or remove it."
            ) from None
        damage.add("texts with halves of surrogate pairs, read with U+FFFD", place)
        cell = SURROGATES.sub("\ufffd", cell)
    first, *rest = cell.split("\n")
    if not rest:
        return cell
    between = filter(None, map(str.strip, rest[:-1]))
    return " ".join([first.rstrip(), *between, rest[-1].lstrip()])


def _column_faults(
    source: Source, place: str, row: Mapping[str, Any], where: str, is_known: bool
) -> list[str]:
    """Messages about the cells of a row that is not two texts.

    `is_known`: an earlier row has both columns, so this one lacks a key.
    """
    names: list[str] = []
    for name, value in row.items():
        names += [f"{name}.{key}" for key in value] if isinstance(value, Mapping) else [name]
    faults = []
    for side, column in (("src", source.src), ("tgt", source.tgt)):
        cell = lookup(row, column)
        if cell is not None and not isinstance(cell, str):
            shown = f"{type(cell).__name__} {str(cell)[:40]!r}"
            faults.append(
                f"{where}.{side}: {place}: column {column!r} holds {shown}, text is required. "
                "Correct the row or remove it."
            )
        elif cell is None and is_known:
            faults.append(
                f"{where}.{side}: {place}: this row has no {column!r}, as the rows before it have. "
                "Correct the row or remove it, or set errors: skip to leave such rows out."
            )
        elif cell is None:
            faults.append(
                f"{where}.{side}: {place}: there is no column {column!r}. Set {side} to one of its "
                f"columns: {', '.join(map(repr, names))} (numbers from 1 in a table without names)"
                "; where only some rows lack it set errors: skip."
            )
    return faults
