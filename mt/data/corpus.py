"""Files, data sets and hub names to sentence pairs, and what is wrong with them."""

from __future__ import annotations

import codecs
import difflib
import glob
import gzip
import logging
import re
import tempfile
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from mt.config.schema import named_sources
from mt.errors import DataError
from mt.files import sha256_of

if TYPE_CHECKING:
    from mt.config.schema import DataConfig, Source

# Suffix of a file -> the loader of the `datasets` library that reads it.
LOADERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}

# First bytes of what mt does not unpack -> the command that does.
FOREIGN = {
    b"\xfd7zXZ\x00": "xz -dk",
    b"\x28\xb5\x2f\xfd": "zstd -d",
    b"BZh91AY&SY": "bunzip2 -k",
    b"PK\x03\x04": "unzip",
}

# Where two files part is looked for in so many lines: about 200 MB of memory.
SHIFT_LINES = 2_000_000


def data_root(data: DataConfig) -> Path:
    """The folder where the relative paths of a `data` section start."""
    return Path(data.root or ".").expanduser()


def local_files(source: Source, root: Path) -> list[Path]:
    """The files on this machine that a source is read from; none for a hub name."""
    if source.path is None:
        return [_under(root, source.src), _under(root, source.tgt)]
    path = _under(root, source.path)
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return [path] if path.is_file() else []


def file_facts(path: Path) -> tuple[str, int | None]:
    """SHA-256 in hex of a file as it lies on disk, and its lines of text once unpacked.

    The lines are None where it is no text, such as a Parquet file.
    """
    with _reported(path, ""):
        digest = sha256_of(path)
    try:
        return digest, _count_lines(path, "")
    except DataError:
        return digest, None


@contextmanager
def open_text(path: Path, where: str = "") -> Iterator[BinaryIO]:
    """A text file as bytes; unpacked where its first bytes, not its name, say gzip.

    Raises `DataError`, beginning with `where`, when it cannot be opened or, later, read.
    """
    with _reported(path, where), open(path, "rb") as raw:
        head = raw.peek(10)
        if foreign := [command for magic, command in FOREIGN.items() if head.startswith(magic)]:
            raise DataError(
                f"{_at(where)}{path} is packed in a way that mt does not read; required is plain "
                f"text or gzip. Unpack it first: {foreign[0]} {path}"
            )
        if head.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield cast(BinaryIO, unpacked)
        else:
            yield raw


def read_lines(path: Path, where: str = "", errors: str = "strict") -> Iterator[str]:
    """The lines of a text file, plain or gzipped, one in memory at a time; see `decode_lines`."""
    with open_text(path, where) as file:
        yield from decode_lines(file, f"{_at(where)}{path}", errors)


def decode_lines(file: Iterable[bytes], name: str, errors: str = "strict") -> Iterator[str]:
    r"""Lines of UTF-8. A line ends at `\n` and nowhere else.

    One `\r` before the end (Windows) is dropped, and so is a byte-order mark at the start. Bytes
    that are no UTF-8 are a `DataError` with `name`, line and place, or with `errors="replace"`
    become U+FFFD.
    """
    for number, raw in enumerate(file, start=1):
        try:
            line = raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise DataError(_bad_utf8(name, number, raw, error.start)) from None
        yield line.removeprefix("\ufeff") if number == 1 else line


def read_pairs(source: Source, root: Path, where: str) -> Iterator[tuple[str, str]]:
    r"""The sentence pairs of a source, in order, in bounded memory; no side holds a `\n`.

    `where` names the source in messages, such as `data.train[0]`. Raises `DataError` for
    everything that makes the source unusable; unequal line counts are found at the end.
    """
    if source.path is None:
        yield from _text_pairs(source, root, where)
    else:
        yield from _row_pairs(source, root, where)


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
            next(_row_pairs(source, root, where, taste=True))
        except DataError as error:
            faults += str(error).split("\n")
    return faults


def _at(where: str) -> str:
    return f"{where}: " if where else ""


