"""The demonstration corpus: its grammar against forms written by hand, and its files."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "make_demo_corpus.py"
SPLITS = {"train": 20_000, "valid": 500, "test": 500}

sys.path.insert(0, str(SCRIPT.parent))  # scripts/ is a folder of scripts, not a package
demo: Any = importlib.import_module("make_demo_corpus")
grammar: Any = importlib.import_module("demo_grammar")

Corpus = dict[str, list[tuple[str, str]]]


def lines(name: str) -> list[str]:
    """The lines of one file of the corpus."""
    text = (ROOT / "data" / "demo" / name).read_bytes().decode()
    assert text.endswith("\n")
    assert "\r" not in text
    return text[:-1].split("\n")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return {
        split: list(zip(lines(f"{split}.de"), lines(f"{split}.en"), strict=True))
        for split in SPLITS
    }


def words_of(pairs: list[tuple[str, str]], side: int = 0) -> Counter[str]:
    """How often each word occurs on one side, German by default."""
    return Counter(word for pair in pairs for word in re.findall(r"\w+", pair[side]))


# Grammar, against forms written by hand


@pytest.mark.parametrize(
    ("n", "german", "english"),
    [
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
    ],
)
def test_numbers_in_words(n: int, german: str, english: str) -> None:
    assert grammar.number_de(n) == german
    assert grammar.number_en(n) == english


def test_a_closing_one_takes_the_form_asked_for() -> None:
    assert grammar.number_de(1, "ein") == "ein"
    assert grammar.number_de(101, "ein") == "hundertein"
    assert grammar.number_de(11, "ein") == "elf"
    assert grammar.number_de(21, "eine") == "einundzwanzig"


@pytest.mark.parametrize("n", [0, -1, 1000])
def test_numbers_out_of_range_are_refused(n: int) -> None:
    for function in (grammar.number_de, grammar.number_en):
        with pytest.raises(ValueError, match=f"{n} is not between 1 and 999"):
            function(n)


def test_every_number_has_its_own_words() -> None:
    assert len({grammar.number_de(n) for n in range(1, 1000)}) == 999
    assert len({grammar.number_en(n) for n in range(1, 1000)}) == 999


def test_ordinals_and_clock_times() -> None:
    german = "erst zweit dritt siebt acht zwölft neunzehnt zwanzigst einundzwanzigst"
    assert [grammar.ordinal_de(n) for n in (1, 2, 3, 7, 8, 12, 19, 20, 21)] == german.split()
    english = "first second third fifth eighth ninth twelfth twentieth twenty-first thirtieth"
    assert [grammar.ordinal_en(n) for n in (1, 2, 3, 5, 8, 9, 12, 20, 21, 30)] == english.split()
    assert grammar.clock(7, 30) == ("halb acht", "half past seven")
    assert grammar.clock(12, 30) == ("halb eins", "half past twelve")
    assert grammar.clock(1, 0) == ("ein Uhr", "one o'clock")
    assert grammar.clock(3, 15) == ("Viertel nach drei", "a quarter past three")
    assert grammar.clock(8, 45) == ("Viertel vor neun", "a quarter to nine")
    assert grammar.clock(12, 45) == ("Viertel vor eins", "a quarter to one")


@pytest.mark.parametrize(
    ("noun", "det", "adjectives", "plural", "cases", "english"),
    [
        # weak endings after der
        ("Tisch", "der", ["rot"], False,
         "der rote Tisch|den roten Tisch|dem roten Tisch|des roten Tisches", "the red table"),
        ("Lampe", "der", ["neu"], False,
         "die neue Lampe|die neue Lampe|der neuen Lampe|der neuen Lampe", "the new lamp"),
        ("Kind", "der", ["klug"], False,
         "das kluge Kind|das kluge Kind|dem klugen Kind|des klugen Kindes", "the smart child"),
        ("Kind", "der", ["klug"], True,
         "die klugen Kinder|die klugen Kinder|den klugen Kindern|der klugen Kinder",
         "the smart children"),
        # mixed endings after ein-words
        ("Apfel", "ein", ["groß"], False,
         "ein großer Apfel|einen großen Apfel|einem großen Apfel|eines großen Apfels",
         "a big apple"),
        ("Apfel", "ein", [], False, "ein Apfel|einen Apfel|einem Apfel|eines Apfels", "an apple"),
        ("Uhr", "ein", ["teuer"], False,
         "eine teure Uhr|eine teure Uhr|einer teuren Uhr|einer teuren Uhr", "an expensive clock"),
        ("Mann", "ein", ["ehrlich"], False,
         "ein ehrlicher Mann|einen ehrlichen Mann|einem ehrlichen Mann|eines ehrlichen Mannes",
         "an honest man"),
        ("Zimmer", "ein", ["dunkel"], False,
         "ein dunkles Zimmer|ein dunkles Zimmer|einem dunklen Zimmer|eines dunklen Zimmers",
         "a dark room"),
        ("Kind", "kein", ["müde"], True,
         "keine müden Kinder|keine müden Kinder|keinen müden Kindern|keiner müden Kinder",
         "any tired children"),
        # strong endings with nothing before
        ("Kaffee", "", ["warm"], False,
         "warmer Kaffee|warmen Kaffee|warmem Kaffee|warmen Kaffees", "warm coffee"),
        ("Milch", "", ["kalt"], False, "kalte Milch|kalte Milch|kalter Milch|kalter Milch",
         "cold milk"),
        ("Brot", "", ["frisch"], False,
         "frisches Brot|frisches Brot|frischem Brot|frischen Brotes", "fresh bread"),
        ("Auto", "", ["rot"], True, "rote Autos|rote Autos|roten Autos|roter Autos", "red cars"),
        # dieser, weak nouns, two adjectives
        ("Haus", "dies", [], True,
         "diese Häuser|diese Häuser|diesen Häusern|dieser Häuser", "these houses"),
        ("Junge", "der", [], False, "der Junge|den Jungen|dem Jungen|des Jungen", "the boy"),
        ("Nachbar", "ein", ["müde"], False,
         "ein müder Nachbar|einen müden Nachbarn|einem müden Nachbarn|eines müden Nachbarn",
         "a tired neighbor"),
        ("Tasche", "ein", ["klein", "schwarz"], False,
         "eine kleine schwarze Tasche|eine kleine schwarze Tasche|"
         "einer kleinen schwarzen Tasche|einer kleinen schwarzen Tasche", "a small black bag"),
    ],
)  # fmt: skip
def test_noun_phrases(
    noun: str, det: str, adjectives: list[str], plural: bool, cases: str, english: str
) -> None:
    phrase = grammar.noun_phrase(grammar.NOUNS[noun], det, adjectives, plural)
    assert "|".join(phrase.forms) == cases
    assert phrase.en == english


def test_possessives_counts_compounds_and_contractions() -> None:
    your_dog = grammar.noun_phrase(grammar.NOUNS["Hund"], "euer", en="your")
    assert your_dog.forms == ("euer Hund", "euren Hund", "eurem Hund", "eures Hundes")
    assert your_dog.en == "your dog"
    three = grammar.noun_phrase(grammar.NOUNS["Kind"], "", ["müde"], count=3)
    assert three.forms[:3] == ("drei müde Kinder", "drei müde Kinder", "drei müden Kindern")
    assert three.en == "three tired children"
    assert grammar.noun_phrase(grammar.COMPOUNDS["Küchentür"], "der").de("dat") == "der Küchentür"
    assert grammar.COMPOUNDS["Küchentür"].en == "kitchen door"
    assert grammar.COMPOUNDS["Stadtbus"].en_plural == "city buses"
    assert grammar.contracted("in dem Park") == "im Park"
    assert grammar.contracted("von dem Fest") == "vom Fest"
    assert grammar.contracted("in der Küche") == "in der Küche"


PRESENT = """
    kaufen: kaufe kaufst kauft kaufen kauft kaufen
    essen: esse isst isst essen esst essen
    lesen: lese liest liest lesen lest lesen
    warten: warte wartest wartet warten wartet warten
    putzen: putze putzt putzt putzen putzt putzen
    füttern: füttere fütterst füttert füttern füttert füttern
    ein_laden: lade lädst lädt laden ladet laden
    fahren: fahre fährst fährt fahren fahrt fahren
    waschen: wasche wäschst wäscht waschen wascht waschen
    sehen: sehe siehst sieht sehen seht sehen
