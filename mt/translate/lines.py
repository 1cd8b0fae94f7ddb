"""A line on its way through the translator, in segments; the steps that work on it; counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Translation(NamedTuple):
    """The result for one line: its `n_best` outputs, best first. A blank line has one, empty."""

    texts: tuple[str, ...]
    scores: tuple[float, ...]  # log-probability / length^penalty, of all segments; eos counted
    segments: int = 1  # 0 for a blank line
    alignments: tuple[str, ...] = ()  # of each output, if asked for; see `word_links`
    flags: tuple[str, ...] = ()  # why the best output is suspect; see `quality_flags.FLAGS`


UNTRANSLATED = Translation(("",), (0.0,), 0)


class SegmentOutput(NamedTuple):
    """A hypothesis for a segment, and its text."""

    text: str
    score: float
    log_prob: float  # eos included
    length: int  # tokens, eos not counted
    truncated: bool  # stopped at the length limit
    tokens: list[int]  # none unless alignments are asked for


@dataclass(slots=True)
class Segment:
    """A source as the model sees it: a whole line, a sentence of it, or a part that fits."""

    source: list[int]
    prefix: Sequence[int] = ()  # how its output must begin
    outputs: Sequence[SegmentOutput] = ()  # best first
    is_joined: bool = False  # no white space is before it in the line
    line_feeds: int = 0  # so many are before it


@dataclass(slots=True, eq=False)
class Line:
    """A line on its way through the translator; hashed by identity."""

    number: int  # from 1
    text: str  # as the steps so far give it to the model
    prefix: Sequence[int] = ()  # the tokens that its output must begin with
    segments: Sequence[Segment] = ()  # none for a blank line
    sentences: int = 1  # 1 also where sentences are not told apart
    translation: Translation = UNTRANSLATED


class Step:
    """Something done to lines before the search, first step first, and after it, last first."""

    # What an output depends on, by the name of its option.
    settings: Mapping[str, str] = {}

    def before(self, lines: Sequence[Line]) -> None:
        """Change lines before the search, all of a window and in order.

        May be called ahead, in another thread: uses nothing that `after` changes.
        """

    def after(self, lines: Sequence[Line]) -> None:
        """Change the outputs and translations of a window, in order."""

    def notes(self) -> list[str]:
        """Remarks of the step for the closing summary."""
        return []


class MergeEqual(Step):
    """Of outputs with the same text keeps the best: other tokens may spell it, too."""

    def after(self, lines: Sequence[Line]) -> None:
        """Leave each text once."""
        for line in lines:
            merged = line.translation
            firsts = sorted(map(merged.texts.index, set(merged.texts)))
            line.translation = merged._replace(
                texts=tuple(merged.texts[n] for n in firsts),
                scores=tuple(merged.scores[n] for n in firsts),
                alignments=tuple(merged.alignments[n] for n in firsts if merged.alignments),
            )


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