def _under(root: Path, name: str) -> Path:
    return root / Path(name).expanduser()


@contextmanager
def _reported(path: Path, where: str) -> Iterator[None]:
    """Turn what the operating system or gzip says about `path` into a `DataError`."""
    try:
        yield
    except IsADirectoryError:
        raise DataError(
            f"{_at(where)}{path} is a folder, a file is required. Name the file inside it, or for "
            "a data set written by save_to_disk set path to the folder and src, tgt to its columns."
        ) from None
    except FileNotFoundError:
        raise DataError(f"{_at(where)}there is no file {path.absolute()}.{_near(path)}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{_at(where)}{path} is a gzip file that is cut off or damaged ({error}). Fetch or "
            f"pack it again; `gzip -t {path}` tells when it is whole."
        ) from None
    except OSError as error:
        raise DataError(
            f"{_at(where)}{path} cannot be read: {error.strerror or error}. See that you have the "
            "right to read it (ls -l) and that its disk is there, or copy it elsewhere."
        ) from None


def _near(path: Path) -> str:
    """What lies near a path that does not exist, as the rest of a message."""
    folder = path.parent
    if not folder.is_dir():
        return f" Its folder {folder.absolute()} does not exist either."
    names = [entry.name for entry in folder.iterdir()]
    near = difflib.get_close_matches(path.name, names, n=3)
    return f" Near it: {', '.join(near)}." if near else ""


def _existing(name: str, root: Path, where: str) -> Path:
    path = _under(root, name)
    with _reported(path, where):
        if not path.exists():
            raise DataError(
                f"{where}: there is no file {path.absolute()} ({name!r} below data.root, which is "
                f"{str(root)!r}).{_near(path)} Correct the name, or data.root where paths start."
            )
    return path


def _bad_utf8(name: str, number: int, raw: bytes, offset: int) -> str:
    utf16 = number == 1 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    guess = "UTF-16" if utf16 else "WINDOWS-1252"
    return (
        f"{name}, line {number:,}, byte {offset:,} (the line's first is 0): "
        f"{raw[offset : offset + 4].hex(' ')} is not UTF-8. Convert the file; if it is "
        f"{guess}: iconv -f {guess} -t UTF-8 FILE > FILE.utf8"
    )


