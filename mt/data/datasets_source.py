"""Read two columns of a data set through the `datasets` library.

A data set is a .jsonl, .json, .csv, .tsv or .parquet file, a folder written by save_to_disk, or a
name on the hub.
"""

from __future__ import annotations

import difflib
import glob
import logging
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mt.data.text_files import count_lines, existing_path, open_text, under
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.config.schema import Source

# Suffix of a file -> the loader of the `datasets` library that reads it.
LOADERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}


def read_columns(
    source: Source, root: Path, where: str, first_row_only: bool = False
) -> Iterator[tuple[str, str]]:
    """The (source, target) cells of a data set, row by row; no cell has a line break.

    With `first_row_only` a hub data set is streamed instead of downloaded whole. Raises `DataError`
    for everything that makes the data set unusable.
    """
    for number, row in enumerate(_rows(source, root, where, first_row_only), start=1):
        if number == 1 and (faults := _column_faults(source, row, where)):
            raise DataError("\n".join(faults))
        yield (
            _cell(row, source.src, f"{where}.src", source.path, number),
            _cell(row, source.tgt, f"{where}.tgt", source.path, number),
        )


def _rows(source: Source, root: Path, where: str, first_row_only: bool) -> Iterator[dict[str, Any]]:
    """The rows of a data set; every error of the library becomes a `DataError`."""
    path = under(root, cast(str, source.path))
    n_rows = 0
    try:
        if not path.is_file() or path.stat().st_size:  # the loaders fail on an empty file
            dataset = _open_dataset(source, path, root, where, first_row_only)
            for batch in dataset.iter(batch_size=1000):
                for cells in zip(*batch.values(), strict=True):
                    n_rows += 1
                    yield dict(zip(batch, cells, strict=True))
    except DataError:
        raise
    except Exception as error:  # the library passes on whatever its many readers raise
        if path.is_file() and isinstance(error, UnicodeDecodeError):
            count_lines(path, f"{where}.path")  # raises, and names the line
        raise DataError(_unreadable(source, path, where, error)) from error
    if n_rows == 0:
        raise DataError(
            f"{where}.path: {path} has no rows, at least one is required. Name a data set or split "
            "that contains text."
        )


def _open_dataset(source: Source, path: Path, root: Path, where: str, first_row_only: bool) -> Any:
    """A `Dataset` or `IterableDataset`: local folder, local file or hub name, in this order."""
    import datasets
    import huggingface_hub

    # Errors reach the user as one message of ours, without the libraries' own output.
    for library in (datasets, huggingface_hub):
        library.utils.disable_progress_bars()
        logging.getLogger(library.__name__).setLevel(logging.CRITICAL)
    name = cast(str, source.path)
    if path.is_dir():
        return _saved_dataset(source, path, where)
    if path.exists():
        return _file_dataset(source, path, where)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or _loader(path):
        existing_path(name, root, f"{where}.path")  # raises: no hub data set has such a name
    # A part of a split ("train[:1000]") cannot be streamed.
    streaming = first_row_only and not set("[+") & set(source.split)
    return datasets.load_dataset(name, source.name, split=source.split, streaming=streaming)


def _loader(path: Path) -> str | None:
    return LOADERS.get(Path(path.name.removesuffix(".gz")).suffix)


def _file_dataset(source: Source, path: Path, where: str) -> Any:
    import datasets

    loader = _loader(path)
    if loader is None:
        raise DataError(
            f"{where}.path: {path} is not of a type that mt reads; required is "
            f"{', '.join(LOADERS)} or a folder written by save_to_disk. For two line-aligned text "
            "files leave path out and set src and tgt to the files."
        )
    _require_split(source, path, where, ["train"])
    options = _csv_options(source, path, where) if loader == "csv" else {}
    # Streaming copies nothing to disk; the scratch folder only holds the library's lock file.
    with tempfile.TemporaryDirectory() as scratch:
        return datasets.load_dataset(
            loader,
            data_files={"train": glob.escape(str(path.absolute()))},
            split="train",
            streaming=True,
            cache_dir=scratch,
            **options,
        )


