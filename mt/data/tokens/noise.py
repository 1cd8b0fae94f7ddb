"""Normalised lines as people write them: in capitals, without a final stop, with typos, with emoji.

Where a script has no case, or no keyboard that is known here, text stays as it is.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from random import Random

from mt.data.reading.languages import base_code
from mt.data.reading.words import UNSPACED

_language = lru_cache(base_code)

# Languages with two letters i: i, İ and ı, I.
_TWO_I = {"tr", "az", "crh", "gag"}
_UPPER_I = str.maketrans("iı", "İI")
_LOWER_I = str.maketrans("İI", "iı")
# At the start of a word or after its hyphen or slash; quotes and brackets may come first.
_FIRST_LETTER = re.compile(r"((?:^|[/–—-])[^\w/–—-]*)(ij|[^\W\d_])")
# Where an accent shows that two vowels are no diphthong, capitals show it by a diaeresis.
_GREEK_HIATUS = re.compile("(?<=[άέόύΆΈΌΎ])[ιυ]")
_GREEK_OR = re.compile(r"\b[ήΉ]\b")  # keeps its accent, by which it differs from the article
_GREEK_ACCENTS = re.compile("(?<=[\u0370-\u03ff\u0308])[\u0300\u0301\u0313\u0314\u0342]+")


def upper_case(text: str, lang: str) -> str:
    """The text in capitals, by the rules of its language: İ in Turkish, no accents in Greek."""
    language = _language(lang)
    if language == "el":
        return "Ή".join(map(_greek_capitals, _GREEK_OR.split(text)))
    return (text.translate(_UPPER_I) if language in _TWO_I else text).upper()


def title_case(text: str, lang: str) -> str:
    """The text with a capital at the start of each word, in Dutch IJ; other letters stay."""
    return " ".join([_title_word(word, _language(lang)) for word in text.split(" ")])


def lower_case(text: str, lang: str) -> str:
    """The text without capitals, by the rules of its language: ı for I in Turkish, final ς."""
    return (text.translate(_LOWER_I) if _language(lang) in _TWO_I else text).lower()


@lru_cache(maxsize=1 << 16)  # six times as fast
def _title_word(word: str, language: str) -> str:
    def capital(match: re.Match[str]) -> str:
        before, letter = match.groups()
        if letter == "ij" and language == "nl":
            return before + "IJ"
        return before + ("İ" + letter[1:] if dotted and letter[0] == "i" else letter.title())

    dotted = language in _TWO_I
    return _FIRST_LETTER.sub(capital, word)


def _greek_capitals(text: str) -> str:
    text = _GREEK_HIATUS.sub(lambda vowel: "ϊ" if vowel[0] == "ι" else "ϋ", text)
    marks_apart = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFC", _GREEK_ACCENTS.sub("", marks_apart)).upper()


# Also full-width, Arabic, Devanagari, Armenian, Ethiopic, Burmese, Khmer and Tibetan ones.
FINAL_STOPS = ".!?…。！？．｡؟۔।॥։።፧။។༎།"


# The end of letters with periods, such as a.m., U.S. and z. B., before the last of these.
_LETTERS_WITH_PERIODS = re.compile(r"(?:\b[^\W\d_]{1,2}\.|\b[^\W\d_]\. )[^\W\d_]\Z")


def without_final_stop(text: str) -> str:
    """The text without its final stop; an abbreviation such as a.m. keeps its period."""
    shorter = text.rstrip(FINAL_STOPS + " ")
    if text.startswith(".", len(shorter)) and _LETTERS_WITH_PERIODS.search(shorter[-5:]):
        shorter += "."
    return shorter or text


# A word of four letters or more, and not an address, a tag or a number. Chinese, Japanese, Korean
# and scripts without spaces have none: what is mistyped there is not a letter.
_LETTER = rf"[^\W\d_{UNSPACED}\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]"
_LONG_WORD = re.compile(rf"[\"'(\[«‹„“”‚‘’»›¿¡]*({_LETTER}{{4,}})(?![\w/@\\]|[.:]\w)")
# Latin, Greek and Cyrillic. In other scripts a letter that is left out can be a syllable.
_ALPHABETS = re.compile("[A-Za-z\u00c0-\u024f\u0370-\u052f\u1e00-\u1fff]")
_QWERTY = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_QWERTZ = ("qwertzuiop", "asdfghjkl", "yxcvbnm")
_AZERTY = ("azertyuiop", "qsdfghjklm", "wxcvbn")
_LATIN = dict.fromkeys(("bs", "cs", "de", "hr", "hu", "sk", "sl", "sq"), _QWERTZ) | {"fr": _AZERTY}
_CYRILLIC = {
    "ru": ("йцукенгшщзхъ", "фывапролджэ", "ячсмитьбю"),
    "uk": ("йцукенгшщзхї", "фівапролджє", "ячсмитьбю"),
}
_ROW_OFFSETS = (0.0, 0.25, 0.75)  # in keys


def typos(text: str, lang: str, rate: float, random: Random) -> str:
    """The text with a typo in each word of four letters or more with probability `rate`.

    Never in the first letter: two are swapped, or, in Latin, Greek and Cyrillic, one is left out,
    doubled or replaced by a neighbour on the keyboard.
    """
    draw = random.random
    words = text.split(" ")
    for number, word in enumerate(words):
        if len(word) > 3 and draw() < rate and (match := _LONG_WORD.match(word)):
            start, end = match.span(1)
            words[number] = word[:start] + _mistyped(match[1], lang, random) + word[end:]
    return " ".join(words)


def _mistyped(word: str, lang: str, random: Random) -> str:
    place = 1 + int(random.random() * (len(word) - 2))
    before, letter, after = word[:place], word[place], word[place + 1 :]
    swapped = before + after[0] + letter + after[1:]
    if not _ALPHABETS.match(letter):
        return swapped
    others = ("", letter + letter, random.choice(_keyboard(_language(lang)).get(letter, letter)))
    return random.choice([swapped, *(before + other + after for other in others)])


@lru_cache(maxsize=64)
def _keyboard(language: str) -> dict[str, str]:
    """The neighbours of each letter on the keyboard of a language."""
    near = {}
    for rows in (_LATIN.get(language, _QWERTY), _CYRILLIC.get(language, ())):
        places = [
            (letter, row, column + _ROW_OFFSETS[row])
            for row, letters in enumerate(rows)
            for column, letter in enumerate(letters)
        ]
        for letter, row, x in places:
            keys = [key for key, y, x2 in places if abs(y - row) <= 1 and abs(x2 - x) <= 1]
            near[letter] = "".join(keys).replace(letter, "")
            near[letter.upper()] = near[letter].upper()
    return near


_FREQUENT = """
😂 ❤️ 🤣 👍 😭 🙏 😘 🥰 😍 😊 🎉 😁 💕 🥺 😅 🔥 ☺️ 🤦 ♥️ 🤷 🙄 😆 🤗 😉 🎂 🤔 👏
🙂 😳 🥳 😎 👌 💜 😔 💪 ✨ 💖 👀 😋 😏 😢 👉 💗 😩 💯 🌹 💞 🎈 💙 😃 😡 💐 😜 🙈
😀 😄 🤤 😱 🙃 🤪 😴 🚀 ✅ ⚽ ☀️ 🌸 🍕 🐶 👍🏽 🇩🇪 👨‍👩‍👧 ⭐
"""
EMOJI = _FREQUENT.split()
STRAY = "♪♫★•·»►→~*#|_^`¬°™®†"
# Other emoji. Most are rarer in the training text than a piece needs: their bytes are to be copied.
_EMOJI_BLOCKS = [*range(0x1F300, 0x1F650), *range(0x1F680, 0x1F6C6), *range(0x1F90C, 0x1FA00)]


def add_mark(texts: Sequence[str], random: Random) -> list[str]:
    """The texts with one emoji or stray character: three times of four at the end, else inside."""
    kind = random.choice([EMOJI, EMOJI, EMOJI, STRAY, [*map(chr, _EMOJI_BLOCKS)]])
    mark = random.choice(kind) * (1 if random.random() < 0.85 else random.randint(2, 3))
    place = 1.0 if random.random() < 0.75 else random.random()
    marked = []
    for text in texts:
        words = text.split(" ")
        words.insert(round(place * len(words)), mark)
        marked.append(" ".join(words))
    return marked


def stray_characters(text: str, rate: float, random: Random) -> str:
    draw = random.random
    words = text.split(" ")
    return " ".join([f"{word} {random.choice(STRAY)}" if draw() < rate else word for word in words])
