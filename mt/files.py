"""Files: written whole (beside the target, flushed, renamed), JSON, SHA-256, locks."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from mt.errors import CheckpointError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that replaces `path` only if the block succeeds. Raises OSError.

    Behind a symbolic link the target is replaced. A pipe or device is written to directly.
    """
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
    finally:
        partial.unlink(missing_ok=True)


def keep_mode(file: BinaryIO, path: Path) -> None:
    """Give an open file the permissions of the one that it will replace, if there is one."""
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
        return json.loads(
            text, parse_int=lambda digits: int(digits) if len(digits) < 30 else math.inf
        )
    except RecursionError as error:  # thousands of brackets
        raise ValueError("it is nested too deep") from error


def require_new(output: Path) -> None:
    """Raise CheckpointError if something is at `output`, which must be new."""
    if output.exists():
        raise CheckpointError(f"--output {output}: already exists; give another path, or remove it")


def sync_files(folder: Path) -> None:
    """Flush the files inside `folder` to disk, so that their content survives a power cut."""
    for path in folder.iterdir():
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
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def exclusive(path: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Let one process at a time into the block, by a lock on the file `path`, which stays.

    `wait` is called before waiting for another process. The system releases the lock of a process
    that ends or is killed, on NFS as well (there flock is a lock of the server); a machine that is
    lost keeps it for the lease of the server, about 90 seconds. Without locks (some network file
    systems) nobody waits, so the block must also be right if two are in it. Raises OSError where
    the file cannot be written.
    """
    import fcntl

    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass
        yield


@contextmanager
def new_result(folder: Path) -> Iterator[Path]:
    """A folder that becomes `folder` if the block succeeds, unless another process was faster."""
    partial = folder.with_name(f"{folder.name}.{socket.gethostname()}-{os.getpid()}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        sync_files(partial)
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
