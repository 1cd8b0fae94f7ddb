"""Words and sentences of a line: for counting and comparing, and for cutting lines.

Words go by spaces and punctuation only. Sentences are those of the library sentencex (MIT, rules
for some 300 languages, 3 µs a line on Zen 4), but for abbreviations that it lacks.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence, Set
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path

import regex

from mt.errors import ConfigError

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
    """Whether a text has a character that shows: no space or empty Braille, not `INVISIBLE`."""
    return without_invisible(text).replace("\u2800", "").strip() != ""


def has_letter(text: str) -> bool:
    return any(map(str.isalpha, without_invisible(text)))


def is_unspaced(text: str) -> bool:
    """Whether most characters of a text are of a script without spaces between words."""
    # Each such character takes three bytes or more; most texts are told apart by their size.
    if len(text.encode("utf-8", "surrogatepass")) <= 2 * len(text):
        return False
    return 2 * len(_CHARACTER.findall(text)) > len(text)


def single_spaced(text: str) -> str:
    """A text with one space for white space in it; line feeds stay."""
    return "\n".join(" ".join(line.split()) for line in text.split("\n"))


def words(line: str) -> list[str]:
    return [word for text in line.split() for word in _words_of(text)]


def tokens(line: str) -> list[str]:
    """Words, single punctuation marks and white space; joined, they are the line again."""
    return [match.group() for match in _token_pattern().finditer(line)]


def display_width(text: str) -> int:
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
    return tuple(filter(None, map(_stripped, _UNIT.findall(text.lower()))))


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


# What may end a sentence; a stop does not in scripts with another mark for it, or without any, as
# Bengali and Thai.
_OTHER_STOPS = r"\u0980-\u0a7f\u0b00-\u0b7f\u0e00-\u109f\u1200-\u139f\u1780-\u17ff"
_END = regex.compile(
    rf"(?V1)(?:[\p{{STerm}}…;།༎--[.၊]]|(?<![{_OTHER_STOPS}])\.)[\p{{P}}\p{{S}}\s]*\Z"
)
# What is no end of a sentence, though the library may take it for one: `M. Dupont`, `c.-à-d.`
_INITIAL = re.compile(r"(?:(?<![\w’'])(?<!\w-)[^\W\d_]\.\s*|\w\.)$")
# What stands around sentences, inside which the library does not look for ends.
_QUOTES = dict.fromkeys(map(ord, '"„“”«»‹›()[]「」『』'), " ")
# Instead of the marks of Khmer and Tibetan, which the library lacks, one that it knows.
_QUOTES |= dict.fromkeys(map(ord, "។៕།༎"), "।")
_MARKS = frozenset(map(chr, _QUOTES))
_OPENING = re.compile(r"(?<=\s)(?:[\"„“”«»‹›(\[]+|[«‹]\s)\Z|[“「『]+\Z")
_CLOSED = re.compile(r"[\"“”«»’)\]」』）]\s*\Z")
_INTRODUCED = re.compile(r"[:：]\s*[“「『][^“「『]*\Z")
# Behind a closing quotation mark these go on with the sentence: particles of Korean.
_SAID = re.compile(r"하[고며는였]|이?라[고며는]")
_COMMA = re.compile(r"\W*[,;،؛，；、](?=\s|\w|\Z)")
_ORDINAL = r"(?:(?<![\w.,:])(?<!\d[–-])\d{1,3}|\b[IVXL]+)\.(?=\s\W*(\w*))"
# Languages that write `3. Oktober`, by the ordinals of CLDR, and those that write `1998.` so, too.
_WITH_YEARS = "bs et eu hr hu lv sh sr"
_WITH_ORDINALS = f"{_WITH_YEARS} cs da de dsb fi fo gsw hsb is lb lt nb nn no pl se sk sl sq tr"
# Before the second item of a numbered list and those after it.
_LIST = re.compile(r"\s*\d{1,3}[.) ]\s")
_ITEM = re.compile(r"(?:(?<=[^\w,]\s)|(?<=[。！？]))(?=\d{1,3}[.) ]\s)")

# Abbreviations that the library takes for the end of a sentence, but that only stand before a name
# or what they introduce. Those in lower case stand for any case; French `prof` is a word as well.
_ABBREVIATIONS = Path(__file__).with_name("abbreviations.txt").read_text(encoding="utf-8")
_BEFORE_MORE = {
    language: frozenset(words.split())
    for languages, _, words in (row.partition(":") for row in _ABBREVIATIONS.splitlines())
    for language in languages.split()
}


def split_sentences(text: str, language: str, openers: Set[str] = frozenset()) -> list[str]:
    """Cut a text after its sentences, also in quotation marks; joined, they are the text again.

    A part without a letter, such as an emoji, stays with its neighbour; one letter with a stop, an
    abbreviation and the number of a list with what follows, and an ordinal unless that is one of
    `openers`, words that begin sentences. `language`: of two letters; one that is not known has the
    abbreviations of English. Raises ConfigError without the library.
    """
    try:
        from sentencex import segment
    except ImportError as error:
        raise ConfigError(
            f"--split-sentences: needs the package sentencex ({error}); pip install sentencex"
        ) from None
    masked = text if _MARKS.isdisjoint(text) else text.translate(_QUOTES)
    if "." in masked.rstrip()[:-1] and language in _WITH_ORDINALS.split():
        ordinal = _ORDINAL.replace("3", "4") if language in _WITH_YEARS.split() else _ORDINAL
        masked = re.sub(ordinal, lambda n: n[0] if n[1] in openers else f"{n[0][:-1]} ", masked)
    lengths: list[int] = []
    for item in _ITEM.split(masked) if _LIST.match(masked) else [masked]:
        begin = match.end() if (match := _LIST.match(item)) else 0
        first, *rest = [*map(len, segment(language, item[begin:]))] or [0]
        lengths += [begin + first, *rest]
    if len(lengths) < 2:
        return [text]
    sentences, end = [""], 0
    for length in lengths:
        part, end = text[end : end + length], end + length
        if opening := _OPENING.search(sentences[-1]):
            sentences[-1], part = sentences[-1][: opening.start()], opening[0] + part
        if all(map(has_letter, (part, sentences[-1]))) and _is_end(sentences[-1], part, language):
            sentences.append(part)
        else:
            sentences[-1] += part
    return sentences


def _is_end(text: str, after: str, language: str) -> bool:
    """Whether a text may be a sentence, by its end and by what is after it."""
    word = text.rsplit(None, 1)[-1].lstrip("([\"'“„«‘")
    is_abbreviated = not _BEFORE_MORE.get(language, set()).isdisjoint((word, word.casefold()))
    is_open = _INITIAL.search(text) or is_abbreviated or _COMMA.match(after)
    first = next(filter(str.isalnum, after))
    # Georgian letters are small, and have no capitals at the beginning of a sentence.
    if is_open or not _END.search(text[-16:]) or (first.islower() and first.title() != first):
        return False
    goes_on = (after[0].isalnum() and not text[-1].isspace()) or _SAID.match(after)
    return not (goes_on and _CLOSED.search(text)) or _INTRODUCED.search(text) is not None


def join_sentences(texts: Sequence[str]) -> str:
    """Join texts to one by spaces; after Chinese and Japanese sentences there is none."""
    texts = [text for text in texts if text]
    if len(texts) < 2 or not is_unspaced("".join(texts)):
        return " ".join(texts)
    # From the CJK symbols on: Thai, Lao, Khmer and Burmese have a space after a sentence.
    *before, last = (text if text[-1] >= "\u3000" else f"{text} " for text in texts)
    return "".join([*before, last.rstrip()])
