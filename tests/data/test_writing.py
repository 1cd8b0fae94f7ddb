"""Lines are translated as the training text would write them, and outputs written as they were."""

from __future__ import annotations

import json
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from conftest import Mt, config_of, refused
from messages import says
from odd_lines import odd_lines

from mt.data.tokens.writing import (
    Case,
    LanguageStyle,
    Symbol,
    Writing,
    Written,
    case_of,
    with_symbols,
    without_symbols,
)

GERMAN = [
    "Ein Mann mit Hut geht über die Straße.",
    "Zwei Hunde spielen mit dem Ball der Frau.",
    "Der Mann und die Frau sehen einen Hund auf der Straße.",
    "Im Radio läuft Musik von ABBA. Der Mann tanzt.",
    "Auf dem Bild sind Tisch, Stuhl, Lampe, Vase, Glas, Teller, Messer und Gabel.",
    "Die Masse und die Maße.",
]
ENGLISH = [
    "A man with a hat crosses the street.",
    "I think that Anna and I saw a man with a USB stick.",
    "The street is in Paris and the man is with Anna.",
    "Two dogs play with a ball.",
]


@pytest.fixture(scope="module")
def writing() -> Writing:
    return Writing(LanguageStyle.learn(GERMAN, "de"), LanguageStyle.learn(ENGLISH, "en"))


def test_what_is_learnt_by_hand(writing: Writing) -> None:
    """A word seen once is a noun in German, more often than not; only other words are listed."""
    german, english = writing
    assert (german.is_capital, german.begins_with_capital, german.final_stop) == (True, True, ".")
    assert {"mit", "die", "und", "ABBA", "Straße", "Masse"} <= {*german.words}
    assert not {"Mann", "Hund", "ein"} & {*german.words}
    assert (english.is_capital, english.words) == (False, ["Anna", "I", "Paris", "USB"])
    assert Writing.from_json(writing.to_json().encode()) == writing


@pytest.mark.parametrize(
    ("text", "usual"),
    [
        ("EIN MANN MIT DEM HUND.", "Ein Mann mit dem Hund."),
        ("ein mann und die katze.", "Ein Mann und die Katze."),  # a cat was never seen
        ("Ein Mann Und Die Frau Mit Hund.", "Ein Mann und die Frau mit Hund."),
        ("„DER HUND“ MIT ABBA. DIE FRAU!", "„Der Hund“ mit ABBA. Die Frau!"),
        ("<ph1> UND DER MANN: <B>", "<ph1> und der Mann: <B>"),
        ("DIE FRAU-UND-HUND MIT RADIO'S.", "Die Frau-und-Hund mit Radio's."),
        ("AUF DIE STRASSE MIT DER MASSE.", "Auf die Straße mit der Masse."),
        ("auf der straße, strasse, maße.", "Auf der Straße, Straße, Maße."),
        ("3 HUNDE.", "3 Hunde."),
        ("U\u0308BER DIE STRASSE.", "Über die Straße."),
    ],
)
def test_a_line_in_the_usual_case(text: str, usual: str, writing: Writing) -> None:
    assert writing.usual(text) == (usual, Written(case_of(text), False, ()))


@pytest.mark.parametrize(
    "text",
    [
        "", "12 – 3.", "Ein Mann mit Hut.", "ein Mann.", "ABBA.", "A.", "iPhone.", "你好。",
        "我爱 USA。", "Mann Mit.", "Hut Mann Hund.", "DIE FRAU mail@HUND.de und.", "<b>",
        "😀", "★ →", "Hund:", "Ein Hund, die Katze …", "Siehe www.hund.de", "An mail@hund.de",
        "1️⃣", "CAFE\u0301 ist auf.", "ქართული ენა.", "Ein Hund mit ÉTÉ.",
    ],
)  # fmt: skip
def test_other_lines_stay(text: str, writing: Writing) -> None:
    assert writing.usual(text) == (text, None)


@pytest.mark.parametrize(
    ("case", "output", "written"),
    [
        (Case.CAPITALS, "A man, <ph1> x@y.org in Paris.", "A MAN, <ph1> x@y.org IN PARIS."),
        (Case.TITLE, "A man in <b> Paris.", "A Man In <b> Paris."),
        (Case.LOWER, "A man in Paris. The USB.", "a man in Paris. the USB."),
        (Case.LOWER, "I see. Paris. USB.", "I see. Paris. USB."),
        (Case.LOWER, "", ""),
        (None, "A man.", "A man."),
    ],
)
def test_an_output_is_in_the_case_of_its_source(
    case: Case | None, output: str, written: str, writing: Writing
) -> None:
    assert writing.written(output, Written(case, False, ())) == written