def _count_lines(path: Path, where: str) -> int:
    """Lines as `read_lines` counts and checks them, several times faster."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines, last = 0, b"\n"
    try:
        with open_text(path, where) as file:
            while block := file.read(1 << 20):
                decoder.decode(block)
                lines += block.count(b"\n")
                last = block[-1:]
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return sum(1 for _ in read_lines(path, where))  # raises, and names the line
    return lines + (last != b"\n")


def _text_pairs(source: Source, root: Path, where: str) -> Iterator[tuple[str, str]]:
    src_path = _existing(source.src, root, f"{where}.src")
    tgt_path = _existing(source.tgt, root, f"{where}.tgt")
    src_lines = read_lines(src_path, f"{where}.src")
    tgt_lines = read_lines(tgt_path, f"{where}.tgt")
    n = more_src = 0
    for src in src_lines:
        tgt = next(tgt_lines, None)
        if tgt is None:
            more_src = 1 + sum(1 for _ in src_lines)
            break
        n += 1
        yield src, tgt
    more_tgt = sum(1 for _ in tgt_lines)
    if faults := _count_faults(where, (src_path, n + more_src), (tgt_path, n + more_tgt)):
        raise DataError("\n".join(faults))


def _text_faults(source: Source, root: Path, where: str) -> list[str]:
    faults: list[str] = []
    counted: list[tuple[Path, int]] = []
    for side, name in (("src", source.src), ("tgt", source.tgt)):
        field = f"{where}.{side}"
        try:
            path = _existing(name, root, field)
            counted.append((path, _count_lines(path, field)))
        except DataError as error:
            faults.append(str(error))
    return faults or _count_faults(where, *counted)


def _count_faults(where: str, *counted: tuple[Path, int]) -> list[str]:
    """What is wrong with the line counts of the source and of the target file."""
    faults = [
        f"{where}.{side}: {path} is empty, at least one line is required. Name the file that holds the text."
        for side, (path, lines) in zip(("src", "tgt"), counted, strict=True)
        if not lines
    ]
    (src, n_src), (tgt, n_tgt) = counted
    if faults or n_src == n_tgt:
        return faults
    shift = first_shift(src, tgt, n_src - n_tgt)
    place = f"; first pair that looks shifted: line {shift:,}" if shift else ""
    return [
        f"{where}.tgt: {tgt} has {n_tgt:,} lines, {src} has {n_src:,}{place}. Line n of one file "
        "must be the translation of line n of the other: put back the line that is missing, or "
        "take out the one too many."
    ]


def first_shift(src: Path, tgt: Path, surplus: int) -> int | None:
    """The line, counted from 1, from which two text files seem out of step; None if not sure.

    `surplus` is how many lines `src` has more than `tgt`. Each line is compared, by length,
    numbers and question or exclamation mark, with its partner n and with the one that it would
    have if all surplus lines came before it. The sum of what the latter fits better is least where
    the files part; from there on it must rise by five standard deviations. Inside a gap nothing
    fits, so the line named may lie as many lines too late as are missing.
    """
    import numpy as np

    (length_s, *marks_s), (length_t, *marks_t) = _features(src), _features(tgt)
    at = np.arange(max(0, surplus), min(len(length_s), len(length_t), len(length_t) + surplus))
    usual = np.median(length_s) - np.median(length_t)

    def misfit(partner: Any) -> Any:
        cost = np.minimum(np.abs(length_s[at] - length_t[partner] - usual), 1.5)
        for mark_s, mark_t in zip(marks_s, marks_t, strict=True):
            cost += mark_s[at] != mark_t[partner]
        return cost

    gain = misfit(at) - misfit(at - surplus)
    place = int(np.argmin(np.cumsum(np.concatenate([[0.0], gain]))))
    after = gain[place:]
    if after.sum() <= 5 * np.sqrt(np.square(after).sum()):
        return None
    return int(at[place]) + 1


def _features(path: Path) -> list[Any]:
    """Of every line: its log length, a hash of its numbers, its final ? or !, as arrays."""
    import numpy as np

    lengths, numbers, ends = array("d"), array("L"), array("b")
    with open_text(path) as file:
        for line, _ in zip(file, range(SHIFT_LINES), strict=False):
            lengths.append(len(line) + 5)
            numbers.append(zlib.crc32(b" ".join(sorted(re.findall(rb"\d+", line)))))
            ends.append(b"?!".find(line.rstrip()[-1:] or b"."))
    return [np.log(np.array(lengths)), np.array(numbers), np.array(ends)]


def _row_pairs(
    source: Source, root: Path, where: str, taste: bool = False
) -> Iterator[tuple[str, str]]:
    """Pairs of two columns; with `taste` a hub data set is not fetched whole."""
    for number, row in enumerate(_rows(source, root, where, taste), start=1):
        if number == 1 and (faults := _column_faults(source, row, where)):
            raise DataError("\n".join(faults))
        yield (
            _cell(row, source.src, f"{where}.src", source.path, number),
            _cell(row, source.tgt, f"{where}.tgt", source.path, number),
        )


def _rows(source: Source, root: Path, where: str, taste: bool) -> Iterator[dict[str, Any]]:
    """The rows of a data set; whatever the library raises becomes a `DataError`."""
    path = _under(root, cast(str, source.path))
    n = 0
    try:
        if not path.is_file() or path.stat().st_size:  # the loaders stumble over an empty file
            for batch in _open_dataset(source, path, root, where, taste).iter(batch_size=1000):
                for cells in zip(*batch.values(), strict=True):
                    n += 1
                    yield dict(zip(batch, cells, strict=True))
    except DataError:
        raise
    except Exception as error:  # the library lets through whatever its many readers raise
        if path.is_file() and isinstance(error, UnicodeDecodeError):
            _count_lines(path, f"{where}.path")  # raises, and names the line
        raise DataError(_unreadable(source, path, where, error)) from error
    if n == 0:
        raise DataError(
            f"{where}.path: {path} holds no row, at least one is required. Name a data set or split that holds text."
        )


def _open_dataset(source: Source, path: Path, root: Path, where: str, taste: bool) -> Any:
    """A `Dataset` or `IterableDataset`: local folder, local file or hub name, in this order."""
    import datasets
    import huggingface_hub

    # One message is all that a user shall see of what goes wrong in there.
    for library in (datasets, huggingface_hub):
        library.utils.disable_progress_bars()
        logging.getLogger(library.__name__).setLevel(logging.CRITICAL)
    name = cast(str, source.path)
    if path.is_dir():
        return _saved_dataset(source, path, where)
    if path.exists():
        return _file_dataset(source, path, where)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or _loader(path):
        _existing(name, root, f"{where}.path")
    # Part of a split ("train[:1000]") cannot be had as a stream.
    streaming = taste and not set("[+") & set(source.split)
    return datasets.load_dataset(name, source.name, split=source.split, streaming=streaming)


def _loader(path: Path) -> str | None:
    return LOADERS.get(Path(path.name.removesuffix(".gz")).suffix)


def _file_dataset(source: Source, path: Path, where: str) -> Any:
    import datasets

    loader = _loader(path)
    if loader is None:
        raise DataError(
            f"{where}.path: {path} is of no kind that mt reads; required is {', '.join(LOADERS)} "
            "or a folder written by save_to_disk. For two line-aligned text files leave path out "
            "and set src and tgt to the files."
        )
    _require_split(source, path, where, ["train"])
    options = _csv_options(source, path, where) if loader == "csv" else {}
    # Streamed, so that nothing is copied; the scratch folder only takes the library's lock file.
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
    """Options under which every cell is text as it stands: no numbers, no "NA" turned into null.

    TSV has no quotes (IANA text/tab-separated-values): a quotation mark in it is one.
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
    said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if path.exists():
        return (
            f"{where}.path: {path} cannot be read through the datasets library: {said}. Mend or "
            "write the file again; every row needs the same columns."
        )
    return (
        f"{where}.path: {source.path!r} cannot be opened. Tried: {path.absolute()} (no such file "
        f"or folder), then the hub data set {source.path!r}, name {source.name!r}, split "
        f"{source.split!r} ({said}). Correct path, name or split; where there is no network, "
        "fetch the data set beforehand or name a local file."
    )


