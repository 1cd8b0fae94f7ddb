"""A text of a config, opened: what the texts of all formats have in common."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mt.data.reading.columns import Row, select_pairs
from mt.data.reading.compression import unchanged
from mt.data.reading.formats import format_in_folder, found_formats, texts_in
from mt.data.reading.text_files import Damage, FileRecords, existing_path, matching_files, under
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.config.data_schema import SourceFormat
    from mt.config.schema import Source


@dataclass(frozen=True)
class OpenedText(ABC):
    """A text that knows its format, files and pairs; `where` names it in messages."""

    source: Source
    root: Path
    where: str
    format: SourceFormat

    @property
    def path(self) -> Path:
        """The path of `source.path`: of a file, of a folder, or a pattern of several."""
        return under(self.root, self.source.path or "")

    @property
    @abstractmethod
    def files(self) -> list[Path]:
        """The files on this machine that it is read from; none for a hub name."""

    @abstractmethod
    def pairs(
        self, records: FileRecords | None, damage: Damage, stream: bool
    ) -> Iterator[tuple[str, str]]:
        """Read the pairs; see `read_pairs`."""

    def require_one_format(self) -> None:
        """Raise `DataError` where a folder or pattern has two formats, and none is chosen."""
        if self.source.path is None or self.source.format is not None:
            return
        kinds = found_formats(self.source, self.root)
        is_folder = os.path.isdir(self.path)
        if len(kinds) > 1 and (is_folder or self.format != "text"):
            shown = ", ".join(f"{kind} ({file})" for kind, file in kinds.items())
            raise DataError(
                f"{self.where}.path: the {'folder' if is_folder else 'pattern'} {self.path} has "
                f"files of {len(kinds)} formats, one is required: {shown}. Set format to the one "
                "to read, or name the files (FOLDER/*SUFFIX)."
            )

    def require_split(self, path: Path, splits: list[str]) -> None:
        """Raise `DataError` if its split is not among these."""
        if self.source.split not in splits:
            raise DataError(
                f"{self.where}.split: {path} has no split {self.source.split!r}; set split to one "
                f"that it has: {', '.join(map(repr, splits))}."
            )


@dataclass(frozen=True)
class RowText(OpenedText):
    """A text whose pairs are two cells of each row."""

    @property
    def files(self) -> list[Path]:
        """Those of its format, of a folder or a pattern."""
        if os.path.isdir(self.path):
            files = texts_in(self.path)
            return [file for file in files if format_in_folder(self.source, file) == self.format]
        files = [*filter(os.path.isfile, matching_files(self.source.path or "", self.root))]
        fitting = [file for file in files if format_in_folder(self.source, file) == self.format]
        return fitting or files

    def pairs(
        self, records: FileRecords | None, damage: Damage, stream: bool
    ) -> Iterator[tuple[str, str]]:
        """The pairs of all rows."""
        for key in ("delimiter", "quoting"):
            if getattr(self.source, key) and self.format not in ("tsv", "csv"):
                raise DataError(
                    f"{self.where}.{key}: only for .csv, .tsv, .txt files, but path is "
                    f"{self.source.path}. Leave {key} out."
                )
        rows = self.rows(records, damage, stream)
        return select_pairs(rows, self.source, self.where, damage)

    @abstractmethod
    def rows(self, records: FileRecords | None, damage: Damage, stream: bool) -> Iterator[Row]:
        """The rows in order, one at a time."""


@dataclass(frozen=True)
class RowFiles(RowText):
    """A text of files that are read one after the other."""

    def rows(self, records: FileRecords | None, damage: Damage, stream: bool) -> Iterator[Row]:
        """The rows of all files."""
        existing = existing_path(self.source.path or "", self.root, f"{self.where}.path")
        self.require_split(existing, ["train"])
        for file in self.files:
            with unchanged(file, f"{self.where}.path"):
                yield from self.rows_of(file, records, damage)

    @abstractmethod
    def rows_of(self, file: Path, records: FileRecords | None, damage: Damage) -> Iterator[Row]:
        """The rows of a file in order, one at a time."""
