"""The output file of a long translation, which an interrupted job can continue."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from mt.errors import DataError, add_note
from mt.files import keep_mode, read_json, sync_folder, write_whole

FORMAT = 2
# Interrupted work of less than this is not worth keeping.
SECONDS_BETWEEN_RECORDS = 10.0


class _RefusedError(DataError):
    """The partial output is not continued: the message says why, and what to do instead."""


class ResumableOutput:
    """An output that is written as `OUT.partial`, with a record beside it, then renamed."""

    def __init__(self, resume: bool) -> None:
        self.resume = resume  # continue the partial output of an earlier start, if there is one
        self.lines = 0  # of the input, finished
        self.settings: dict[str, str] = {}  # settings that the output depends on
        self.counts: dict[str, int] = {}  # of the finished lines, kept for the caller
        self._digest = hashlib.sha256()  # of the finished lines
        self._record: dict[str, Any] = {}  # the last one written or read; none of a pipe
        self._next_record: dict[str, Any] = {}  # of all finished lines
        self._partial = self._record_path = Path()
        self._recorded_at = 0.0

    @contextmanager
    def open(self, path: Path) -> Iterator[BinaryIO]:
        """Open the file to append to, after its finished lines."""
        path = Path(os.path.realpath(path))
        if path.exists() and not path.is_file():  # a pipe: what was written to it is gone
            if self.resume:
                problem = "is not a regular file, so it cannot be continued; leave out --resume"
                raise DataError(f"--resume: {path} {problem}")
            with path.open("wb") as file:
                yield file
            return
        self._partial = path.with_name(f"{path.name}.partial")
        self._record_path = path.with_name(f"{path.name}.partial.json")
        is_new = not self._partial.exists()
        with _locked(self._partial) as file:
            try:
                size = self._load_record(is_new)
                keep_mode(file, path)
                # --resume opens it again, even if what it will replace is read-only.
                os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode) | 0o600)
                file.truncate(size)
                file.seek(size)
                self._recorded_at = time.monotonic()
                yield file
                file.flush()
                os.fsync(file.fileno())
                keep_mode(file, path)
                self._next_record = {}
                self._partial.replace(path)
                # Only now: an output that cannot be renamed can still be resumed.
                self._record_path.unlink(missing_ok=True)
                sync_folder(path.parent)
            except BaseException as error:
                if not isinstance(error, OSError):  # what an OSError has lost is not finished
                    self._record_if_due(file)
                self._keep_or_remove(error, is_new)
                raise

    def _keep_or_remove(self, error: BaseException, is_new: bool) -> None:
        """After an interruption: say how to resume, or remove a part without finished lines."""
        if isinstance(error, _RefusedError) or not self._record:
            if is_new and not self._partial.stat().st_size:
                self._partial.unlink()
        elif count := self._record["lines"]:
            lines = "1 line is" if count == 1 else f"{count:,} lines are"
            note = f"{lines} finished in {self._partial}; the same command with --resume"
            add_note(error, f"{note} continues after them")
        else:
            self._partial.unlink(missing_ok=True)
            self._record_path.unlink(missing_ok=True)

    def _load_record(self, is_new: bool) -> int:
        """Return the bytes of the partial output that are finished; none of a new one."""
        size = self._partial.stat().st_size
        if size and not self._record_path.exists():
            raise _RefusedError(
                f"{self._partial}: mt has no record that it wrote this file, and would replace "
                "it; rename or remove it, or give another --output"
            )
        if self._record_path.exists():
            try:
                record = read_json(self._record_path)
                if record["format"] != FORMAT:
                    raise ValueError(f"format {record['format']} of another version of mt")
                record |= {"made_with": dict(record["made_with"]), "counts": dict(record["counts"])}
                lines, finished = int(record["lines"]), int(record["bytes"])
                if size < finished and not is_new:
                    raise ValueError(f"{self._partial.name} is shorter than it says")
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise _RefusedError(
                    f"{self._record_path}: should record the progress of an interrupted job, and "
                    f"is damaged, or none ({error}); rename it, give another --output, or remove "
                    f"it and {self._partial} to start over"
                ) from error
            if lines and not is_new and not self.resume:
                raise _RefusedError(
                    f"{self._partial}: is the unfinished output of an interrupted job; add "
                    f"--resume to continue it, or remove it and {self._record_path.name} to start "
                    "over"
                )
            if not is_new:  # else it is of one that was renamed or removed
                self.lines, self._record, self.counts = lines, record, record["counts"]
                return finished
        self._record = {"lines": 0}  # also for a signal that arrives while it is written
        self._write(self._new_record(0))  # by which a later start knows the file as one of mt
        return 0

    def remaining(self, lines: Iterator[str], settings: Mapping[str, str]) -> Iterator[str]:
        """Return the lines that are left; DataError if an earlier start had others, or settings."""
        self.settings |= settings
        if not self.lines:
            return lines
        start_over = f"or remove it and {self._record_path.name} to start over"
        before = self._record["made_with"]
        names = sorted(before.keys() | self.settings.keys())
        if changed := [name for name in names if before.get(name) != self.settings.get(name)]:
            raise _RefusedError(
                f"--resume: {self._partial} was made with another {', '.join(changed)}; "
                f"give the same again, {start_over}"
            )
        self._hash(itertools.islice(lines, self.lines))
        if self._digest.hexdigest() != self._record.get("sha256"):
            raise _RefusedError(
                f"--resume: the first {self.lines:,} lines are not those that {self._partial} "
                f"was made from; give the same input, {start_over}"
            )
        return lines

    def _hash(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._digest.update(line.encode("utf-8", "surrogatepass") + b"\n")

    def finished(self, file: BinaryIO, lines: list[str]) -> None:
        """Note that `file` now holds the output of these input lines, too."""
        file.flush()
        self._hash(lines)
        self.lines += len(lines)
        if self._record:
            self._next_record = self._new_record(file.tell())
            self._record_if_due(file)

    def _new_record(self, size: int) -> dict[str, Any]:
        """What says that the first `size` bytes of the partial output are finished."""
        record = {"format": FORMAT, "lines": self.lines, "bytes": size, "counts": {**self.counts}}
        return record | {"made_with": self.settings, "sha256": self._digest.hexdigest()}

    def _record_if_due(self, file: BinaryIO) -> None:
        if self._next_record and time.monotonic() - self._recorded_at >= SECONDS_BETWEEN_RECORDS:
            os.fsync(file.fileno())
            self._write(self._next_record)

    def _write(self, record: dict[str, Any]) -> None:
        write_whole(self._record_path, json.dumps(record, indent=1))
        self._record = record
        self._recorded_at = time.monotonic()


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read and write, made if need be, that no other process has locked."""
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            try:
                # Unlike flock's, this lock is not inherited by workers, which may live longer.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise DataError(
                    f"{path}: another mt is writing to it; wait for that, or give another --output"
                ) from error
            try:
                same = os.path.samestat(os.fstat(file.fileno()), path.stat())
            except FileNotFoundError:
                same = False
            if same:  # else the other process has just renamed or removed the file opened here
                yield file
                return
