"""How far a translation has come, and its closing summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mt.terminal import say
from mt.translate.quality_flags import FLAGS

if TYPE_CHECKING:
    from tqdm import tqdm

# Seconds between lines without a terminal.
SECONDS_BETWEEN_LINES = 60.0
# Line numbers that a summary names: of millions of lines, all may be flagged.
SHOWN = 5


def can_show_bar(output: str = "") -> bool:
    """Whether a progress bar can be shown: not between lines that appear on the terminal."""
    to_stdout = output == "-" and sys.stdout is not None and sys.stdout.isatty()
    return sys.stderr is not None and sys.stderr.isatty() and not to_stdout


class Progress:
    """The progress of one translation, as a context manager."""

    def __init__(self, total: int | None, before: int, on_terminal: bool) -> None:
        """`before` lines are done of `total`; None: not known, as of a stream."""
        self._total = total
        self._before = before
        self._on_terminal = on_terminal
        self._started = self._said_at = 0.0
        self.bar: tqdm[Any] | None = None

    def __enter__(self) -> Progress:
        self._started = self._said_at = time.monotonic()
        if self._on_terminal:
            # Imported here, because `scripts/gpu_check.py` translates without tqdm.
            from tqdm import tqdm

            self.bar = tqdm(
                total=self._total,
                initial=self._before,
                unit=" lines",
                dynamic_ncols=True,
                leave=False,
                delay=1,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def update(self, done: int) -> None:
        """Show that `done` lines of the input are translated, those before the start included."""
        if self.bar is not None:
            self.bar.update(done - self.bar.n)
            return
        now = time.monotonic()
        if now - self._said_at < SECONDS_BETWEEN_LINES:
            return
        self._said_at = now
        of_all = "" if self._total is None else f" of {self._total:,}"
        speed = (done - self._before) / (now - self._started)
        say(f"{done:,}{of_all} lines translated, {speed:,.1f} lines/s")


@dataclass
class LineNumbers:
    """How many lines something happened to, and the numbers of the first ones."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, number: int) -> None:
        """Count a line."""
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(number)

    def __str__(self) -> str:
        """`line 3, 1,204`"""
        shown = ", ".join(f"{number:,}" for number in self.first)
        return f"line {shown}{', ...' * (self.count > len(self.first))}"


@dataclass
class Tally:
    """Counts of a translation."""

    lines: int = 0
    blank: int = 0
    flagged: dict[str, LineNumbers] = field(default_factory=dict)  # by quality flag
    halved: int = 0  # batches that did not fit into the memory
    tokens: int = 0  # of the output, eos counted
    seconds: float = 0.0

    def summary(self, noun: str = "line", notes: Sequence[str] = (), engine: str = "") -> str:
        """Return a line such as `1,000 lines (2 blank) in 1.6 s: 625 lines/s, 8,200 tokens/s`.

        `noun`: what is counted. `notes` stand in the brackets. One more line follows for each
        quality flag, and one names the engine.
        """
        notes = [*([f"{self.blank:,} blank"] if self.blank else []), *notes]
        if self.halved:
            batches = "batch" if self.halved == 1 else "batches"
            notes.append(
                f"{self.halved:,} {batches} too large for the memory, translated in halves: "
                "a lower --batch-tokens is faster"
            )
        note = f" ({'; '.join(notes)})" if notes else ""
        seconds = max(self.seconds, 1e-9)
        speed = f"{self.lines / seconds:,.0f} {noun}s/s, {self.tokens / seconds:,.0f} tokens/s"
        plural = "s" * (self.lines != 1)
        first = f"{self.lines:,} {noun}{plural}{note} in {self.seconds:.1f} s: {speed}"
        flagged = [
            f"{flag}: {lines.count:,} ({meaning}): {lines}"
            for flag, meaning in FLAGS.items()
            if (lines := self.flagged.get(flag))
        ]
        return "\n".join([first, *flagged, *([f"engine: {engine}"] if engine else [])])
