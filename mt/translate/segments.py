"""Lines → segments that the model can take, and their outputs → those of the lines."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

import regex

from mt.data.reading.words import has_visible, join_sentences, single_spaced
from mt.data.tokens.tokenizer import UNK, Tokenizer
from mt.errors import DataError
from mt.translate.lines import Line, LineNumbers, Segment, SegmentOutput, Step, Translation

# SentencePiece encodes fewer lines as fast with one thread.
LINES_PER_THREAD = 1_000
# A long source is cut after these, best first: the end of a sentence, a clause, a word.
SEPARATORS = (
    regex.compile(
        r"(?V1)(?<=[\p{Sentence_Terminal}…།--၊])(?<!\d\.)[\"'”’“‘»«)\]]*\s+(?!\p{CWT})"
        r"|(?<=[。！？])[”’」』）]*"
    ),
    regex.compile(r"(?<=[,;:–—!?…၊])\s+|(?<=\D\.)\s+|(?<=[，；：、])"),
    regex.compile(r"\s+"),
)
_ENDED = regex.compile(r"[\p{Sentence_Terminal}…]\S*\s")


@dataclass(eq=False)
class Segments(Step):
    """Encodes lines, cuts those that are too long or of several sentences, and joins outputs."""

    tokenizer: Tokenizer
    max_tokens: int  # of a segment
    length_penalty: float
    first_ids: list[int]  # before each segment, not counted; see `Tokenizer.before_source`
    # Into sentences; None: they are translated together.
    cut: Callable[[str], list[str]] | None = None
    tags: Set[str] = frozenset()  # what lines may begin with, and then each of their segments
    threads: int = 1
    n_several: int = 0  # lines of several sentences, each translated by itself
    split: LineNumbers = field(default_factory=LineNumbers)  # too long for the model

    def __post_init__(self) -> None:
        self.settings = {"--split-sentences": "always"} if self.cut else {}
        self.settings |= {"--to": str(self.first_ids)} if self.first_ids else {}

    def before(self, lines: Sequence[Line]) -> None:
        """Give each line its segments; the first has the prefix of the line."""
        threads = self.threads if len(lines) >= LINES_PER_THREAD else 1
        rows = self.tokenizer.src.encode([line.text for line in lines], threads)
        for line, source in zip(lines, rows, strict=True):
            # The tokens of what cannot be seen are bytes, of which a model makes anything.
            if not source or not has_visible(line.text):
                continue
            cut = None if line.prefix and self._has_end(line.prefix) else self._sentences
            line.sentences = len(cut(line.text)) if cut else 1
            line.segments = [Segment(source)]
            if len(source) > self.max_tokens or line.sentences > 1:
                how = self.max_tokens, cut, self.tags
                line.segments = split_source(line.text, self.tokenizer, *how)
            line.segments[0].prefix = line.prefix
            for segment in line.segments if self.first_ids else ():
                segment.source = self.first_ids + segment.source

    def _sentences(self, text: str) -> list[str]:
        """The parts of a line that are translated by themselves; each ends at a line feed."""
        lines = filter(has_visible, text.split("\n"))
        return [part for line in lines for part in (self.cut(line) if self.cut else [line])]

    def _has_end(self, prefix: Sequence[int]) -> bool:
        """Whether a prefix goes on after a sentence: nobody knows where in the line that ends."""
        (text,) = self.tokenizer.tgt.decode([[*prefix]])
        return _ENDED.search(text) is not None

    def after(self, lines: Sequence[Line]) -> None:
        """Join the n-th best outputs of the segments to the n-th best output of the line."""
        for line in lines:
            if not line.segments:
                continue
            rows = [segment.outputs for segment in line.segments]
            texts, scores, *_ = zip(*rows[0], strict=True)
            if len(rows) > 1:
                joined = [self._joined(line, parts) for parts in zip(*rows, strict=False)]
                texts, scores = zip(*joined, strict=True)
            line.translation = Translation(texts, scores, len(rows))
            self.n_several += line.sentences > 1
            if len(rows) > line.sentences:
                self.split.add(line.number)

    def _joined(self, line: Line, parts: Sequence[SegmentOutput]) -> tuple[str, float]:
        pairs = zip(line.segments, parts, strict=True)
        texts = ["\n" * segment.line_feeds + part.text for segment, part in pairs]
        text = single_spaced(join_sentences(texts))
        length = sum(part.length + 1 for part in parts)
        return text, sum(part.log_prob for part in parts) / length**self.length_penalty

    def notes(self) -> list[str]:
        several = f"{self.n_several:,} of several sentences, translated one by one"
        long = f"{self.split.count:,} too long for the model, translated in pieces: {self.split}"
        return [several] * bool(self.n_several) + [long] * bool(self.split.count)


class Prefixes(Step):
    """Reads a prefix for each line; the output of a line begins with it."""

    def __init__(self, prefixes: Iterable[str], tokenizer: Tokenizer, max_tokens: int) -> None:
        """`prefixes`: a blank one for none. `max_tokens`: of the longest one."""
        self._prefixes = iter(prefixes)
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens

    def before(self, lines: Sequence[Line]) -> None:
        """Give lines their prefixes; DataError if one is missing, too long or cannot be spelled."""
        prefixes = list(itertools.islice(self._prefixes, len(lines)))
        if len(prefixes) < len(lines):
            raise prefix_mismatch(f"{lines[len(prefixes)].number:,} of the text has no prefix")
        if not any(prefixes):
            return
        rows = self.tokenizer.tgt.encode(prefixes)
        for line, text, ids in zip(lines, prefixes, rows, strict=True):
            if len(ids) > self.max_tokens:
                raise DataError(
                    f"--prefix line {line.number:,}: has {len(ids):,} tokens, but the model has "
                    f"positions for {self.max_tokens:,}; shorten it"
                )
            if UNK in ids:
                raise DataError(
                    f"--prefix line {line.number:,}: {text!r} contains a character that the "
                    "vocabulary lacks; leave it out"
                )
            line.prefix = ids


def prefix_mismatch(problem: str) -> DataError:
    return DataError(f"--prefix: must have one line for each line to translate, but line {problem}")


def split_source(
    text: str, tokenizer: Tokenizer, max_tokens: int, cut: Callable[[str], list[str]] | None = None,
    tags: Set[str] = frozenset(),
) -> list[Segment]:  # fmt: skip
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
        packed = [pack(separator, segment, tokenizer, max_tokens) for segment in segments]
        segments = list(itertools.chain.from_iterable(packed))
    parts, end = list[Segment](), 0  # of the segment before
    for segment, ids in zip(segments, tokenizer.src.encode(segments), strict=True):
        begin = text.find(segment, end)
        is_joined = begin == end > 0 and not any(map(str.isspace, text[begin - 1 : begin + 1]))
        line_feeds = text.count("\n", end, begin)
        end = max(begin, end) + len(segment)
        for start in range(0, len(ids), max_tokens):
            part = first + ids[start : start + max_tokens]
            parts.append(Segment(part, is_joined=is_joined, line_feeds=line_feeds))
            is_joined, line_feeds = False, 0
    return parts


def pack(mark: regex.Pattern[str], text: str, tokenizer: Tokenizer, max_tokens: int) -> list[str]:
    """Cut a text after marks into as few segments as fit, or that have no mark."""
    ends = [0, *(match.end() for match in mark.finditer(text)), len(text)]
    parts = [text[start:end] for start, end in itertools.pairwise(ends) if text[start:end].strip()]
    if len(tokenizer.src.encode([text])[0]) <= max_tokens:
        return [text]
    sizes = [len(ids) for ids in tokenizer.src.encode(parts)]
    packed, room = list[str](), 0
    for part, size in zip(parts, sizes, strict=True):
        if packed and size <= room:
            packed[-1] += part
            room -= size
        else:
            packed.append(part)
            room = max_tokens - size
    return packed
