"""Read text files: plain or gzip, UTF-8, one line at a time; say where a file is damaged."""

from __future__ import annotations

import codecs
import difflib
import glob
import gzip
import hashlib
import io
import os
import re
import unicodedata
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from mt.errors import DataError
from mt.files import sha256_of

# First bytes of compressed files that mt does not read -> the command that unpacks them.
OTHER_COMPRESSION = {
    b"\xfd7zXZ\x00": "xz -dk",
    b"\x28\xb5\x2f\xfd": "zstd -d",
    b"BZh91AY&SY": "bunzip2 -k",
    b"PK\x03\x04": "unzip",
}

# Suffix of a table file -> delimiter between its cells.
DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
TABLE_SUFFIXES = (".jsonl", ".json", *DELIMITERS)

# A file's path -> its size, mtime_ns, sha256 as it is on disk, and lines (None: it is not text).
FileRecords: TypeAlias = dict[str, dict[str, Any]]

# `first_shifted_line` looks at this many lines: about 200 MB of memory.
MAX_LINES_COMPARED = 2_000_000


class _HashedFile(io.FileIO):
    """A file whose bytes are hashed as they are read."""

    def __init__(self, path: Path, digest: Any) -> None:
        super().__init__(path)
        self._digest = digest

    def readinto(self, buffer: Any) -> int | None:
        """Read into a buffer, as `io.BufferedReader` asks for."""
        count = super().readinto(buffer)
        self._digest.update(memoryview(buffer)[:count])
        return count


@contextmanager
def open_text(path: Path, where: str = "", digest: Any = None) -> Iterator[BinaryIO]:
    """Open a text file as bytes, unpacking gzip (recognised by its first bytes, not its name).

    `digest`, of hashlib, gets the bytes of the file as it is on disk. Raises `DataError`, opening
    with `where`, when the file cannot be opened or, later, read.
    """
    with (
        os_errors_as_data_errors(path, where),
        io.BufferedReader(_HashedFile(path, digest)) if digest else open(path, "rb") as raw,
    ):
        head = raw.peek(10)
        for magic, command in OTHER_COMPRESSION.items():
            if head.startswith(magic):
                raise DataError(
                    f"{prefix(where)}{path} is compressed in a format that mt does not read; "
                    f"plain text or gzip is required. Unpack it first: {command} {path}"
                )
        if head.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield cast(BinaryIO, unpacked)
        else:
            yield raw


def read_lines(
    path: Path, where: str = "", errors: str = "strict", records: FileRecords | None = None
) -> Iterator[str]:
    """The lines of a text file, plain or gzip, in bounded memory; see `decode_lines`.

    `records`, where given, gets those of the file when it has been read to its end.
    """
    digest = None if records is None else hashlib.sha256()
    number = 0
    with open_text(path, where, digest) as file:
        stat = path.stat()
        lines = decode_lines(file, f"{prefix(where)}{path}", errors)
        for line in lines:
            number += 1
            yield line
    if records is not None and digest:
        records[str(path)] = _record(stat, digest.hexdigest(), number)


def file_record(path: Path, where: str, known: FileRecords, text: bool = False) -> dict[str, Any]:
    """The record of a file: the known one while its size and time are the same, else a new one.

    Raises `DataError` where it cannot be read. `text` says that it must also be lines of UTF-8.
    """
    with os_errors_as_data_errors(path, where):
        stat = path.stat()
    old = known.get(str(path))
    if old and (old["size"], old["mtime_ns"]) == (stat.st_size, stat.st_mtime_ns):
        return old
    digest = hashlib.sha256()
    try:
        lines = count_lines(path, where, digest)
    except DataError:
        if text:
            raise
        with os_errors_as_data_errors(path, where):
            return _record(stat, sha256_of(path), None)
    return _record(stat, digest.hexdigest(), lines)


def _record(stat: os.stat_result, sha256: str, lines: int | None) -> dict[str, Any]:
    size, mtime = stat.st_size, stat.st_mtime_ns
    return {"size": size, "mtime_ns": mtime, "sha256": sha256, "lines": lines}


