"""Long lines are cut at the best places, and nothing is lost."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from mt.translate.lines import SEPARATORS, pack, split_source


class Letters:
    """A stand-in tokenizer: each character but white space is a token.

    Every text begins with the tokens of `first`.
    """

    def __init__(self, first: str = "") -> None:
        self.first = first
        self.src = self.tgt = self

    def encode(self, lines: list[str]) -> list[list[int]]:
        return [
            [ord(letter) for letter in self.first + line if not letter.isspace()] for line in lines
        ]

    def split_language(self, line: str) -> tuple[str, str]:
        return "", line

    def decode(self, ids: list[list[int]]) -> list[str]:
        return ["".join(map(chr, row)) for row in ids]


def segments(text: str, max_tokens: int) -> list[str]:
    tokenizer: Any = Letters()
    return ["".join(map(chr, ids)) for ids in split_source(text, tokenizer, max_tokens)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # As few pieces as fit, at sentence ends.
        ("Aaa bb. Ccc dd! Eee ff?", "Aaabb.Cccdd! Eeeff?"),
        # Never at a clause where a sentence will do.
        ("Aaa, bb. Ccc, dd. Eee, ff.", "Aaa,bb. Ccc,dd. Eee,ff."),
        # Quotes stay with their sentence.
        ("»Aaa bb.« „Ccc!“ (Ddd eee.) Ff", "»Aaabb.« „Ccc!“ (Dddeee.)Ff"),
        # No sentence end: clauses, and only those of one sentence.
        ("Aaa bbbb, ccc dd, ee fff", "Aaabbbb, cccdd,eefff"),
        ("Aa. Bbb bbbb, ccc dd; ee ff. Gg.", "Aa. Bbbbbbb, cccdd;eeff. Gg."),
        # Words; anywhere.
        ("aaa bbbb ccc dd ee fff", "aaabbbbcccdd eefff"),
        ("aaa bbb Donaudampfschiff ccc", "aaabbb Donaudampfsc hiff ccc"),
        # No spaces between sentences.
        ("你好吗。我很好！你呢？谢谢你们。", "你好吗。我很好！你呢？ 谢谢你们。"),
        ("他说：“你好吗。”我很好，谢谢你，再见", "他说：“你好吗。” 我很好，谢谢你，再见"),
        # Points and commas inside numbers end nothing.
        ("3.14 ist 1,5 mal 2.0 und 9", "3.14ist1,5 mal2.0und9"),
        ("a...b...c...d...e", "a...b...c... d...e"),
    ],
)
def test_a_long_line_is_cut_at_the_best_place(text: str, expected: str) -> None:
    assert segments(text, 12) == expected.split()


def test_a_text_that_fits_is_not_cut() -> None:
    letters: Any = Letters()
    for separator in SEPARATORS:
        assert pack(separator, "Aaa. Bb, cc. D", letters, 12) == ["Aaa. Bb, cc. D"]
    text = "Aaaaaaa bbbbbbb ccc"
    assert pack(SEPARATORS[0], text, letters, 12) == [text]  # nowhere to cut
    # If the parts alone have more tokens than the whole, the whole counts: 8 and 4 + 5.
    letters = Letters("▁")
    assert pack(SEPARATORS[0], "你好。我很好。", letters, 8) == ["你好。我很好。"]


def test_nothing_is_lost_or_too_long_wherever_it_is_cut() -> None:
    draw = random.Random(11)
    alphabet = "aaaabbbccc      ..,,;:!?…\"'”’»)]–—。！？，；：、」』）\u00a0\u3000\t\u2028"
    for _ in range(400):
        text = "".join(draw.choices(alphabet, k=draw.randint(1, 150)))
        limit = draw.randint(3, 25)
        found = segments(text, limit)
        assert "".join(found) == "".join(text.split())
        assert all(0 < len(piece) <= limit for piece in found)
        # A word that fits is whole; a run with East Asian punctuation is several.
        for word in text.split():
            if len(word) <= limit and not re.search("[。！？，；：、]", word):
                assert any(word in piece for piece in found)
