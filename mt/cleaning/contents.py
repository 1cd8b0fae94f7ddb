"""Compare the contents of a pair's sides: copied words, repeated words, numbers, links."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Addresses, e-mails and tags: no text to translate.
_LINK = re.compile(r"(?:https?://|ftp://|www\.)[^\s<>\"]+|[\w.+-]+@[\w-]+\.[\w.-]+")
# Not <file> or <options>, which stand for words.
_TAG = re.compile(
    r"</[a-z]\w*>|<[a-z][^<>]*(?:=[^<>]*|/)>"
    r"|<(?:a|b|i|p|u|br|hr|em|h\d|li|ol|td|th|tr|ul|div|img|pre|bpt|ept|sub|sup|code|font|span|strong"
    r"|small|table)>",
    re.IGNORECASE,
)
# A number with its separators for thousands and decimals.
_SEPARATORS = ".,'’\u00a0\u202f\u066b\u066c"
_NUMBER = re.compile(
    rf"(?<!\d)\d{{1,3}}(?: \d{{3}})+(?:[.,]\d+)?(?!\d)|\d(?:[\d{_SEPARATORS}]*\d)?"
)
_NOT_DIGIT = re.compile(r"\D+")
# A time with a dot is no decimal; what makes a number the hour of a clock with 12 hours.
_TIME = r"[ap]\.?\s?m\b|uhr|o['’]clock|heures?|h\b|hod|godz|час|годин|ώρα|horas?|saat|[時时点點시]"
_DOTTED_TIME = re.compile(rf"(?<![\d.,])(\d{{1,2}})\.(?=\d\d\s?(?:{_TIME}))", re.IGNORECASE)
_CLOCK = re.compile(rf":\d\d(?!\d)|\s?(?:{_TIME})", re.IGNORECASE)
# Words after a number for powers of ten, also of units; a billion is 9 or 12.
_POWERS = (
    ((-3,), r"millim|millig|milli?l|m[mgl]\b"),
    ((-2,), r"[cz]entim|cm\b"),
    ((2,), r"hund(?:red|ert)"),
    ((3,), r"kilo|k[mg]?\b|thou|tau?s|tsd|mil(?:le|es|a)\b|tus|duiz"),
    ((3,), r"tis[ií]c|tys|т[ыи]с|хил|χιλ|[千천]"),
    ((3, 6), r"mil\b"),
    ((4,), r"[万萬만]"),
    ((5,), r"lakh|लाख"),
    ((6,), r"mill?i[oó]|mill[oó]n|milh|milj|milyon|mio\b|mln|m\b|мил+и?[оь]|мільй|млн|εκατ|百万"),
    ((7,), r"crore|करोड़"),
    ((8,), r"[億亿억]"),
    # Of scripts that have other words for these.
    ((3, 6, 9), r"[\u0530-\u10ff\u1200-\u139f\u1780-\u17ff]"),
    ((9, 12), r"bil+i[oó]|mill?iard|mrd|mld|bn\b|мил+иард|мільярд|млрд|δισ"),
)
_SCALES = [(powers, re.compile(rf"\s?(?:{words})", re.IGNORECASE)) for powers, words in _POWERS]
# In Nordic languages `1800-talet` is the 19th century.
_CENTURY = re.compile(r"-?(?:tal|luvu)|s\b")
# Digits from which numbers that only differ in spaces or hyphens are a code, such as a telephone's.
_CODE = 5
# Characters of a text up to which links, tags and numbers are looked at: it takes time that grows
# with the square of them, and a line may have ten million.
COMPARED = 4_000
LONGEST_NAME = 40  # names and codes are often the same in both languages, but not longer texts
_LONGEST_PERIOD = 8  # longest repeated n-gram, in words or unspaced characters


def without_links(text: str) -> str:
    """The text without addresses and tags in its first characters."""
    if "@" in text or "<" in text or "://" in text or "www." in text:
        return _TAG.sub(" ", _LINK.sub(" ", text[:COMPARED])) + text[COMPARED:]
    return text


def copied(src: str, tgt: str, src_words: Sequence[str], tgt_words: Sequence[str]) -> float:
    """Share of the target's different words, those with letters, that the source has too.

    The words are given in lower case. 0 for a single one, and for short texts in which every word
    begins with a capital letter, as in names. Shares under a half are not told apart from 0.
    """
    different = set(tgt_words)
    common = different.intersection(src_words)
    if len(tgt_words) < 2 or 2 * len(common) < len(different):
        return 0.0
    if len(tgt) <= LONGEST_NAME and not any(word[:1].islower() for word in tgt.split()):
        return 0.0
    spoken = {word for word in different if any(map(str.isalpha, word))}
    return len(spoken & common) / len(spoken) if len(spoken) > 1 else 0.0


def repeated(texts: Sequence[Sequence[str]]) -> npt.NDArray[np.int64]:
    """(n,) How many words of each text only repeat the n-gram just before them, of up to 8 words.

    An n-gram counts where it stands three times in a row; from four words on, twice.
    """
    most = np.zeros(len(texts), np.int64)
    text_of = np.repeat(np.arange(len(texts)), [len(words) for words in texts])
    words = np.fromiter(map(hash, chain.from_iterable(texts)), np.int64, len(text_of))
    for period in range(1, _LONGEST_PERIOD + 1):
        same = (words[period:] == words[:-period]) & (text_of[period:] == text_of[:-period])
        edges = np.flatnonzero(np.diff(same, prepend=False, append=False))
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        counts = lengths >= (period if period >= 4 else 2 * period)
        np.maximum.at(most, text_of[starts[counts]], lengths[counts])
    return most


class _Number(NamedTuple):
    """A number of a text: the groups of its digits, and the values that it may have."""

    groups: tuple[int, ...]
    values: frozenset[Decimal]

    def may_equal(self, other: _Number) -> bool:
        """Whether both may have one value; '90 is 1990."""
        if self.values & other.values or (not self.values and self.groups == other.groups):
            return True  # a version and a long date have no value
        short, long = sorted((self.groups, other.groups))
        is_year = len(short) == len(long) == 1 and 10 <= short[0] <= 99 and 1000 <= long[0] < 2100
        return is_year and long[0] % 100 == short[0]


