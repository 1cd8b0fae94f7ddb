"""The grammar of the demonstration corpus: numbers, noun phrases and clauses in German and English.

The words are in `data/demo/lexicon.yaml`; `make_demo_corpus.py` decides what is said with them. A
clause is put once into German and once into English word order, so both sides of a pair agree.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

Pair = tuple[str, str]  # German, English
NONE = ("", "")
DEMO = Path(__file__).resolve().parents[1] / "data" / "demo"
LEXICON: dict[str, Any] = yaml.safe_load((DEMO / "lexicon.yaml").read_text(encoding="utf-8"))


def words(entry: str) -> list[str]:
    """The fields of a lexicon entry."""
    return [word.replace("_", " ") for word in entry.split()]


def join(*parts: str) -> str:
    """The parts that are not empty, with spaces between them."""
    return " ".join(part for part in parts if part)


# --- Numbers and times ----------------------------------------------------------------------------
UNITS_DE = words("""null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn
    vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn""")
TENS_DE = words("zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")
UNITS_EN = words("""zero one two three four five six seven eight nine ten eleven twelve thirteen
    fourteen fifteen sixteen seventeen eighteen nineteen""")
TENS_EN = words("twenty thirty forty fifty sixty seventy eighty ninety")
ORDINALS_DE = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}
ORDINALS_EN = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth",
    "nine": "ninth", "twelve": "twelfth", "twenty": "twentieth", "thirty": "thirtieth",
}  # fmt: skip


def number_de(n: int, one: str = "eins") -> str:
    """1 to 999 in German words; a closing 1 is `one`: "eins" in counting, "ein" before Uhr."""
    if not 0 < n < 1000:
        raise ValueError(f"number_de: {n} is not between 1 and 999")
    if n < 20:
        return one if n == 1 else UNITS_DE[n]
    if n < 100:
        tens = TENS_DE[n // 10 - 2]
        return f"{number_de(n % 10, 'ein')}und{tens}" if n % 10 else tens
    hundreds = "hundert" if n < 200 else f"{UNITS_DE[n // 100]}hundert"
    return hundreds + (number_de(n % 100, one) if n % 100 else "")


def number_en(n: int) -> str:
    """1 to 999 in American English words, without "and"."""
    if not 0 < n < 1000:
        raise ValueError(f"number_en: {n} is not between 1 and 999")
    if n < 20:
        return UNITS_EN[n]
    if n < 100:
        return TENS_EN[n // 10 - 2] + (f"-{UNITS_EN[n % 10]}" if n % 10 else "")
    return join(UNITS_EN[n // 100], "hundred", number_en(n % 100) if n % 100 else "")


def ordinal_de(n: int) -> str:
    """The stem of a German ordinal, 1 to 99: "dritt", "zwanzigst"."""
    return ORDINALS_DE.get(n, number_de(n) + ("t" if n < 20 else "st"))


def ordinal_en(n: int) -> str:
    """An English ordinal, 1 to 99: "third", "twenty-first"."""
    head, dash, last = number_en(n).rpartition("-")
    return head + dash + ORDINALS_EN.get(last, last + "th")


def clock(hour: int, minute: int) -> Pair:
    """A quarter of an hour on the twelve-hour clock: "halb acht", "half past seven"."""
    this_de, this_en = number_de(hour), number_en(hour)
    next_de, next_en = number_de(hour % 12 + 1), number_en(hour % 12 + 1)
    return {
        0: (f"{number_de(hour, 'ein')} Uhr", f"{this_en} o'clock"),
        15: (f"Viertel nach {this_de}", f"a quarter past {this_en}"),
        30: (f"halb {next_de}", f"half past {this_en}"),
        45: (f"Viertel vor {next_de}", f"a quarter to {next_en}"),
    }[minute]


# --- Noun phrases ---------------------------------------------------------------------------------
CASES = ("nom", "acc", "dat", "gen")
DEFINITE = {"m": "der den dem des", "f": "die die der der", "n": "das das dem des",
            "p": "die die den der"}  # fmt: skip
STRONG = {"m": "er en em es", "f": "e e er er", "n": "es es em es", "p": "e e en er"}
EIN_WORDS = ("ein", "kein", "mein", "dein", "sein", "ihr", "Ihr", "unser", "euer")
CONTRACTIONS = {"in dem": "im", "in das": "ins", "an dem": "am", "an das": "ans",
                "zu dem": "zum", "zu der": "zur", "von dem": "vom"}  # fmt: skip
ADJECTIVES = {row[0]: row[1:] for row in map(words, LEXICON["adjectives"])}
STEMS = {"teuer": "teur", "dunkel": "dunkl", "müde": "müd"}  # before an ending
COLORS = LEXICON["colors"].split()


@dataclass(frozen=True)
class Noun:
    """A noun; gender m, f or n."""

    gender: str
    lemma: str
    plural: str
    en: str
    en_plural: str
    group: str
    weak: bool = False

    @property
    def mass(self) -> bool:
        """Whether the noun cannot be counted, such as Brot."""
        return self.plural == "-" and self.group != "kin"


def read_nouns() -> dict[str, Noun]:
    """The simple nouns by lemma."""
    nouns = {}
    for group, entries in LEXICON["nouns"].items():
        for gender, lemma, plural, en, *irregular in map(words, entries):
            en_plural = irregular[0] if irregular else f"{en}s"
            weak = gender == "w"
            nouns[lemma] = Noun("m" if weak else gender, lemma, plural, en, en_plural, group, weak)
    return nouns


def read_compounds() -> tuple[dict[str, Noun], list[str]]:
    """The compounds by lemma, and the lemmas of those that are held out of training."""
    compounds, starred = {}, []
    for entry in LEXICON["compounds"]:
        first, heads = entry.split(":")
        start, start_en = first.split()
        for mark in heads.split():
            head = NOUNS[mark.lstrip("*")]
            lemma = start + head.lemma.lower()
            plural = "-" if head.mass else start + head.plural.lower()
            en_plural = f"{start_en} {head.en_plural}"
            compounds[lemma] = Noun(
                head.gender, lemma, plural, f"{start_en} {head.en}", en_plural, head.group
            )
            starred += [lemma] * mark.startswith("*")
    return compounds, starred


NOUNS = read_nouns()
COMPOUNDS, HELD_OUT_COMPOUNDS = read_compounds()
ALL_NOUNS = [*NOUNS.values(), *NOUNS.values(), *COMPOUNDS.values()]  # simple ones twice as likely
GROUPS = {group: [noun for noun in ALL_NOUNS if noun.group == group] for group in LEXICON["nouns"]}


def held_out(kind: str, key: str) -> bool:
    """Whether a number, compound or adjective-noun pair is kept out of the training set."""
    if kind == "compound":
        return key in HELD_OUT_COMPOUNDS
    if kind == "number" and int(key) <= 20:
        return False
    return zlib.crc32(f"{kind} {key}".encode()) % 100 < 12


def lacks_ending(det: str, gender: str, case: str) -> bool:
    """Whether an ein-word has no ending here, so that the adjective has to show the gender."""
    return det in EIN_WORDS and ((gender in "mn" and case == "nom") or gender + case == "nacc")


def determiner(det: str, gender: str, case: str) -> str:
    """`det` ("der", "ein", "mein", "dies", ... or "" for none) declined; gender "p" is plural."""
    if det == "" or lacks_ending(det, gender, case):
        return det
    endings = DEFINITE if det == "der" else STRONG
    ending = endings[gender].split()[CASES.index(case)]
    return ending if det == "der" else ("eur" if det == "euer" else det) + ending


def adjective(word: str, det: str, gender: str, case: str) -> str:
    """An adjective with its strong ending (nothing before it shows the case) or its weak one."""
    if det == "" and case == "gen" and gender in "mn":
        ending = "en"
    elif det == "" or lacks_ending(det, gender, case):
        ending = STRONG[gender].split()[CASES.index(case)]
    else:
        weak_e = gender != "p" and (case == "nom" or (case == "acc" and gender in "fn"))
        ending = "e" if weak_e else "en"
    return STEMS.get(word, word) + ending


def noun_form(noun: Noun, case: str, plural: bool) -> str:
    """A noun in its case: -n in the dative plural, -(e)s in the genitive, -(e)n for weak nouns."""
    if plural:
        return noun.plural + ("n" if case == "dat" and noun.plural[-1] not in "ns" else "")
    if noun.weak and case != "nom":
        return noun.plural
    if case == "gen" and noun.gender in "mn":
        one_syllable = len(re.findall("[aeiouyäöü]+", noun.lemma.lower())) == 1
        return noun.lemma + ("es" if one_syllable or noun.lemma[-1] in "sßz" else "s")
    return noun.lemma


def with_article(text: str) -> str:
    """Put "an" for "a" where a vowel is heard next: "a red apple", "an apple", "an honest man"."""
    return re.sub(r"\ba (?=[aeiou]|honest)", "an ", text)


@dataclass(frozen=True)
class NP:
    """A noun phrase or pronoun: German cases, English, and what clauses need to know of it."""

    forms: tuple[str, ...]  # in the order of CASES
    en: str
    en_object: str = ""  # where it differs: him
    person: int = 2  # 0 to 5: ich, du, er, wir, ihr, sie
    own: Pair = NONE  # its possessive
    again: str = ""  # the key of the pronoun that takes it up
    kein: bool = False
    indefinite: bool = False

    def de(self, case: str) -> str:
        """The German form of a case."""
        return self.forms[CASES.index(case)]

    @property
    def obj(self) -> str:
        """The English form as an object."""
        return self.en_object or self.en

    def with_clause(self, de: str, en: str) -> NP:
        """The phrase with a relative clause after it."""
        return replace(self, forms=tuple(f"{f}, {de}" for f in self.forms), en=f"{self.en} {en}")


PRONOUNS = {
    key: NP((key.rstrip("5"), acc, dat, ""), en, obj, int(person), (own, own_en), key)
    for key, acc, dat, en, obj, person, own, own_en in (
        row.split()
        for row in (
            "ich mich mir I me 0 mein my", "du dich dir you you 1 dein your",
            "er ihn ihm he him 2 sein his", "sie sie ihr she her 2 ihr her",
            "wir uns uns we us 3 unser our", "ihr euch euch you you 4 euer your",
            "sie5 sie ihnen they them 5 ihr their", "Sie Sie Ihnen you you 5 Ihr your",
        )
    )
}  # fmt: skip


def noun_phrase(
    noun: Noun, det: str = "", adjectives: Sequence[str] = (), plural: bool = False, count: int = 0,
    en: str = "",
) -> NP:  # fmt: skip
    """Determiner or number, adjectives and noun; `en` is the English of a possessive."""
    plural = plural or count > 1
    gender = "p" if plural else noun.gender
    forms = tuple(
        join(
            number_de(count) if count else determiner(det, gender, case),
            *(adjective(word, det, gender, case) for word in adjectives),
            noun_form(noun, case, plural),
        )
        for case in CASES
    )
    english = {"der": "the", "ein": "a", "dies": "these" if plural else "this"}
    english["kein"] = "any" if plural or noun.mass else "a"  # the verb is negated
    first = number_en(count) if count else en or english.get(det, "")
    adjectives_en = (ADJECTIVES[word][0] for word in adjectives)
    again = "sie5" if plural else {"m": "er", "f": "sie", "n": "es"}[noun.gender]
    own = {"er": ("sein", "his"), "sie": ("ihr", "her"), "sie5": ("ihr", "their")}.get(again, NONE)
    return NP(
        forms,
        with_article(join(first, *adjectives_en, noun.en_plural if plural else noun.en)),
        person=5 if plural else 2,
        own=own,
        again=again,
        kein=det == "kein",
        indefinite=det in ("", "ein", "kein"),
    )


def contracted(text: str) -> str:
    """A preposition run together with its article, as German does: "in dem Park" → "im Park"."""
    start = " ".join(text.split()[:2])
    return CONTRACTIONS.get(start, start) + text[len(start) :]


# --- Clauses --------------------------------------------------------------------------------------
HAVE_DE = words("habe hast hat haben habt haben")
BE_DE = words("bin bist ist sind seid sind")
WAS_DE = words("war warst war waren wart waren")
BE_EN = words("am are is are are are")
WAS_EN = words("was were was were were were")
MODALS = {  # German forms | English: an auxiliary, or a phrase in its present (+) or past (-)
    "future": "werde wirst wird werden werdet werden | will",
    "can": "kann kannst kann können könnt können | can",
    "should": "sollte solltest sollte sollten solltet sollten | should",
    "would": "möchte möchtest möchte möchten möchtet möchten | would like to",
    "must": "muss musst muss müssen müsst müssen | +have to",
    "want": "will willst will wollen wollt wollen | +want to",
    "had to": "musste musstest musste mussten musstet mussten | -have to",
    "wanted": "wollte wolltest wollte wollten wolltet wollten | -want to",
}
PAST_MODALS = ("had to", "wanted")


@dataclass(frozen=True)
class Verb:
    """A German verb ("_" after a separable prefix) and its English."""

    inf: str
    changed: str  # the stem of du and er, "-" where it is regular
    participle: str  # "+" before it: the perfect is made with sein
    en: str
    en_past: str

    @property
    def prefix(self) -> str:
        """The separable prefix, or nothing."""
        return self.inf.rpartition("_")[0]

    @property
    def with_zu(self) -> str:
        """The infinitive with zu: "zu kaufen", "anzurufen"."""
        return f"{self.prefix}zu{self.inf.split('_')[1]}" if self.prefix else f"zu {self.inf}"

    def present(self, person: int) -> str:
        """The present form without its prefix; persons 0-5 are ich, du, er, wir, ihr, sie."""
        base = self.inf.split("_")[-1]
        if person in (3, 5):
            return base
        change = self.changed != "-" and person in (1, 2)
        stem = self.changed if change else re.sub("e?n$", "", base)
        if person == 0:
            return stem + "e"
        ending = "st" if person == 1 and stem[-1] not in "sßz" else "t"
        return stem + ("e" if stem[-1] in "td" and not change else "") + ending


def read_verbs(kind: str) -> list[tuple[Verb, list[str]]]:
    """The verbs of a kind, each with what the lexicon's third and later columns hold."""
    rows = []
    for entry in LEXICON["verbs"][kind]:
        de, english, *more = (column.strip() for column in entry.split("|"))
        inf, changed, participle = de.split()
        en, *past = words(english)
        en_past = past[0] if past else inflect(en, "ed")
        rows.append((Verb(inf, changed, participle, en, en_past), more))
    return rows


