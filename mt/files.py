"""Files that appear whole or not at all: written beside their place, flushed to disk, renamed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes its place only when the block ends well. Raises OSError.

    Behind a link it is the file meant that is replaced; a pipe or device is written to as it stands.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file() and not path.is_dir():
        with path.open("wb") as file:
            yield file
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes | str) -> None:
    """Write bytes, or text as UTF-8, to `path` at one stroke. Raises OSError."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sync_files(folder: Path) -> None:
    """Make the content of the files inside `folder` survive a power cut."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
