"""A line on its way through the translator; one too long for the model is cut into segments."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

from mt.data.tokens.tokenizer import Tokenizer
from mt.search.engine_contract import Hypothesis

# A long source is cut after these, best first: the end of a sentence, a clause, a word.
SEPARATORS = (
    re.compile(r"(?<=[.!?…])[\"'”“’‘»«)\]]*\s+|(?<=[。！？])[”’」』）]*"),
    re.compile(r"(?<=[,;:–—])\s+|(?<=[，；：、])"),
    re.compile(r"\s+"),
)


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


def split_source(text: str, tokenizer: Tokenizer, max_tokens: int) -> list[list[int]]:
    """Return the ids of the segments of a text, each of at most `max_tokens` tokens.

    It is cut at sentence ends, else at clauses, else between words, else anywhere. A token for the
    target language at the beginning of the text is repeated in each segment.
    """
    language, text = tokenizer.split_language(text)
    first = tokenizer.src.encode([language])[0] if language else []
    max_tokens = max(1, max_tokens - len(first))
    segments = [text]
    for separator in SEPARATORS:
        segments = [
            part for segment in segments for part in pack(separator, segment, tokenizer, max_tokens)
        ]
    rows = [ids for ids in tokenizer.src.encode(segments) if ids]
    return [
        first + ids[start : start + max_tokens]
        for ids in rows
        for start in range(0, len(ids), max_tokens)
    ]


def pack(separator: re.Pattern[str], text: str, tokenizer: Tokenizer, max_tokens: int) -> list[str]:
    """Cut a text after separators into as few segments as fit.

    A part without a separator stays whole, even if it is too long.
    """
    ends = [0, *(match.end() for match in separator.finditer(text)), len(text)]
    parts = [text[start:end] for start, end in itertools.pairwise(ends) if text[start:end].strip()]
    whole, *sizes = (len(ids) for ids in tokenizer.src.encode([text, *parts]))
    if whole <= max_tokens:
        return [text]
    packed: list[str] = []
    room = 0
    for part, size in zip(parts, sizes, strict=True):
        if packed and size <= room:
            packed[-1] += part
            room -= size
        else:
            packed.append(part)
            room = max_tokens - size
    return packed