def inflect(en: str, form: str) -> str:
    """A regular English verb phrase whose first word is put in the form "s", "ed" or "ing"."""
    verb, space, rest = en.partition(" ")
    if form == "s":
        stem = "ha" if verb == "have" else re.sub("(?<=[^aeiou])y$", "ie", verb)
        return stem + ("es" if re.search("(s|x|z|ch|sh|o)$", stem) else "s") + space + rest
    doubled = verb + verb[-1] * (verb in LEXICON["doubling"].split())
    silent = re.sub("(?<=[^e])e$", "", doubled)
    return (
        (re.sub("(?<=[^aeiou])y$", "i", silent) if form == "ed" else silent) + form + space + rest
    )


VERBS = {kind: read_verbs(kind) for kind in LEXICON["verbs"]}


@dataclass(frozen=True)
class Complements:
    """What goes with a verb; the German parts in the order in which a clause takes them."""

    pronoun: str = ""
    objects: str = ""
    tail: str = ""
    en: str = ""
    kein: bool = False
    indefinite: bool = False


@dataclass(frozen=True)
class Clause:
    """What both sides of a clause say; `german` and `english` put it into words."""

    subject: NP
    verb: Verb
    extra: Complements
    tense: str
    nicht: bool = False
    time: Pair = NONE
    often: Pair = NONE
    place: Pair = NONE


