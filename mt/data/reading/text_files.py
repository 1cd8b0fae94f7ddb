"""Read text files: plain or compressed, UTF-8, line by line; say where a file is damaged."""

from __future__ import annotations

import codecs
import glob
import hashlib
import io
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from mt.data.reading.compression import open_text, os_errors_as_data_errors, packed_suffix, prefix
from mt.errors import DataError
from mt.files import sha256_of

# A file's path -> its size, mtime_ns, sha256 as it is on disk, and lines (None: it is not text).
FileRecords: TypeAlias = dict[str, dict[str, Any]]

# Bytes that are read at a time, and the longest line of a corpus: more is no sentence.
BLOCK = 1 << 15
MAX_LINE = 10_000_000


@dataclass
class Damage:
    """Faults of a corpus that was read all the same: the kind -> how often, and where."""

    kinds: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, kind: str, place: str) -> None:
        count, first = self.kinds.get(kind, (0, place))
        self.kinds[kind] = count + 1, first

    def count(self, kind: str) -> int:
        return self.kinds.get(kind, (0, ""))[0]

    def messages(self) -> list[str]:
        kinds = self.kinds.items()
        return [f"{kind}: {count:,}, the first in {first}" for kind, (count, first) in kinds]


def read_lines(
    path: Path, where: str = "", errors: str = "strict", records: FileRecords | None = None,
    damage: Damage | None = None, limit: int = sys.maxsize,
) -> Iterator[str]:  # fmt: skip
    """The lines of a text file, plain or compressed; `errors` as in `decode_lines`.

    `records` gets those of the file once it is read to its end. A line of more than `limit` bytes
    is a `DataError`; with errors skip, half a surrogate pair stands for it.
    """
    digest = None if records is None else hashlib.sha256()
    number = 0
    with open_text(path, where, digest) as file:
        stat = path.stat()
        for raw in _blocks_of_lines(file, f"{prefix(where)}{path}", errors, limit):
            if number == 0:
                refuse_wide(raw[:1000], f"{prefix(where)}{path}")
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                is_plain = isinstance(getattr(file, "raw", None), io.FileIO)
                while errors == "strict" and not is_plain and file.read(BLOCK):
                    pass  # damage of a compressed file is told first
                raw_lines = raw.split(b"\n")
                yield from decode_lines(raw_lines, str(path), errors, damage, number + 1, where)
                number += len(raw_lines)
                continue
            if number == 0:
                text = text.removeprefix("\ufeff")
            if "\r" in text:
                text = text.removesuffix("\r").replace("\r\n", "\n")
            lines = text.split("\n")
            number += len(lines)
            yield from lines
    if records is not None and digest:
        records[str(path)] = _record(stat, digest.hexdigest(), number)


def _blocks_of_lines(file: BinaryIO, name: str, errors: str, limit: int) -> Iterator[bytes]:
    r"""Blocks of whole lines, without the last `\n`; one decoding for all of them is fast."""
    pending: list[bytes] = []  # a line whose end has not been read yet
    number = 1
    # read1 gives what there is: a pipe may be slow.
    while block := file.read1(BLOCK):  # type: ignore[attr-defined]
        head, newline, rest = block.rpartition(b"\n")
        if newline:
            lines = b"".join((*pending, head))
            yield lines
            number += lines.count(b"\n") + 1
            pending = [rest] if rest else []
        else:
            pending.append(rest)
            if len(pending) * BLOCK > limit and sum(map(len, pending)) > limit:
                if errors != "skip":
                    raise DataError(
                        f"{name}, line {number:,} is longer than {limit:,} bytes, so it is no "
                        "sentence; most often line feeds are missing. Correct the file, or leave "
                        "out such lines with errors: skip."
                    )
                pending = [b"\xff"]  # not UTF-8
    if pending:
        yield b"".join(pending)


def file_record(
    path: Path, where: str, known: FileRecords, text: bool = False, errors: str = "strict"
) -> dict[str, Any]:
    """The record of a file, the known one if size and time are the same; `text`: must be lines."""
    with os_errors_as_data_errors(path, where):
        stat = path.stat()
    old = known.get(str(path))
    if old and (old["size"], old["mtime_ns"]) == (stat.st_size, stat.st_mtime_ns):
        return old
    try:
        new: FileRecords = {}
        count_lines(path, where, errors, new)
        return new[str(path)]
    except DataError:
        if text:
            raise
        with os_errors_as_data_errors(path, where):
            return _record(stat, sha256_of(path), None)


def _record(stat: os.stat_result, sha256: str, lines: int | None) -> dict[str, Any]:
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "sha256": sha256, "lines": lines}


class NotTextError(DataError):
    """A file of other bytes than text in UTF-8, of which `errors` would make nonsense."""


