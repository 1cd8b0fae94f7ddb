"""Sentences of a line, by the library sentencex (MIT, wheels, rules for some 300 languages).

It rather leaves two sentences together than cuts one, but for abbreviations that it lacks: some are
below. It takes 3 µs a line (Zen 4).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mt.data.reading.words import has_letter, is_unspaced
from mt.errors import ConfigError

# What is no end of a sentence, though the library may take it for one: `M. Dupont`, `c.-à-d.`
_INITIAL = re.compile(r"(?:\b[^\W\d_]\.\s*|\w\.)$")

# What stands around sentences, inside which the library does not look for ends.
_QUOTES = dict.fromkeys(map(ord, '"„“”«»‹›()[]'), " ")
_MARKS = frozenset(map(chr, _QUOTES))
_OPENING = re.compile(r"(?<=\s)(?:[\"„“«»‹›(\[]+|[«‹]\s)\Z")
_CLOSED_AND_ON = re.compile(r"[\"“”«»’)\]]\s*\Z")
# Before the second item of a numbered list and those after it.
_LIST = re.compile(r"\s*\d{1,3}[.) ]\s")
_ITEM = re.compile(r"(?<=[.!?…:;]\s)(?=\d{1,3}[.) ]\s)")

# Abbreviations that the library takes for the end of a sentence, but that only stand before a name
# or what they introduce. Those in lower case stand for any case; French `prof` is a word as well.
_NORWEGIAN = "dvs. ekskl. evt. f.eks. hhv. inkl. jf. kl. t.eks. tlf."
_BEFORE_MORE = {
    language: frozenset(words.split())
    for language, words in {
        "cs": "kpt. mjr. plk. thdr.",
        "da": "sct.",
        "de": "bspw. dipl.-ing. ehem. exkl. frl. hl. inkl. insb. insbes. univ.-prof. zzgl.",
        "es": "dña. excma. mons. Profa. rvdo. sras. srs.",
        "fr": "dr. drs. mgr. mlle. mlles. mme. mmes. pr. Prof. st. ste. vve.",
        "it": "dott.ssa. pag. prof.ssa.",
        "nb": _NORWEGIAN,
        "nl": "ds. excl. fam. incl. jhr. mej. mevr. mw.",
        "nn": _NORWEGIAN,
        "no": _NORWEGIAN,
        "pl": "abp. bp. dr. hab. inż. kard. kpt. ks. m.in. mgr. mjr. płk. ppłk. tj. tzw. św.",
        "pt": "av. exma. mons. Profa. srta. sta.",
        "ru": "доц. св.",
        "sv": "dvs. resp. t.ex.",
    }.items()
}


def split_sentences(text: str, language: str) -> list[str]:
    """Cut a text after its sentences; joined, they are the text again.

    Those in quotation marks or brackets are cut, too. A part without a letter, such as an emoji,
    stays with its neighbour; one letter with a stop, an abbreviation and the number of a list with
    what follows. `language`: of two letters; one that is not known has the abbreviations of
    English. Raises ConfigError without the library.
    """
    try:
        from sentencex import segment
    except ImportError as error:
        raise ConfigError(
            f"--split-sentences: needs the package sentencex ({error}); pip install sentencex"
        ) from None
    masked = text if _MARKS.isdisjoint(text) else text.translate(_QUOTES)
    if not _LIST.match(masked):
        lengths = [*map(len, segment(language, masked))]
        if len(lengths) < 2:
            return [text]
    else:
        lengths = []
        for item in _ITEM.split(masked):
            number = match.end() if (match := _LIST.match(item)) else 0
            first, *rest = [*map(len, segment(language, item[number:]))] or [0]
            lengths += [number + first, *rest]
    sentences = [""]
    end = 0
    for length in lengths:
        part, end = text[end : end + length], end + length
        if opening := _OPENING.search(sentences[-1]):
            sentences[-1], part = sentences[-1][: opening.start()], opening[0] + part
        if (
            has_letter(part)
            and has_letter(sentences[-1])
            and not (part[0].islower() and _CLOSED_AND_ON.search(sentences[-1]))
            and not _INITIAL.search(sentences[-1])
            and not _is_abbreviated(sentences[-1], language)
        ):
            sentences.append(part)
        else:
            sentences[-1] += part
    return sentences


def _is_abbreviated(text: str, language: str) -> bool:
    word = text.rsplit(None, 1)[-1].lstrip("([\"'“„«‘")
    return not _BEFORE_MORE.get(language, frozenset()).isdisjoint((word, word.casefold()))


def join_sentences(texts: Sequence[str]) -> str:
    """Join texts to one by spaces; after Chinese and Japanese sentences there is none."""
    texts = [text for text in texts if text]
    if len(texts) < 2 or not is_unspaced("".join(texts)):
        return " ".join(texts)
    # From the CJK symbols on: Thai, Lao, Khmer and Burmese have a space after a sentence.
    *before, last = (text if text[-1] >= "\u3000" else f"{text} " for text in texts)
    return "".join([*before, last.rstrip()])
