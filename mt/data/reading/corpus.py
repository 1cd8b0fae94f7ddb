"""The sentence pairs of a corpus: from line-aligned text files, table files or a data set."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mt.data.reading.columns import Row, select_pairs
from mt.data.reading.datasets_source import read_dataset
from mt.data.reading.table_files import read_table
from mt.data.reading.text_files import (
    DELIMITERS,
    TABLE_SUFFIXES,
    FileRecords,
    count_lines,
    existing_path,
    file_record,
    first_shifted_line,
    is_pattern,
    matching_files,
    read_lines,
    require_text,
    suffix_of,
    under,
)
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.config.schema import DataConfig, Source


def data_root(data: DataConfig) -> Path:
    """The folder that the relative paths of a `data` section start from."""
    return Path(data.root or ".").expanduser()


def local_files(source: Source, root: Path) -> list[Path]:
    """The files on this machine that a source is read from; none for a hub name."""
    if source.path is None:
        return [*matching_files(source.src, root), *matching_files(source.tgt, root)]
    path = under(root, source.path)
    files = sorted(path.rglob("*")) if path.is_dir() else matching_files(source.path, root)
    return [file for file in files if file.is_file()]


def read_pairs(
    source: Source,
    root: Path,
    where: str,
    stream: bool = False,
    records: FileRecords | None = None,
) -> Iterator[tuple[str, str]]:
    r"""The sentence pairs of a source, in order, in bounded memory; no side contains a `\n`.

    `where` names the source in messages, such as `data.train[0]`. With `stream` a hub data set is
    not downloaded whole. `records` gets those of every text file that is read to its end. Raises
    `DataError` for everything that makes the source unusable; unequal line counts are found at the
    end.
    """
    if source.path is None:
        for src, tgt in aligned_files(source, root, where):
            yield from _aligned_lines(src, tgt, where, records)
    else:
        rows = _rows(source, source.path, root, where, stream, records)
        yield from select_pairs(rows, source, where)


def training_pairs(data: DataConfig) -> Iterator[tuple[str, str]]:
    """(source, target) lines of all corpora in `data.train`."""
    root = data_root(data)
    for number, source in enumerate(data.train):
        yield from read_pairs(source, root, f"data.train[{number}]")


# --- rows with columns ------------------------------------------------------------------------


def _rows(
    source: Source, path: str, root: Path, where: str, stream: bool, records: FileRecords | None
) -> Iterator[Row]:
    """The rows of the table files or the data set at `path`."""
    suffix = suffix_of(Path(path))
    for key in ("delimiter", "quoting"):
        if getattr(source, key) and suffix not in DELIMITERS:
            raise DataError(
                f"{where}.{key}: only for {', '.join(DELIMITERS)} files, but path is {path}. Leave "
                f"{key} out."
            )
    if suffix not in TABLE_SUFFIXES or under(root, path).is_dir():
        yield from read_dataset(source, root, where, stream)
        return
    existing_path(path, root, f"{where}.path")
    if source.split != "train":
        raise DataError(
            f"{where}.split: {under(root, path)} has no split {source.split!r}; set split to one "
            "that it has: 'train'."
        )
    for file in matching_files(path, root):
        yield from read_table(file, source, where, records)


# --- line-aligned text files ------------------------------------------------------------------


def aligned_files(source: Source, root: Path, where: str) -> list[tuple[Path, Path]]:
    """The text files of a source: (source, target) paths that belong together.

    In names with `*` or `?` those files belong together for which they stand for the same text.
    """
    src = _by_wildcards(source.src, root, f"{where}.src")
    tgt = _by_wildcards(source.tgt, root, f"{where}.tgt")
    for side, own, other in (("src", src, tgt), ("tgt", tgt, src)):
        if alone := sorted(other.keys() - own.keys()):
            raise DataError(
                f"{where}.{side}: no file belongs to {other[alone[0]]}; with * and ? in a name "
                "each source file needs a target file for which they stand for the same text. "
                "Add the file, or correct the name."
            )
    return [(src[key], tgt[key]) for key in sorted(src)]


def _by_wildcards(name: str, root: Path, where: str) -> dict[tuple[str, ...], Path]:
    """Files by the text that the wildcards of `name` stand for; `()` where it has none."""
    path = existing_path(name, root, where)
    if path.exists() or not is_pattern(name):
        return {(): path}
    pattern = re.escape(str(path)).replace(r"\*", "([^/]*)").replace(r"\?", "([^/])")
    matches = ((re.fullmatch(pattern, str(file)), file) for file in matching_files(name, root))
    return {match.groups(): file for match, file in matches if match}


def _aligned_lines(
    src_path: Path, tgt_path: Path, where: str, records: FileRecords | None
) -> Iterator[tuple[str, str]]:
    require_text(src_path, f"{where}.src")
    require_text(tgt_path, f"{where}.tgt")
    src_lines = read_lines(src_path, f"{where}.src", records=records)
    tgt_lines = read_lines(tgt_path, f"{where}.tgt", records=records)
    n_pairs = 0
    src_surplus = 0
    for src in src_lines:
        tgt = next(tgt_lines, None)
        if tgt is None:
            src_surplus = 1 + sum(1 for _ in src_lines)
            break
        n_pairs += 1
        yield src, tgt
    tgt_surplus = sum(1 for _ in tgt_lines)
    counted = (src_path, n_pairs + src_surplus), (tgt_path, n_pairs + tgt_surplus)
    if faults := _line_count_faults(where, *counted):
        raise DataError("\n".join(faults))


def aligned_files_faults(source: Source, root: Path, where: str, records: FileRecords) -> list[str]:
    """The faults of line-aligned files, read whole: existence, UTF-8, line ends, line counts.

    Files that have not changed since their `records` were taken are not read; those of others are
    added.
    """
    faults: list[str] = []
    lines: dict[Path, int] = {}
    for side, name in (("src", source.src), ("tgt", source.tgt)):
        field = f"{where}.{side}"
        try:
            for path in _by_wildcards(name, root, field).values():
                require_text(path, field)
                records[str(path)] = record = file_record(path, field, records, text=True)
                lines[path] = record["lines"] or count_lines(path, field)
        except DataError as error:
            faults.append(str(error))
    if faults:
        return faults
    try:
        pairs = aligned_files(source, root, where)
    except DataError as error:
        return [str(error)]
    for src, tgt in pairs:
        faults += _line_count_faults(where, (src, lines[src]), (tgt, lines[tgt]))
    return faults


def _line_count_faults(where: str, src: tuple[Path, int], tgt: tuple[Path, int]) -> list[str]:
    """What is wrong with the (path, number of lines) of the source and the target file."""
    faults = [
        f"{where}.{side}: {path} is empty, at least one line is required. Name the file that "
        "contains the text."
        for side, (path, lines) in (("src", src), ("tgt", tgt))
        if not lines
    ]
    src_path, n_src = src
    tgt_path, n_tgt = tgt
    if faults or n_src == n_tgt:
        return faults
    line = first_shifted_line(src_path, tgt_path, n_src - n_tgt)
    hint = f"; first pair that looks shifted: line {line:,}" if line else ""
    return [
        f"{where}.tgt: {tgt_path} has {n_tgt:,} lines, {src_path} has {n_src:,}{hint}. Line n of "
        "one file must be the translation of line n of the other: restore the missing line, or "
        "remove the surplus one."
    ]
