"""The rules of `data.clean`: repairs of lines, what rules measure of pairs, decisions."""

from __future__ import annotations

import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from mt.cleaning import characters as chars
from mt.cleaning import contents
from mt.cleaning.characters import WEIGHTS, CharacterCounts, Language, count_characters
from mt.config.data_schema import Clean
from mt.data.reading.languages import LEAST_IDENTIFIED, WEAK
from mt.data.reading.text_files import normalize_line
from mt.data.reading.words import without_invisible
from mt.errors import DataError
from mt.package import pip_install

# UTF-8 decoded as Latin-1, Windows-1252 or Windows-1251, and entities: ftfy looks closer at these.
_HIGH = "\u0080-\u00bf\u02c6\u02dc\u2013-\u203a\u20ac\u2122"
_LATIN = f"(?<=[\u00c2-\u00f4])[{_HIGH}ŒœŠšŸŽžƒ]"
_CYRILLIC_HIGH = f"[{_HIGH}\u0400-\u040f\u0450-\u045f\u0490\u0491№]"
_CYRILLIC = f"(?<=[РС]){_CYRILLIC_HIGH}[РС]{_CYRILLIC_HIGH}"
# One set in front, which re looks for without trying each branch: seven times as fast.
_SUSPICIOUS = re.compile(
    "[\u0080-\u009f\ufffd\u00c2-\u00f4РС&]"
    rf"(?:(?<=[\u0080-\u009f\ufffd])|{_LATIN}|{_CYRILLIC}|(?<=&)#?\w+;)"
)


def repairer(mojibake: bool) -> Callable[[str], str]:
    """The function that repairs a line; `mojibake`: wrong decoding too, by ftfy, else DataError."""
    fix_mojibake = _mojibake_fixer() if mojibake else None

    def repair(text: str) -> str:
        ascii_only = text.isascii()
        if fix_mojibake and (not ascii_only or "&" in text) and _SUSPICIOUS.search(text):
            text = fix_mojibake(text)
        is_normal = ascii_only or unicodedata.is_normalized("NFC", text)
        text = without_invisible(text)
        if is_normal and text.isprintable() and "  " not in text and text.strip() == text:
            return text
        return normalize_line(text)

    return repair


def _mojibake_fixer() -> Callable[[str], str]:
    if find_spec("ftfy") is None:
        raise DataError(
            "data.clean.mojibake: needs the package ftfy, which is not installed; run "
            f"{pip_install('corpora')}, or set data.clean.mojibake to false"
        )
    import ftfy

    # Only wrong decoding and entities: quotes, ligatures and full-width signs are the author's.
    others = "uncurl_quotes fix_latin_ligatures fix_character_width fix_line_breaks"
    others += " remove_terminal_escapes remove_control_chars explain"
    config = ftfy.TextFixerConfig(normalization=None, **dict.fromkeys(others.split(), False))
    return lambda text: ftfy.fix_text_segment(text, config)


Scores = npt.NDArray[np.float32]
# Raised where a rule or a repair gives other results: scores of another version are not used.
SCORES_VERSION = 6
BLOCK = 1024  # pairs measured together: their characters stay in the processor's cache
Values = npt.NDArray[np.float64]
# Added to both lengths before their ratio is taken, and to letters and characters before their
# share is taken: short segments may differ more.
WORDS_ADDED = 3
CHARACTERS_ADDED = 15
LETTERS_ADDED = 4
NAMES_ADDED = 10  # letters of names, which stay Latin in every script


@dataclass
class PairBlock:
    """Sentence pairs, the characters of both sides, and their languages; the source comes first."""

    pairs: Sequence[tuple[str, str]]
    languages: tuple[Language, Language]

    def __post_init__(self) -> None:
        self.texts: list[Sequence[str]] = [*zip(*self.pairs, strict=True)]
        self.counts = [*map(count_characters, self.texts)]

    @cached_property
    def plain(self) -> list[Sequence[str]]:
        return [[*map(contents.without_links, side)] for side in self.texts]

    @cached_property
    def plain_counts(self) -> list[CharacterCounts]:
        """The characters of both sides without links and tags."""
        return [
            counts if all(map(operator.is_, texts, plain)) else count_characters(plain)
            for counts, texts, plain in zip(self.counts, self.texts, self.plain, strict=True)
        ]

    @cached_property
    def words(self) -> list[list[list[str]]]:
        return [[text.lower().split() for text in side] for side in self.texts]