@pytest.mark.parametrize(
    ("line", "usual", "output", "written"),
    [
        ("Ein Hund", "Ein Hund.", "A dog.", "A dog"),
        ("Ein Hund (Glas)", "Ein Hund (Glas).", "A dog (glass).", "A dog (glass)"),
        ("Ein Hund. 😀", "Ein Hund.", "A dog.", "A dog. 😀"),
        ("Ein Hund 😀😀", "Ein Hund.", "A dog.", "A dog 😀😀"),
        ("Ein Hund👍🏽!", "Ein Hund !", "A dog !", "A dog👍🏽 !"),
        ("• Ein 🐶 Hund geht.", "Ein Hund geht.", "A dog walks on.", "• A 🐶 dog walks on."),
        ("♪ EIN HUND ♪", "Ein Hund.", "A dog.", "♪ A DOG ♪"),
    ],
)
def test_stops_and_symbols(
    line: str, usual: str, output: str, written: str, writing: Writing
) -> None:
    found, how = writing.usual(line)
    assert found == usual
    assert how is not None
    assert writing.written(output, how) == written


def test_symbols_around_an_empty_output() -> None:
    symbols = [Symbol("🥄", 0.0, ""), Symbol("😲", 1.0, " "), Symbol("💗", 1.0, "")]
    assert with_symbols("", symbols) == "🥄 😲💗"


def test_signs_between_words_are_text(writing: Writing) -> None:
    for line in ("Ein Hund | die Frau.", "Ein → Hund * Glas.", "Ein Hund & #1 ★ Glas."):
        assert without_symbols(line) == (line, ())
    assert writing.usual("Ein Hund 😀", keep_words=True)[0] == "Ein Hund 😀"


def test_the_rules_of_languages() -> None:
    greek = LanguageStyle.learn(["Ο σκύλος και ο άνθρωπος."], "el")
    assert greek.usual_case("Ο ΣΚΥΛΟΣ ΚΑΙ Ο ΑΝΘΡΩΠΟΣ") == ("Ο σκύλος και ο άνθρωπος", 4)
    turkish = LanguageStyle.learn(["Bu ılık bir istek ve ışık"] * 2, "tr")
    assert turkish.usual_case("IŞIK VE İSTEK") == ("Işık ve istek", 2)
    writing = Writing(greek, turkish)
    assert writing.written("Bir istek", Written(Case.CAPITALS, True, ())) == "BİR İSTEK"


def test_no_character_is_lost_in_any_text(writing: Writing) -> None:
    for line in odd_lines(200):
        usual, how = writing.usual(line)
        if how is None:
            assert usual == line
            continue
        back = writing.written(usual, how)
        texts = (unicodedata.normalize("NFD", text.casefold()) for text in (back, line))
        found, expected = (sorted("".join(text.split())) for text in texts)
        assert found == expected


@pytest.mark.timeout(30)
@pytest.mark.parametrize("part", ["A", "1", ".", ". ", "<", "😀", "😀a", "~ ", "@", "A-", "a:/"])
def test_long_lines_take_no_longer_than_their_length(part: str, writing: Writing) -> None:
    line = part * 100_000
    usual, how = writing.usual(line)
    assert usual == line if how is None else len(writing.written(usual, how)) > len(usual) - 2


def test_what_the_training_text_has_stays() -> None:
    """A model that was trained on lower case, or on many lines in capitals, knows them."""
    lower = LanguageStyle.learn([line.lower().strip(".") for line in GERMAN], "de")
    capitals = LanguageStyle.learn([*GERMAN, *[line.upper() for line in GERMAN[:3]]], "de")
    assert capitals.words == LanguageStyle.learn(GERMAN, "de").words
    assert (lower.known_cases, capitals.known_cases) == (["LOWER"], ["CAPITALS"])
    writing = Writing(lower, lower)
    assert writing.usual("EIN HUND") == ("ein hund", Written(Case.CAPITALS, False, ()))
    assert writing.usual("ein hund") == ("ein hund", None)
    assert Writing(capitals, lower).usual("EIN HUND.") == ("EIN HUND.", None)


