"""Rows of table files: JSON Lines, JSON, CSV, TSV and tab-separated text, plain or compressed."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from typing_extensions import assert_never

from mt.data.reading.compression import suffix_of
from mt.data.reading.text import LEFT_OUT, SUFFIXES, Row, RowFiles
from mt.data.reading.text_files import MAX_LINE, read_lines, require_text
from mt.errors import DataError

# Format of a table file -> delimiter between its cells.
DELIMITERS = {"tsv": "\t", "csv": ","}


@dataclass(frozen=True)
class TableText(RowFiles):
    """Table files; of all but `.json` lists one row at a time."""

    def rows_of(self, file: Path) -> Iterator[Row]:
        """The rows of a file, in order."""
        kind = self.source.format or SUFFIXES.get(suffix_of(file))
        limit = sys.maxsize if kind == "json" else MAX_LINE
        errors, where = self.source.errors, f"{self.where}.path"
        require_text(file, where)
        lines = read_lines(file, where, errors, self.records, self.damage, limit)
        match kind:
            case "jsonl":
                return self._json_lines(lines, file)
            case "json":
                return self._json_rows(lines, file)
            case "csv" | "tsv":
                return self._delimited_rows(lines, file, DELIMITERS[kind])
            case _:
                raise AssertionError(f"{kind} is no table")

    def _json_lines(self, lines: Iterable[str], path: Path) -> Iterator[Row]:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            place = f"{path}, line {number:,}"
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(f"found {type(row).__name__}")
                yield place, row
            except (ValueError, RecursionError) as error:
                hint = "; a file that is one list must be named .json" if line[0] == "[" else ""
                fault = (
                    'one JSON object is required, such as {"de": "ja", "en": "yes"}; this cannot '
                    f"be read ({error}). Correct the line or remove it{hint}."
                )
                self.leave_out(place, fault)

    def _json_rows(self, lines: Iterator[str], path: Path) -> Iterator[Row]:
        """The rows of a list in a `.json` file."""
        text = "\n".join(lines)
        try:
            rows = json.loads(text) if text.strip() else []
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{self.where}.path: {path} is not JSON ({error}). Write a list of objects; where "
                "it has one object per line, set format to jsonl."
            ) from None
        if not isinstance(rows, list):
            raise DataError(
                f"{self.where}.path: {path} holds one {type(rows).__name__}; a list of "
                "objects is required (pandas: to_json with orient='records'), or one object per "
                "line and format: jsonl."
            )
        for number, row in enumerate(rows, start=1):
            place = f"{path}, row {number:,} (the first is 1)"
            if isinstance(row, dict):
                yield place, row
            else:
                required = 'an object is required, such as {"de": "ja", "en": "yes"}'
                found = f"{required}, found {type(row).__name__}. Correct it, or remove it."
                self.leave_out(place, found)

    def _delimited_rows(self, lines: Iterator[str], path: Path, usual: str) -> Iterator[Row]:
        """Rows of CSV or TSV. The first line names the columns, unless src and tgt are numbers."""
        delimiter = self.source.delimiter or usual
        quoting = self.source.quoting or ("csv" if usual == DELIMITERS["csv"] else "none")
        match quoting:
            case "csv":
                rows = self._quoted_cells(lines, delimiter, path)
            case "none":  # a quotation mark is a character
                numbered = enumerate(lines, start=1)
                rows = ((number, line.split(delimiter)) for number, line in numbered if line)
            case _:
                assert_never(quoting)
        if (first := next(rows, None)) is None:
            return
        line, names = first
        wanted = {self.source.src, self.source.tgt}
        if all(map(str.isdecimal, wanted)) and not wanted <= set(names):
            names = [str(number) for number in range(1, len(names) + 1)]
            rows = chain([first], rows)
        for column in sorted(wanted):
            if names.count(column) > 1:
                raise DataError(
                    f"{self.where}.path: {path}, line {line:,} names the column {column!r} "
                    f"{names.count(column)} times. Give each column another name."
                )
        for line, cells in rows:
            place = f"{path}, line {line:,}"
            if len(cells) == len(names):
                yield place, dict(zip(names, cells, strict=True))
            else:
                fault = (
                    f"as many cells as in the first line are required ({len(names):,}), found "
                    f"{len(cells):,}. Correct the line; where cells contain the delimiter or line "
                    f"breaks in quotation marks set quoting to csv, else to none (here {quoting})."
                )
                self.leave_out(place, fault)

    def _quoted_cells(
        self, lines: Iterator[str], delimiter: str, path: Path
    ) -> Iterator[tuple[int, list[str]]]:
        """(first line, cells) of each row of CSV; a quoted cell may contain line breaks."""
        # The csv module would end a row at a carriage return inside a cell.
        with_ends = (line.replace("\r", " ") + "\n" for line in lines)
        csv.field_size_limit(max(MAX_LINE, csv.field_size_limit()))
        reader = csv.reader(with_ends, delimiter=delimiter, strict=True)
        start, has_names = 1, False  # which the first row may hold
        cells: list[str] | None = []
        while cells is not None:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                if self.source.errors != "skip" or not has_names or "field limit" in str(error):
                    raise DataError(
                        f"{self.where}.path: {path}, line {start:,}: this row is no CSV ({error}). "
                        "A quotation mark that is not closed makes one cell of many lines, and one "
                        'inside a quoted cell is written twice (""). Correct the row, or set '
                        "quoting to none where quotation marks are part of the text."
                    ) from None
                for number in range(start, reader.line_num + 1):
                    self.damage.add(LEFT_OUT, f"{path}, line {number:,}")
                cells = []  # the reader goes on after the line in which the fault is
            if cells:
                yield start, cells
                has_names = True
            start = reader.line_num + 1