def decode_lines(file: Iterable[bytes], name: str, errors: str = "strict") -> Iterator[str]:
    r"""Decode lines of UTF-8. A line ends at `\n` and nowhere else.

    One `\r` before the `\n` (Windows) and a byte-order mark at the start are dropped. Bytes that
    are not UTF-8 raise a `DataError` with `name`, line and byte; with `errors="replace"` they
    become U+FFFD.
    """
    for number, raw in enumerate(file, start=1):
        try:
            line = raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise DataError(_not_utf8(name, number, raw, error.start)) from None
        yield line.removeprefix("\ufeff") if number == 1 else line


def count_lines(path: Path, where: str, digest: Any = None) -> int:
    """Number of lines as `read_lines` gives them, and the same errors, several times faster."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines = 0
    last_byte = b"\n"
    try:
        with open_text(path, where, digest) as file:
            while block := file.read(1 << 20):
                decoder.decode(block)
                lines += block.count(b"\n")
                last_byte = block[-1:]
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return sum(1 for _ in read_lines(path, where))  # raises, and names the line
    return lines + (last_byte != b"\n")


def normalize_line(line: str) -> str:
    """Normalise a line as tokens see it: `decode(encode(line)) == normalize_line(line)`.

    Unicode NFC; white space at the ends is dropped, and every run of white space inside becomes one
    space. White space is what `str.split` takes for it (also no-break spaces, tabs, U+0085, U+2028)
    and U+2581, SentencePiece's sign for a space. Nothing else changes.
    """
    return " ".join(unicodedata.normalize("NFC", line).replace("\u2581", " ").split())


def existing_path(name: str, root: Path, where: str) -> Path:
    """The path of a name in the config below `root`; `DataError` where nothing is there."""
    path = under(root, name)
    with os_errors_as_data_errors(path, where):
        if not path.exists() and matching_files(name, root) in ([], [path]):
            raise DataError(
                f"{where}: there is no file {path.absolute()} ({name!r} below data.root, which is "
                f"{str(root)!r}).{_similar_names(path)} Correct the name, or data.root where paths "
                "start."
            )
    return path


def matching_files(name: str, root: Path) -> list[Path]:
    """The files of a name in the config: one, or those that match it where it has `*` or `?`."""
    path = under(root, name)
    if path.exists() or not is_pattern(name):
        return [path]
    return sorted(Path(match) for match in glob.glob(str(path).replace("[", "[[]")))


def is_pattern(name: str) -> bool:
    """Whether a name in the config stands for several files, such as `part-*.de.gz`."""
    return "*" in name or "?" in name


def suffix_of(path: Path) -> str:
    """The suffix of a file's name, in lower case, without that of gzip."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def require_text(path: Path, where: str) -> None:
    r"""Raise `DataError` where the beginning of a file shows that it is not lines of UTF-8.

    Both cases decode without an error: line ends that are `\r` only, as on old Macintoshes, and
    UTF-16 without a byte-order mark, in which every other byte of Latin text is NUL.
    """
    with open_text(path, where) as file:
        start = file.read(1 << 16)
        has_lines = b"\n" in start or b"\r" not in start[:-1] or b"\n" in file.read(1 << 20)
    if 10 * start.count(0) > len(start):
        raise DataError(
            f"{prefix(where)}{path}: every tenth byte or more is NUL, so it is not text in UTF-8. "
            "If it is UTF-16: iconv -f UTF-16LE -t UTF-8 FILE > FILE.utf8"
        )
    if not has_lines:
        raise DataError(
            f"{prefix(where)}{path}: its line ends are carriage returns (\\r) without line feeds, "
            "so it would be read as one line. Convert it: tr '\\r' '\\n' < FILE > FILE.lf"
        )


def under(root: Path, name: str) -> Path:
    """The path of a name in the config: absolute, or relative to `root`."""
    return root / Path(name).expanduser()


def prefix(where: str) -> str:
    """The opening of a message about the config field `where`, empty where there is none."""
    return f"{where}: " if where else ""