def decode_lines(
    file: Iterable[bytes], name: str, errors: str = "strict", damage: Damage | None = None,
    start: int = 1, where: str = "",
) -> Iterator[str]:  # fmt: skip
    r"""Decode lines of UTF-8, the first of which has the number `start`. A line ends at `\n` only.

    One `\r` before the `\n` and a byte-order mark at the start are dropped. Bytes that are not
    UTF-8 are a `DataError`; with errors "replace" U+FFFD, counted in `damage`; with "skip" halves
    of surrogate pairs, which `is_damaged` finds. Compressed text and UTF-16: NotTextError.
    """
    for number, raw in enumerate(file, start=start):
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
            refuse_wide(raw, f"{prefix(where)}{name}")
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            if number == 1 and (suffix := packed_suffix(raw[:10])):  # of stdin
                raise NotTextError(
                    f"{prefix(where)}{name} is compressed ({suffix}). Name the file instead, or "
                    "unpack it first"
                ) from None
            match errors:
                case "strict":
                    bad = raw[error.start : error.start + 4].hex(" ")
                    raise DataError(
                        f"{prefix(where)}{name}, line {number:,}, byte {error.start:,} (the line's "
                        f"first is 0): {bad} is not UTF-8. Convert the file; if it is "
                        "WINDOWS-1252: iconv -f WINDOWS-1252 -t UTF-8 FILE > FILE.utf8"
                    ) from None
                case "replace":
                    line = raw.decode(errors="replace")
                    if damage is not None:
                        kind = "lines that are not UTF-8, read with U+FFFD"
                        damage.add(kind, f"{name}, line {number:,}")
                case "skip":
                    line = raw.decode(errors="surrogateescape")
                case _:
                    raise AssertionError(f"errors: {errors!r}") from None
        yield line.removeprefix("\ufeff") if number == 1 else line


def is_damaged(text: str) -> bool:
    """Whether a text has halves of surrogate pairs, such as bytes that are not UTF-8 become."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def count_lines(
    path: Path, where: str, errors: str = "strict", records: FileRecords | None = None
) -> int:
    return sum(1 for _ in read_lines(path, where, errors, records, limit=MAX_LINE))


def normalize_line(line: str) -> str:
    """Normalise a line as tokens see it: Unicode NFC, one space for white space, none at the ends.

    White space is what `str.split` takes for it (also no-break spaces, tabs, U+0085, U+2028) and
    U+2581, SentencePiece's sign for a space. With a vocabulary that `mt` trained,
    `decode(encode(line)) == normalize_line(line)`.
    """
    return " ".join(unicodedata.normalize("NFC", line).replace("\u2581", " ").split())


def existing_path(name: str, root: Path, where: str) -> Path:
    """The path of a name in the config below `root`; `DataError` where nothing is there."""
    path = under(root, name)
    with os_errors_as_data_errors(path, where):
        if not path.exists() and matching_files(name, root) in ([], [path]):
            if name.startswith("data/demo/"):
                raise DataError(
                    "data: this config trains on the demonstration corpus of a checkout, data/demo,"
                    " which is not in this folder. For text of your own write a config: 'recipe: "
                    "base.yaml' or another one, and below 'data:' src_lang, tgt_lang, train: "
                    "FILE.tsv or {src: FILE, tgt: FILE}, and valid: {split: 1000}."
                )
            raise DataError(
                f"{where}: there is no file {path.absolute()} ({name!r} below data.root, which is "
                f"{str(root)!r}). Correct the name, or data.root where paths start."
            )
        if path.is_fifo():  # a second reader would wait for ever
            raise DataError(
                f"{where}: {path} is a pipe, which can be read only once; a corpus is read several "
                "times. Write it to a file first, which may be compressed, and name that."
            )
    return path


def matching_files(name: str, root: Path) -> list[Path]:
    """The files of a name in the config: one, or those that match it where it has `*` or `?`."""
    path = under(root, name)
    if os.path.exists(path) or not is_pattern(name):
        return [path]
    return sorted(Path(match) for match in glob.glob(str(path).replace("[", "[[]")))


def is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def require_text(path: Path, where: str) -> None:
    r"""Raise `DataError` for what decodes without an error, but is not lines of UTF-8.

    Line ends that are `\r` only, and UTF-16 without a byte-order mark: half of Latin text is NUL.
    """
    with open_text(path, where) as file:
        start = file.read(1 << 16)
        has_lines = b"\n" in start or b"\r" not in start[:-1] or b"\n" in file.read(1 << 20)
    refuse_wide(start, f"{prefix(where)}{path}")
    if 10 * start.count(0) > len(start):
        raise DataError(
            f"{prefix(where)}{path}: every tenth byte or more is NUL, so it is not text in UTF-8"
        )
    if not has_lines:
        raise DataError(
            f"{prefix(where)}{path}: its line ends are carriage returns (\\r) without line feeds, "
            "so it would be read as one line. Convert it: tr '\\r' '\\n' < FILE > FILE.lf"
        )


def under(root: Path, name: str) -> Path:
    return root / Path(name).expanduser()


def refuse_wide(start: bytes, name: str) -> None:
    """Raise NotTextError for UTF-16 and UTF-32, which may decode as UTF-8 full of NUL."""
    if wide := wide_encoding(start):
        raise NotTextError(
            f"{name} is {wide}. Convert it: iconv -f {wide} -t UTF-8 FILE > FILE.utf8"
        )


def wide_encoding(start: bytes) -> str:
    """The encoding of a text in UTF-32 or UTF-16, by its mark, else by its NUL bytes; or ""."""
    for name in ("UTF32_LE", "UTF32_BE", "UTF16_LE", "UTF16_BE"):
        if start.startswith(getattr(codecs, f"BOM_{name}")):
            return f"UTF-{name[3:5]}"
    if len(start) < 8 or 10 * start.count(0) < len(start):
        return ""
    names = "UTF-32LE UTF-32BE UTF-16LE UTF-16BE"
    texts = {start.decode(name, "replace"): name for name in names.split()}
    best = max(texts, key=lambda t: sum("\0" < c < "\x7f" for c in t) - t[:-1].count("\ufffd"))
    return "" if "\0" in best else texts[best]
