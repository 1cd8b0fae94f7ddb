"""Signs that a translation is bad, without a reference; what repeats itself is searched again."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import compress, groupby

from mt.data.reading.words import is_unspaced
from mt.translate.lines import Line, Segment, Step, Tally
from mt.translate.loaded_engine import LoadedEngine

# An n-gram of words repeated this often in a row, for n = 1, 2, 3, 4, is a loop.
REPEATS = (4, 3, 3, 3)
# A loop repeats at least so many words; only texts that do need a closer look.
LEAST_REPEATED = min((most - 1) * n for n, most in enumerate(REPEATS, 1))
# The same of characters, in a text without spaces or in a word: 8 times one, 5 times two, 4 times
# three or four, 3 times five to twelve.
UNSPACED_LOOP = re.compile(r"(.)\1{7}|(..)\2{4}|(.{3,4}?)\3{3}|(.{5,12}?)\4{2}")
LEAST_LOOPING = 8  # characters of the shortest of these
# Words, or characters of a text without spaces: names, numbers and single words are often rightly
# copied; longer texts are not.
LEAST_COPIED = 4
LEAST_COPIED_CHARACTERS = 10
# Tokens of the longer side below which the ratio of lengths means nothing.
LEAST_COMPARED = 12

FLAGS = {
    "copied": "equal to the source",
    "empty": "the translation is blank",
    "looping": "repeats itself again and again",
    "ratio": "much longer or shorter than the source",
    "truncated": "stopped at the length limit",
    "misplaced": "a protected text or term that the model left out stands at the end",
}


class FlagOutputs(Step):
    """Flags suspicious outputs, by the best one of each line."""

    def __init__(self, max_ratio: float) -> None:
        self.max_ratio = max_ratio  # of lengths, beyond which an output is flagged

    def after(self, lines: Sequence[Line]) -> None:
        """Flag outputs, and lines of which nothing is left for the model: invisible characters."""
        for line in lines:
            if not line.segments:
                raised: tuple[str, ...] = () if is_blank(line.text) else ("empty",)
            else:
                best = [segment.outputs[0] for segment in line.segments]
                n_src = sum([len(segment.source) for segment in line.segments])
                n_tgt = sum([part.length for part in best])
                truncated = True in [part.truncated for part in best]
                sides = line.text, line.translation.texts[0], n_src, n_tgt
                raised = flags(*sides, truncated=truncated, max_ratio=self.max_ratio)
            if raised:
                line.translation = line.translation._replace(flags=raised)


class EscapeLoops(Step):
    """Searches lines with a loop a second time, greedily and without repeated tokens.

    That output replaces one that loops if it does not loop itself. Log-probabilities do not decide:
    without `with_scores` an engine may not know them, and the texts must be the same.
    """

    def __init__(self, engine: LoadedEngine) -> None:
        self.engine = engine
        self.n_looped = 0  # sources whose outputs repeated themselves up to the limit
        self.n_escaped = 0  # of these, those whose second search found something better

    def after(self, lines: Sequence[Line]) -> None:
        """Replace outputs of segments, before they are joined."""
        every = ((segment, line) for line in lines for segment in line.segments)
        looping = [(s, line) for s, line in every if s.outputs[0].truncated and _loops(s, line)]
        copies = [Segment(segment.source, segment.prefix) for segment, _ in looping]
        for _ in self.engine.search([Line(0, "", segments=copies)], Tally(), loop_free=True):
            pass
        for (segment, line), copy in zip(looping, copies, strict=True):
            self.n_looped += 1
            if not _loops(copy, line):
                segment.outputs = copy.outputs
                self.n_escaped += 1

    def notes(self) -> list[str]:
        again = "repeating up to the limit and searched again, better for"
        return [f"{self.n_looped:,} {again} {self.n_escaped:,}"] if self.n_looped else []


def _loops(segment: Segment, line: Line) -> bool:
    return loops(segment.outputs[0].text.split(), line.text.split())


def flags(
    source: str, output: str, n_src: int, n_tgt: int, *, truncated: bool, max_ratio: float
) -> tuple[str, ...]:
    """Return the names in `FLAGS` that hold for an output; `n_src`, `n_tgt`: tokens of a side."""
    if not source or source.isspace():
        return ()
    words = output.split()
    size, most = len(words), LEAST_COPIED
    if is_unspaced(text := "".join(words)):
        size, most = len(text), LEAST_COPIED_CHARACTERS
    shorter, longer = (n_src, n_tgt) if n_src < n_tgt else (n_tgt, n_src)
    raised = (  # in the order of FLAGS
        words[:1] == source.split(None, 1)[:1]  # rules most out
        and words == source.split()
        and size >= most,
        not words,
        loops(words) and loops(words, source.split()),
        bool(words) and longer >= LEAST_COMPARED and longer > max_ratio * shorter,
        truncated,
    )
    return tuple(compress(FLAGS, raised)) if True in raised else ()


def is_blank(text: str) -> bool:
    """Whether a text has only tabs, spaces of any width, and ends of lines of ASCII."""
    return all(char in "\t\r\n" or unicodedata.category(char) == "Zs" for char in text)


def loops(words: Sequence[str], source_words: Sequence[str] = ()) -> bool:
    """Whether a text repeats words, or characters in a row, as its source does not."""
    if len(words) - len(set(words)) >= LEAST_REPEATED and any(
        longest_repeat(words, n) >= most > longest_repeat(source_words, n)
        for n, most in enumerate(REPEATS, 1)
    ):
        return not _repeats_characters(source_words)
    return _repeats_characters(words) and not loops(source_words)


def _repeats_characters(words: Sequence[str]) -> bool:
    """Whether characters repeat: anywhere in a text without spaces, else within a word."""
    text = "".join(words)
    parts = [text] if is_unspaced(text) else [word for word in words if len(word) >= LEAST_LOOPING]
    # Of the 8 or more characters of a loop, at least 7 have occurred before.
    parts = [part for part in parts if len(part) - len(set(part)) >= LEAST_LOOPING - 1]
    return any(map(UNSPACED_LOOP.search, parts))


def longest_repeat(words: Sequence[str], n: int) -> int:
    """Return how often an n-gram follows itself, at most: 3 for `a b a b a b` and n = 2."""
    if len(words) < n:
        return 0
    # Of n words that follow themselves once, each equals the one n places later.
    equal = (word == later for word, later in zip(words, words[n:], strict=False))
    return max((sum(1 for _ in run) for same, run in groupby(equal) if same), default=0) // n + 1
