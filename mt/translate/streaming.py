"""Input and output, line by line: files, standard streams, windows of lines, reading ahead."""

from __future__ import annotations

import io
import itertools
import os
import queue
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO, TypeVar, cast

from mt.data.reading.compression import PACKED, open_text
from mt.data.reading.text_files import NotTextError, decode_lines, read_lines, refuse_wide
from mt.errors import ConfigError, DataError
from mt.files import whole_file

T = TypeVar("T")

# With a wait, lines that may be read before they are wanted.
LINES_AHEAD = 20_000
# Seconds after which lines from stdin or a pipe are passed on, though more may come.
STDIN_WAIT = 0.2
# Of other inputs, such as generators: seconds after which the next line ends a window.
READING = 1.0
# Bytes of a file that is worth a process for each GPU, and compiling: both take seconds.
LARGE_INPUT = 10_000_000


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """Where lines come from and where their translations go; `-` is stdin or stdout."""

    source: str = "-"
    output: str = "-"
    errors: str = "strict"  # see `read_input`
    prefix: Path | None = None  # a file with what each output must begin with
    glossary: Path | None = None  # terms and their translations
    resume: bool = False
    overwrite: bool = False  # a corpus may be replaced

    @property
    def name(self) -> str:
        return "stdin" if self.source == "-" else self.source

    @property
    def wait(self) -> float | None:
        return None if os.path.isfile(self.source) else STDIN_WAIT

    @property
    def is_large(self) -> bool:
        return are_large([Path(self.source)])

    def read(self) -> Iterator[str]:
        return read_input(self.source, self.errors)

    def read_whole(self) -> str:
        """Return the source as one text, its line ends and byte-order mark included."""
        path = Path(self.source)
        if self.source == "-" or os.path.isdir(path):
            read_input(self.source, self.errors)  # reports that stdin is closed, or a folder
            raw = sys.stdin.buffer.read()
        else:
            with open_text(path) as file:  # once: it may be a pipe
                raw = file.read()
        refuse_wide(raw[:1000], self.name)
        with suppress(UnicodeDecodeError):
            return raw.decode()
        for _ in _with_remedy(decode_lines(io.BytesIO(raw), self.name, self.errors), self.errors):
            pass  # the error names the line
        return raw.decode(errors="replace")


def are_large(files: Iterable[Path]) -> bool:
    return sum(os.path.getsize(file) for file in files if os.path.isfile(file)) >= LARGE_INPUT


def windows(
    lines: Iterator[str], size: Callable[[], int], wait: float | None = None
) -> Iterator[list[str]]:
    """Yield lists of up to `size()` lines, with `wait` at most so many seconds after the first."""
    if wait is None:
        yield from _windows_in_time(lines, size)
        return
    arrived: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=LINES_AHEAD)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(line)
            arrived.put(None)
        except BaseException as error:  # raised again by the thread that waits for the lines
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    item = arrived.get()
    while item is not None:
        window: list[str] = []
        most, deadline = size(), time.monotonic() + wait
        try:
            while len(window) < most and item is not None:
                if isinstance(item, BaseException):
                    raise item
                window.append(item)
                item = arrived.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            yield window
            item = arrived.get()
        else:
            yield window


def _windows_in_time(lines: Iterator[str], size: Callable[[], int]) -> Iterator[list[str]]:
    """Yield lists of up to `size()` lines, which end with the first line after `READING`."""
    while window := list(itertools.islice(lines, 1)):
        most, deadline = size(), time.monotonic() + READING
        for line in itertools.islice(lines, most - 1):
            window.append(line)
            if time.monotonic() > deadline:
                break
        yield window


