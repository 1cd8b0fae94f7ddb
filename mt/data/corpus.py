"""The sentence pairs of a corpus, from two text files or a data set, and the faults in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mt.config.schema import named_sources
from mt.data.datasets_source import read_columns
from mt.data.text_files import (
    count_lines,
    existing_path,
    first_shifted_line,
    os_errors_as_data_errors,
    read_lines,
    under,
)
from mt.errors import DataError
from mt.files import sha256_of

if TYPE_CHECKING:
    from mt.config.schema import DataConfig, Source


def data_root(data: DataConfig) -> Path:
    """The folder that the relative paths of a `data` section start from."""
    return Path(data.root or ".").expanduser()


def local_files(source: Source, root: Path) -> list[Path]:
    """The files on this machine that a source is read from; none for a hub name."""
    if source.path is None:
        return [under(root, source.src), under(root, source.tgt)]
    path = under(root, source.path)
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return [path] if path.is_file() else []


def file_facts(path: Path) -> tuple[str, int | None]:
    """SHA-256 in hex of a file as it is on disk, and its number of lines once unpacked.

    The number of lines is None where the file is not text, such as a Parquet file.
    """
    with os_errors_as_data_errors(path, ""):
        digest = sha256_of(path)
    try:
        return digest, count_lines(path, "")
    except DataError:
        return digest, None


def read_pairs(source: Source, root: Path, where: str) -> Iterator[tuple[str, str]]:
    r"""The sentence pairs of a source, in order, in bounded memory; no side contains a `\n`.

    `where` names the source in messages, such as `data.train[0]`. Raises `DataError` for
    everything that makes the source unusable; unequal line counts are found at the end.
    """
    if source.path is None:
        yield from _text_pairs(source, root, where)
    else:
        yield from read_columns(source, root, where)


def check_sources(data: DataConfig) -> list[str]:
    """Every fault of the data that can be found before training, each as one message.

    Text files are read once (existence, UTF-8, line counts); of data sets only the first row.
    """
    root = data_root(data)
    faults: list[str] = []
    for where, source in named_sources(data):
        if source.path is None:
            faults += _text_faults(source, root, where)
            continue
        try:
            next(read_columns(source, root, where, first_row_only=True))
        except DataError as error:
            faults += str(error).split("\n")
    return faults


def _text_pairs(source: Source, root: Path, where: str) -> Iterator[tuple[str, str]]:
    src_path = existing_path(source.src, root, f"{where}.src")
    tgt_path = existing_path(source.tgt, root, f"{where}.tgt")
    src_lines = read_lines(src_path, f"{where}.src")
    tgt_lines = read_lines(tgt_path, f"{where}.tgt")
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


def _text_faults(source: Source, root: Path, where: str) -> list[str]:
    """The faults of two line-aligned files, without going through their pairs."""
    faults: list[str] = []
    counted: list[tuple[Path, int]] = []
    for side, name in (("src", source.src), ("tgt", source.tgt)):
        field = f"{where}.{side}"
        try:
            path = existing_path(name, root, field)
            counted.append((path, count_lines(path, field)))
        except DataError as error:
            faults.append(str(error))
    return faults or _line_count_faults(where, *counted)


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
