"""Text noise: case by the rules of languages, final stops, typos, emoji."""

from __future__ import annotations

from random import Random

import pytest

from mt.data.tokens import noise


def test_case_follows_the_language() -> None:
    for change, lang, text, expected in [
        (noise.upper_case, "de", "Straße ändern", "STRASSE ÄNDERN"),
        (noise.upper_case, "tur", "istanbul ılık", "İSTANBUL ILIK"),
        (noise.upper_case, "az-Latn", "i ı", "İ I"),
        (noise.upper_case, "el", "Ο Μάιος ή η άυλη μαΐου, café", "Ο ΜΑΪΟΣ Ή Η ΑΫΛΗ ΜΑΪΟΥ, CAFÉ"),
        (noise.upper_case, "xx", "жук 你好 नमस्ते", "ЖУК 你好 नमस्ते"),
        (noise.lower_case, "tr", "ISPARTA İZMİR", "ısparta izmir"),
        (noise.lower_case, "el", "ΟΔΟΣ ΣΟΦΙΑΣ", "οδος σοφιας"),
        (noise.lower_case, "de", "IM Haus", "im haus"),
        (noise.title_case, "nl", "'ijs' op een well-known USA", "'IJs' Op Een Well-Known USA"),
        (noise.title_case, "hr", "ijs", "Ijs"),
        (noise.title_case, "tr", "istanbul iyi", "İstanbul İyi"),
        (noise.title_case, "fr", "l'été (ou «élan») 3 don't", "L'été (Ou «Élan») 3 Don't"),
    ]:
        assert change(text, lang) == expected


def test_the_final_stop_goes_and_no_other() -> None:
    texts = {"Quoi ?!": "Quoi", "你好。": "你好", "मैं हूँ।": "मैं हूँ", "كيف؟": "كيف"}
    texts |= {"At 5 a.m. ": "At 5 a.m.", "U.S.?": "U.S.", "z. B. ...": "z. B.", "Plan A.": "Plan A"}
    texts |= {text: text for text in ("...", "ohne 3.5", "", "Um 9 a.m.", "i. d. R.", "Ein Ph.D.")}
    texts |= {"Open main.c.": "Open main.c"}
    assert {text: noise.without_final_stop(text) for text in texts} == texts


def differing(text: str, lang: str, rate: float = 1.0) -> list[tuple[str, str]]:
    words = zip(text.split(), noise.typos(text, lang, rate, Random(1)).split(), strict=True)
    return [(old, new) for old, new in words if old != new]


def test_typos_come_at_their_rate_and_keep_the_first_letter() -> None:
    changed = differing("Haustür Gruppe und nach " * 2000, "de", 0.2)
    assert len(changed) == pytest.approx(0.2 * 6000, rel=0.1)
    assert {old for old, _ in changed} == {"Haustür", "Gruppe", "nach"}  # and no short word
    assert all(old[0] == new[0] and abs(len(old) - len(new)) <= 1 for old, new in changed)


def test_a_neighbour_is_one_of_the_own_keyboard() -> None:
    def neighbours(letter: str, lang: str) -> set[str]:
        found = (new for _, new in differing(f"N{letter}xx " * 3000, lang) if len(new) == 4)
        return {new[1] for new in found if new[2:] == "xx"} - {letter}

    assert neighbours("a", "de") == set("qwsy")
    assert neighbours("a", "fr") == set("zq")
    assert neighbours("ж", "ru") == set("зхдэю")


def test_what_is_not_typed_by_letters_has_no_typos() -> None:
    texts = {"ja": "日本語の文章 カタカナテスト", "ko": "한국어는여기있다", "th": "ภาษาไทยไม่มี"}
    texts |= {"en": "www.example.com foo@example.com <placeholder> 12345 and/only"}
    for lang, text in texts.items():
        assert differing(text, lang) == []


def test_in_other_scripts_letters_are_only_swapped() -> None:
    changed = differing("مجموعة الرجال يحملون " * 50, "ar")
    assert len(changed) > 100
    assert all(sorted(old) == sorted(new) for old, new in changed)


def test_both_sides_get_the_same_mark() -> None:
    random = Random(3)
    pairs = [noise.add_mark(["Ein Mann geht fort.", "A man leaves."], random) for _ in range(2000)]
    marks = []
    for src, tgt in pairs:
        (mark,) = set(src.split()) - {"Ein", "Mann", "geht", "fort."}
        assert [word for word in tgt.split() if word != mark] == ["A", "man", "leaves."]
        assert mark in tgt.split()
        marks.append(mark)
    at_end = sum(src.endswith(mark) for (src, _), mark in zip(pairs, marks, strict=True))
    assert at_end / len(pairs) == pytest.approx(0.78, abs=0.04)
    assert len(set(marks)) > 300


def test_stray_characters_come_at_their_rate() -> None:
    text = " ".join(["Wort"] * 5000)
    added = noise.stray_characters(text, 0.1, Random(1)).replace("Wort", "").split()
    assert len(added) == pytest.approx(500, rel=0.1)
    assert set(added) <= set(noise.STRAY)