def _column_faults(source: Source, row: dict[str, Any], where: str) -> list[str]:
    if any(name.startswith("__index_level_") for name in row):
        return [
            f"{where}.path: {source.path}, row 1 has more cells than the first line names "
            "columns. Name every column in the first line."
        ]
    names = []
    for name, value in row.items():
        names += [f"{name}.{key}" for key in value] if isinstance(value, dict) else [name]
    faults = []
    for side, wanted in (("src", source.src), ("tgt", source.tgt)):
        if wanted not in names and _lookup(row, wanted) is None:
            near = difflib.get_close_matches(wanted, names, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else "."
            faults.append(
                f"{where}.{side}: {source.path} has no column {wanted!r}{meant} Set {side} to one "
                f"of its columns: {', '.join(map(repr, names))}."
            )
    return faults


def _lookup(row: dict[str, Any], column: str) -> Any:
    """The cell of a column whose dots may lead into nested columns; None where there is none."""
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _cell(row: dict[str, Any], column: str, where: str, path: str | None, number: int) -> str:
    cell = _lookup(row, column)
    if isinstance(cell, str):
        # Tokens know no lines: a line break inside a cell is white space like any other.
        return re.sub(r"\s*\n\s*", " ", cell) if "\n" in cell else cell
    found = "null" if cell is None else f"{type(cell).__name__} {str(cell)[:40]!r}"
    raise DataError(
        f"{where}: {path}, row {number:,} (the first is 1): column {column!r} holds {found}, text "
        "is required. Mend the row or take it out."
    )