@contextmanager
def os_errors_as_data_errors(path: Path, where: str) -> Iterator[None]:
    """Turn the errors of the operating system and of gzip about `path` into a `DataError`."""
    try:
        yield
    except IsADirectoryError:
        raise DataError(
            f"{prefix(where)}{path} is a folder, a file is required. Name the file inside it, or "
            "for a data set written by save_to_disk set path to the folder and src, tgt to its "
            "columns."
        ) from None
    except FileNotFoundError:
        raise DataError(
            f"{prefix(where)}there is no file {path.absolute()}.{_similar_names(path)}"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{prefix(where)}{path} is a gzip file that is truncated or damaged ({error}). Fetch "
            f"or compress it again; `gzip -t {path}` checks it."
        ) from None
    except OSError as error:
        raise DataError(
            f"{prefix(where)}{path} cannot be read: {error.strerror or error}. Check that you have "
            "the right to read it (ls -l) and that its disk is mounted, or copy it elsewhere."
        ) from None


def _similar_names(path: Path) -> str:
    """Files with names like that of a missing file, as the rest of a message."""
    folder = path.parent
    if not folder.is_dir():
        return f" Its folder {folder.absolute()} does not exist either."
    names = [entry.name for entry in folder.iterdir()]
    similar = difflib.get_close_matches(path.name, names, n=3)
    return f" Similar names there: {', '.join(similar)}." if similar else ""


def _not_utf8(name: str, number: int, raw: bytes, offset: int) -> str:
    utf16 = number == 1 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    guess = "UTF-16" if utf16 else "WINDOWS-1252"
    return (
        f"{name}, line {number:,}, byte {offset:,} (the line's first is 0): "
        f"{raw[offset : offset + 4].hex(' ')} is not UTF-8. Convert the file; if it is "
        f"{guess}: iconv -f {guess} -t UTF-8 FILE > FILE.utf8"
    )


def first_shifted_line(src: Path, tgt: Path, surplus: int) -> int | None:
    """The line, from 1, where two aligned text files get out of step; None if that is not clear.

    `surplus` is how many lines `src` has more than `tgt`. Each line is compared, by length,
    numbers and final question or exclamation mark, with line n of the other file and with the line
    that it would belong to if all surplus lines came before it. The cumulative sum of the
    difference is lowest where the files get out of step; after it the sum must rise by five
    standard deviations. If several lines are missing, the result may be late by as many lines.
    """
    import numpy as np

    src_length, *src_marks = _line_features(src)
    tgt_length, *tgt_marks = _line_features(tgt)
    first = max(0, surplus)
    end = min(len(src_length), len(tgt_length), len(tgt_length) + surplus)
    lines = np.arange(first, end)
    usual_difference = np.median(src_length) - np.median(tgt_length)

    def mismatch(partners: Any) -> Any:
        cost = np.minimum(np.abs(src_length[lines] - tgt_length[partners] - usual_difference), 1.5)
        for src_mark, tgt_mark in zip(src_marks, tgt_marks, strict=True):
            cost += src_mark[lines] != tgt_mark[partners]
        return cost

    gain = mismatch(lines) - mismatch(lines - surplus)
    place = int(np.argmin(np.cumsum(np.concatenate([[0.0], gain]))))
    after = gain[place:]
    if after.sum() <= 5 * np.sqrt(np.square(after).sum()):
        return None
    return int(lines[place]) + 1


def _line_features(path: Path) -> list[Any]:
    """Log length, hash of the numbers, and final ? or ! of each line, as three arrays."""
    import numpy as np

    lengths = array("d")
    numbers = array("L")
    ends = array("b")
    with open_text(path) as file:
        for line, _ in zip(file, range(MAX_LINES_COMPARED), strict=False):
            lengths.append(len(line) + 5)
            numbers.append(zlib.crc32(b" ".join(sorted(re.findall(rb"\d+", line)))))
            ends.append(b"?!".find(line.rstrip()[-1:] or b"."))
    return [np.log(np.array(lengths)), np.array(numbers), np.array(ends)]
