"""Words of a line, for counting and comparing: no BLEU tokenizer, only spaces and punctuation."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate

# Scripts written without spaces between words; each of their characters counts as a word: Thai,
# Lao, Burmese, Khmer (with their vowel signs), kana, Chinese characters.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
    "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Categories of Unicode: spaces and line separators, control and format characters.
INVISIBLE = {"Zs", "Zl", "Zp", "Cc", "Cf"}
_CHARACTER = re.compile(f"[{UNSPACED}]")
_UNIT = re.compile(f"[{UNSPACED}]|[^{UNSPACED}]+")


def has_visible(text: str) -> bool:
    """Whether a text has a character that is no space, control or format character."""
    return not all(unicodedata.category(char) in INVISIBLE for char in text)


def is_unspaced(text: str) -> bool:
    """Whether most characters of a text are of a script without spaces between words."""
    # Each such character takes three bytes or more; most texts are told apart by their size.
    if len(text.encode("utf-8", "surrogatepass")) <= 2 * len(text):
        return False
    return 2 * len(_CHARACTER.findall(text)) > len(text)


def words(line: str) -> list[str]:
    """The words of a line, lower-cased, without punctuation around them."""
    return [word for text in line.split() for word in _words_of(text)]


def tokens(line: str) -> list[str]:
    """Words, single punctuation marks and white space; joined, they are the line again."""
    return [match.group() for match in _token_pattern().finditer(line)]


def display_width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)


@cache  # not at import: most commands do without, and it takes 0.04 s
def _token_pattern() -> re.Pattern[str]:
    r"""Words, also with combining marks, which are not in `\w`, and what is between them."""
    characters = map(chr, range(0x300, 0x1F000))
    marks = "".join(char for char in characters if unicodedata.category(char)[0] == "M")
    part = rf"[^\W{UNSPACED}]+(?:[{marks}]+[^\W{UNSPACED}]*)*"
    return re.compile(rf"[{UNSPACED}]|{part}(?:['’-]{part})*|\s+|[^\w\s]")


@lru_cache(maxsize=1 << 16)
def _words_of(text: str) -> tuple[str, ...]:
    """The words of a text without spaces."""
    units = (_stripped(unit) for unit in _UNIT.findall(text.lower()))
    return tuple(unit for unit in units if unit)


def _stripped(text: str) -> str:
    """The text without punctuation and symbols at its ends; combining marks stay."""
    start, end = 0, len(text)
    while start < end and unicodedata.category(text[start])[0] in "PSC":
        start += 1
    while end > start and unicodedata.category(text[end - 1])[0] in "PSC":
        end -= 1
    return text[start:end]


def composed(text: str) -> tuple[str, Sequence[int]]:
    """A text in NFC, and where each character of it, and its end, is written."""
    if unicodedata.is_normalized("NFC", text):
        return text, range(len(text) + 1)
    parts = list[str]()
    for char in text:
        # A mark belongs to the character before it, as the end of a syllable of Hangul does.
        if parts and (unicodedata.category(char)[0] == "M" or "\u1160" <= char <= "\u11ff"):
            parts[-1] += char
        else:
            parts.append(char)
    composed = [unicodedata.normalize("NFC", part) for part in parts]
    starts = accumulate(map(len, parts), initial=0)
    places = [start for part, start in zip(composed, starts, strict=False) for _ in part]
    return "".join(composed), [*places, len(text)]
