"""A line on its way through the translator, its segments and outputs, and its translation."""

from __future__ import annotations

from dataclasses import dataclass, field

from mt.search.engine_contract import Hypothesis


@dataclass(frozen=True)
class Translation:
    """The result for one line: its `n_best` outputs, best first. A blank line has one, empty."""

    texts: tuple[str, ...]
    scores: tuple[float, ...]  # log-probability / length^penalty, eos counted; summed over segments
    segments: int = 1  # 0 for a blank line
    alignments: tuple[str, ...] = ()  # of each output, if asked for; see `links`
    flags: tuple[str, ...] = ()  # why the best output is suspect; see `quality_flags.FLAGS`


@dataclass
class Segment:
    """A source as the model sees it: a whole line, or a part of a line that is too long."""

    source: list[int]
    prefix: list[int] = field(default_factory=list)  # how its output must begin
    hypotheses: list[Hypothesis] = field(default_factory=list)  # best first
    texts: list[str] = field(default_factory=list)  # of the hypotheses


@dataclass
class Output:
    """One translation of a line, made of one hypothesis for each of its segments."""

    text: str
    hypotheses: list[Hypothesis]
    alignment: str | None = None

    @property
    def score(self) -> float:
        """The sum of the segments' scores."""
        return sum(hypothesis.score for hypothesis in self.hypotheses)


@dataclass
class Line:
    """A line on its way through the translator."""

    number: int  # from 1
    text: str
    segments: list[Segment]  # none for a blank line
    outputs: list[Output] = field(default_factory=list)  # best first
    translation: Translation | None = None


@dataclass
class Window:
    """Lines that are sorted by length and translated together."""

    lines: list[Line]
    started: float  # when they had been read and their encoding began
