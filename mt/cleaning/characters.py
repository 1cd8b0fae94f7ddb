"""Count characters of lines by kind and script; score how surely a line is in another language."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mt.data.reading import languages

# Scripts that a language may be told by: name, Unicode blocks (first and last code point), and the
# languages of fastText's lid.176 that are written in it.
_TABLE = Path(__file__).with_name("scripts.txt").read_text(encoding="utf-8")
# By name, both in this order: the blocks, and the languages.
_ROWS = [row.partition(" : ") for row in re.split(r"\n(?! )", _TABLE.strip())]
_BLOCKS = {row[0].split()[0]: row[0].split()[1:] for row in _ROWS}
WRITTEN_IN = {name: row[2].split() for name, row in zip(_BLOCKS, _ROWS, strict=True)}
# Classes 0 to 4 are these; then the scripts in order.
SPACE, DIGIT, PUNCTUATION, SYMBOL, OTHER_LETTER = range(5)
SCRIPTS = {name: number for number, name in enumerate(_BLOCKS, 5)}
N_CLASSES = 5 + len(SCRIPTS)
# Words in a character of a script without spaces between words.
WORDS_PER_CHARACTER = np.zeros(N_CLASSES)
WORDS_PER_CHARACTER[[SCRIPTS[name] for name in ("Thai", "Laoo", "Mymr", "Khmr", "Tibt")]] = 0.25
WORDS_PER_CHARACTER[[SCRIPTS["Hani"], SCRIPTS["Kana"]]] = 0.5
WEIGHTS = np.ones(N_CLASSES, np.int64)  # how much a character of each class says, in Latin letters
WEIGHTS[[SCRIPTS["Hang"], SCRIPTS["Kana"]]] = 2
WEIGHTS[SCRIPTS["Hani"]] = 3
# What stands in ordinary text beside letters, digits and Unicode's own punctuation.
_ORDINARY = set("%&/*$€£¥°+№§´`’'") | {"\u200c", "\u200d"}
_UNORDINARY = set("#@\\_|~^<>=[]{}")


@dataclass
class CharacterCounts:
    """Counts of n lines: `classes` (n, N_CLASSES), `length`, `words` and longest `run` (n,)."""

    classes: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    words: npt.NDArray[np.float64]
    run: npt.NDArray[np.int64]

    @property
    def visible(self) -> npt.NDArray[np.int64]:
        return self.length - self.classes[:, SPACE]

    @property
    def letters(self) -> npt.NDArray[np.int64]:
        return self.classes[:, OTHER_LETTER:].sum(1)


def count_characters(lines: Sequence[str]) -> CharacterCounts:
    """Count the characters of each line by class, its words, its longest run of one character."""
    # Each line ends with a space, so that its last word ends within it.
    text = " ".join(lines) + " "
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    length = np.fromiter(map(len, lines), np.int64, len(lines))
    line_of = np.repeat(np.arange(len(lines)), length + 1)
    classes = _class_table()[np.minimum(codes, 0x40000)]
    counts = np.bincount(line_of * N_CLASSES + classes, minlength=len(lines) * N_CLASSES)
    counts = counts.reshape(len(lines), N_CLASSES)
    counts[:, SPACE] -= 1
    spaces = classes == SPACE
    ends = np.flatnonzero(spaces[1:] & ~spaces[:-1])
    spaced = np.bincount(line_of[ends], minlength=len(lines))
    # A character of a script without spaces is a part of a word; what is more counts.
    words = np.maximum(spaced, counts @ WORDS_PER_CHARACTER)
    return CharacterCounts(counts, length, words, _longest_runs(codes, line_of, len(lines)))


def _longest_runs(
    codes: npt.NDArray[np.uint32], line_of: npt.NDArray[np.int64], n: int
) -> npt.NDArray[np.int64]:
    """The longest run of one visible character in each line; 0 for runs under five."""
    longest = np.zeros(n, np.int64)
    same = (codes[1:] == codes[:-1]) & (codes[1:] != 32)
    if (same[3:] & same[2:-1] & same[1:-2] & same[:-3]).any():
        edges = np.flatnonzero(np.diff(same, prepend=False, append=False))
        starts, lengths = edges[::2], edges[1::2] - edges[::2] + 1
        np.maximum.at(longest, line_of[starts], lengths)
    return np.where(longest < 5, 0, longest)


@lru_cache(maxsize=1)
def _class_table() -> npt.NDArray[np.uint8]:
    """The class of each code point of planes 0 to 3; the last entry is for all above."""
    table = np.full(0x40001, SYMBOL, np.uint8)
    kinds = {"Z": SPACE, "N": DIGIT, "P": PUNCTUATION, "L": OTHER_LETTER, "M": OTHER_LETTER}
    for code in range(0x20000):
        character = chr(code)
        kind = kinds.get(unicodedata.category(character)[0], SYMBOL)
        if character in _UNORDINARY:
            kind = SYMBOL
        elif character in _ORDINARY:
            kind = PUNCTUATION
        elif character in "\t\n\r\v\f\x1c\x1d\x1e\x1f\x85":
            kind = SPACE
        table[code] = kind
    table[0x20000:0x40000] = OTHER_LETTER
    for name, blocks in _BLOCKS.items():
        for block in blocks:
            first, last = (int(bound, 16) for bound in block.split("-"))
            part = table[first : last + 1]
            part[part == OTHER_LETTER] = SCRIPTS[name]
    return table


def scripts_of(code: str) -> list[int]:
    """The classes of a language's letters: of the script in its code, else of all usual ones."""
    named = {part.title() for part in re.split("[-_]", code)[1:]}
    names = [name for name in SCRIPTS if name in named]
    names += ["Hani"] * bool(named & {"Hans", "Hant"}) + ["Hani", "Kana"] * ("Jpan" in named)
    names += ["Hang"] * bool(named & {"Kore"})
    if not names:
        language = languages.base_code(code)
        names = [name for name, codes in WRITTEN_IN.items() if language in codes]
    return [SCRIPTS[name] for name in names]


