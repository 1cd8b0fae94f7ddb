"""Compare the contents of a pair's sides: copied words, repeated words, numbers, links."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain, product

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
_NUMBER = re.compile(r"\d(?:[\d.,'’\u00a0\u202f\u066b\u066c]*\d)?")
_NOT_DIGIT = re.compile(r"\D+")
# Characters of a text up to which links, tags and numbers are looked at: it takes time that grows
# with the square of them, and a line may have ten million.
COMPARED = 4_000
# Names and codes are often the same in both languages, but not longer texts.
LONGEST_NAME = 40
# Longest repeated n-gram, in words or unspaced characters.
_LONGEST_PERIOD = 8


def without_links(text: str) -> str:
    """The text without addresses and tags; the same object where a glance shows none.

    Of a long text, what is beyond the first characters stays as it is.
    """
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


def conflicting_numbers(src: str, tgt: str) -> float:
    """Share of the numbers that the other side replaces by others, of the side with more of them.

    1,000, 1.000 and 1 000 are equal, and so are digits of all scripts, 12 million and 12,000,000,
    3 p.m. and 15:00, '90 and 1990. A number that is only missing may be written in words.
    """
    src_digits, tgt_digits = _NOT_DIGIT.sub("", src), _NOT_DIGIT.sub("", tgt)
    if src_digits == tgt_digits:
        return 0.0
    src_numbers, tgt_numbers = _numbers(src), _numbers(tgt)
    if (digits := "".join(src_numbers)) and digits == "".join(tgt_numbers):
        return 0.0
    src_left = Counter(src_numbers) - Counter(tgt_numbers)
    tgt_left = Counter(tgt_numbers) - Counter(src_numbers)
    for number, other in product(src_left, tgt_left):
        if _may_be_equal(number, other):
            partners = min(src_left[number], tgt_left[other])
            src_left[number] -= partners
            tgt_left[other] -= partners
    if sorted("".join(src_left.elements())) == sorted("".join(tgt_left.elements())):
        return 0.0  # 4.11. and 11/4
    return min(src_left.total(), tgt_left.total()) / max(len(src_numbers), len(tgt_numbers))


def _numbers(text: str) -> list[str]:
    """The numbers of a text in ASCII digits, without separators and zeros in front."""
    return [str(int(_NOT_DIGIT.sub("", number)[:400])) for number in _NUMBER.findall(text)]


def _may_be_equal(number: str, other: str) -> bool:
    """Whether two different numbers are the same in another unit or form."""
    short, long = sorted((number, other), key=len)
    return (
        number.rstrip("0") == other.rstrip("0")  # 12 million, 12,000,000; 1.5, 1.50
        or (len(short) == 2 and len(long) == 4 and long.endswith(short))  # '90, 1990
        or (len(long) <= 2 and abs(int(number) - int(other)) == 12)  # 3 p.m., 15:00
    )


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
