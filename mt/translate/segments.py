"""Cut lines into segments that the model can take, and join the outputs of the segments.

A source too long for the model is translated in segments, and so are several sentences where the
model learnt from single ones.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from mt.data.reading.sentences import join_sentences
from mt.data.reading.words import has_letter, has_visible
from mt.data.tokens.tokenizer import Tokenizer
from mt.translate.lines import Line, Segment, SegmentOutput, Step, Translation
from mt.translate.progress import LineNumbers

# SentencePiece encodes fewer lines as fast with one thread.
LINES_PER_THREAD = 1_000
# A long source is cut after these, best first: the end of a sentence, a clause, a word.
SEPARATORS = (
    re.compile(r"(?<=[.!?…])[\"'”’“‘»«)\]]*\s+|(?<=[。！？])[”’」』）]*"),
    re.compile(r"(?<=[,;:–—])\s+|(?<=[，；：、])"),
    re.compile(r"\s+"),
)
# A stretch of a long source that is not for the model, but for a stop before it.
LETTERLESS = re.compile(r"((?<![^\W\d_])[\W\d_]{40,})")


@dataclass(eq=False)
class Segments(Step):
    """Encodes lines, cuts those that are too long or of several sentences, and joins outputs.

    A line of white space has no segment and never enters the model.
    """

    tokenizer: Tokenizer
    max_tokens: int  # of a segment
    length_penalty: float
    # Into sentences; None: they are translated together.
    cut: Callable[[str], list[str]] | None = None
    tags: Set[str] = frozenset()  # what lines may begin with, and then each of their segments
    keeps_letterless: bool = False  # long stretches of a source, which words are not counted in
    threads: int = 1
    n_several: int = 0  # lines of several sentences, each translated by itself
    split: LineNumbers = field(default_factory=LineNumbers)  # too long for the model

    def __post_init__(self) -> None:
        self.settings = {"--split-sentences": "always"} if self.cut else {}

    def before(self, lines: Sequence[Line]) -> None:
        """Give each line its segments; the first has the prefix of the line."""
        threads = self.threads if len(lines) >= LINES_PER_THREAD else 1
        rows = self.tokenizer.src.encode([line.text for line in lines], threads)
        for line, source in zip(lines, rows, strict=True):
            # The tokens of what cannot be seen are bytes, of which a model makes anything.
            if not source or not has_visible(line.text):
                continue
            if self.cut is not None and not (line.prefix and self._has_end(line.prefix)):
                line.sentences = len(self.cut(line.text))
            line.segments = [Segment(source)]
            if len(source) > self.max_tokens or line.sentences > 1:
                line.segments = split_source(
                    line.text,
                    self.tokenizer,
                    self.max_tokens,
                    self.cut if line.sentences > 1 else None,
                    self.tags,
                    self.keeps_letterless,
                )
            line.segments[0].prefix = line.prefix

    def _has_end(self, prefix: Sequence[int]) -> bool:
        """Whether a prefix goes on after a sentence: nobody knows where in the line that ends."""
        (text,) = self.tokenizer.tgt.decode([[*prefix]])
        return SEPARATORS[0].search(text) is not None

    def after(self, lines: Sequence[Line]) -> None:
        """Join the n-th best outputs of the segments to the n-th best output of the line."""
        for line in lines:
            if not line.segments:
                continue
            rows = [_with_around(segment) for segment in line.segments]
            texts, scores, *_ = zip(*rows[0], strict=True)
            if len(rows) > 1:
                texts, scores = zip(*map(self._joined, zip(*rows, strict=False)), strict=True)
            line.translation = Translation(texts, scores, len(rows))
            self.n_several += line.sentences > 1
            if len(rows) > line.sentences:
                self.split.add(line.number)

    def _joined(self, parts: Sequence[SegmentOutput]) -> tuple[str, float]:
        """Return the text of all segments, and their log-probability / length^penalty."""
        text = join_sentences([part.text for part in parts])
        length = sum(part.length + 1 for part in parts)
        return text, sum(part.log_prob for part in parts) / length**self.length_penalty

    def notes(self) -> list[str]:
        """How many lines were cut, and why."""
        notes = []
        if self.n_several:
            notes.append(f"{self.n_several:,} of several sentences, translated one by one")
        if count := self.split.count:
            notes.append(f"{count:,} too long for the model, translated in pieces: {self.split}")
        return notes


def _with_around(segment: Segment) -> Sequence[SegmentOutput]:
    """The outputs of a segment between the texts around it."""
    if not any(segment.around):
        return segment.outputs
    before, after = (re.sub(r"\s", " ", text) for text in segment.around)
    return [output._replace(text=before + output.text + after) for output in segment.outputs]


class LanguageToken(Step):
    """Begins each source with the token of a language; see `Tokenizer.before_source`."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.settings = {"--to": str(ids)}

    def before(self, lines: Sequence[Line]) -> None:
        for line in lines:
            for segment in line.segments:
                segment.source = self.ids + segment.source


def split_source(
    text: str,
    tokenizer: Tokenizer,
    max_tokens: int,
    cut: Callable[[str], list[str]] | None = None,
    tags: Set[str] = frozenset(),
    keeps_letterless: bool = False,
) -> list[Segment]:
    """Return the segments of a text, each of at most `max_tokens` tokens.

    Each sentence that `cut` returns is one. What is too long is cut at sentence ends, else at
    clauses, else between words, else anywhere; long stretches without a letter stand around
    segments. A token for the target language, or one of `tags`,
    at the beginning of the text is repeated in each segment.
    """
    language, text = tokenizer.split_language(text)
    tag = max((tag for tag in tags if text.lstrip().startswith(tag)), key=len, default="")
    first = tokenizer.src.encode([language or tag])[0] if language or tag else []
    text = text.lstrip().removeprefix(tag)
    max_tokens = max(1, max_tokens - len(first))
    segments = cut(text) if cut else [text]
    keeps_letterless = keeps_letterless and has_letter(text)
    if keeps_letterless:
        segments = [part for segment in segments for part in LETTERLESS.split(segment) if part]
    for separator in SEPARATORS:
        segments = [
            part for segment in segments for part in pack(separator, segment, tokenizer, max_tokens)
        ]
    parts = list[Segment]()
    before = ""  # the first part
    end = 0  # of the segment before
    for segment, ids in zip(segments, tokenizer.src.encode(segments), strict=True):
        begin = text.find(segment, end)
        is_joined = begin == end > 0 and not any(map(str.isspace, text[begin - 1 : begin + 1]))
        end = max(begin, end) + len(segment)
        gap = " " * (not is_joined)
        if keeps_letterless and not has_letter(segment):
            if parts:
                left, right = parts[-1].around
                parts[-1].around = left, right + gap + segment.strip()
            else:
                before += segment.strip()
            continue
        around = (before + gap if before else "", "")
        before = ""
        for start in range(0, len(ids), max_tokens):
            part = first + ids[start : start + max_tokens]
            parts.append(Segment(part, is_joined=is_joined and start == 0, around=around))
            around = ("", "")
    return parts


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
