"""A long translation that can be interrupted: what is finished stays, and the next start goes on after it."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from mt.errors import DataError
from mt.files import sync_folder, write_whole

FORMAT = 1
# Less work than this is not worth going on with.
SECONDS_BETWEEN_RECORDS = 10.0


class ResumableOutput:
    """Blocks of lines, each written as a whole into `OUT.partial`, which becomes `OUT` at the end.

    `OUT.partial.json` says how far it has come and with what it was made.
    """

    def __init__(self, resume: bool) -> None:
        self.resume = resume
        self.lines = 0  # of the source, finished
        self.kept = 0  # of those, the ones that an interruption leaves
        self.digest = hashlib.sha256()  # of those lines
        self.made_with: dict[str, str] = {}
        self._stored: dict[str, str] = {}  # what the earlier start was made with
        self._hash = ""
        self._partial: Path | None = None
        self._recorded = 0.0  # when the state was written last
        self._refused = False  # to go on, as something is not as it was

    @property
    def _state(self) -> Path:
        assert self._partial is not None
        return self._partial.with_name(f"{self._partial.name}.json")

    @contextmanager
    def open(self, path: Path) -> Iterator[BinaryIO]:
        """The file to write to, after what is finished. Raises OSError, and DataError for a part that is in the way."""
        path = Path(os.path.realpath(path))
        if path.exists() and not path.is_file():  # a pipe: what is in it cannot be taken back
            if self.resume:
                raise DataError(
                    f"--resume: {path} is no file that could be gone on with; leave out --resume"
                )
            with path.open("wb") as file:
                yield file
            return
        self._partial = partial = path.with_name(f"{path.name}.partial")
        if (
            not partial.exists()
        ):  # it was renamed or removed, and then a power cut came, or the user stopped there
            self._state.unlink(missing_ok=True)
        with _locked(partial) as file:
            size = self._load()
            file.truncate(size)
            file.seek(size)
            self._recorded = time.monotonic()
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                partial.replace(path)
                self._state.unlink(
                    missing_ok=True
                )  # after it: what cannot be renamed can still be gone on with
                sync_folder(path.parent)
            except BaseException:
                if not self._state.exists():
                    partial.unlink(missing_ok=True)
                elif not self._refused:
                    said = f"{self.kept:,} line{'s' * (self.kept != 1)} are finished in {partial}"
                    print(
                        f"mt: {said}; the same command with --resume goes on after them",
                        file=sys.stderr,
                    )
                raise

    def _load(self) -> int:
        """Bytes that are finished."""
        if not self._state.exists():
            return 0
        if not self.resume:
            raise DataError(
                f"{self._partial}: is what an interrupted job has finished; add --resume to go on with it, or remove "
                f"it and {self._state.name} to begin again"
            )
        try:
            state = json.loads(self._state.read_text(encoding="utf-8"))
            if state["format"] != FORMAT:
                raise ValueError(f"format {state['format']}")
            self.kept, size, self._hash = (
                int(state["lines"]),
                int(state["bytes"]),
                str(state["sha256"]),
            )
            self.lines = self.kept
            self._stored = dict(state["made_with"])
            if self._partial is not None and self._partial.stat().st_size < size:
                raise ValueError(f"{self._partial.name} is shorter than it says")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{self._state}: says how far an interrupted job has come, and is damaged ({error}); remove it and "
                f"{self._partial} to begin again"
            ) from error
        return size

    def remaining(self, lines: Iterator[str], made_with: Mapping[str, str]) -> Iterator[str]:
        """The lines that are left to do. Raises DataError where an earlier start had other lines or settings."""
        self.made_with |= made_with
        if not self.lines:
            return lines
        names = self._stored.keys() | self.made_with.keys()
        self._refused = True
        if other := sorted(
            name for name in names if self._stored.get(name) != self.made_with.get(name)
        ):
            raise DataError(
                f"--resume: {self._partial} was begun with another {', '.join(other)}; give the same again, or remove "
                f"it and {self._state.name} to begin again"
            )
        self._count(itertools.islice(lines, self.lines))
        if self.digest.hexdigest() != self._hash:
            raise DataError(
                f"--resume: the first {self.lines:,} lines are not those that {self._partial} was made of; give the "
                f"same input, or remove it and {self._state.name} to begin again"
            )
        self._refused = False
        return lines

    def _count(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.digest.update(line.encode("utf-8", "surrogatepass") + b"\n")

    def finished(self, file: BinaryIO, lines: list[str]) -> None:
        """The output of these lines, too, is in `file`."""
        file.flush()
        self._count(lines)
        self.lines += len(lines)
        if self._partial is None or time.monotonic() - self._recorded < SECONDS_BETWEEN_RECORDS:
            return
        os.fsync(file.fileno())
        state = {
            "format": FORMAT,
            "lines": self.lines,
            "bytes": file.tell(),
            "sha256": self.digest.hexdigest(),
            "made_with": self.made_with,
        }
        write_whole(self._state, json.dumps(state, indent=1))
        self.kept = self.lines
        self._recorded = time.monotonic()


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """A file to read and write, made if need be, that no other process has opened in this way."""
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            try:
                # Unlike flock's, this lock does not pass on to worker processes, which may live a little longer.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise DataError(
                    f"{path}: another mt is writing to it; wait for that, or give another --output"
                ) from error
            try:
                same = os.path.samestat(os.fstat(file.fileno()), path.stat())
            except FileNotFoundError:
                same = False
            if same:  # else the other one has ended meanwhile, and renamed or removed what was opened here
                yield file
                return
