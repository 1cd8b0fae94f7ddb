"""How far a translation has come, and its closing summary."""

from __future__ import annotations

import sys
import time
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
        """Start with `before` lines done of `total`; None: not known, as of a stream."""
        self._total = total
        self._before = before
        self._started = time.monotonic()
        self._said_at = self._started
        self.bar: tqdm[Any] | None = None
        if on_terminal:
            # Imported here, because `scripts/gpu_check.py` translates without tqdm.
            from tqdm import tqdm

            self.bar = tqdm(
                total=total, initial=before, unit=" lines", dynamic_ncols=True, leave=False, delay=1
            )

    def __enter__(self) -> Progress:
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
    before: int = 0  # lines finished by an earlier start of the job; line numbers continue there
    blank: int = 0
    several: int = 0  # of several sentences, each translated by itself
    rewritten: int = 0  # given to the model as its training text would write them
    unknown: int = 0  # that might have been, if their language were known
    split: LineNumbers = field(default_factory=LineNumbers)  # too long for the model
    flagged: dict[str, LineNumbers] = field(default_factory=dict)  # by quality flag
    looped: int = 0  # sources whose outputs repeated themselves up to the limit
    escaped: int = 0  # of these, those whose second search found something better
    halved: int = 0  # batches that did not fit into the memory
    tokens: int = 0  # of the output, eos counted
    seconds: float = 0.0
    noun: str = "line"  # what is counted
    notes: list[str] = field(default_factory=list)  # of the caller
    engine: str = ""  # what decoded, and why, where that was a choice

    def summary(self) -> str:
        """Return a line such as `1,000 lines (2 blank) in 1.6 s: 625 lines/s, 8,200 tokens/s`.

        One more line follows for each quality flag, and one names the engine.
        """
        notes = [f"{self.blank:,} blank"] if self.blank else []
        notes += self.notes
        if self.several:
            notes.append(f"{self.several:,} of several sentences, translated one by one")
        if self.rewritten:
            notes.append(f"{self.rewritten:,} translated as the training text would write them")
        if self.unknown:
            notes.append(
                f"{self.unknown:,} in capitals, Title Case or lower case translated as they are: "
                "--from CODE, their language, may help"
            )
        if self.split.count:
            notes.append(
                f"{self.split.count:,} too long for the model, translated in pieces: {self.split}"
            )
        if self.looped:
            notes.append(
                f"{self.looped:,} repeated themselves up to the limit and were searched again, "
                f"better for {self.escaped:,}"
            )
        if self.halved:
            batches = "batch" if self.halved == 1 else "batches"
            notes.append(
                f"{self.halved:,} {batches} too large for the memory, translated in halves: "
                "a lower --batch-tokens is faster"
            )
        note = f" ({'; '.join(notes)})" if notes else ""
        seconds = max(self.seconds, 1e-9)
        speed = f"{self.lines / seconds:,.0f} {self.noun}s/s, {self.tokens / seconds:,.0f} tokens/s"
        plural = "s" * (self.lines != 1)
        first = f"{self.lines:,} {self.noun}{plural}{note} in {self.seconds:.1f} s: {speed}"
        flagged = [
            f"{flag}: {lines.count:,} ({meaning}): {lines}"
            for flag, meaning in FLAGS.items()
            if (lines := self.flagged.get(flag))
        ]
        engine = [f"engine: {self.engine}"] if self.engine else []
        return "\n".join([first, *flagged, *engine])
