"""What the closing summary of a translation reports."""

from __future__ import annotations

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
    split: LineNumbers = field(default_factory=LineNumbers)  # too long for the model
    flagged: dict[str, LineNumbers] = field(default_factory=dict)  # by quality flag
    halved: int = 0  # batches that did not fit into the memory
    tokens: int = 0  # of the output, eos counted
    seconds: float = 0.0
    engine: str = ""  # what decoded, and why, where that was a choice

    def summary(self) -> str:
        """Return a line such as `1,000 lines (2 blank) in 1.6 s: 625 lines/s, 8,200 tokens/s`.

        One more line follows for each quality flag, and one names the engine.
        """
        notes = [f"{self.blank:,} blank"] if self.blank else []
        if self.split.count:
            notes.append(
                f"{self.split.count:,} too long for the model, translated in pieces: {self.split}"
            )
        if self.halved:
            batches = "batch" if self.halved == 1 else "batches"
            notes.append(
                f"{self.halved:,} {batches} too large for the memory, translated in halves: "
                "a lower --batch-tokens is faster"
            )
        note = f" ({'; '.join(notes)})" if notes else ""
        seconds = max(self.seconds, 1e-9)
        speed = f"{self.lines / seconds:,.0f} lines/s, {self.tokens / seconds:,.0f} tokens/s"
        plural = "s" * (self.lines != 1)
        first = f"{self.lines:,} line{plural}{note} in {self.seconds:.1f} s: {speed}"
        flagged = [
            f"{flag}: {lines.count:,} ({meaning}): {lines}"
            for flag, meaning in FLAGS.items()
            if (lines := self.flagged.get(flag))
        ]
        engine = [f"engine: {self.engine}"] if self.engine else []
        return "\n".join([first, *flagged, *engine])