def conflicting_numbers(src: str, tgt: str) -> float:
    """Share of the numbers that the other side replaces by others, of the side with more of them.

    Values are compared. 1,000, 1.000 and 1 000 are equal, and so are 3,5 and 3.50, digits of all
    scripts, 12 million and 12,000,000, 3 p.m. and 15:00, '90 and 1990, 4.11. and 11/4. A number
    that is only missing may be written in words.
    """
    if _NUMBER.findall(src) == _NUMBER.findall(tgt):
        return 0.0
    numbers, other_left = (
        [_number(match) for match in _NUMBER.finditer(_DOTTED_TIME.sub(r"\1:", text))]
        for text in (src, tgt)
    )
    most = max(len(numbers), len(other_left))
    unmatched = []
    for number in numbers:
        partner = next((other for other in other_left if number.may_equal(other)), None)
        if partner is None:
            unmatched.append(number)
        else:
            other_left.remove(partner)
    conflicts = min(len(unmatched), len(other_left))
    if conflicts and len(unmatched) != len(other_left):  # a date, a time, a telephone number
        sides = unmatched, other_left
        groups, others = ([part for number in side for part in number.groups] for side in sides)
        code = "".join(map(str, groups))
        if len(code) >= _CODE and code == "".join(map(str, others)):
            return 0.0
        common = (Counter(groups) & Counter(others)).total()
        conflicts = min(conflicts, len(groups) - common, len(others) - common)
    return conflicts / most


def _number(match: re.Match[str]) -> _Number:
    """A number with each value that its separators, and the word after it, allow."""
    groups = _NOT_DIGIT.split(match[0])
    separators = _NOT_DIGIT.findall(match[0])
    values = set()
    last = separators[-1] if separators else " "
    if _are_thousands(groups, separators):  # also where there is no separator
        values.add(Decimal("".join(groups)))
    is_decimal = last in ".,\u066b" and last not in separators[:-1]
    is_decimal = is_decimal and not (values and groups[-1].endswith("0"))  # 1.5 is not 1.500
    if is_decimal and _are_thousands(groups[:-1], separators[:-1]):
        values.add(Decimal(f"{''.join(groups[:-1])}.{groups[-1]}"))
    for powers, words in _SCALES:
        if words.match(match.string, match.end()):
            values |= {value.scaleb(power) for value in values for power in powers}
    if re.fullmatch(r"\d?\d00", match[0]) and _CENTURY.match(match.string, match.end()):
        values.add(Decimal(match[0][:-2]) + 1)
    if len(groups) == 1 and len(groups[0]) <= 2 and _CLOCK.match(match.string, match.end()):
        values |= {value + (12 if value <= 12 else -12) for value in values}
    return _Number(tuple(map(int, groups)), frozenset(values))


def _are_thousands(groups: Sequence[str], separators: Sequence[str]) -> bool:
    """Whether digits are grouped as thousands, or in India as hundreds and a thousand."""
    if len(groups) == 1:
        return True
    is_grouped = len(groups[0]) <= 3 and len(groups[-1]) == 3 and len(set(separators)) == 1
    return is_grouped and {len(group) for group in groups[1:-1]} in (set(), {2}, {3})


def missing_links(src: str, tgt: str) -> float:
    """Share of the addresses whose site the other side does not name, of the side with more."""
    src_sites = Counter(map(_site, _LINK.findall(src)))
    tgt_sites = Counter(map(_site, _LINK.findall(tgt)))
    most = max(src_sites.total(), tgt_sites.total())
    left = max((src_sites - tgt_sites).total(), (tgt_sites - src_sites).total())
    return left / most if most else 0.0


def _site(link: str) -> str:
    """The site of an address without its country: `example` of https://www.example.de/a."""
    host = re.split("[/?#:]", link.rpartition("://")[2].lower())[0].rpartition("@")[2]
    labels = host.removeprefix("www.").strip(".").split(".")
    return labels[-2] if len(labels) > 1 else labels[0]
