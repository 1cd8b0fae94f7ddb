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
# Characters that show nothing: those of Unicode's Default_Ignorable_Code_Point, interlinear
# annotations, and control characters but white space.
INVISIBLE = (
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Scripts whose words need joiners: from Arabic to Kannada and Sinhala, Tibetan, Khmer, Mongolian.
_JOINED = (
    "\u0600-\u061b\u061d-\u085f\u08a0-\u0dff\u0f00-\u109f\u1780-\u17b3\u17b6-\u180a\u1810-\u18af\u1a20-\u1c4f"
    "\ua840-\ua8ff\ua980-\uabff\ufb50-\ufdff\ufe70-\ufefe\U00010a00-\U00011fff"
)
# Signs that variation selectors, tags and joiners make emoji of.
_PICTURE = (
    "#*0-9©®\u203c\u2049\u2100-\u27ff\u2801-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_NEEDED = (
    rf"(?<=[{_JOINED}])[\u200c\u200d]|(?<=[\u1800-\u180a\u1810-\u18af])[\u180b-\u180f]"
    rf"|(?<=[\u1100-\u115e])\u1160|\u115f(?=[\u1161-\u11a7])"
    rf"|(?<=[{_PICTURE}])(?:[\ufe0e\ufe0f]?\u200d(?=[{_PICTURE}])|[\ufe0e\ufe0f])"
    r"|\U0001f3f4[\U000e0020-\U000e007f]+"
)
_INVISIBLE_OR_NEEDED = re.compile(rf"({_NEEDED})|[{INVISIBLE}]")
# Below it all invisible characters are unprintable, which is found in half the time.
_HIGH = re.compile("[\u034f-\U0010ffff]")
_CHARACTER = re.compile(f"[{UNSPACED}]")
_UNIT = re.compile(f"[{UNSPACED}]|[^{UNSPACED}]+")


def without_invisible(text: str) -> str:
    """A text without `INVISIBLE` characters, but for those that its script or an emoji needs."""
    if text.isprintable() and not _HIGH.search(text):
        return text
    return _INVISIBLE_OR_NEEDED.sub(r"\1", text)


def has_visible(text: str) -> bool:
    """Whether a text has a character that shows: no space, and not `INVISIBLE`."""
    # A Braille pattern without dots is a space, too.
    return without_invisible(text).replace("\u2800", "").strip() != ""


def has_letter(text: str) -> bool:
    return any(map(str.isalpha, without_invisible(text)))


def is_unspaced(text: str) -> bool:
    """Whether most characters of a text are of a script without spaces between words."""
    # Each such character takes three bytes or more; most texts are told apart by their size.
    if len(text.encode("utf-8", "surrogatepass")) <= 2 * len(text):
        return False
    return 2 * len(_CHARACTER.findall(text)) > len(text)


def words(line: str) -> list[str]:
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
