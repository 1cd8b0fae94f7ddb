"""Counts of a translation, and its closing summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mt.translate.quality_flags import FLAGS

# Line numbers that a summary names: of millions of lines, all may be flagged.
SHOWN = 5


@dataclass
class LineNumbers:
    """How many lines something happened to, and the numbers of the first ones."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, number: int) -> None:
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
