"""The demonstration corpus: its grammar checked by hand, its files remade and looked through."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "make_demo_corpus.py"
SPLITS = {"train": 20_000, "valid": 500, "test": 500}


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_demo_corpus", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


demo = load_script()


def lines(name: str) -> list[str]:
    text = (ROOT / "data" / "demo" / name).read_bytes().decode()
    assert text.endswith("\n")
    assert "\r" not in text
    return text[:-1].split("\n")


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[tuple[str, str]]]:
    return {
        split: list(zip(lines(f"{split}.de"), lines(f"{split}.en"), strict=True))
        for split in SPLITS
    }


def words_of(pairs: list[tuple[str, str]], side: int = 0) -> Counter[str]:
    return Counter(word for pair in pairs for word in re.findall(r"\w+", pair[side]))


# Grammar, against values worked out by hand


@pytest.mark.parametrize(
    ("n", "german", "english"),
    [
        (0, "null", "zero"),
        (1, "eins", "one"),
        (7, "sieben", "seven"),
        (16, "sechzehn", "sixteen"),
        (17, "siebzehn", "seventeen"),
        (20, "zwanzig", "twenty"),
        (21, "einundzwanzig", "twenty-one"),
        (30, "dreißig", "thirty"),
        (66, "sechsundsechzig", "sixty-six"),
        (77, "siebenundsiebzig", "seventy-seven"),
        (100, "hundert", "one hundred"),
        (101, "hunderteins", "one hundred one"),
        (110, "hundertzehn", "one hundred ten"),
        (212, "zweihundertzwölf", "two hundred twelve"),
        (999, "neunhundertneunundneunzig", "nine hundred ninety-nine"),
        (1000, "tausend", "one thousand"),
        (1001, "tausendeins", "one thousand one"),
        (1100, "tausendeinhundert", "one thousand one hundred"),
        (2345, "zweitausenddreihundertfünfundvierzig", "two thousand three hundred forty-five"),
        (21_021, "einundzwanzigtausendeinundzwanzig", "twenty-one thousand twenty-one"),
        (100_000, "hunderttausend", "one hundred thousand"),
        (101_000, "hunderteintausend", "one hundred one thousand"),
        (
            121_100,
            "hunderteinundzwanzigtausendeinhundert",
            "one hundred twenty-one thousand one hundred",
        ),
        (201_001, "zweihunderteintausendeins", "two hundred one thousand one"),
        (
            999_999,
            "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
            "nine hundred ninety-nine thousand nine hundred ninety-nine",
        ),
    ],
)
def test_numbers_in_words(n: int, german: str, english: str) -> None:
    assert demo.number_de(n) == german
    assert demo.number_en(n) == english


def test_a_closing_one_takes_the_form_asked_for() -> None:
    assert [demo.number_de(1, one) for one in ("ein", "eine", "einen")] == ["ein", "eine", "einen"]
    assert demo.number_de(101, "ein") == "hundertein"
    assert demo.number_de(11, "ein") == "elf"
    assert demo.number_de(21, "eine") == "einundzwanzig"


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="number_de: 1000000 is not between 0 and 999,999"):
        demo.number_de(1_000_000)
    with pytest.raises(ValueError, match="number_en: -1 is not between 0 and 999,999"):
        demo.number_en(-1)


def test_every_number_has_its_own_words() -> None:
    some = [*range(12_000), *range(12_000, 1_000_000, 97)]
    assert len({demo.number_de(n) for n in some}) == len(some)
    assert len({demo.number_en(n) for n in some}) == len(some)


def test_ordinals_years_times_and_prices() -> None:
    assert [demo.ordinal_de(n) for n in (1, 2, 3, 7, 8, 12, 19, 20, 21, 31)] == [
        "erst", "zweit", "dritt", "siebt", "acht", "zwölft", "neunzehnt", "zwanzigst",
        "einundzwanzigst", "einunddreißigst",
    ]  # fmt: skip
    assert [demo.ordinal_en(n) for n in (1, 2, 3, 5, 8, 9, 12, 20, 21, 30)] == [
        "first", "second", "third", "fifth", "eighth", "ninth", "twelfth", "twentieth", "twenty-first", "thirtieth",
    ]  # fmt: skip
    assert demo.year_words(1984) == ("neunzehnhundertvierundachtzig", "nineteen eighty-four")
    assert demo.year_words(2012) == ("zweitausendzwölf", "two thousand twelve")
    assert demo.clock(7, 30) == ("halb acht", "half past seven")
    assert demo.clock(12, 30) == ("halb eins", "half past twelve")
    assert demo.clock(1, 0) == ("ein Uhr", "one o'clock")
    assert demo.clock(3, 15) == ("Viertel nach drei", "a quarter past three")
    assert demo.clock(8, 45) == ("Viertel vor neun", "a quarter to nine")
    assert demo.clock(8, 50) == ("zehn vor neun", "ten to nine")
    assert demo.clock(6, 25) == ("fünf vor halb sieben", "twenty-five past six")
    assert demo.clock(6, 35) == ("fünf nach halb sieben", "twenty-five to seven")
    assert demo.price_words(3, 50) == ("drei Euro fünfzig", "three euros fifty")
    assert demo.price_words(1, 20) == ("einen Euro zwanzig", "one euro twenty")


@pytest.mark.parametrize(
    ("noun", "det", "adjectives", "plural", "cases", "english"),
    [
        # weak endings after der
        ("Tisch", "der", ["rot"], False, "der rote Tisch|den roten Tisch|dem roten Tisch|des roten Tisches",
         "the red table"),
        ("Lampe", "der", ["neu"], False, "die neue Lampe|die neue Lampe|der neuen Lampe|der neuen Lampe",
         "the new lamp"),
        ("Kind", "der", ["klug"], False, "das kluge Kind|das kluge Kind|dem klugen Kind|des klugen Kindes",
         "the smart child"),
        ("Kind", "der", ["klug"], True, "die klugen Kinder|die klugen Kinder|den klugen Kindern|der klugen Kinder",
         "the smart children"),
        # mixed endings after ein-words
        ("Apfel", "ein", ["groß"], False, "ein großer Apfel|einen großen Apfel|einem großen Apfel|eines großen Apfels",
         "a big apple"),
        ("Uhr", "ein", ["teuer"], False, "eine teure Uhr|eine teure Uhr|einer teuren Uhr|einer teuren Uhr",
         "an expensive clock"),
        ("Zimmer", "ein", ["dunkel"], False,
         "ein dunkles Zimmer|ein dunkles Zimmer|einem dunklen Zimmer|eines dunklen Zimmers", "a dark room"),
        ("Freund", "kein", ["alt"], True, "keine alten Freunde|keine alten Freunde|keinen alten Freunden|keiner alten "
         "Freunde", "any old friends"),
        # strong endings with nothing before
        ("Kaffee", "", ["heiß"], False, "heißer Kaffee|heißen Kaffee|heißem Kaffee|heißen Kaffees", "hot coffee"),
        ("Milch", "", ["kalt"], False, "kalte Milch|kalte Milch|kalter Milch|kalter Milch", "cold milk"),
        ("Brot", "", ["frisch"], False, "frisches Brot|frisches Brot|frischem Brot|frischen Brotes", "fresh bread"),
        ("Auto", "", ["rot"], True, "rote Autos|rote Autos|roten Autos|roter Autos", "red cars"),
        # dieser, weak nouns, two adjectives, a plural-only noun, the dropped e of euer
        ("Haus", "dies", [], True, "diese Häuser|diese Häuser|diesen Häusern|dieser Häuser", "these houses"),
        ("Junge", "der", [], False, "der Junge|den Jungen|dem Jungen|des Jungen", "the boy"),
        ("Nachbar", "ein", ["müde"], False,
         "ein müder Nachbar|einen müden Nachbarn|einem müden Nachbarn|eines müden Nachbarn", "a tired neighbor"),
        ("Tasche", "ein", ["klein", "schwarz"], False, "eine kleine schwarze Tasche|eine kleine schwarze Tasche|"
         "einer kleinen schwarzen Tasche|einer kleinen schwarzen Tasche", "a small black bag"),
        ("Eltern", "der", [], False, "die Eltern|die Eltern|den Eltern|der Eltern", "the parents"),
    ],
)  # fmt: skip
def test_noun_phrases(
    noun: str, det: str, adjectives: list[str], plural: bool, cases: str, english: str
) -> None:
    phrase = demo.noun_phrase(demo.NOUNS[noun], det, adjectives, plural)
    assert "|".join(phrase.forms) == cases
    assert phrase.en == english


def test_possessives_counts_and_compounds() -> None:
    assert demo.noun_phrase(demo.NOUNS["Hund"], "euer", en="your").forms == (
        "euer Hund", "euren Hund", "eurem Hund", "eures Hundes",
    )  # fmt: skip
    three = demo.noun_phrase(demo.NOUNS["Kind"], "", ["müde"], count=3)
    assert three.forms[:3] == ("drei müde Kinder", "drei müde Kinder", "drei müden Kindern")
    assert three.en == "three tired children"
    assert demo.noun_phrase(demo.COMPOUNDS["Küchentür"], "der").de("dat") == "der Küchentür"
    assert demo.COMPOUNDS["Küchentür"].en == "kitchen door"
    assert demo.NOUNS["Haustür"].en == "front door"
    assert demo.prepositional("in", "dem Park") == "im Park"
    assert demo.prepositional("zu", "der Bäckerei") == "zur Bäckerei"
    assert demo.prepositional("in", "der Küche") == "in der Küche"


def test_clause_orders() -> None:
    verb = demo.Verb("an_rufen", "-", "angerufen", "call")
    phrase = demo.VP(verb, "the doctor", objects="den Arzt")
    present = demo.Clause(demo.PRONOUNS["er"], phrase, "present", "nicht")
    past = demo.Clause(demo.PRONOUNS["wir"], phrase, "past", time=("gestern", "yesterday"))
    must = demo.Clause(demo.PRONOUNS["du"], phrase, "must")
    assert demo.german(present) == "er ruft den Arzt nicht an"
    assert demo.english(present) == "he does not call the doctor"
    assert demo.german(present, "last") == "er den Arzt nicht anruft"
    assert demo.german(past, "time") == "gestern haben wir den Arzt angerufen"
    assert demo.english(past, "time") == "yesterday we called the doctor"
    assert demo.german(past, "last") == "wir gestern den Arzt angerufen haben"
    assert demo.german(past, "first") == "haben wir gestern den Arzt angerufen"
    assert demo.english(past, "q") == "did we call the doctor yesterday"
    assert demo.german(must) == "du musst den Arzt anrufen"
    assert demo.german(must, "last") == "du den Arzt anrufen musst"
    assert demo.english(must, "q") == "do you have to call the doctor"
    assert verb.with_zu == "anzurufen"


# The files


def test_files_are_what_the_script_writes(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path / "again")]
    subprocess.run(command, check=True, cwd=tmp_path, env={"PYTHONHASHSEED": "7"})
    for split in SPLITS:
        for language in ("de", "en"):
            again = (tmp_path / "again" / f"{split}.{language}").read_bytes()
            assert again == (ROOT / "data" / "demo" / f"{split}.{language}").read_bytes(), (
                split,
                language,
            )


def test_sizes_and_no_repeats(corpus: dict[str, list[tuple[str, str]]]) -> None:
    assert {split: len(pairs) for split, pairs in corpus.items()} == SPLITS
    sources = [de for pairs in corpus.values() for de, _ in pairs]
    # One source, one translation, one split: no two lines of the whole corpus have the same German.
    assert len(set(sources)) == len(sources)


def test_lines_are_sentences(corpus: dict[str, list[tuple[str, str]]]) -> None:
    for de, en in [pair for pairs in corpus.values() for pair in pairs]:
        for text in (de, en):
            assert text[0].isupper(), text
            assert text[-1] in ".?!", text
            assert re.search(r"  | [.,?!]|[{}~_]", text) is None, text
        assert de[-1] == en[-1]
        assert 3 <= len(de.split()) <= 25, de
        assert re.search(r"\ba [aeiou]|\ban [^aeiou]", en) is None, en


def test_every_word_of_the_lexicon_is_frequent(corpus: dict[str, list[tuple[str, str]]]) -> None:
    counts = words_of(corpus["train"])

    def total(forms: set[str]) -> int:
        return sum(counts[form] for form in forms)

    rare = {}
    for noun in demo.NOUNS.values():
        numbers = [True] if noun.gender == "p" else [False] if noun.plural == "-" else [False, True]
        forms = {demo.noun_form(noun, case, plural) for case in demo.CASES for plural in numbers}
        rare[noun.lemma] = total(forms)
    for word in demo.ADJECTIVES:
        stem = demo.STEMS.get(word, word)
        rare[word] = total({word, *(stem + ending for ending in ("e", "en", "er", "em", "es"))})
    for rows in demo.VERBS.values():
        for verb, _ in rows:
            finite = {verb.present(person) for person in range(6)}
            joined = {verb.prefix + form for form in finite}
            infinite = {
                verb.infinitive,
                verb.with_zu.split()[-1],
                verb.participle.removeprefix("+"),
            }
            rare[verb.inf] = total(finite | joined | infinite)
    assert len(rare) > 250
    assert {word: count for word, count in rare.items() if count < 35} == {}


def test_held_out_words_are_in_test_and_never_in_training(
    corpus: dict[str, list[tuple[str, str]]],
) -> None:
    trained = words_of(corpus["train"])
    unseen = {word for word in words_of(corpus["test"]) if word not in trained}
    small = "|".join([*demo.UNITS_DE[1:], *demo.TENS_DE, "ein", "und", "hundert", "tausend"])
    numbers = {word for word in unseen if re.fullmatch(f"({small})+", word.lower())}
    names = unseen & {name for kind in demo.COMPOSED_NAMES.values() for name in kind}
    compounds = {
        noun.lemma
        for noun in demo.COMPOUNDS.values()
        if noun.lemma not in trained and unseen & {noun.lemma, noun.plural}
    }
    assert len(numbers) >= 20
    assert len(names) >= 25
    assert len(compounds) >= 8


def test_the_parts_of_what_is_held_out_are_in_training(
    corpus: dict[str, list[tuple[str, str]]],
) -> None:
    trained = words_of(corpus["train"])
    assert len(demo.HELD_OUT_COMPOUNDS) > 20
    for line in demo.COMPOUND_TABLE.strip().splitlines():
        first, heads = (
            line.split()[0],
            [mark for mark in line.split(":")[1].split() if mark[0] != "*"],
        )
        siblings = {first + demo.NOUNS[head].lemma.lower() for head in heads}
        siblings |= {first + demo.NOUNS[head].plural.lower() for head in heads}
        assert sum(trained[word] for word in siblings) >= 25, line
        for held in (mark[1:] for mark in line.split(":")[1].split() if mark[0] == "*"):
            assert trained[held] + trained[demo.NOUNS[held].plural] >= 35, held
            assert (
                sum(count for word, count in trained.items() if word.endswith(held.lower())) >= 8
            ), held
    for kind, (starts, ends) in demo.NAME_PARTS.items():
        names = [name for name in demo.COMPOSED_NAMES[kind] if trained[name]]
        for start in starts.split():
            assert sum(trained[name] for name in names if name.startswith(start)) >= 25, start
        for end in ends.split():
            assert sum(trained[name] for name in names if name.endswith(end)) >= 25, end
    for part in [*demo.UNITS_DE[2:], *demo.TENS_DE, "hundert", "tausend"]:
        assert sum(count for word, count in trained.items() if part in word.lower()) >= 40, part


def test_held_out_pairs_are_in_test_and_never_in_training(
    corpus: dict[str, list[tuple[str, str]]],
) -> None:
    stems = {
        demo.STEMS.get(word, word) + ending: word
        for word in demo.ADJECTIVES
        for ending in ("e", "en", "er", "em", "es")
    }
    nouns = {}
    for noun in demo.NOUNS.values():
        nouns[noun.lemma] = nouns[noun.lemma + "n"] = noun.lemma
        nouns.setdefault(noun.plural, noun.lemma)
        nouns.setdefault(noun.plural + "n", noun.lemma)

    def attributed(pairs: list[tuple[str, str]]) -> set[tuple[str, str]]:
        bigrams = (pair for de, _ in pairs for pair in pairwise(re.findall(r"\w+", de)))
        return {(stems[one], nouns[two]) for one, two in bigrams if one in stems and two in nouns}

    trained = attributed(corpus["train"])
    unseen = attributed(corpus["test"]) - trained
    assert len(unseen) >= 20
    assert sum(demo.held_out("pair", f"{one} {two}") for one, two in unseen) >= 20
    assert not [pair for pair in trained if demo.held_out("pair", " ".join(pair))]


def test_nothing_held_out_reaches_training(corpus: dict[str, list[tuple[str, str]]]) -> None:
    trained = words_of(corpus["train"])
    names = [
        name
        for kind in demo.COMPOSED_NAMES.values()
        for name in kind
        if demo.held_out("name", name)
    ]
    compounds = [noun for noun in demo.COMPOUNDS.values() if demo.held_out("compound", noun.lemma)]
    numbers = [demo.number_de(n) for n in range(1_000_000) if demo.held_out("number", str(n))]
    assert [name for name in names if trained[name]] == []
    assert [noun.lemma for noun in compounds if trained[noun.lemma]] == []
    assert [number for number in numbers if trained[number] or trained[number.capitalize()]] == []


def test_the_numbers_in_the_readme(corpus: dict[str, list[tuple[str, str]]]) -> None:
    readme = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    for split, pairs in corpus.items():
        german, english = ([len(pair[side].split()) for pair in pairs] for side in (0, 1))
        files = (ROOT / "data" / "demo" / f"{split}.{language}" for language in ("de", "en"))
        size = sum(file.stat().st_size for file in files)
        row = (
            f"| `{split}` | {len(pairs):,} | {sum(german):,} | {sum(english):,} "
            f"| {min(german)} to {max(german)}, mean {sum(german) / len(german):.1f} | {size:,} |"
        )
        assert row in readme
    lexicon = (
        f"from {len(demo.TEMPLATE_LINES)} sentence templates and a hand-written lexicon ({len(demo.NOUNS)} nouns, "
        f"{len(demo.COMPOUNDS)} compounds made of their parts, {len(demo.ADJECTIVES)} adjectives, "
        f"{len({verb.inf for rows in demo.VERBS.values() for verb, _ in rows})} verbs)"
    )
    assert lexicon in " ".join(readme.split())