class Language:
    """The language that one side of a corpus should be in."""

    def __init__(self, code: str, identify: bool) -> None:
        """Load the model if lines are to be identified. Raises DataError without its package."""
        self.code = languages.base_code(code)
        self.scripts = scripts_of(code)
        self.is_latin = SCRIPTS["Latn"] in self.scripts
        self.relatives = languages.relatives_of(self.code)
        self._labels = {f"__label__{name}" for name in self.relatives}
        is_known = any(self.code in codes for codes in WRITTEN_IN.values())
        self._model: Any = languages.load_model() if identify and is_known else None
        # Igbo is known but not to the model, for which all of it would be in another language.
        every = self._model.predict("\n", 1000, -1.0, "replace") if self._model is not None else ()
        self.is_identified = not self._labels.isdisjoint(label for _, label in every)

    def other(self, texts: Sequence[str]) -> list[float]:
        """Score each text from 0 to 1: how surely it is in another language.

        0 where it or a relative is the most probable one; else by how much another is more probable
        than these; less where the model often takes the language for another.
        """
        lines = [languages.as_line(text, languages.FIRST_LOOK) for text in texts]
        looks = self._model.multilinePredict(lines, 1, languages.CLEARLY, "replace")
        scores = [0.0] * len(texts)
        for i, labels in enumerate(looks):
            if labels and labels[0] in self._labels:
                continue
            if likely := self._model.predict(languages.as_line(texts[i]), 5, 0.01, "replace"):
                expected = sum(p for p, label in likely if label in self._labels)
                sure = max(0.0, min(likely[0][0], 1.0) - expected)
                scores[i] = sure * languages.WEAK.get(self.code, 1.0)
        return scores