def blank_sides(block: PairBlock) -> Values:
    return sum((side.visible == 0).astype(float) for side in block.counts)


def words(block: PairBlock) -> Values:
    return np.maximum(*(side.words for side in block.counts))


def characters(block: PairBlock) -> Values:
    return np.maximum(*(side.length for side in block.counts))


def word_ratio(block: PairBlock) -> Values:
    return _ratio([side.words for side in block.counts], WORDS_ADDED)


def character_ratio(block: PairBlock) -> Values:
    """Ratio of the lengths in characters, a Chinese, Japanese or Korean one counted three times."""
    return _ratio([side.classes @ WEIGHTS for side in block.counts], CHARACTERS_ADDED)


def _ratio(lengths: Sequence[npt.NDArray[Any]], added: int) -> Values:
    return (np.maximum(*lengths) + added) / (np.minimum(*lengths) + added)


def letters(block: PairBlock) -> Values:
    """Share of letters in visible text, of the side with fewer; a digit is half a letter."""
    shares = []
    for side in block.plain_counts:
        letters = side.letters + side.classes[:, chars.DIGIT] / 2
        share = (letters + LETTERS_ADDED) / (side.visible + LETTERS_ADDED)
        shares.append(np.where(letters > 0, share, 0))
    return np.minimum(*shares)


def symbols(block: PairBlock) -> Values:
    """Signs that are no usual punctuation, beyond those of the other side, by characters."""
    src, tgt = (side.classes[:, chars.SYMBOL] for side in block.counts)
    visible = np.where(src > tgt, *(side.visible for side in block.counts))
    return abs(src - tgt) / (visible + CHARACTERS_ADDED)


def other_script(block: PairBlock) -> Values:
    """Share of letters in a script that the language is not written in, of the worse side."""
    shares = []
    for side, language in zip(block.counts, block.languages, strict=True):
        if language.scripts:
            weighted = side.classes * WEIGHTS
            native = weighted[:, [chars.OTHER_LETTER, *language.scripts]].sum(1)
            letters = weighted[:, chars.OTHER_LETTER :].sum(1)
            names = 0 if language.is_latin else side.classes[:, chars.SCRIPTS["Latn"]]
            share = (letters - native - names) / (letters + 1)
            shares.append(share + names / (letters + NAMES_ADDED))
    return np.max(shares, axis=0) if shares else np.full(len(block.pairs), np.nan)


def other_language(block: PairBlock) -> Values:
    """The score of the side that is more surely in another language; see `Language.other`."""
    worst = np.full(len(block.pairs), np.nan)
    for side, language in enumerate(block.languages):
        if language.is_identified:
            rows = np.flatnonzero(block.plain_counts[side].letters >= LEAST_IDENTIFIED)
            sure = language.other([block.plain[side][i] for i in rows.tolist()])
            worst[rows] = np.fmax(worst[rows], sure)
    return worst


def repeats(block: PairBlock) -> Values:
    """Words that only repeat those before them, in the side that has more; beyond the other one."""
    counts = [np.where(side.run, side.run - 1, 0) / 5 for side in block.counts]
    for side, all_words in enumerate(block.words):
        rows = [i for i, words in enumerate(all_words) if len(words) - len(set(words)) >= 3]
        repeats = contents.repeated([all_words[i] for i in rows])
        counts[side][rows] = np.maximum(counts[side][rows], repeats)
    return abs(counts[0] - counts[1])


def copied(block: PairBlock) -> Values:
    """Share of the target's words that the source has too; NaN between related languages."""
    src, tgt = block.languages
    if tgt.code in src.relatives:
        return np.full(len(block.pairs), np.nan)
    rows = zip(*block.texts, *block.words, strict=True)
    return np.fromiter((contents.copied(*row) for row in rows), float, len(block.pairs))


def _where(block: PairBlock, rows: Iterable[int], measure: Callable[[str, str], float]) -> Values:
    """Measure the pairs numbered `rows`; 0 for the others, and for those that are too long."""
    values = np.zeros(len(block.pairs))
    for i in rows:
        if max(map(len, block.pairs[i])) <= contents.COMPARED:
            values[i] = measure(*block.pairs[i])
    return values


def wrong_numbers(block: PairBlock) -> Values:
    """Share of the numbers that have no counterpart; see `conflicting_numbers`."""
    digits = [side.classes[:, chars.DIGIT] for side in block.counts]
    rows = np.flatnonzero(digits[0] + digits[1]).tolist()
    return _where(block, rows, contents.conflicting_numbers)


