"""Messages, for the logger `mt`, and progress on stderr, without what would command a terminal."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

Say = Callable[[str], None]  # prints a message
# Seconds between lines about progress, without a terminal.
SECONDS_BETWEEN_LINES = 60.0

# Characters that move a cursor, colour a terminal, or make a page or a picture invalid: control
# characters become the signs for them (␛, ␍), those without a sign U+FFFD.
_SIGNS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
_SIGNS |= dict.fromkeys([*range(0x80, 0xA0), 0xFFFE, 0xFFFF], 0xFFFD)


def printable(text: str) -> str:
    """A text that can be shown, without escape sequences, which could rewrite the terminal."""
    return text.translate(_SIGNS)


LOGGER = logging.getLogger("mt")


def say(text: str) -> None:
    LOGGER.info("%s", printable(text))


class _Printer(logging.Handler):
    """Prints messages to stderr, with `mt: ` before each line, so that grep finds all of it."""

    def emit(self, record: logging.LogRecord) -> None:
        lines = "\n".join(f"mt: {line}" for line in record.getMessage().split("\n"))
        with suppress(OSError):  # a full disk or a closed pipe does not end the work
            print(lines, file=sys.stderr, flush=True)


def print_messages() -> None:
    """Print messages and show bars from now on, as the command line does."""
    if not prints_messages():
        LOGGER.setLevel(logging.INFO)
        LOGGER.propagate = False
        LOGGER.addHandler(_Printer())


def prints_messages() -> bool:
    return any(isinstance(handler, _Printer) for handler in LOGGER.handlers)


def can_show_bar(output: str = "") -> bool:
    """Whether a progress bar can be shown: not between lines that appear on the terminal."""
    to_stdout = output == "-" and sys.stdout is not None and sys.stdout.isatty()
    has_terminal = sys.stderr is not None and sys.stderr.isatty()
    return prints_messages() and has_terminal and not to_stdout


@dataclass(eq=False)
class Progress:
    """The progress of one piece of work, as a context manager: a bar, or a line now and then."""

    total: int | None  # None: not known, as of a stream
    before: int  # items that are done of it
    on_terminal: bool
    noun: str = "lines"
    what: str = "translated"
    report: Callable[[str], None] = say
    bar: tqdm[Any] | None = None

    def __enter__(self) -> Progress:
        self._started = self._said_at = time.monotonic()
        if self.on_terminal:
            # Imported here, because `scripts/gpu_check.py` translates without tqdm.
            from tqdm import tqdm

            shown: dict[str, Any] = {"desc": self.what, "unit": f" {self.noun}", "leave": False}
            shown |= {"total": self.total, "initial": self.before, "dynamic_ncols": True}
            self.bar = tqdm(**shown, delay=1)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def update(self, done: int) -> None:
        """Show that `done` items are done, those before the start included."""
        if self.bar is not None:
            self.bar.update(done - self.bar.n)
            return
        now = time.monotonic()
        if now - self._said_at < SECONDS_BETWEEN_LINES:
            return
        self._said_at = now
        of_all = f" of {self.total:,}" if self.total else ""
        speed = (done - self.before) / max(now - self._started, 1e-9)
        self.report(f"{self.what}: {done:,}{of_all} {self.noun}, {speed:,.1f} {self.noun}/s")
