"""Emoji are taken out of a line and put back into its translation, where they stood."""

from __future__ import annotations

import pytest
from odd_lines import odd_lines

from mt.data.tokens.symbols import links_with_symbols, with_symbols, without_symbols


@pytest.mark.parametrize(
    ("line", "plain", "output", "written"),
    [
        ("Ein Hund. 😀", "Ein Hund.", "A dog.", "A dog. 😀"),
        ("Ein Hund 😀😀", "Ein Hund", "A dog", "A dog 😀😀"),
        ("• Ein 🐶 Hund geht.", "Ein Hund geht.", "A dog walks on.", "• A 🐶 dog walks on."),
        ("♪ Ein Hund ♪", "Ein Hund", "A dog", "♪ A dog ♪"),
        # Before a stop or a comma, also several.
        ("Ein Hund👍🏽!", "Ein Hund!", "A dog!", "A dog👍🏽!"),
        ("Ich lade dich ein 😀.", "Ich lade dich ein.", "I invite you.", "I invite you 😀."),
        ("Ja 😀 👍, nein", "Ja, nein", "Yes, no", "Yes 😀 👍, no"),
        ('"Ja 😀" sagt sie.', '"Ja" sagt sie.', '"Yes" she said.', '"Yes 😀" she said.'),
        # Between sentences, however long these are.
        ("Er kam. 😀 Sie.", "Er kam. Sie.", "He came here. She.", "He came here. 😀 She."),
        ("Er kam 😀. Sie.", "Er kam. Sie.", "He came here. She.", "He came here 😀. She."),
        ("Er. 😀 Sie ging. 👍 Ja.", "Er. Sie ging. Ja.", "He, she went. Yes.",
         "He, she went. 😀 👍 Yes."),
        ("今日は。😀元気？", "今日は。 元気？", "Hello. Well?", "Hello.😀Well?"),
        ("Hello. 😀 Well?", "Hello. Well?", "今日は。元気？", "今日は。 😀 元気？"),
        # Together.
        ("Hallo😀Welt", "Hallo Welt", "Hello world", "Hello😀world"),
        ("Ja😀", "Ja", "Yes", "Yes😀"),
        ("😀Ja", "Ja", "Yes", "😀Yes"),
        ("Hallo (😀) Welt", "Hallo Welt", "Hello world", "Hello (😀) world"),
        ("Hallo (😀 Welt).", "Hallo (Welt).", "Hello (world).", "Hello (😀 world)."),
        ("你好😀世界", "你好世界", "Hello world", "Hello😀world"),
        ("🥄 Ja 😲💗", "Ja", "", "🥄 😲💗"),
    ],
)  # fmt: skip
def test_symbols_stand_where_they_stood(line: str, plain: str, output: str, written: str) -> None:
    symbols = without_symbols(line)
    assert symbols.plain == plain
    assert with_symbols(output, symbols)[0] == written
    assert with_symbols(plain, symbols)[0] == line


def test_signs_between_words_are_text_and_symbols_alone_stay() -> None:
    for line in ("Ein Hund | die Frau.", "Ein → Hund * Glas.", "Ein Hund & #1 ★ Glas.", "😀 ★", ""):
        assert without_symbols(line) == (line, line, ())


def test_no_character_is_lost_in_any_text() -> None:
    for line in odd_lines(200):
        symbols = without_symbols(line)
        written, _ = with_symbols(symbols.plain, symbols)
        assert sorted("".join(written.split())) == sorted("".join(line.split()))


def test_links_count_symbols_that_are_words() -> None:
    def moved(line: str, output: str, links: str) -> str:
        symbols = without_symbols(line)
        return links_with_symbols(links, symbols, output, *with_symbols(output, symbols))

    assert moved("Ein 🐶 Hund 😀", "A dog", "0-0 1-1") == "0-0 1-1 2-2 3-3"
    assert moved("Er.😀Sie ging.", "He. She went.", "0-0 1-1 2-2") == "0-0 0-0 1-1"
    assert moved("今日は 😀", "Hello you", "0:2-0 2:3-1") == "0:2-0 2:3-1 4:5-2"
    assert moved("😀 Hi you", "今日は", "0-0:2 1-2:3 1-7:9") == "0-0:1 1-2:4 2-4:5"


def test_links_tell_the_place_within_a_sentence() -> None:
    symbols = without_symbols("Morgen 😀 geht ein Mann.")
    assert with_symbols("A man goes tomorrow.", symbols)[0] == "A 😀 man goes tomorrow."
    placed, _ = with_symbols("A man goes soon today.", symbols, "2-0 3-1 1-2 0-3 3-4")
    assert placed == "A man goes soon 😀 today."


@pytest.mark.timeout(30)
@pytest.mark.parametrize("part", ["a", ".", ". ", "😀", "😀a", "~ ", "(😀", "😀 ", "今😀"])
def test_long_lines_take_no_longer_than_their_length(part: str) -> None:
    symbols = without_symbols(part * 100_000)
    assert len(with_symbols(symbols.plain, symbols)[0]) > 100_000 * len(part) - 2
