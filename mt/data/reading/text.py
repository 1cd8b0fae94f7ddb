"""A text of a config, opened: its format, by names, folders and patterns, and its columns."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, get_args

from mt.config.data_schema import Source, SourceFormat
from mt.data.reading import text_files
from mt.data.reading.compression import PACKED, suffix_of, unchanged, unpacked_name
from mt.data.reading.text_files import Damage, FileRecords, matching_files, under
from mt.errors import DataError

Pairs: TypeAlias = Iterator[tuple[str, str]]
# Suffix of a file's name -> its format. All other names may be a side of a text, such as train.de.
SUFFIXES: dict[str, SourceFormat] = {
    **{".tsv": "tsv", ".txt": "tsv", ".csv": "csv", ".json": "json", ".jsonl": "jsonl"},
    **{".parquet": "parquet", ".tmx": "tmx", ".xlf": "xliff", ".xliff": "xliff"},
    **{".sdlxliff": "xliff", ".mxliff": "xliff", ".mqxliff": "xliff"},
}
# Files that tell about the others in a folder; of a hidden folder, all. license-2.de is a text.
_ABOUT = re.compile(
    r"(?i)(?:.*/)?(?:[.].*|_.*|(?:readme|licen[cs]e|citation|dataset_infos?|manifest)"
    r"(?:[.][\w.]+|\b[^/]*[.](?:txt|jsonl?|[ct]sv|parquet)(?:[.]\w+)?)?)"
)


def format_of(source: Source, root: Path) -> SourceFormat:
    """The format that a source says, else that of its name, or of the files in its folder."""
    if source.path is None:
        return "text"
    if source.format is not None:
        return source.format
    path = under(root, source.path)
    if not os.path.isdir(path):
        if suffix_of(path) in SUFFIXES:
            return SUFFIXES[suffix_of(path)]
        sides = (files_ending(source, name, root) for name in (source.src, source.tgt))
        if not os.path.exists(path) and any(sides):
            return "text"
    return next(iter(found_formats(source, root)), "dataset")


def found_formats(source: Source, root: Path) -> dict[SourceFormat, Path]:
    """The formats of the files in a folder or of a pattern, and the first file of each."""
    name = source.path or ""
    path = under(root, name)
    if is_saved_to_disk(path):
        return {"dataset": path}
    files = matching_files(name, root) if text_files.is_pattern(name) else []
    files = texts_in(path) if os.path.isdir(path) else [*filter(os.path.isfile, files)]
    first = {format_in_folder(source, file): file for file in reversed(files)}
    return {kind: first[kind] for kind in get_args(SourceFormat) if kind in first}


def is_saved_to_disk(path: Path) -> bool:
    return any(os.path.isfile(path / name) for name in ("dataset_dict.json", "state.json"))


def format_in_folder(source: Source, file: Path) -> SourceFormat | None:
    """The format of a file of a folder; a name that ends in a language is a side of a text."""
    endings = (f".{source.src}", f".{source.tgt}")
    return "text" if unpacked_name(file.name).endswith(endings) else SUFFIXES.get(suffix_of(file))


def texts_in(folder: Path) -> list[Path]:
    """The files in a folder without those that are about others, and without hidden ones."""
    files = sorted(filter(os.path.isfile, folder.rglob("*")))
    return [file for file in files if not _ABOUT.fullmatch(file.relative_to(folder).as_posix())]


def files_ending(source: Source, ending: str, root: Path) -> dict[tuple[str, ...], Path]:
    """The files whose names are `path`, a dot and the ending, plain or compressed."""
    path = under(root, source.path or "")
    files: dict[tuple[str, ...], Path] = {}
    if os.path.isdir(path):
        names = {file: unpacked_name(str(file.relative_to(path))) for file in texts_in(path)}
        named = {file: name for file, name in names.items() if name.endswith(f".{ending}")}
        return {(name.removesuffix(f".{ending}"),): file for file, name in named.items()}
    for packed in ("", *PACKED):
        name = f"{source.path}.{ending}{packed}"
        for key, file in by_wildcards(name, under(root, name), root).items():
            if file.exists():
                files.setdefault(key, file)
    return files


def by_wildcards(name: str, path: Path, root: Path) -> dict[tuple[str, ...], Path]:
    """Files by the text that the wildcards of `name` stand for; `()` where it has none."""
    if path.exists() or not text_files.is_pattern(name):
        return {(): path}
    pattern = re.escape(str(path)).replace(r"\*", "([^/]*)").replace(r"\?", "([^/])")
    matches = ((re.fullmatch(pattern, str(file)), file) for file in matching_files(name, root))
    return {match.groups(): file for match, file in matches if match}


# Where a row is, for messages ("data/train.jsonl, line 3"), and its cells by column name.
Row = tuple[str, Mapping[str, Any]]

LEFT_OUT = "rows left out that cannot be read"
# Halves of a UTF-16 pair: JSON can spell them as escapes, UTF-8 cannot hold them.
SURROGATES = re.compile("[\\ud800-\\udfff]")


class NoRowsError(DataError):
    """A data set has no row; of several files, one may have none."""


def lookup(row: Mapping[str, Any], column: str) -> Any:
    """The cell of a column, whose dots lead into nested ones; None without one, "" for a null."""
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


@dataclass(frozen=True)
class OpenedText(ABC):
    """A text that knows its format, files and pairs; `where` names it in messages."""

    source: Source
    root: Path
    where: str
    format: SourceFormat
    stream: bool = False  # a hub data set is not downloaded whole
    records: FileRecords | None = None  # gets those of text files that are read to their end
    damage: Damage = field(default_factory=Damage)  # gets what is left out or replaced

    @property
    def path(self) -> Path:
        return under(self.root, self.source.path or "")

    @property
    @abstractmethod
    def files(self) -> list[Path]:
        """The files on this machine that it is read from; none for a hub name."""

    @abstractmethod
    def pairs(self) -> Pairs:
        """Read the pairs; see `read_pairs`."""

    def check_format(self) -> None:
        """Raise `DataError` for a key of another format, and for two formats, neither chosen."""
        table = ".csv, .tsv, .txt files", ("csv", "tsv")
        hub = "data sets of the hub", ("dataset", *["parquet"] * os.path.isdir(self.path))
        for key, (kind, formats) in {"delimiter": table, "quoting": table, "name": hub}.items():
            if getattr(self.source, key) and self.format not in formats:
                found = f"only for {kind}, but path is {self.source.path}. Leave {key} out."
                raise DataError(f"{self.where}.{key}: {found}")
        is_chosen = self.source.path is None or self.source.format is not None
        kinds = {} if is_chosen else found_formats(self.source, self.root)
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
        """The files of its format, of a folder or a pattern."""
        path, is_folder = self.path, os.path.isdir(self.path)
        files = texts_in(path) if is_folder else matching_files(self.source.path or "", self.root)
        files = [*filter(os.path.isfile, files)]
        fitting = [file for file in files if format_in_folder(self.source, file) == self.format]
        return fitting if fitting or is_folder else files

    def pairs(self) -> Pairs:
        """The (source, target) cells of each row; no cell has a line break.

        Raises `NoRowsError`, or `DataError` where a column is missing or a cell is not text. With
        `errors: skip` such rows are left out, unless all are.
        """
        where, source, row = self.where, self.source, None
        fault: DataError = NoRowsError(
            f"{where}.path: {source.path} has no rows, at least one is required. Name a data set "
            "or split that contains text."
        )
        n_pairs = 0
        for place, row in self.rows():
            src, tgt = lookup(row, source.src), lookup(row, source.tgt)
            try:
                if not (isinstance(src, str) and isinstance(tgt, str)):
                    raise DataError("\n".join(self._column_faults(place, row)))
                src, tgt = self._text(src, "src", place), self._text(tgt, "tgt", place)
            except DataError as error:
                if source.errors != "skip":
                    raise
                self.damage.add(LEFT_OUT, place)
                fault = fault if n_pairs else error
                continue
            n_pairs += 1
            yield src, tgt
        if not n_pairs and row is None and self.damage.count(LEFT_OUT):
            messages = "; ".join(self.damage.messages())
            fault = DataError(f"{where}.path: {source.path} has no row left. {messages}.")
        if not n_pairs:
            raise fault

    def leave_out(self, place: str, fault: str) -> None:
        """Count a row as left out where the source says so, else raise DataError."""
        if self.source.errors != "skip":
            raise DataError(f"{self.where}.path: {place}: {fault}") from None
        self.damage.add(LEFT_OUT, place)

    def _text(self, cell: str, side: str, place: str) -> str:
        """A cell with spaces for its line breaks: text is handled in lines from here on."""
        try:
            cell.encode()
        except UnicodeEncodeError as error:
            if self.source.errors != "replace":
                raise DataError(
                    f"{self.where}.{side}: {place}: character {error.start + 1:,} of the text is "
                    "half of a surrogate pair, not a character. Correct the row or remove it."
                ) from None
            self.damage.add("texts with halves of surrogate pairs, read with U+FFFD", place)
            cell = SURROGATES.sub("\ufffd", cell)
        first, *rest = cell.split("\n")
        if not rest:
            return cell
        between = filter(None, map(str.strip, rest[:-1]))
        return " ".join([first.rstrip(), *between, rest[-1].lstrip()])

    def _column_faults(self, place: str, row: Mapping[str, Any]) -> Iterator[str]:
        """Messages about the cells of a row that is not two texts."""
        names: list[str] = []
        for name, value in row.items():
            names += [f"{name}.{key}" for key in value] if isinstance(value, Mapping) else [name]
        for side, column in (("src", self.source.src), ("tgt", self.source.tgt)):
            cell = lookup(row, column)
            where = f"{self.where}.{side}: {place}"
            if cell is None:
                yield (
                    f"{where}: there is no column {column!r}. Set {side} to one of its columns: "
                    f"{', '.join(map(repr, names))} (a number from 1 if line 1 has no names); "
                    "where only some rows lack it set errors: skip."
                )
            elif not isinstance(cell, str):
                yield (
                    f"{where}: column {column!r} holds {type(cell).__name__} {str(cell)[:40]!r}, "
                    "text is required. Correct the row or remove it."
                )

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """The rows in order, one at a time."""


@dataclass(frozen=True)
class RowFiles(RowText):
    """A text of files that are read one after the other."""

    def rows(self) -> Iterator[Row]:
        """The rows of all files."""
        existing = text_files.existing_path(self.source.path or "", self.root, f"{self.where}.path")
        self.require_split(existing, ["train"])
        files, empty = self.files, list[NoRowsError]()
        for file in files:
            try:
                with unchanged(file, f"{self.where}.path"):
                    yield from self.rows_of(file)
            except NoRowsError as error:
                empty.append(error)
                self.damage.add("files without a pair, left out", str(file))
        if empty and len(empty) == len(files):
            raise empty[0]

    @abstractmethod
    def rows_of(self, file: Path) -> Iterator[Row]:
        """The rows of a file in order, one at a time."""
