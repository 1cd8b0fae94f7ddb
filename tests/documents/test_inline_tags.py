"""Inline tags are carried over by a known alignment; none is lost, whatever the alignment says."""

from __future__ import annotations

import random
import re

import pytest

from mt.documents.inline_tags import MarkupToken
from mt.documents.translate_document import read_document
from mt.translate.lines import Translation

TAG = re.compile(r"<[^>]*>")


def rendered(source: str, translated: str, links: str) -> tuple[str, list[MarkupToken]]:
    """The translation of a line of HTML, and the tags that found no place."""
    document = read_document("html", f"<p>{source}</p>", "x")
    assert len(document.texts) == 1
    text, lost = document.render([Translation((translated,), (0.0,), 1, (links,))])
    return text[3:-4], [token for _, token in lost]


@pytest.mark.parametrize(
    ("source", "translated", "links", "expected"),
    [
        ("Der <b>große</b> Hund", "The dog big", "0-0 2-1 1-2", "The dog <b>big</b>"),
        ("<b>Der</b> große Hund", "Dog big the", "2-0 1-1 0-2", "Dog big <b>the</b>"),
        # Punctuation moves with its word, and is not in the tag if it was not.
        ("Ein <b>Hund</b>, ja", "Yes, a dog!", "2-0 0-1 1-2", "Yes, a <b>dog</b>!"),
        ("Ein <b>Hund,</b> ja", "A dog, yes", "0-0 1-1 2-2", "A <b>dog,</b> yes"),
        # Nested pairs stay nested, also where the inner words go elsewhere.
        ("<b>a <i>b</i> c</b> d", "D C B A", "3-0 2-1 1-2 0-3", "D <b>C <i>B</i> A</b>"),
        ("<b>a <i>b</i></b> c d", "B C D A", "1-0 2-1 3-2 0-3", "<b><i>B</i></b> C D A"),
        ("a <i>b</i> <b>c <u>d</u></b>", "D C B A", "3-0 2-1 1-2 0-3",
         "<b><u>D</u> C</b> <i>B</i> A"),
        # Of two that overlap, the one that ends later is two single tags.
        ("<b>a <i>b</b> c</i> d", "A B C D", "0-0 1-1 2-2 3-3", "<b>A <i>B</b> C</i> D"),
        ("<b>a <i>b</b> c</i> d", "C B A D", "2-0 1-1 0-2 3-3", "C</i> <b><i>B A</b> D"),
        # One word that is aligned wrongly does not stretch a tag.
        ("<b>a b</b> c d e f", "A B C D E F", "0-0 1-1 2-2 3-3 4-4 1-5", "<b>A B</b> C D E F"),
        ("<b>a b c</b> d", "A X C D", "0-0 3-1 2-2 3-3", "<b>A</b> X C D"),
        # Single tags stand beside what they stood beside.
        ("a <img> b c", "C B A", "2-0 1-1 0-2", "C <img> B A"),
        ("a<img> b c", "C B A", "2-0 1-1 0-2", "C B A<img>"),
        ("<img> a b", "B A", "1-0 0-1", "<img> B A"),
        ("a b<img>", "B A", "1-0 0-1", "B A<img>"),
        ("<b>a b</b>", "B of A", "1-0 0-2", "<b>B of A</b>"),
        # A part of a word that is translated is the word.
        ("un<b>glaub</b>lich gut", "so incredible", "1-0 0-1", "so <b>incredible</b>"),
        ("un<b>glaub</b>lich gut", "unglaublich good", "0-0 1-1", "un<b>glaub</b>lich good"),
        # Without spaces between words.
        ("A <b>dog</b> here", "ここに犬", "2-0:3 1-3:4", "ここに<b>犬</b>"),
        ("ここに<b>犬</b>", "a dog here", "3:4-0 3:4-1 0:3-2", "<b>a dog</b> here"),
        # A link counts the characters in NFC; this source is not.
        ("か\u3099か\u3099<b>犬</b>です", "ががwolfでた", "0:1-0:1 1:2-1:2 2:3-2:6 3:4-6:7 4:5-7:8",
         "がが<b>wolf</b>でた"),
        # An element that is not translated is found by its text, or by the alignment.
        ("Nutze <code>ls -l</code> jetzt", "Now use ls -l", "2-0 0-1 1-2 2-3",
         "Now use <code>ls -l</code>"),
        ("Nutze <code>ls</code> jetzt", "Now use LS", "2-0 0-1 1-2", "Now use <code>ls</code>"),
        ("AT&amp;T &copy; <b>&lt;x&gt;</b> ist", "© AT&T is <x>", "1-0 0-1 3-2 2-3",
         "&copy; AT&amp;T is <b>&lt;x&gt;</b>"),
    ],
)  # fmt: skip
def test_a_tag_follows_its_words(source: str, translated: str, links: str, expected: str) -> None:
    text, lost = rendered(source, translated, links)
    assert text == expected
    assert len(lost) == 0


def test_a_tag_without_a_place_stands_at_the_end_and_is_counted() -> None:
    text, lost = rendered("a <b>b <i>c</i></b> d", "A D", "0-0 3-1")
    assert text == "A D<b><i></i></b>"
    assert len(lost) == 2
    text, lost = rendered("<i>a <b>b</b> c</i> d", "A C D", "0-0 2-1 3-2")
    assert (text, len(lost)) == ("<i>A C<b></b></i> D", 1)
    text, lost = rendered("a <code>ls</code> b", "A B", "0-0 2-1")
    assert text == "A B <code>ls</code>"
    assert len(lost) == 1


def made_line(draw: random.Random, depth: int = 0) -> str:
    """Words, punctuation, pairs of tags and single ones, in odd places."""
    parts = []
    for _ in range(draw.randint(1, 4)):
        kind = draw.random()
        if kind < 0.3 and depth < 4:
            name = draw.choice("abiqsu")
            parts.append(f"<{name}>{draw.choice(['', ' '])}{made_line(draw, depth + 1)}</{name}>")
        elif kind < 0.4:
            parts.append(draw.choice(["<img>", "<wbr>", "<!-- x -->", "<b>", "</i>"]))
        else:
            parts.append(draw.choice(["ab", "ab c", "d,", "(e", "f.", "g-h", "&amp;", "ab ab"]))
        parts.append(draw.choice(["", " ", " ", "  "]))
    return "".join(parts)


def test_nothing_is_lost_whatever_the_alignment() -> None:
    """A copy has each tag in its place; any other translation has each tag once."""
    draw = random.Random(5)
    n_same = 0
    for _ in range(600):
        source = re.sub(" +", " ", f"w {made_line(draw)} z")
        text = read_document("html", f"<p>{source}</p>", "x").texts[0].tagged.text
        n_words = len(text.split())
        copy, lost = rendered(source, text, " ".join(f"{n}-{n}" for n in range(n_words)))
        assert copy.replace(" ", "") == source.replace(" ", "")
        assert len(lost) == 0
        n_same += copy == source
        links = [f"{draw.randint(0, n_words)}-{n}" for n in range(9) if draw.random() < 0.8]
        other, _ = rendered(source, "Q R, S (T) U. V W & X", " ".join(links))
        assert sorted(TAG.findall(other)) == sorted(TAG.findall(source))
        assert "".join(TAG.sub("", other).split()) == "QR,S(T)U.VW&amp;X"
    assert n_same > 585  # in the others a space has moved over a tag that holds nothing else