def predicate_en(c: Clause, question: bool) -> Pair:
    """The English auxiliary, where there is one, and the rest of the verb."""
    en, person = c.verb.en, c.subject.person
    tense, en_past = c.tense, c.verb.en_past
    if tense in MODALS:
        modal = MODALS[tense].split(" | ")[1]
        if modal[0] not in "+-":
            auxiliary, _, more = modal.partition(" ")
            return auxiliary, join(more, en)
        en, tense = f"{modal[1:]} {en}", "past" if modal[0] == "-" else "present"
        en_past = inflect(en, "ed") if modal[1:] == "want to" else f"had {en[5:]}"
    if tense == "now":
        return BE_EN[person], inflect(en, "ing")
    if question or c.nicht or c.extra.kein:
        return ("did" if tense == "past" else "does" if person == 2 else "do"), en
    return "", en_past if tense == "past" else inflect(en, "s") if person == 2 else en


def middle(c: Clause, time: bool = True) -> str:
    """What stands between the two parts of the German verb, with or without the time."""
    x, nicht = c.extra, "nicht" if c.nicht else ""
    start = (x.pronoun, c.time[0] if time else "", c.often[0])
    if x.indefinite:  # an indefinite object is the news and comes late
        return join(*start, c.place[0], x.objects, x.tail)
    return join(*start, x.objects, nicht, c.place[0], x.tail)