@pytest.mark.parametrize(
    ("data", "languages"),
    [
        ({"train": [{"src": "a", "tgt": "b"}]}, ("de", "en")),
        ({"train": [{"src": "a", "tgt": "b"}], "stages": [
            {"until": {"epochs": 1}, "both_directions": True}, {}]}, ("de", "en")),
        ({"train": [{"src": "a", "tgt": "b"}, {"src": "a", "tgt": "b", "reverse": True}]}, None),
        ({"train": [{"src": "a", "tgt": "b", "reverse": True}]}, None),
        ({"train": [{"path": "a", "directions": ["de-en", "fr-en"]}], "language_tokens": True},
         None),
    ],
)  # fmt: skip
def test_a_model_of_several_directions_has_no_writing(
    data: dict[str, Any], languages: tuple[str, str] | None
) -> None:
    config = config_of({"data": {"src_lang": "de", "tgt_lang": "en"} | data})
    found = Writing.learn(GERMAN, ENGLISH, config.data)
    assert (found and found.languages) == languages


# --- translating ------------------------------------------------------------------------------


PLAIN = "eins zwei drei"


def test_translations_are_those_of_the_usual_line(tiny_run: Path, mt: Mt) -> None:
    """Beside other lines, with scores; alignments count all words, so emoji stay."""
    lines = [PLAIN, PLAIN.upper(), "", "x", PLAIN.title(), f"{PLAIN} 😀"]
    text = "\n".join(lines).encode() + b"\n"
    command = ["translate", "--model", tiny_run, "--scores"]
    done = mt(*command, stdin=text)
    rows = [line.split("\t") for line in done.out.decode().splitlines()]
    assert says(done.err, "3 translated as the training text")
    score, plain = rows[0]
    assert rows[1] == [score, plain.upper()]
    assert rows[4] == [score, plain.title()]
    assert rows[5] == [score, f"{plain} 😀"]
    aligned = mt(*command, "--alignments", stdin=text)
    rows = [line.split("\t") for line in aligned.out.decode().splitlines()]
    assert rows[1][2] == rows[4][2] == rows[0][2]
    assert says(aligned.err, "2 translated as the training text")
    as_it_is = mt(*command, "--as-written", stdin=text)
    assert "training text" not in as_it_is.err
    assert as_it_is.out.splitlines()[0] == done.out.splitlines()[0]
    assert as_it_is.out.splitlines()[1] != done.out.splitlines()[1]


def test_a_line_with_a_prefix_stays(tiny_run: Path, mt: Mt, tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_text("one\n\n", encoding="utf-8")
    text = f"{PLAIN.upper()}\n{PLAIN.upper()}\n".encode()
    done = mt("translate", "-m", tiny_run, "--prefix", tmp_path / "prefixes", stdin=text)
    assert done.out.decode().startswith("one")
    assert says(done.err, "1 translated as the training text")


def test_evaluation_translates_as_translate_does(tiny_run: Path, mt: Mt, tmp_path: Path) -> None:
    for name, text in (("src", PLAIN.upper()), ("ref", "ONE TWO THREE")):
        (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    texts = ["--src", tmp_path / "src", "--ref", tmp_path / "ref", "--metrics", "chrf", "--json"]
    scores = [
        json.loads(mt("evaluate", "-m", tiny_run, *texts, *more).out)[str(tiny_run)][0]["value"]
        for more in ([], ["--as-written"])
    ]
    assert scores[0] > scores[1]


def test_a_damaged_file_is_named_and_that_of_other_languages_left_out(
    tiny_run: Path, mt: Mt, tmp_path: Path
) -> None:
    """A model may have the vocabulary of one that translates the other way round."""
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run, symlinks=True)
    values = json.loads((run / "writing.json").read_text(encoding="utf-8"))
    values["src"], values["tgt"] = values["tgt"], values["src"]
    (run / "writing.json").write_text(json.dumps(values), encoding="utf-8")
    other = mt("translate", "--model", run, stdin=PLAIN.upper().encode())
    assert other.code == 0
    assert "training text" not in other.err
    (run / "writing.json").write_text('{"src": {}}', encoding="utf-8")
    message = refused(mt("translate", "--model", run, stdin=b"a\n"))
    assert says(message, "writing.json", "copy it again", "remove it")
    (run / "writing.json").unlink()
    assert mt("translate", "--model", run, stdin=b"a\n").code == 0
