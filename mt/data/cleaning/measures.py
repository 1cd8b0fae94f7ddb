"""Measure a block of sentence pairs, one number a pair for each rule of `data.clean`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mt.data.cleaning import contents
from mt.data.cleaning.characters import (
    DIGIT,
    OTHER_LETTER,
    SCRIPTS,
    SYMBOL,
    WEIGHTS,
    CharacterCounts,
    count_characters,
)
from mt.data.cleaning.languages import LEAST_IDENTIFIED, Language

Values = npt.NDArray[np.float64]
# Added to both lengths before their ratio is taken, and to letters and characters before their
# share is taken: short segments may differ more.
WORDS_ADDED = 3
CHARACTERS_ADDED = 15
LETTERS_ADDED = 4
# Letters of names, which stay Latin in every script.
NAMES_ADDED = 10


@dataclass
class PairBlock:
    """Sentence pairs, the characters of both sides, and the languages of the sides."""

    pairs: Sequence[tuple[str, str]]
    languages: tuple[Language, Language]

    def __post_init__(self) -> None:
        src, tgt = zip(*self.pairs, strict=True)
        self.texts: tuple[Sequence[str], Sequence[str]] = src, tgt
        self.counts = count_characters(src), count_characters(tgt)

    @cached_property
    def linked(self) -> tuple[list[int], list[int]]:
        """Numbers of the texts of each side that may have links or tags."""
        src, tgt = ([i for i, t in enumerate(s) if contents.may_have_links(t)] for s in self.texts)
        return src, tgt

    @cached_property
    def without_links(self) -> tuple[CharacterCounts, CharacterCounts]:
        """The characters of both sides, links and tags left out."""
        src, tgt = map(_without_links, self.counts, self.texts, self.linked)
        return src, tgt

    @cached_property
    def words(self) -> tuple[list[list[str]], list[list[str]]]:
        """The words of each text in lower case."""
        src, tgt = ([text.lower().split() for text in side] for side in self.texts)
        return src, tgt


def _without_links(
    counts: CharacterCounts, texts: Sequence[str], linked: list[int]
) -> CharacterCounts:
    if not linked:
        return counts
    rest = count_characters([contents.without_links(texts[i]) for i in linked])
    classes, length = counts.classes.copy(), counts.length.copy()
    classes[linked], length[linked] = rest.classes, rest.length
    return replace(counts, classes=classes, length=length)


def blank_sides(block: PairBlock) -> Values:
    """How many of the two sides are blank."""
    return sum((side.visible == 0).astype(float) for side in block.counts)


def words(block: PairBlock) -> Values:
    """Words of the longer side."""
    return np.maximum(*(side.words for side in block.counts))


def characters(block: PairBlock) -> Values:
    """Characters of the longer side."""
    return np.maximum(*(side.length for side in block.counts))


def word_ratio(block: PairBlock) -> Values:
    """Ratio of the lengths in words; NaN where a side is written without spaces."""
    return _ratio([side.words for side in block.counts], WORDS_ADDED)


def character_ratio(block: PairBlock) -> Values:
    """Ratio of the lengths in characters, a Chinese, Japanese or Korean one counted three times."""
    lengths = [side.classes @ WEIGHTS for side in block.counts]
    return _ratio(lengths, CHARACTERS_ADDED)


def _ratio(lengths: Sequence[npt.NDArray[Any]], added: int) -> Values:
    return (np.maximum(*lengths) + added) / (np.minimum(*lengths) + added)


def letters(block: PairBlock) -> Values:
    """Share of letters in visible characters, of the side that has fewer; 0 where it has none.

    A digit counts as half a letter. Links and tags are left out.
    """
    shares = []
    for side in block.without_links:
        letters = side.letters + side.classes[:, DIGIT] / 2
        share = (letters + LETTERS_ADDED) / (side.visible + LETTERS_ADDED)
        shares.append(np.where(letters > 0, share, 0))
    return np.minimum(*shares)


def symbols(block: PairBlock) -> Values:
    """Signs that are no usual punctuation, beyond those of the other side, by characters."""
    src, tgt = (side.classes[:, SYMBOL] for side in block.counts)
    visible = np.where(src > tgt, *(side.visible for side in block.counts))
    return abs(src - tgt) / (visible + CHARACTERS_ADDED)


def other_script(block: PairBlock) -> Values:
    """Share of letters in a script that the language is not written in, of the worse side."""
    shares = []
    for side, language in zip(block.counts, block.languages, strict=True):
        if language.scripts:
            weighted = side.classes * WEIGHTS
            own = weighted[:, [OTHER_LETTER, *language.scripts]].sum(1)
            letters = weighted[:, OTHER_LETTER:].sum(1)
            names = 0 if language.is_latin else side.classes[:, SCRIPTS["Latn"]]
            shares.append((letters - own - names) / (letters + 1) + names / (letters + NAMES_ADDED))
    return np.max(shares, axis=0) if shares else np.full(len(block.pairs), np.nan)


def other_language(block: PairBlock) -> Values:
    """How surely one of the sides is in another language; see `Language.other`."""
    worst = np.full(len(block.pairs), np.nan)
    for side, language in enumerate(block.languages):
        if language.is_identified:
            linked = set(block.linked[side])
            long = block.without_links[side].letters >= LEAST_IDENTIFIED
            for i in np.flatnonzero(long).tolist():
                text = block.texts[side][i]
                sure = language.other(contents.without_links(text) if i in linked else text)
                worst[i] = np.fmax(worst[i], sure)
    return worst


def repeats(block: PairBlock) -> Values:
    """Words that only repeat those before them, in the side that has more; beyond the other one."""
    counts = [np.where(side.run, side.run - 1, 0) / 5 for side in block.counts]
    for side, all_words in enumerate(block.words):
        for i, words in enumerate(all_words):
            if len(words) - len(set(words)) >= 3:
                counts[side][i] = max(counts[side][i], contents.repeated(words))
    return abs(counts[0] - counts[1])


def copied(block: PairBlock) -> Values:
    """Share of the target's words that the source has too; NaN between related languages."""
    if block.languages[0].is_related(block.languages[1]):
        return np.full(len(block.pairs), np.nan)
    rows = zip(*block.texts, *block.words, strict=True)
    return np.fromiter((contents.copied(*row) for row in rows), float, len(block.pairs))


def _where(
    block: PairBlock, rows: npt.NDArray[Any], measure: Callable[[str, str], float]
) -> Values:
    """Measure the pairs numbered `rows`; 0 for the others."""
    values = np.zeros(len(block.pairs))
    for i in rows.tolist():
        values[i] = measure(*block.pairs[i])
    return values


def wrong_numbers(block: PairBlock) -> Values:
    """Share of the numbers that have no counterpart; see `conflicting_numbers`."""
    digits = [side.classes[:, DIGIT] for side in block.counts]
    return _where(block, np.flatnonzero(digits[0] + digits[1]), contents.conflicting_numbers)


def missing_links(block: PairBlock) -> Values:
    """Share of the links that the other side does not have."""
    rows = np.union1d(*(np.array(side, np.int64) for side in block.linked))
    return _where(block, rows, contents.missing_links)
