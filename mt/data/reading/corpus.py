"""The sentence pairs of a corpus: from line-aligned text files, files of pairs or a data set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import assert_never

from mt.data.reading.columns import Row, select_pairs
from mt.data.reading.compression import unchanged
from mt.data.reading.datasets_source import read_dataset, require_split
from mt.data.reading.formats import aligned_files, format_of, require_one_format, side_files
from mt.data.reading.formats import local_files as local_files
from mt.data.reading.table_files import DELIMITERS, read_table
from mt.data.reading.text_files import (
    MAX_LINE,
    Damage,
    FileRecords,
    count_lines,
    existing_path,
    file_record,
    first_shifted_line,
    is_damaged,
    read_lines,
    require_text,
    under,
)
from mt.data.reading.xml_files import read_units
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.config.plan import DataPlan
    from mt.config.schema import Source


def read_pairs(
    source: Source,
    root: Path,
    where: str,
    stream: bool = False,
    records: FileRecords | None = None,
    damage: Damage | None = None,
) -> Iterator[tuple[str, str]]:
    r"""The sentence pairs of a source, in order, in bounded memory; no side contains a `\n`.

    `where` names the source in messages, such as `data.train[0]`. With `stream` a hub data set is
    not downloaded whole. `records` gets those of every text file that is read to its end, `damage`
    what was left out or replaced. Raises `DataError` for everything that makes the source unusable;
    unequal line counts are found at the end.
    """
    damage = Damage() if damage is None else damage
    require_one_format(source, root, where)
    if format_of(source, root) == "text":
        require_split(source, under(root, source.path or source.src), where, ["train"])
        for src, tgt in aligned_files(source, root, where):
            yield from _aligned_lines(src, tgt, source.errors, where, records, damage)
    else:
        rows = _rows(source, root, where, stream, records, damage)
        yield from select_pairs(rows, source, where, damage)


def training_pairs(data: DataPlan) -> Iterator[tuple[str, str]]:
    """(source, target) lines of all corpora, as they are stored."""
    for corpus in data.corpora:
        yield from read_pairs(corpus.source, data.root, corpus.name)


def _rows(
    source: Source,
    root: Path,
    where: str,
    stream: bool,
    records: FileRecords | None,
    damage: Damage,
) -> Iterator[Row]:
    """The rows of the files or the data set at `path`."""
    kind = format_of(source, root)
    for key in ("delimiter", "quoting"):
        if getattr(source, key) and kind not in DELIMITERS:
            raise DataError(
                f"{where}.{key}: only for .csv, .tsv, .txt files, but path is {source.path}. Leave "
                f"{key} out."
            )
    if kind == "parquet" or kind == "dataset":
        yield from read_dataset(source, root, where, stream)
        return
    require_split(source, existing_path(source.path or "", root, f"{where}.path"), where, ["train"])
    for file in local_files(source, root):
        with unchanged(file, f"{where}.path"):
            match kind:
                case "tmx" | "xliff":
                    yield from read_units(file, source, where, damage)
                case "tsv" | "csv" | "json" | "jsonl":
                    yield from read_table(file, source, where, records, damage)
                case "text":
                    raise AssertionError("text has no rows")
                case _:
                    assert_never(kind)


def _aligned_lines(
    src_path: Path,
    tgt_path: Path,
    errors: str,
    where: str,
    records: FileRecords | None,
    damage: Damage,
) -> Iterator[tuple[str, str]]:
    require_text(src_path, f"{where}.src")
    require_text(tgt_path, f"{where}.tgt")
    src_lines = read_lines(src_path, f"{where}.src", errors, records, damage, MAX_LINE)
    tgt_lines = read_lines(tgt_path, f"{where}.tgt", errors, records, damage, MAX_LINE)
    n_pairs = 0
    src_surplus = 0
    with unchanged(src_path, f"{where}.src"), unchanged(tgt_path, f"{where}.tgt"):
        for src in src_lines:
            tgt = next(tgt_lines, None)
            if tgt is None:
                src_surplus = 1 + sum(1 for _ in src_lines)
                break
            n_pairs += 1
            if errors == "skip" and (is_damaged(src) or is_damaged(tgt)):
                place = f"{src_path}, line {n_pairs:,}"
                damage.add("pairs left out that are not UTF-8 or have endless lines", place)
                continue
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
    for side in ("src", "tgt"):
        field = f"{where}.{side}"
        try:
            for path in side_files(source, side, root, field).values():
                require_text(path, field)
                record = file_record(path, field, records, text=True, errors=source.errors)
                records[str(path)] = record
                lines[path] = record["lines"] or count_lines(path, field, errors=source.errors)
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
    """Messages about the (path, number of lines) of the source and the target file."""
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