def missing_links(block: PairBlock) -> Values:
    texts = zip(*block.texts, *block.plain, strict=True)
    rows = [i for i, row in enumerate(texts) if row[0] is not row[2] or row[1] is not row[3]]
    return _where(block, rows, contents.missing_links)


@dataclass(frozen=True)
class Rule:
    """A rule: its name, the key of its threshold in `data.clean`, and what it measures.

    `quantity` says for people what a score counts, and `form` how it is written. A rule without a
    key is always on; its limit is 0. With `is_minimum`, scores below the threshold are rejected.
    """

    name: str
    key: str | None
    measure: Callable[[PairBlock], Values]
    quantity: str
    form: str = ".0%"
    is_minimum: bool = False

    def limit(self, clean: Clean) -> float | None:
        return 0.0 if self.key is None else getattr(clean, self.key)


# Of several rules that reject a pair, the first one counts.
RULES = (
    Rule("empty", None, blank_sides, "of 2 sides blank", "g"),
    Rule("words", "max_words", words, "words", ",g"),
    Rule("characters", "max_chars", characters, "characters", ",g"),
    Rule("word_ratio", "max_word_ratio", word_ratio, "times as many words", ".3g"),
    Rule("char_ratio", "max_char_ratio", character_ratio, "times the characters", ".3g"),
    Rule("letters", "min_letters", letters, "letters", is_minimum=True),
    Rule("symbols", "max_symbols", symbols, "odd signs"),
    Rule("repeats", "max_repeats", repeats, "repeated words", "g"),
    Rule("copied", "max_copied", copied, "of words copied"),
    Rule("script", "max_other_script", other_script, "letters of another script"),
    Rule("links", "max_missing_links", missing_links, "of the links differ"),
    Rule("numbers", "max_wrong_numbers", wrong_numbers, "of the numbers differ"),
    Rule("language", "max_other_language", other_language, "sure of another language"),
)


class PairScorer:
    """Repairs lines and scores pairs by the rules that are on."""

    def __init__(self, clean: Clean, src_lang: str, tgt_lang: str) -> None:
        """Load what the rules need. Raises DataError where a package is missing."""
        self.fix = repairer(clean.mojibake) if clean.repair else str
        self._rules = [(i, rule) for i, rule in enumerate(RULES) if rule.limit(clean) is not None]
        self._identify = clean.max_other_language is not None
        self._languages = Language(src_lang, self._identify), Language(tgt_lang, self._identify)

    @property
    def notes(self) -> list[str]:
        """Notes for reports on languages whose script, or identity, cannot be measured."""
        notes = []
        for side, language in zip(("source", "target"), self._languages, strict=True):
            unchecked = f"the {side} side is not checked for its"
            if not language.scripts:
                why = f"{language.code!r} is no known language code, such as de"
                notes.append(f"{unchecked} script and language: {why}")
            elif self._identify and not language.is_identified:
                notes.append(f"{unchecked} language: lid.176 cannot identify {language.code!r}")
            elif self._identify and language.code in WEAK:
                mild = f"the {side} side is checked mildly for its language"
                notes.append(f"{mild}: lid.176 often takes {language.code!r} for another")
        return notes

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Score repaired pairs by `RULES`: (n, len(RULES)), NaN where not measured."""
        out = np.full((len(pairs), len(RULES)), np.nan, np.float32)
        for start in range(0, len(pairs), BLOCK):
            block = PairBlock(pairs[start : start + BLOCK], self._languages)
            for number, rule in self._rules:
                out[start : start + BLOCK, number] = rule.measure(block)
        return out


def decide(scores: Scores, clean: Clean) -> npt.NDArray[np.int8]:
    """Return, for each row of scores, the number of the first rule that rejects it, or -1."""
    first = np.full(len(scores), -1, np.int8)
    for number, rule in reversed(list(enumerate(RULES))):
        limit = rule.limit(clean)
        if limit is not None:
            column = scores[:, number]  # NaN is neither above nor below
            first[column < limit if rule.is_minimum else column > limit] = number
    return first


def reason(number: int, score: float, clean: Clean) -> str:
    """Say why a rule rejects a pair, such as `312 words, above 200`."""
    rule = RULES[number]
    limit = f"{'below' if rule.is_minimum else 'above'} {rule.limit(clean):{rule.form}}"
    return f"{score:{rule.form}} {rule.quantity}" + f", {limit}" * (rule.key is not None)