def german(c: Clause, order: str = "main") -> str:
    """Order "main" and "time" (verb second, after subject or time), "first" (question), "last"."""
    person, subject = c.subject.person, c.subject.de("nom")
    if c.tense in MODALS:
        finite, end = MODALS[c.tense].split()[person], c.verb.inf.replace("_", "")
    elif c.tense == "past":
        auxiliaries = BE_DE if c.verb.participle[0] == "+" else HAVE_DE
        finite, end = auxiliaries[person], c.verb.participle.lstrip("+")
    else:
        finite, end = c.verb.present(person), c.verb.prefix
    if order == "last":
        return join(subject, middle(c), end + ("" if end == c.verb.prefix else " ") + finite)
    if order == "zu":
        return join(middle(c), c.verb.with_zu)
    if order == "time":
        return join(c.time[0], finite, subject, middle(c, time=False), end)
    return join(*((finite, subject) if order == "first" else (subject, finite)), middle(c), end)


def english(c: Clause, order: str = "main") -> str:
    """Order "main", "time" (the time first), "first" (a question) or "zu" (the infinitive)."""
    after = (c.extra.en, c.place[1], "" if order == "time" else c.time[1])
    if order == "zu":
        return join(c.verb.en, *after)
    auxiliary, rest = predicate_en(c, order == "first")
    start = (auxiliary, c.subject.en) if order == "first" else (c.subject.en, auxiliary)
    no = "not" if c.nicht or c.extra.kein else ""
    text = join(c.time[1] if order == "time" else "", *start, no, c.often[1], rest, *after)
    return text.replace("can not ", "cannot ")
