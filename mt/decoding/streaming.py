"""Where lines come from, what else they hold, and where they go."""

from __future__ import annotations

import itertools
import json
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mt.data.corpus import decode_lines, read_lines
from mt.decoding.resume import ResumableOutput
from mt.decoding.translate import WINDOW, Translation, Translator
from mt.errors import ConfigError, DataError
from mt.files import whole_file

# What may become of bytes that are no UTF-8.
ERRORS = ("strict", "replace")
FORMATS = ("text", "tsv", "jsonl")
# Lines of the first window; those after it take so many seconds, so that an interruption costs little.
FIRST_WINDOW = 2_000
WINDOW_SECONDS = 15.0
SURROGATES = re.compile("[\\ud800-\\udfff]")
# What a translation adds to a JSON object.
JSON_KEYS = ("translation", "translations", "score", "alignment", "flags")


@dataclass(frozen=True)
class LineFormat:
    """What a line holds, and how its translation is put beside it."""

    name: str = "text"
    column: int | None = None  # of a TSV line, from 1; None: the first
    field: str | None = None  # of a JSON line; None: text
    n_best: int = 1
    scores: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigError for a format that is none, and for what belongs to another one."""
        if self.name not in FORMATS:
            raise ConfigError(
                f"--format: must be {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, found {self.name!r}"
            )
        for option, value, name in (
            ("--column", self.column, "tsv"),
            ("--field", self.field, "jsonl"),
        ):
            if value is not None and self.name != name:
                raise ConfigError(
                    f"{option}: only with --format {name}, found {self.name}; add it, or leave it out"
                )

    def text_of(self, line: str, number: int) -> str:
        """The text to translate in line `number`; a blank line has none. Raises DataError where it is not there."""
        if self.name == "text" or not line.strip():
            return line
        if self.name == "tsv":
            cells = line.split("\t")
            column = self.column or 1
            if len(cells) < column:
                raise DataError(
                    f"line {number:,}: --column {column} is asked for, and the line has {len(cells)}; columns are "
                    "separated by tabs and counted from 1"
                )
            return cells[column - 1]
        field = self.field or "text"
        row = self._object(line, number)
        if taken := [key for key in JSON_KEYS if key in row]:
            raise DataError(
                f"line {number:,}: has the field {taken[0]!r} already, which the translation would overwrite; rename it"
            )
        if not isinstance(row.get(field), str):
            found = (
                f"found {row[field]!r}"
                if field in row
                else f"its fields are {', '.join(row) or 'none'}"
            )
            raise DataError(
                f"line {number:,}: --field {field} must be there and hold a text, {found}"
            )
        return SURROGATES.sub("\ufffd", row[field])

    def _object(self, line: str, number: int) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(
                f"line {number:,}: must be a JSON object, cannot be read: {error}"
            ) from None
        if not isinstance(row, dict):
            raise DataError(f"line {number:,}: must be a JSON object, found {line[:40]!r}")
        return row

    def lines_of(self, line: str, one: Translation, number: int) -> Iterator[str]:
        """The output for line `number`, counted from 1: one line, or one for each of an n-best list.

        Text: the translation, or `n ||| text ||| score` with n from 0, as in other toolkits. TSV: the line and a
        column more. JSON: the object and fields more, an n-best list being one of them. Score and alignment stand
        before and after a text with a tab, and in columns or fields of their own.
        """
        if self.name == "jsonl":
            yield self._json(line, one, number) if line.strip() else line
            return
        rows = itertools.zip_longest(one.texts, one.scores, one.alignments)
        for text, score, aligned in itertools.islice(rows, self.n_best):
            last = [] if aligned is None else [aligned]
            if self.n_best > 1 and self.name == "text":
                yield " ||| ".join([str(number - 1), text, f"{score:.4f}", *last])
                continue
            before = [line] if self.name == "tsv" else []
            scored = [f"{score:.4f}"] if self.scores or self.n_best > 1 else []
            yield "\t".join([*before, *scored, text, *last])

    def _json(self, line: str, one: Translation, number: int) -> str:
        text = json.dumps(self._object(line, number) | self._fields(one), ensure_ascii=False)
        # Half of a character, as a text that was cut has it, can only be written as an escape, as it came.
        return SURROGATES.sub(lambda match: f"\\u{ord(match[0]):04x}", text)

    def _fields(self, one: Translation) -> dict[str, Any]:
        rows: list[dict[str, Any]] = []
        for text, score, aligned in itertools.zip_longest(one.texts, one.scores, one.alignments):
            more = {"score": round(score, 4)} if self.scores or self.n_best > 1 else {}
            rows.append(
                {"translation": text, **more, **({} if aligned is None else {"alignment": aligned})}
            )
        best = {"translations": rows[: self.n_best]} if self.n_best > 1 else rows[0]
        return best | ({"flags": list(one.flags)} if one.flags else {})


def windows(
    lines: Iterator[str], size: Callable[[], int], max_wait: float | None = None
) -> Iterator[list[str]]:
    """Windows of up to `size()` lines; with `max_wait` also fewer, where no more come for so many seconds."""
    if max_wait is None:
        yield from iter(lambda: list(itertools.islice(lines, size())), [])
        return
    arrived: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=WINDOW)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(line)
            arrived.put(None)
        except BaseException as error:  # it is raised again where the lines are waited for
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    item = arrived.get()
    while item is not None:
        window, most = list[str](), size()
        deadline = time.monotonic() + max_wait
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


def read_input(source: str, errors: str = "strict") -> Iterator[str]:
    """Lines of a file (plain or .gz) or of stdin (`-`); bytes that are no UTF-8 are an error, or become U+FFFD.

    Raises ConfigError at once for another value of `errors`, and DataError for a file that cannot be opened.
    """
    if errors not in ERRORS:
        raise ConfigError(f"--errors: must be {' or '.join(ERRORS)}, found {errors!r}")
    if source == "-":
        if not sys.stdin:
            raise DataError("stdin: is closed; name an input file, or send text to it")
        return _with_remedy(_stdin(errors))
    lines = _with_remedy(read_lines(Path(source), "", errors))
    # Reading one line opens the file: what is wrong with it is said before a model is loaded.
    return itertools.chain(list(itertools.islice(lines, 1)), lines)


def _stdin(errors: str) -> Iterator[str]:
    """Its lines. What reads them may be a thread that ends with the process: it must keep hold of stdin till then.

    Python would close stdin before, wait for the reader in vain, and abort.
    """
    stdin = sys.stdin
    yield from decode_lines(stdin.buffer, "stdin", errors)


def _with_remedy(lines: Iterator[str]) -> Iterator[str]:
    """The lines; bytes that are no UTF-8 can not only be mended in the file but also be passed over."""
    try:
        yield from lines
    except OSError as error:  # of stdin; a file's is a DataError already
        raise DataError(f"stdin: cannot be read: {error.strerror}; name an input file") from error
    except DataError as error:
        if not isinstance(error.__context__, UnicodeDecodeError):
            raise
        raise DataError(f"{error}. Or go on with --errors replace: they become U+FFFD") from None


@contextmanager
def open_output(
    output: str, opener: Callable[[Path], AbstractContextManager[BinaryIO]] = whole_file
) -> Iterator[BinaryIO]:
    """Where output goes: stdout (`-`), or a file that appears whole, when the block ends well, or not at all.

    `opener` makes that file.

    Devices and pipes (/dev/null, >(...)) are written to directly. Raises DataError where it cannot be
    written: most often on entering, so that nothing is translated in vain.
    """
    path, to_stdout = Path(output), output in ("-", "/dev/stdout")
    try:
        if to_stdout and not sys.stdout:
            raise DataError("stdout: is closed; give an output file with -o")
        if to_stdout:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        elif path.is_dir():
            raise DataError(
                f"--output {output}: is a folder, a file is required; name a file in it"
            )
        elif path.is_relative_to("/dev"):
            with path.open("ab") as file:  # /dev/fd/N may be a file that others have written to
                yield file
        else:
            with opener(path) as file:
                yield file
    except BrokenPipeError:  # the reader has read enough; no fault
        raise
    except OSError as error:
        if to_stdout:
            raise DataError(
                f"stdout: cannot be written: {error.strerror}; give an output file with -o"
            ) from error
        raise DataError(
            f"--output {output}: cannot be written in the folder {path.parent.absolute()}: {error.strerror}; what "
            "was there is as it was. Give a place that can be written and has room"
        ) from error


def write_lines(file: BinaryIO, lines: Iterable[str]) -> None:
    """Write each line as UTF-8 with its end."""
    file.writelines(line.encode("utf-8") + b"\n" for line in lines)


def run(
    translator: Translator,
    lines: Iterator[str],
    prefixes: Iterator[str] | None,
    form: LineFormat,
    file: BinaryIO,
    job: ResumableOutput,
    max_wait: float | None,
) -> None:
    """Translate `lines` into `file`, after those that an earlier start of the job has finished."""
    lines = job.remaining(lines, {**translator.settings(), "--format": repr(form)})
    if prefixes is not None:
        prefixes = itertools.islice(prefixes, job.lines, None)
    tally, window = translator.tally, list[str]()
    tally.before = job.lines

    def size() -> int:
        return (
            FIRST_WINDOW
            if not tally.lines
            else int(min(WINDOW, 1 + WINDOW_SECONDS * tally.lines / tally.seconds))
        )

    def texts() -> Iterator[list[str]]:
        nonlocal window
        for window in windows(lines, size, max_wait):
            yield [form.text_of(line, number) for number, line in enumerate(window, job.lines + 1)]

    for results in translator.windows(texts(), prefixes):
        for number, (line, one) in enumerate(zip(window, results, strict=True), job.lines + 1):
            write_lines(file, form.lines_of(line, one, number))
        job.finished(file, window)
