"""Files: written whole (beside the target, flushed, renamed), JSON, SHA-256."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mt.errors import CheckpointError

if TYPE_CHECKING:
    import numpy.typing as npt

# Numbers of the system's errors about a disk, a quota or a limit that is full.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file or pipe that replaces `path`, or a link's target, if the block succeeds."""
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file() and not path.is_dir():
        with path.open("wb") as file:
            yield file
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            keep_mode(file, path)
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        if error.errno in FULL and error.filename is None:  # the system does not say which file
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array to a file of NumPy, which keeps to itself why a disk did not take all."""
    import numpy as np

    try:
        np.save(path, array)
    except OSError as error:
        if error.errno is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise


def keep_mode(file: BinaryIO, path: Path) -> None:
    with suppress(OSError):  # no such file, or a file system without permissions
        os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))


def write_whole(path: Path, content: bytes | str) -> None:
    """Write bytes, or text as UTF-8, to `path` atomically. Raises OSError."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def read_json(path: Path) -> Any:
    """Parse a JSON file. Raises OSError, and ValueError for all that is no JSON."""
    return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; an integer of 30 digits or more, which counts nothing, becomes infinite."""
    try:
        return json.loads(text, parse_int=lambda n: int(n) if len(n) < 30 else math.inf)
    except RecursionError as error:  # thousands of brackets
        raise ValueError("it is nested too deep") from error


def require_new(output: Path) -> None:
    if output.exists():
        raise CheckpointError(f"--output {output}: already exists; give another path, or remove it")


def sync_files(folder: Path) -> None:
    for path in filter(Path.is_file, folder.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush `folder` itself to disk, so that renames inside it survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    """Hex SHA-256 digest of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