def _csv_options(source: Source, path: Path, where: str) -> dict[str, Any]:
    """Options of pandas under which every cell stays text: no numbers, no "NA" read as null.

    TSV has no quoting (IANA text/tab-separated-values): a quotation mark in it is a character.
    """
    with open_text(path, f"{where}.path") as file:
        windows = file.readline().endswith(b"\r\n")
    quoting: dict[str, Any] = {"sep": "\t", "quoting": 3} if ".tsv" in path.suffixes else {}
    return {
        "na_filter": False,
        "converters": {source.src: str, source.tgt: str},
        # Otherwise a lone \r inside a cell would end the row.
        "lineterminator": None if windows else "\n",
        **quoting,
    }


def _saved_dataset(source: Source, path: Path, where: str) -> Any:
    import datasets

    try:
        saved = datasets.load_from_disk(str(path))
    except FileNotFoundError:
        raise DataError(
            f"{where}.path: {path} is a folder that save_to_disk did not write. Name a file in "
            f"it ({', '.join(LOADERS)}), or save the data set there with save_to_disk."
        ) from None
    splits = saved if isinstance(saved, datasets.DatasetDict) else {"train": saved}
    _require_split(source, path, where, list(splits))
    return splits[source.split].with_format(None)


def _require_split(source: Source, path: Path, where: str, splits: list[str]) -> None:
    if source.split not in splits:
        raise DataError(
            f"{where}.split: {path} has no split {source.split!r}; set split to one that it has: "
            f"{', '.join(map(repr, splits))}."
        )


def _unreadable(source: Source, path: Path, where: str, error: Exception) -> str:
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if path.exists():
        return (
            f"{where}.path: {path} cannot be read with the datasets library: {reason}. Repair or "
            "write the file again; every row needs the same columns."
        )
    return (
        f"{where}.path: {source.path!r} cannot be opened. Tried: {path.absolute()} (no such file "
        f"or folder), then the hub data set {source.path!r}, name {source.name!r}, split "
        f"{source.split!r} ({reason}). Correct path, name or split; without a network, download "
        "the data set beforehand or name a local file."
    )


def _column_faults(source: Source, row: dict[str, Any], where: str) -> list[str]:
    """What is wrong with the columns that `source` names, as messages."""
    if any(name.startswith("__index_level_") for name in row):
        return [
            f"{where}.path: {source.path}, row 1 has more cells than the first line has column "
            "names. Name every column in the first line."
        ]
    names = []
    for name, value in row.items():
        names += [f"{name}.{key}" for key in value] if isinstance(value, dict) else [name]
    faults = []
    for side, wanted in (("src", source.src), ("tgt", source.tgt)):
        if wanted not in names and _lookup(row, wanted) is None:
            near = difflib.get_close_matches(wanted, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            faults.append(
                f"{where}.{side}: {source.path} has no column {wanted!r}{hint} Set {side} to one "
                f"of its columns: {', '.join(map(repr, names))}."
            )
    return faults


def _lookup(row: dict[str, Any], column: str) -> Any:
    """The cell of a column, whose dots may lead into nested columns; None if there is none."""
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _cell(row: dict[str, Any], column: str, where: str, path: str | None, number: int) -> str:
    cell = _lookup(row, column)
    if isinstance(cell, str):
        # A line break inside a cell is a space: text is handled in lines from here on.
        return re.sub(r"\s*\n\s*", " ", cell) if "\n" in cell else cell
    found = "null" if cell is None else f"{type(cell).__name__} {str(cell)[:40]!r}"
    raise DataError(
        f"{where}: {path}, row {number:,} (the first is 1): column {column!r} holds {found}, text "
        "is required. Correct the row or remove it."
    )