"""


@pytest.mark.parametrize("line", PRESENT.strip().split("\n"))
def test_present_tense(line: str) -> None:
    infinitive, forms = line.strip().split(": ")
    verbs = {verb.inf: verb for rows in grammar.VERBS.values() for verb, _ in rows}
    assert [verbs[infinitive].present(person) for person in range(6)] == forms.split()


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        ("buy", "buys buying"),
        ("carry", "carries carrying carried"),
        ("dance", "dances dancing danced"),
        ("see", "sees seeing"),
        ("shop", "shops shopping"),
        ("wash", "washes washing washed"),
        ("go", "goes going"),
        ("pay for", "pays_for paying_for"),
        ("have breakfast", "has_breakfast having_breakfast"),
        ("stay", "stays staying stayed"),
    ],
)
def test_english_verb_forms(verb: str, forms: str) -> None:
    expected = [form.replace("_", " ") for form in forms.split()]
    found = [grammar.inflect(verb, ending) for ending in ("s", "ing", "ed")]
    assert found[: len(expected)] == expected


def test_clause_orders() -> None:
    verb = grammar.Verb("an_rufen", "-", "angerufen", "call", "called")
    extra = grammar.Complements(objects="den Arzt", en="the doctor")
    he, you, we = (grammar.PRONOUNS[key] for key in ("er", "du", "wir"))
    yesterday = ("gestern", "yesterday")
    present = grammar.Clause(he, verb, extra, "habit", nicht=True)
    past = grammar.Clause(we, verb, extra, "past", time=yesterday)
    must = grammar.Clause(you, verb, extra, "must")
    wanted = grammar.Clause(he, verb, extra, "wanted", nicht=True)
    assert grammar.german(present) == "er ruft den Arzt nicht an"
    assert grammar.english(present) == "he does not call the doctor"
    assert grammar.german(present, "last") == "er den Arzt nicht anruft"
    assert grammar.german(past, "time") == "gestern haben wir den Arzt angerufen"
    assert grammar.english(past, "time") == "yesterday we called the doctor"
    assert grammar.german(past, "last") == "wir gestern den Arzt angerufen haben"
    assert grammar.german(past, "first") == "haben wir gestern den Arzt angerufen"
    assert grammar.english(past, "first") == "did we call the doctor yesterday"
    assert grammar.german(must) == "du musst den Arzt anrufen"
    assert grammar.german(must, "last") == "du den Arzt anrufen musst"
    assert grammar.english(must, "first") == "do you have to call the doctor"
    assert grammar.german(must, "zu") == "den Arzt anzurufen"
    assert grammar.english(must, "zu") == "call the doctor"
    assert grammar.german(wanted, "last") == "er den Arzt nicht anrufen wollte"
    assert grammar.english(wanted) == "he did not want to call the doctor"


def test_the_perfect_with_sein_and_an_indefinite_object() -> None:
    go = grammar.Verb("gehen", "-", "+gegangen", "go", "went")
    home = grammar.Complements(tail="nach Hause", en="home")
    clause = grammar.Clause(grammar.PRONOUNS["ihr"], go, home, "past", nicht=True)
    assert grammar.german(clause) == "ihr seid nicht nach Hause gegangen"
    assert grammar.english(clause) == "you did not go home"
    read = grammar.Verb("lesen", "lies", "gelesen", "read", "read")
    book = grammar.Complements(objects="ein Buch", en="a book", indefinite=True)
    garden = ("im Garten", "in the garden")
    clause = grammar.Clause(grammar.PRONOUNS["sie"], read, book, "habit", place=garden)
    assert grammar.german(clause) == "sie liest im Garten ein Buch"
    assert grammar.english(clause) == "she reads a book in the garden"


# The files


def test_files_are_what_the_script_writes(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path / "again")]
    subprocess.run(command, check=True, cwd=tmp_path, env={"PYTHONHASHSEED": "7"})
    for split in SPLITS:
        for language in ("de", "en"):
            again = (tmp_path / "again" / f"{split}.{language}").read_bytes()
            committed = (ROOT / "data" / "demo" / f"{split}.{language}").read_bytes()
            assert again == committed, (split, language)


def test_sizes_and_no_repeats(corpus: Corpus) -> None:
    assert {split: len(pairs) for split, pairs in corpus.items()} == SPLITS
    sources = [de for pairs in corpus.values() for de, _ in pairs]
    # No German line occurs twice, so no line of valid or test is in train.
    assert len(set(sources)) == len(sources)


def test_the_sentence_of_the_quick_start_is_new_to_the_model(corpus: Corpus) -> None:
    script = (ROOT / "scripts" / "quickstart.sh").read_text(encoding="utf-8")
    (sentence,) = re.findall("^sentence='(.*)'$", script, re.MULTILINE)
    assert sentence not in [de for de, _ in corpus["train"]]
    known = words_of(corpus["train"])
    assert [word for word in re.findall(r"\w+", sentence) if word not in known] == []


def test_lines_are_sentences(corpus: Corpus) -> None:
    for de, en in [pair for pairs in corpus.values() for pair in pairs]:
        for text in (de, en):
            assert text[0].isupper(), text
            assert text[-1] in ".?", text
            assert re.search(r"  | [.,?]|[{}_]", text) is None, text
        assert de[-1] == en[-1]
        assert 3 <= len(de.split()) <= 25, de
        assert re.search(r"\ba ([aeiou]|honest)|\ban (?!honest)[^aeiou]", en) is None, en


def test_every_word_of_the_lexicon_is_frequent(corpus: Corpus) -> None:
    counts = words_of(corpus["train"])
    rare = {}
    for noun in grammar.NOUNS.values():
        numbers = [False] if noun.plural == "-" else [False, True]
        forms = {
            grammar.noun_form(noun, case, plural) for case in grammar.CASES for plural in numbers
        }
        rare[noun.lemma] = sum(counts[form] for form in forms)
    for word in grammar.ADJECTIVES:
        stem = grammar.STEMS.get(word, word)
        forms = {word, *(stem + ending for ending in ("e", "en", "er", "em", "es"))}
        rare[word] = sum(counts[form] for form in forms)
    for verb in {verb for rows in grammar.VERBS.values() for verb, _ in rows}:
        finite = {verb.present(person) for person in range(6)}
        infinite = {verb.inf.replace("_", ""), verb.with_zu.split()[-1]}
        forms = finite | infinite | {verb.prefix + form for form in finite}
        rare[verb.inf] = sum(counts[form] for form in forms | {verb.participle.lstrip("+")})
    assert len(rare) > 150
    assert {word: count for word, count in rare.items() if count < 35} == {}


def test_held_out_words_are_in_test_and_never_in_training(corpus: Corpus) -> None:
    trained = words_of(corpus["train"])
    unseen = {word for word in words_of(corpus["test"]) if word not in trained}
    numbers = {grammar.number_de(n): n for n in range(1, 1000)}
    held_numbers = {word for word, n in numbers.items() if grammar.held_out("number", str(n))}
    held_compounds = {
        form
        for lemma in grammar.HELD_OUT_COMPOUNDS
        for form in (lemma, grammar.COMPOUNDS[lemma].plural, f"{grammar.COMPOUNDS[lemma].plural}n")
    }
    assert len(unseen & held_numbers) >= 20
    assert len(unseen & held_compounds) >= 8
    assert [word for word in held_numbers | held_compounds if trained[word]] == []


def test_the_parts_of_held_out_compounds_and_numbers_are_in_training(corpus: Corpus) -> None:
    trained = words_of(corpus["train"])
    assert len(grammar.HELD_OUT_COMPOUNDS) > 15
    for entry in grammar.LEXICON["compounds"]:
        first, heads = entry.split(":")
        start = first.split()[0]
        siblings = [word for word in trained if word.startswith(start) and word != start]
        assert sum(trained[word] for word in siblings) >= 25, entry
        for head in (mark[1:] for mark in heads.split() if mark[0] == "*"):
            assert trained[head] + trained[grammar.NOUNS[head].plural] >= 35, head
    for part in [*grammar.UNITS_DE[2:], *grammar.TENS_DE, "hundert"]:
        assert sum(count for word, count in trained.items() if part in word.lower()) >= 40, part


def test_held_out_pairs_are_in_test_and_never_in_training(corpus: Corpus) -> None:
    stems = {
        grammar.STEMS.get(word, word) + ending: word
        for word in grammar.ADJECTIVES
        for ending in ("e", "en", "er", "em", "es")
    }
    nouns = {}
    for noun in grammar.NOUNS.values():
        nouns[noun.lemma] = nouns[noun.lemma + "n"] = noun.lemma
        nouns.setdefault(noun.plural, noun.lemma)
        nouns.setdefault(noun.plural + "n", noun.lemma)

    def attributed(pairs: list[tuple[str, str]]) -> set[tuple[str, str]]:
        bigrams = (pair for de, _ in pairs for pair in pairwise(re.findall(r"\w+", de)))
        return {(stems[one], nouns[two]) for one, two in bigrams if one in stems and two in nouns}

    trained = attributed(corpus["train"])
    unseen = attributed(corpus["test"]) - trained
    assert sum(grammar.held_out("pair", f"{one} {two}") for one, two in unseen) >= 20
    assert not [pair for pair in trained if grammar.held_out("pair", " ".join(pair))]


def test_the_numbers_in_the_readme(corpus: Corpus) -> None:
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
    verbs = {verb.inf for rows in grammar.VERBS.values() for verb, _ in rows}
    lexicon = (
        f"{len(demo.PATTERNS)} sentence patterns, {len(grammar.NOUNS)} nouns, "
        f"{len(grammar.COMPOUNDS)} compounds of those, {len(grammar.ADJECTIVES)} adjectives and "
        f"{len(verbs)} verbs"
    )
    assert lexicon in " ".join(readme.split())
