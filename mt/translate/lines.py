"""A line on its way through the translator, in segments: its sentences, and parts of long ones."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from mt.data.tokens.tokenizer import Tokenizer
from mt.data.tokens.writing import Written

# A long source is cut after these, best first: the end of a sentence, a clause, a word.
SEPARATORS = (
    re.compile(r"(?<=[.!?…])[\"'”“’‘»«)\]]*\s+|(?<=[。！？])[”’」』）]*"),
    re.compile(r"(?<=[,;:–—])\s+|(?<=[，；：、])"),
    re.compile(r"\s+"),
)


class Translation(NamedTuple):
    """The result for one line: its `n_best` outputs, best first. A blank line has one, empty."""

    texts: tuple[str, ...]
    scores: tuple[float, ...]  # log-probability / length^penalty, of all segments; eos counted
    segments: int = 1  # 0 for a blank line
    alignments: tuple[str, ...] = ()  # of each output, if asked for; see `word_links`
    flags: tuple[str, ...] = ()  # why the best output is suspect; see `quality_flags.FLAGS`


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
    prefix: list[int]  # how its output must begin
    outputs: Sequence[SegmentOutput] = ()  # best first
    is_joined: bool = False  # no white space is before it in the line


@dataclass(slots=True)
class Line:
    """A line on its way through the translator."""

    number: int  # from 1
    text: str  # as the model sees it
    segments: list[Segment]  # none for a blank line
    sentences: int = 1  # 1 also where sentences are not told apart
    written: Written | None = None  # how, where the model sees it otherwise
    translation: Translation | None = None
    rank: int = 0  # of the hypotheses of which its best output is made


class SourcePart(NamedTuple):
    """The ids of a segment, and whether no white space is between it and the one before."""

    ids: list[int]
    is_joined: bool


def split_source(
    text: str,
    tokenizer: Tokenizer,
    max_tokens: int,
    cut: Callable[[str], list[str]] | None = None,
    tags: Set[str] = frozenset(),
) -> list[SourcePart]:
    """Return the segments of a text, each of at most `max_tokens` tokens.

    Each sentence that `cut` returns is one. What is too long is cut at sentence ends, else at
    clauses, else between words, else anywhere. A token for the target language, or one of `tags`,
    at the beginning of the text is repeated in each segment.
    """
    language, text = tokenizer.split_language(text)
    tag = max((tag for tag in tags if text.lstrip().startswith(tag)), key=len, default="")
    first = tokenizer.src.encode([language or tag])[0] if language or tag else []
    text = text.lstrip().removeprefix(tag)
    max_tokens = max(1, max_tokens - len(first))
    segments = cut(text) if cut else [text]
    for separator in SEPARATORS:
        segments = [
            part for segment in segments for part in pack(separator, segment, tokenizer, max_tokens)
        ]
    found = []
    end = 0  # of the segment before
    for segment, ids in zip(segments, tokenizer.src.encode(segments), strict=True):
        begin = text.find(segment, end)
        is_joined = begin == end > 0 and not any(map(str.isspace, text[begin - 1 : begin + 1]))
        end = max(begin, end) + len(segment)
        found += [
            SourcePart(first + ids[start : start + max_tokens], is_joined and start == 0)
            for start in range(0, len(ids), max_tokens)
        ]
    return found


def pack(separator: re.Pattern[str], text: str, tokenizer: Tokenizer, max_tokens: int) -> list[str]:
    """Cut a text after separators into as few segments as fit.

    A part without a separator stays whole, even if it is too long.
    """
    ends = [0, *(match.end() for match in separator.finditer(text)), len(text)]
    parts = [text[start:end] for start, end in itertools.pairwise(ends) if text[start:end].strip()]
    if len(tokenizer.src.encode([text])[0]) <= max_tokens:
        return [text]
    sizes = [len(ids) for ids in tokenizer.src.encode(parts)]
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