def read_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the items; each is made while the caller uses the one before.

    No item may take for ever, such as a line from a terminal: Python waits at exit for the one
    being made.
    """
    made: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue()

    def make() -> None:
        try:
            made.put((next(items), None))
        except BaseException as error:  # raised again by the thread that waits for the item
            made.put((None, error))

    # A thread makes one item and ends, so none is left waiting if the caller stops early. None is a
    # daemon: SentencePiece aborts the process if a thread is inside it when Python ends.
    threading.Thread(target=make).start()
    while True:
        item, error = made.get()
        if isinstance(error, StopIteration):
            return
        if error is not None:
            raise error
        threading.Thread(target=make).start()
        yield cast("T", item)


def read_input(source: str, errors: str | None = None, option: str = "") -> Iterator[str]:
    """Return the lines of a file (also compressed) or of stdin (`-`).

    `option`: what named the source, for messages. `errors`: invalid UTF-8 is a DataError ("strict")
    or becomes U+FFFD ("replace"); None is strict, in a command without --errors.
    Raises DataError if the file cannot be opened, before the first line is asked for.
    """
    if source != "-":
        return read_file(Path(source), option, errors)
    if not sys.stdin:
        raise DataError("stdin: is closed; name an input file, or send text to it")

    def from_stdin() -> Iterator[str]:
        # With a reference: else Python would close stdin at exit, wait in vain for a reader in a
        # daemon thread, and abort.
        stdin = sys.stdin
        yield from decode_lines(stdin.buffer, "stdin", errors or "strict")

    return _with_remedy(from_stdin(), errors)


def read_file(path: Path, option: str = "", errors: str | None = None) -> Iterator[str]:
    """Return the lines of a file, also compressed; as `read_input`, but that `-` is a file."""
    if os.path.isdir(path):  # Path.is_dir raises OSError for a name that is too long
        raise DataError(
            f"{f'{option}: ' * bool(option)}{path} is a folder, a text file is required; name a "
            "file in it (the folder of a model goes to --model)"
        )
    return opened(_with_remedy(read_lines(path, option, errors or "strict"), errors))


def opened(lines: Iterator[str]) -> Iterator[str]:
    """Read one of the lines now, so that faults of files are reported before loading."""
    return itertools.chain(list(itertools.islice(lines, 1)), lines)


def _with_remedy(lines: Iterator[str], errors: str | None) -> Iterator[str]:
    """Yield the lines; add to an error about invalid UTF-8 that `--errors replace` accepts it."""
    try:
        yield from lines
    except OSError as error:  # of stdin; that of a file is a DataError already
        raise DataError(f"stdin: cannot be read: {error.strerror}; name an input file") from error
    except DataError as error:
        damaged = isinstance(error.__context__, UnicodeDecodeError)
        if errors is None or not damaged or isinstance(error, NotTextError):
            raise
        raise DataError(f"{error}. Or give --errors replace: they become U+FFFD") from None


def refuse_overwrite(
    output: str, inputs: Iterable[tuple[str, str | Path | None]], models: Iterable[Path] = ()
) -> None:
    """Raise ConfigError if writing `output` would destroy what a command reads, also through links.

    `inputs`: options and the files they name; `-` is stdin, None is not given. `models`: what
    `--model` names; nothing may be written into such a folder, or into the run that it belongs to.
    """
    place_of_output = Path(os.path.realpath(output))
    for model in models:
        from mt.runs.model_folder import folders_of  # needs pydantic, which scores do without

        if output != "-" and any(folder in place_of_output.parents for folder in folders_of(model)):
            raise ConfigError(
                f"--output {output}: is inside --model {model}, whose files must stay as they are; "
                "name a file elsewhere"
            )
    targets = [_regular_file(name, sys.stdout) for name in (output, f"{output}.partial")]
    for option, name in inputs:
        source = None if name is None else _regular_file(str(name), sys.stdin)
        if source and any(place and os.path.samestat(source, place) for place in targets):
            shown = "stdout" if output == "-" else output
            raise ConfigError(
                f"--output {shown}: is the same file as {option} ({name}), which would be lost; "
                "name another file"
            )


def _regular_file(name: str, standard: TextIO | None) -> os.stat_result | None:
    """Return the status of a file, or of a standard stream (`-`); None if it is not a file."""
    try:
        status = os.stat(name) if name != "-" else os.fstat(standard.fileno() if standard else -1)
    except (OSError, ValueError):  # ValueError: a stream of Python's own, without a descriptor
        return None
    return status if stat.S_ISREG(status.st_mode) else None


@contextmanager
def open_output(
    output: str, opener: Callable[[Path], AbstractContextManager[BinaryIO]] = whole_file
) -> Iterator[BinaryIO]:
    """Open stdout (`-`) or a file that appears only as a whole, once the block ends well.

    `opener` makes that file. Devices and pipes (/dev/null, >(...)) are written to directly. Raises
    DataError if the output cannot be written; most often on entering, before any work is done.
    """
    path = Path(output)
    to_stdout = output in ("-", "/dev/stdout")
    try:
        if to_stdout:
            if not sys.stdout:
                raise DataError("stdout: is closed; give an output file with -o")
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        elif path.is_dir():
            raise DataError(
                f"--output {output}: is a folder, a file is required; name a file in it"
            )
        elif path.suffix in PACKED:
            raise ConfigError(
                f"--output {output}: would be plain text under the name of a compressed file; "
                f"name it {path.with_suffix('')}, or pipe the output into {PACKED[path.suffix]}"
            )
        elif path.parent in (Path("/dev"), Path("/dev/fd")):  # not /dev/shm, which has files
            with path.open("ab") as file:  # /dev/fd/N may be a file with earlier content
                yield file
        else:
            with opener(path) as file:
                yield file
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does; no fault
        raise
    except OSError as error:
        if to_stdout:
            remedy = f"{error.strerror}; give an output file with -o"
            raise DataError(f"stdout: cannot be written: {remedy}") from error
        raise DataError(
            f"--output {output}: cannot be written in the folder {path.parent.absolute()}: "
            f"{error.strerror}; an existing file there is unchanged. Give a writable place with "
            "enough room"
        ) from error


def write_lines(file: BinaryIO, lines: Iterable[str]) -> None:
    file.writelines(line.encode("utf-8") + b"\n" for line in lines)
