"""Open files that may be compressed; the errors of a disk and of damaged files as messages."""

from __future__ import annotations

import bz2
import io
import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from mt.errors import DataError

# Suffix of a compressed file -> the command that makes one. zip is not read: it holds files.
PACKED = {".gz": "gzip", ".xz": "xz", ".zst": "zstd", ".bz2": "bzip2"}
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".xz": lzma.LZMADecompressor, ".bz2": bz2.BZ2Decompressor
}  # fmt: skip
_OFFICE = (".docx", ".xlsx", ".pptx", ".odt", ".ods", ".odp", ".epub")  # zip archives, too
_BLOCK = 1 << 18
# What reading a damaged file raises, in the packages that unpack: BadGzipFile, zlib.error, ...
_DAMAGE = {"BadGzipFile", "EOFError", "IsalError", "LZMAError", "ZstdError", "error"}


class _HashedFile(io.FileIO):
    """A file whose bytes are hashed as they are read."""

    def __init__(self, path: Path, digest: Any) -> None:
        super().__init__(path)
        self._digest = digest

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self._digest.update(memoryview(buffer)[:count])
        return count


class _Members(io.RawIOBase):
    """The text of an xz or bzip2 file; a damaged member, which ends it for Python, is an error."""

    def __init__(self, raw: BinaryIO, decompressor: Callable[[], Any]) -> None:
        self._raw = raw
        self._new = decompressor
        self._member = decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer, as `io.BufferedReader` asks for."""
        text = b""
        while not text:
            if self._member.eof:
                packed = self._member.unused_data.lstrip(b"\0")  # which may stand between members
                while not packed and (block := self._raw.read(_BLOCK)):
                    packed = block.lstrip(b"\0")
                if not packed:
                    return 0
                self._member = self._new()
            else:
                packed = self._raw.read(_BLOCK) if self._member.needs_input else b""
                if self._member.needs_input and not packed:
                    raise EOFError("it ends inside a member")
            text = self._member.decompress(packed, len(buffer))
        buffer[: len(text)] = text
        return len(text)


@contextmanager
def open_text(path: Path, where: str = "", digest: Any = None) -> Iterator[BinaryIO]:
    """Open a file as bytes, unpacked as its first bytes say, not its name.

    `digest`, of hashlib, gets the bytes on disk. A `DataError`, also later, opens with `where`.
    """
    with (
        os_errors_as_data_errors(path, where),
        io.BufferedReader(_HashedFile(path, digest)) if digest else open(path, "rb") as raw,
    ):
        head = raw.peek(10)
        if head.startswith(b"PK\x03\x04"):
            is_document = path.suffix.lower() in _OFFICE
            remedy = "Save it as text, HTML or CSV" if is_document else f"Unpack it: unzip {path}"
            raise DataError(
                f"{prefix(where)}{path} is a zip archive, which mt does not read; a file that is "
                f"plain or compressed by gzip, xz, zstd or bzip2 is required. {remedy}"
            )
        suffix = packed_suffix(head)
        if suffix in _DECOMPRESSORS:
            yield io.BufferedReader(_Members(raw, _DECOMPRESSORS[suffix]))
        elif suffix:
            from xopen import xopen

            with xopen(raw, "rb", threads=0, format=suffix[1:]) as unpacked:
                yield unpacked
        else:
            yield raw
        while digest and raw.read(1 << 20):  # what follows the compressed data is hashed too
            pass


def packed_suffix(head: bytes) -> str:
    """The usual suffix of a compressed file that begins with these bytes; empty for others."""
    starts = {
        ".gz": head.startswith(b"\x1f\x8b"),
        ".xz": head.startswith(b"\xfd7zXZ\x00"),
        ".bz2": head[:3] == b"BZh" and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"),  # or empty
        # A frame of data, or one that zstd skips, as parallel compressors write it first.
        ".zst": head[:4] == b"\x28\xb5\x2f\xfd" or head[1:4] == b"\x2a\x4d\x18",
    }
    return next((suffix for suffix, fits in starts.items() if fits), "")


def unpacked_name(name: str) -> str:
    stem, dot, suffix = name.rpartition(".")
    return stem if stem and dot + suffix.lower() in PACKED else name


def suffix_of(path: Path) -> str:
    return Path(unpacked_name(path.name)).suffix.lower()


def prefix(where: str) -> str:
    return f"{where}: " if where else ""


@contextmanager
def unchanged(path: Path, where: str) -> Iterator[None]:
    """Raise `DataError` where a file has another size or time after the block than before it."""
    with os_errors_as_data_errors(path, where):
        before = path.stat()
        yield
        after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise DataError(
            f"{prefix(where)}{path} changed while it was read: it had {before.st_size:,} bytes, "
            f"and now has {after.st_size:,}. Start again when it is written completely."
        )


@contextmanager
def os_errors_as_data_errors(path: Path, where: str) -> Iterator[None]:
    """Turn errors of the operating system and of decompression about `path` into a `DataError`."""
    try:
        yield
    except IsADirectoryError:
        raise DataError(
            f"{prefix(where)}{path} is a folder, a file is required. Name the file inside it, or "
            "set path to the folder and src, tgt to columns, languages or endings."
        ) from None
    except FileNotFoundError:
        message = f"{prefix(where)}there is no file {path.absolute()}. Correct the name."
        raise DataError(message) from None
    except Exception as error:
        is_damage = type(error).__name__ in _DAMAGE
        if is_damage or (isinstance(error, OSError) and error.errno is None):
            raise DataError(
                f"{prefix(where)}{path} is a compressed file that is truncated or damaged "
                f"({error}). Fetch or compress it again."
            ) from None
        if not isinstance(error, OSError):
            raise
        raise DataError(
            f"{prefix(where)}{path} cannot be read: {error.strerror or error}. Check that you have "
            "the right to read it (ls -l) and that its disk is mounted, or copy it elsewhere."
        ) from None
