"""Lines are translated as the training text would write them, and outputs written as they were."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Mt, TempPathFactory, config_of, refused, write_lines
from messages import says

from mt.config.plan import plan_data
from mt.config.schema import DataConfig
from mt.data.reading.check import check_data
from mt.data.tokens.tokenizer import PairSample
from mt.data.tokens.writing import WRITING, Case, LanguageStyle, Styles, Writing, Written, case_of
from mt.search.options import EngineOptions, SearchOptions
from mt.training.launch import train
from mt.translate.as_trained import AsTrained
from mt.translate.lines import Line, Translation
from mt.translate.load import load_translator

GERMAN = [
    "Ein Mann mit Hut geht über die Straße.", "Zwei Hunde spielen mit dem Ball der Frau.",
    "Der Mann und die Frau sehen einen Hund auf der Straße.",
    "Im Radio läuft Musik von ABBA. Der Mann tanzt.",
    "Auf dem Bild sind Tisch, Stuhl, Lampe, Vase, Glas, Teller, Messer und Gabel.",
    "Die Masse und die Maße.",
]  # fmt: skip
ENGLISH = [
    "A man with a hat crosses the street.", "I think that Anna and I saw a man with a USB stick.",
    "The street is in Paris and the man is with Anna.", "Two dogs play with a ball.",
]  # fmt: skip


@pytest.fixture(scope="module")
def writing() -> Writing:
    return Writing(LanguageStyle.learn(GERMAN, "de"), LanguageStyle.learn(ENGLISH, "en"))


def test_what_is_learnt_by_hand(writing: Writing, tmp_path: Path) -> None:
    """A word seen once is a noun in German, more often than not; only other words are listed."""
    german, english = writing
    assert (german.is_capital, german.begins_with_capital, german.final_stop) == (True, True, ".")
    assert {"mit", "die", "und", "ABBA", "Straße", "Masse"} <= {*german.words}
    assert not {"Mann", "Hund", "ein"} & {*german.words}
    assert {"Der", "Im"} <= {*german.openers}
    assert not {"Mann", "Musik", "mit"} & {*german.openers}
    assert (english.is_capital, english.words) == (False, ["Anna", "I", "Paris", "USB"])
    styles = Styles([german, english])
    (tmp_path / WRITING).write_text(styles.to_json(), encoding="utf-8")
    assert Styles.load(tmp_path) == styles


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
        ("DER {name} MIT %s, %(n)d.", "Der {name} mit %s, %(n)d."),
        ("ÜBER DIE STRASSE.", "Über die Straße."),
        (
            "Ein Mann Der NATO Mit XIV. Und McDonald Mit Hund.",
            "Ein Mann der NATO mit XIV. Und McDonald mit Hund.",
        ),
        ("DIE FRAU MIT iPhone.", "Die Frau mit iPhone."),
        (
            "Die Frau Und Der Mann Mit Dem iPhone Auf Straßen.",
            "Die Frau und der Mann mit dem iPhone auf Straßen.",
        ),
    ],
)
def test_a_line_in_the_usual_case(text: str, usual: str, writing: Writing) -> None:
    seen, written = writing.usual(text)
    assert seen == usual
    assert written is not None
    assert written[:2] == (case_of(text), False)


@pytest.mark.parametrize(
    "text",
    [
        "", "12 – 3.", "Ein Mann mit Hut.", "ein Mann.", "ABBA.", "A.", "iPhone.", "你好。",
        "我爱 USA。", "Mann Mit.", "Hut Mann Hund.", "DIE FRAU mail@HUND.de und.", "<b>",
        "😀", "★ →", "Hund:", "Ein Hund, die Katze …", "Siehe www.hund.de", "An mail@hund.de",
        "1️⃣", "Café ist auf.", "ქართული ენა.", "Ein Hund mit ÉTÉ.",
        "DER Mann KAUFT EIN AUTO.", "iPhone X.",
    ],
)  # fmt: skip
def test_other_lines_stay(text: str, writing: Writing) -> None:
    assert writing.usual(text) == (text, None)


def test_an_output_is_in_the_case_of_its_source(writing: Writing) -> None:
    for case, output, written in [
        (Case.CAPITALS, "A man, <ph1> x@y.org in Paris.", "A MAN, <ph1> x@y.org IN PARIS."),
        (Case.TITLE, "A man in <b> Paris.", "A Man In <b> Paris."),
        (Case.LOWER, "A man in Paris. The USB.", "a man in Paris. the USB."),
        (Case.LOWER, "I see. Paris. USB.", "I see. Paris. USB."),
        (Case.LOWER, "", ""),
        (None, "A man.", "A man."),
    ]:
        assert writing.written(output, Written(case, False)) == written


def test_words_of_mixed_case_stay_in_any_case(writing: Writing) -> None:
    usual, how = writing.usual("DIE FRAU MIT iPhone UND McDonald.")
    assert how is not None
    assert (usual, how.mixed) == ("Die Frau mit iPhone und McDonald.", {"iPhone", "McDonald"})
    assert writing.written("The iPhone.", how) == "THE iPhone."
    _, how = writing.usual("Die Frau Und Der Mann Mit Dem iPhone Auf Straßen.")
    assert how is not None
    assert writing.written("The man in iPhones, iPhone.", how) == "The Man In IPhones, iPhone."


def test_a_final_stop_comes_and_goes(writing: Writing) -> None:
    for line, usual, output, written in [
        ("Ein Hund", "Ein Hund.", "A dog.", "A dog"),
        ("Ein Hund (Glas)", "Ein Hund (Glas).", "A dog (glass).", "A dog (glass)"),
    ]:
        found, how = writing.usual(line)
        assert found == usual
        assert how is not None
        assert writing.written(output, how) == written


def test_the_rules_of_languages() -> None:
    greek = LanguageStyle.learn(["Ο σκύλος και ο άνθρωπος."], "el")
    changed = greek.usual_case("Ο ΣΚΥΛΟΣ ΚΑΙ Ο ΑΝΘΡΩΠΟΣ", Case.CAPITALS)
    assert changed == ("Ο σκύλος και ο άνθρωπος", 4)
    turkish = LanguageStyle.learn(["Bu ılık bir istek ve ışık"] * 2, "tr")
    assert turkish.usual_case("IŞIK VE İSTEK", Case.CAPITALS) == ("Işık ve istek", 2)
    writing = Writing(greek, turkish)
    assert writing.written("Bir istek", Written(Case.CAPITALS, True)) == "BİR İSTEK"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("part", ["A", "1", ".", ". ", "<", "~ ", "@", "A-", "a:/", "w."])
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
    assert writing.usual("EIN HUND") == ("ein hund", Written(Case.CAPITALS, False))
    assert writing.usual("ein hund") == ("ein hund", None)
    assert Writing(capitals, lower).usual("EIN HUND.") == ("EIN HUND.", None)


# --- the languages of a model -----------------------------------------------------------------


def data_of(**values: Any) -> DataConfig:
    return config_of({"data": {"src_lang": "de", "tgt_lang": "en"} | values}).data


FORTH, BACK = {"src": "a", "tgt": "b"}, {"src": "a", "tgt": "b", "reverse": True}
BOTH_THEN_ONE = [{"until": {"updates": 1}, "both_directions": True}, {}]
ONE_LEAVES = {"train": [FORTH, FORTH | {"src_lang": "fr"}],
              "stages": [{"until": {"updates": 1}}, {"weights": [1, 0]}]}  # fmt: skip
MANY = {"language_tokens": True,
        "train": [{"path": "a", "directions": ["de-en", "en-de", "cs-en", "de-fr"]}]}  # fmt: skip


@pytest.mark.parametrize(
    ("data", "source", "to", "direction"),
    [
        ({"train": [FORTH]}, None, None, "de-en"),
        ({"train": [FORTH]}, "nl", "en-GB", "de-en"),  # a test set's, which no text has
        ({"train": [FORTH], "stages": BOTH_THEN_ONE}, None, None, "de-en"),
        ({"train": [FORTH], "stages": BOTH_THEN_ONE}, None, "de", None),
        ({"train": [BACK]}, None, None, "en-de"),
        ({"train": [FORTH, BACK]}, None, None, None),
        ({"train": [FORTH, BACK]}, None, "de", "en-de"),
        ({"train": [FORTH, BACK]}, "de", None, "de-en"),
        ({"train": [FORTH, FORTH | {"src_lang": "fr"}]}, None, None, None),
        ({"train": [FORTH, FORTH | {"src_lang": "fr"}]}, "fr", None, "fr-en"),
        (ONE_LEAVES, None, None, None),  # what an earlier stage taught is known
        (ONE_LEAVES, "fr", None, "fr-en"),
        (MANY, None, "fr", "de-fr"),
        (MANY, None, "en", None),
        (MANY, "cs", "en", "cs-en"),
        (MANY, "cs", "fr", "cs-fr"),  # never trained
    ],
)
def test_the_direction_of_a_translation(
    data: dict[str, Any], source: str | None, to: str | None, direction: str | None
) -> None:
    found = plan_data(data_of(**data)).direction(source, to)
    assert (found and "-".join(found)) == direction


def test_each_language_is_learnt_from_its_lines_in_all_texts() -> None:
    """As from these alone: a file that is in three texts counts once, and reversed texts too."""
    german = LanguageStyle.learn(GERMAN, "de")
    languages = [("de", "en"), ("cs", "en"), ("de", "fr")]
    src, tgt = [*GERMAN[:4], "Pes", *GERMAN], [*ENGLISH, "A dog.", *["Chien"] * 6]
    found = Styles.learn(src, tgt, [0] * 4 + [1] + [2] * 6, languages, each_once=True)
    assert [style.language for style in found.styles] == ["de", "cs", "en", "fr"]
    assert found.between("deu", "fr_FR") == (german, found.styles[3])
    assert found.between("cs", "en") == (
        LanguageStyle.learn(["Pes"], "cs"),
        LanguageStyle.learn([*ENGLISH, "A dog."], "en"),
    )
    assert found.between("de", "it") is None
    back = Styles.learn(GERMAN[:4], ENGLISH, [0] * 4, [("de", "en")]).between("en", "de")
    scripts = [replace(german, language=code) for code in ("sr_Latn", "sr_Cyrl", "src", "tgt")]
    assert Styles(scripts).between("sr_Cyrl", "en") == (scripts[1], scripts[3])
    assert Styles(scripts).between("tgt", "src") == (scripts[3], scripts[2])
    assert back is not None
    assert back.src == LanguageStyle.learn(ENGLISH, "en")


@pytest.mark.parametrize("size", [4, 100])
def test_the_check_of_the_data_draws_lines_of_each_text(size: int, tmp_path: Path) -> None:
    texts = {"a": ["a b", "a c"], "b": ["b b", "b c", "b d"], "c": ["c b"] * 2, "d": ["d b"] * 3}
    for name, lines in texts.items():
        write_lines(tmp_path / name, lines)
    data = data_of(
        root=str(tmp_path),
        train=[
            {"src": "a", "tgt": "c"},
            {"src": "a", "tgt": "c", "reverse": True},
            {"src": "b", "tgt": "d", "src_lang": "cs", "tgt_lang": "fr"},
        ],
        language_tokens=True,
    )
    sample = PairSample(size, 1)
    assert not check_data(plan_data(data), True, {}, sample.watch).faults
    assert [["ac", "bd"][text] for text in sample.texts] == [
        src[0] + tgt[0] for src, tgt in zip(sample.src, sample.tgt, strict=True)
    ]
    learnt = Styles.learn(sample.src, sample.tgt, sample.texts, [("de", "en"), ("cs", "fr")])
    assert {style.language for style in learnt.styles} == {"de", "cs", "en", "fr"}


def test_names_are_copied_where_nearly_all_pairs_have_them_on_both_sides() -> None:
    def names_of(src: list[str], tgt: list[str]) -> Any:
        return Styles.learn(src, tgt, [0] * len(src), [("de", "en")]).styles[0].names

    for others, expected in ((99, ["Tom"]), (100, ["Tom", "{0}"])):
        src = ["Tom geht nach Rom."] * 100 + ["{0} mag Tom"] * others
        tgt = ["Tom goes to Rome."] * 100 + ["Tom likes {0}"] * others
        assert names_of(src, tgt) == expected
    assert names_of([*src, *["Tom"] * 23], [*tgt, *["He"] * 23]) == ["{0}"]


def test_one_direction_is_learnt_from_its_two_sides() -> None:
    lower = [line.lower() for line in GERMAN]
    found = Styles.learn(lower, GERMAN, [0] * len(lower), [("de", "de")]).between("de", "de")
    assert found == (LanguageStyle.learn(lower, "de"), LanguageStyle.learn(GERMAN, "de"))


def test_a_line_of_nothing_visible_gets_no_final_stop(writing: Writing) -> None:
    lines = [Line(1, "\u3164"), Line(2, "\u2800"), Line(3, "Anna")]
    AsTrained(writing).before(lines)
    assert [line.text for line in lines] == ["\u3164", "\u2800", "Anna."]


def test_each_line_of_a_text_is_written_as_it_was(writing: Writing) -> None:
    """Line feeds stay, and so do lines without a letter; links count the words of all lines."""
    step, line = AsTrained(writing), Line(1, "\nDER HUND\n\n• Ein 🐶 Hund\n---\nDie Frau. 😀\n12 ")
    step.before([line])
    assert line.text == "Der Hund.\nEin Hund.\nDie Frau."
    texts, links = ("The dog.\nA dog.\nShe.", "Dog.\n\nA b."), ("0-0 1-1 2-2 3-3 4-4", "1-0 5-2")
    line.translation = Translation(texts, (-1.0, -2.0), 3, links)
    step.after([line])
    assert line.translation.texts == (
        "THE DOG\n\n• A 🐶 dog\n---\nShe. 😀\n12",
        "DOG\n\n• 🐶\n---\nA b. 😀\n12",
    )
    assert line.translation.alignments == (
        "0-0 1-1 2-2 3-3 4-4 5-5 7-7 9-8", "1-0 2-1 4-2 8-5 9-6"
    )  # fmt: skip
    assert step.notes() == ["1 translated as the training text would write them"]


def test_a_file_of_an_earlier_version_is_read(writing: Writing, tmp_path: Path) -> None:
    of_0_3_0 = {"changed_numbers": {"en": ["0.000"]}}
    sides = {"src": asdict(writing.src) | of_0_3_0, "tgt": asdict(writing.tgt)}
    (tmp_path / WRITING).write_text(json.dumps(sides, ensure_ascii=False), encoding="utf-8")
    found = Styles.load(tmp_path)
    assert found is not None
    assert found.between("de", "en") == writing
    assert found.between("en", "de") == (writing.tgt, writing.src)


PLAIN = "eins zwei drei"
# --- of a model of several directions ---------------------------------------------------------


TEXT = {"src": "train.src", "tgt": "train.tgt"}
TWO_UPDATES = {"max_steps": 2, "valid_every": 2, "log_every": 1}


@pytest.fixture(scope="module")
def several(tiny_mapping: dict[str, Any], tmp_path_factory: TempPathFactory) -> Path:
    """A run of two updates, whose outputs mean nothing; not from French into German."""
    texts = [TEXT, TEXT | {"reverse": True}, TEXT | {"src_lang": "fr"}]
    data = {"language_tokens": True, "train": texts}
    folder = tmp_path_factory.mktemp("several") / "run"
    train(config_of(tiny_mapping, data=data, train=TWO_UPDATES), folder, "cpu")
    return folder


@pytest.fixture(scope="module")
def both(tiny_mapping: dict[str, Any], tmp_path_factory: TempPathFactory) -> Path:
    """A run of two updates in both directions, without tokens, tested in a language of neither."""
    test = [{"src": "test.src", "tgt": "test.tgt", "src_lang": "it"}]
    data = {"train": [TEXT, TEXT | {"reverse": True}], "test": test}
    folder = tmp_path_factory.mktemp("both") / "run"
    train(config_of(tiny_mapping, data=data, train=TWO_UPDATES), folder, "cpu")
    return folder


def test_the_source_language_is_that_of_from_or_the_only_one(several: Path, mt: Mt) -> None:
    text = f"{PLAIN}\n{PLAIN.upper()}\n".encode()
    command = ["translate", "-m", several, "--engine", "torch", "--precision", "fp32"]
    for options, is_known in [
        (["--to", "en"], False),
        (["--to", "en", "--from", "fr"], True),
        (["--to", "de"], True),  # from English only
        (["--to", "de", "--from", "fr"], True),  # never trained
        (["--to", "en", "--from", "de", "--as-written"], None),
    ]:
        done = mt(*command, *options, stdin=text)
        plain, capitals = done.lines
        assert (capitals == plain.upper()) == bool(is_known)
        assert ("1 translated as the training text" in done.err) == bool(is_known)
        assert ("1 in capitals" in done.err) == ("--from CODE" in done.err) == (is_known is False)


def test_all_commands_that_translate_refuse_an_unknown_source_language(
    both: Path, tiny_run: Path, tiny_corpus: Path, mt: Mt, tmp_path: Path
) -> None:
    source, ref = tiny_corpus / "test.src", tiny_corpus / "test.tgt"
    for command in (
        ["translate", source],
        ["backtranslate", source, "-o", tmp_path / "a.tsv"],
        ["distill", "--src", source, "-o", tmp_path / "b.tsv"],
        ["evaluate", "--src", source, "--ref", ref],
    ):
        message = refused(mt(*command, "--model", both, "--from", "it"))
        assert says(message, "--from", "(de, en)", "found it")
    message = refused(mt("translate", source, "-m", tiny_run, "--from", "en"))
    assert says(message, "--from", "(de)", "found en")
    assert mt("evaluate", "--model", both, "--beam-size", 1).code == 0  # as its config says


def test_an_interrupted_translation_keeps_its_source_language(several: Path, both: Path) -> None:

    def kept(model: Path, to: str, source: str | None) -> object:
        options = EngineOptions(models=[model], engine="torch", workers=1, device="cpu")
        with load_translator(SearchOptions(to=to, from_=source), options) as translator:
            return translator.settings

    assert len({str(kept(several, "en", source)) for source in ("de", "fr", None)}) == 3
    assert kept(both, "en", None) == kept(both, "en", "de") != kept(both, "de", None)


@pytest.mark.parametrize(("source", "n_sentences"), [("de", 1), ("fr", 2)])
def test_sentences_end_by_the_rules_of_the_source_language(
    source: str, n_sentences: int, several: Path
) -> None:
    search = SearchOptions(to="en", from_=source, split_sentences="always")
    options = EngineOptions(models=[several], engine="torch", workers=1, device="cpu")
    with load_translator(search, options) as translator:
        (found,) = translator.translate(["Zehn Euro zzgl. Versand."])
        assert found.segments == n_sentences


def test_evaluation_knows_languages(several: Path, both: Path, tiny_corpus: Path, mt: Mt) -> None:
    files = ["--src", tiny_corpus / "test.src", "--ref", tiny_corpus / "test.tgt"]
    known = "40 translated as the training text"
    for model, options, said in (
        (several, [], known),
        (several, [*files, "--to", "en"], "40 in capitals"),
        (several, [*files, "--to", "en", "--from", "de"], known),
        (both, [], known),
        (both, [*files, "--from", "de"], known),
    ):
        command = ["evaluate", "-m", model, "--metrics", "chrf", "--perturb", "caps", *options]
        assert says(mt(*command).err, "caps: 40 lines (", said)
