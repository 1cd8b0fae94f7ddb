"""Artefacts: folders that appear whole or not at all, made once and found again by their key."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from mt.files import read_json, sync_files, sync_folder

# In the folder of an artefact: its key, and what is known of its files.
RECORD = "made.json"
# What tells whether a file is as it was written.
Digest: TypeAlias = Callable[[Path], int | str]


def beside(folder: Path, kind: str) -> Path:
    """The hidden path next to `folder` where it is written, locked, or set aside meanwhile."""
    return folder.with_name(f".{folder.name}.{kind}")


@contextmanager
def whole_folder(folder: Path, replace: bool = True) -> Iterator[Path]:
    """A folder beside `folder` that takes its place, whole, if the block succeeds.

    One that is replaced is set aside first, so that `restore` brings it back if the process is
    killed. Raises OSError, and FileExistsError for one that must not be replaced.
    """
    partial = beside(folder, f"{socket.gethostname()}-{os.getpid()}.partial")
    before = beside(folder, "before")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        sync_files(partial)
        if folder.exists():
            if not replace:
                raise FileExistsError(f"{folder} already exists")
            shutil.rmtree(before, ignore_errors=True)
            folder.rename(before)
        partial.rename(folder)
        sync_folder(folder.parent)
        shutil.rmtree(before, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def restore(parent: Path) -> None:
    """Bring back or remove what killed processes have left where nobody is writing artefacts."""
    for path in parent.glob(".*.before"):
        folder = path.with_name(path.name[1:].removesuffix(".before"))
        if not folder.exists():
            path.rename(folder)
        shutil.rmtree(path, ignore_errors=True)
    for path in parent.glob(".*.partial"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def make(
    folder: Path,
    key: str,
    build: Callable[[Path], None],
    wait: Callable[[], None] = lambda: None,
    digest: Digest | None = None,
) -> None:
    """Make an artefact, unless it is in `folder` already: whole or not at all, by one process.

    `key` stands for all that it is made of, and `build` fills an empty folder; other processes call
    `wait`, and then wait. What was made with another key, or has a file with another `digest`
    (None: another size), is made again. Raises OSError, and what `build` raises.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(beside(folder, "lock"), wait) as is_locked:
        # Of killed processes; a lock of a file system may hold on this machine only.
        left = beside(folder, f"{socket.gethostname()}-*.partial").name
        for partial in folder.parent.glob(left) if is_locked else ():
            shutil.rmtree(partial, ignore_errors=True)
        if is_made(folder, key, digest):
            return
        with whole_folder(folder) as partial:
            build(partial)
            files = {path.name: (digest or size)(path) for path in sorted(partial.iterdir())}
            record = json.dumps({"key": key, "files": files}, indent=1)
            (partial / RECORD).write_text(record, encoding="utf-8")


def size(path: Path) -> int:
    """Bytes of a file; 0 of JSON, which may be completed later. ValueError for damaged JSON."""
    if path.suffix != ".json":
        return path.stat().st_size
    read_json(path)
    return 0


def is_made(folder: Path, key: str | None, digest: Digest | None = None) -> bool:
    """Whether an artefact of this key is there, undamaged; None: of any key."""
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError):
        record = read_json(folder / RECORD)
        files = record["files"]
        names = {path.name for path in folder.iterdir()} - {RECORD}
        return (
            key in (None, record["key"])
            and names == files.keys()
            and all((digest or size)(folder / name) == value for name, value in files.items())
        )
    return False


def user_cache(kind: str) -> Path:
    """The user's folder for artefacts of a kind. Raises RuntimeError for a user without a home."""
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # A relative path is not valid (XDG base directories), and would be another one in each folder.
    return (home if home.is_absolute() else Path.home() / ".cache") / "mt" / kind


def content_key(content: Any) -> str:
    """A key that changes with what an artefact is made of: a value that JSON has."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def key_of(folder: Path) -> str:
    return str(read_json(folder / RECORD)["key"])


@contextmanager
def exclusive(path: Path, wait: Callable[[], None]) -> Iterator[bool]:
    """Let one process at a time into the block, by a lock on the file `path`, which stays.

    `wait` is called before waiting for another process, which loses the lock when it ends, on NFS
    too; a machine that is lost keeps it for the lease of the server, about 90 seconds. On file
    systems without locks nobody waits and the value is False: then the block must also be right if
    two are in it. Raises OSError where the file cannot be written.
    """
    import fcntl

    is_locked = True
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            is_locked = False
        yield is_locked
