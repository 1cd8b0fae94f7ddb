"""Write the German-English demonstration corpus from a small grammar and a lexicon.

    python scripts/make_demo_corpus.py                 # writes data/demo again
    python scripts/make_demo_corpus.py --out FOLDER

`demo_grammar.py` knows how German and English are put together; this file draws words, clauses and
sentence patterns. Only `random.Random.random` is drawn from, whose sequence is the same in every
version of Python, and no set is iterated: the files are always the same, byte for byte.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import demo_grammar as grammar
from demo_grammar import LEXICON, NONE, NP, PRONOUNS, Clause, Complements, Noun, Pair, Verb, words

T = TypeVar("T")
Slot = NP | Pair | Clause
SIZES = {"test": 500, "valid": 500, "train": 20_000}
UNSEEN = {"number": 0.5, "compound": 0.25, "pair": 0.35}  # share of held-out choices in valid, test
PLACED = LEXICON["placed"].split()
STATES = ["müde tired", "krank sick", "hungrig hungry", "traurig sad", "zu_Hause at_home"]
TRY = Verb("versuchen", "-", "versucht", "try", "tried")
COMPARED = "person kin animal thing reading furniture building place event"
GRADES = [NONE, NONE, ("nicht", "not"), ("sehr", "very"), ("zu", "too"), ("nicht sehr", "not very")]
THINGS = "thing clothes reading device furniture"
PEOPLE = "person kin"
KINDS = ["transitive"] * 8 + ["ditransitive", "dative"] * 2
KINDS += ["prepositional", "intransitive", "motion"] * 3
PATTERNS = re.findall(  # weight, German, English
    r"^(\d+)\t(.*)\t(.*)$", (grammar.DEMO / "patterns.tsv").read_text("utf-8"), re.MULTILINE
)
WEIGHTED = [(de, en) for weight, de, en in PATTERNS for _ in range(int(weight))]


class Composer:
    """Draws words, phrases, clauses and sentences; `unseen` allows what is held out of training."""

    def __init__(self, seed: int, unseen: bool) -> None:
        self.random = random.Random(seed).random
        self.unseen = unseen

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return int(self.random() * n)

    def chance(self, share: float) -> bool:
        """True in this share of the cases."""
        return self.random() < share

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def row(self, entries: Sequence[str]) -> Pair:
        """One of some lexicon entries of two fields."""
        de, en = words(self.pick(entries))
        return de, en

    def screened(self, kind: str, draw: Callable[[], T], key: Callable[[T], str] = str) -> T:
        """Draw until the item is on the wanted side of `held_out`; training never crosses it."""
        wanted = self.unseen and self.chance(UNSEEN[kind])
        for attempt in range(200):
            item = draw()
            if grammar.held_out(kind, key(item)) == (wanted and attempt < 40):
                return item
        raise RuntimeError(f"no {kind} can be used here; the last one drawn was {item}")

    # Numbers, times, places

    def number(self, low: int, high: int) -> int:
        """A number in this range; none on ...01, which German counts with in two ways."""
        n = self.screened("number", lambda: low + self.below(high - low + 1))
        return n if n % 100 != 1 else self.number(low, high)

    def counted(self, low: int, high: int) -> Pair:
        """A number in words."""
        n = self.number(low, high)
        return grammar.number_de(n), grammar.number_en(n)

    def date(self, ending: str) -> Pair:
        """A day of the year: "dritten März" after am, "dritte März" after der."""
        day = 1 + self.below(28)
        month, month_en = self.row(LEXICON["months"])
        day_en = grammar.ordinal_en(day)
        return f"{grammar.ordinal_de(day)}{ending} {month}", f"the {day_en} of {month_en}"

    def time(self, tense: str) -> Pair:
        """An adverbial of time that goes with the tense."""
        if self.chance(0.2):
            de, en = self.row(LEXICON["weekdays"])
            return f"am {de}", f"on {en}"
        if tense == "habit":
            return self.row(LEXICON["times"]["habit"])
        past = tense in ("past", *grammar.PAST_MODALS)
        if self.chance(0.85):
            return self.row(LEXICON["times"]["past" if past else "future"])
        de, en = self.counted(2, 12)
        unit, unit_en = self.row(["Tagen days", "Wochen weeks", "Monaten months"])
        if past:
            return f"vor {de} {unit}", f"{en} {unit_en} ago"
        return f"in {de} {unit}", f"in {en} {unit_en}"

    def place(self, case: str = "dat") -> Pair:
        """In some place ("dat"), or to some place ("acc")."""
        there = self.phrase("der der ein", self.noun("room building place"), many=0)
        preposition = "in" if case == "dat" else "to"
        return grammar.contracted(f"in {there.de(case)}"), f"{preposition} {there.en}"

    def anywhere(self) -> Pair:
        """In some place, in a city or at home."""
        if self.chance(0.5):
            return self.place()
        city, city_en = self.row(LEXICON["cities"])
        return self.pick(((f"in {city}", f"in {city_en}"), ("zu Hause", "at home")))

    # Noun phrases

    def noun(self, groups: str) -> Noun:
        """A noun or compound of one of the groups."""
        pool = [noun for group in groups.split() for noun in grammar.GROUPS[group]]
        return self.screened("compound", lambda: self.pick(pool), lambda noun: noun.lemma)

    def adjectives(self, noun: Noun, share: float) -> list[str]:
        """None, one or two adjectives that suit the noun; of two, the second is a color."""

        def suitable(choice: Sequence[str]) -> str:
            return self.screened("pair", lambda: self.pick(choice), lambda w: f"{w} {noun.lemma}")

        if not self.chance(share):
            return []
        choice = LEXICON["adjectives_of"][noun.group].split()
        colors = [word for word in choice if word in grammar.COLORS]
        if len(colors) > 2 and self.chance(0.2):
            first = [word for word in choice if word in LEXICON["before_colors"].split()]
            return [suitable(first), suitable(colors)]
        return [suitable(choice)]

    def phrase(
        self, dets: str, noun: Noun, owner: NP | None = None, share: float = 0.3, many: float = 0.1
    ) -> NP:
        """A noun phrase with one of `dets`: "own" is a possessive, "n" a number, "-" nothing."""
        det = self.pick(dets.split())
        adjectives = self.adjectives(noun, share)
        en = ""
        if det == "n":
            return grammar.noun_phrase(noun, "", adjectives, count=self.number(2, 99))
        if det == "-":
            return grammar.noun_phrase(noun, "", adjectives, plural=not noun.mass)
        if det == "own":
            mine = owner.own if owner and owner.own[0] and self.chance(0.7) else NONE
            det, en = mine if mine[0] else self.pick((("mein", "my"), ("unser", "our")))
        plural = det != "ein" and noun.plural != "-" and self.chance(many)
        return grammar.noun_phrase(noun, det, adjectives, plural, en=en)

    def definite(
        self, groups: str, owner: NP | None = None, share: float = 0.3, many: float = 0.1
    ) -> NP:
        """A phrase with der, dieser or a possessive, which "nicht" can follow."""
        noun = self.noun(groups)
        by_group = {"kin": "own", "person": "der"}
        dets = by_group.get(noun.group, "der own" if noun.mass else "der der der dies own")
        return self.phrase(dets, noun, owner, share, many)

    def object(self, groups: str, owner: NP) -> NP:
        """A noun phrase that a verb acts on, definite or not."""
        noun = self.noun(groups)
        by_group = {"kin": "own", "person": "der der der ein n"}
        others = "der der - - kein" if noun.mass else "der der der ein ein ein own dies n - kein"
        return self.phrase(by_group.get(noun.group, others), noun, owner)

    def name(self, genders: str = "fm") -> NP:
        """A first name."""
        gender = self.pick(genders)
        name = self.pick(LEXICON["names"][gender].split())
        again = "er" if gender == "m" else "sie"
        return NP((name,) * 4, name, own=PRONOUNS[again].own, again=again)

    def subject(self, initial: bool = True, again: bool = False) -> NP:
        """Somebody who acts.

        `initial` leaves out Sie and the plural sie, which look alike at the start of a sentence;
        `again` asks for somebody that a personal pronoun can take up.
        """
        draw = self.random()
        if draw < 0.45:
            return PRONOUNS[self.pick(list(PRONOUNS)[: 6 if initial else 8])]
        if draw < 0.65:
            return self.name()
        found = self.definite(PEOPLE, share=0.25)
        return self.subject(initial, again) if again and found.again == "es" else found

    def who(self) -> NP:
        """The man who did something; masculine, so that the pronoun marks the subject."""
        while (noun := self.noun("person")).gender != "m":
            pass
        head = grammar.noun_phrase(noun, "der", self.adjectives(noun, 0.3))
        c = self.clause("past", NP(("der",) * 4, "who"), 0.4)
        return head.with_clause(grammar.german(c, "last"), grammar.english(c))

    def which(self) -> NP:
        """The book that somebody bought; with a pronoun as subject, so that it has one reading."""
        c, noun = self.without_object(PRONOUNS[self.pick(words("ich du er wir ihr"))], THINGS)
        head = grammar.noun_phrase(noun, "der", self.adjectives(noun, 0.3))
        relative = grammar.determiner("der", noun.gender, "acc")
        de = grammar.german(c, "last")
        return head.with_clause(f"{relative} {de}", f"that {grammar.english(c)}")

    def owned(self) -> NP:
        """Somebody's thing: a genitive after the German noun, before the English one."""
        thing = grammar.noun_phrase(self.noun(THINGS), "der")
        owner = self.definite("kin", None, 0.2, 0)
        forms = tuple(f"{form} {owner.de('gen')}" for form in thing.forms)
        return NP(forms, f"{owner.en}'s {thing.en.removeprefix('the ')}")

    def spot(self) -> NP:
        """A place among the furniture: dative for where something is, accusative for where to."""
        preposition, en = self.row(LEXICON["surfaces"])
        spot = self.phrase("der der dies", self.noun("furniture"), many=0)
        forms = tuple(grammar.contracted(f"{preposition} {form}") for form in spot.forms)
        return NP(forms, f"{en} {spot.en}")

    # Clauses

    def pronoun(self, subject: NP, case: str) -> Pair:
        """An object pronoun that is not the subject's own person."""
        barred = {"I": "ich wir", "we": "ich wir", "you": "du"}.get(subject.en, "")
        key = self.pick([key for key in words("ich du er wir") if key not in barred.split()])
        return PRONOUNS[key].de(case), PRONOUNS[key].obj

    def complements(self, kind: str, verb: Verb, more: list[str], subject: NP) -> Complements:
        """What a verb of this kind takes with it."""
        if kind == "motion":
            if verb.inf != "fahren":
                to, to_en = self.place("acc")
                return Complements(tail=to, en=to_en)
            city, city_en = self.row(LEXICON["cities"])
            vehicle, vehicle_en = self.row(LEXICON["vehicles"])
            return Complements(
                tail=f"mit {vehicle} nach {city}", en=f"to {city_en} by {vehicle_en}"
            )
        if kind == "intransitive":
            de, en = words(more[0]) if more else NONE
            return Complements(tail=de, en=en)
        if kind == "prepositional":
            about = self.definite(more[0], subject)
            preposition, case = more[1].split()
            tail = grammar.contracted(f"{preposition} {about.de(case)}")
            return Complements(tail=tail, en=about.en)
        pronoun = NONE
        person: NP | None = None
        thing: NP | None = None
        if (kind != "transitive" or more[0] == PEOPLE) and self.chance(0.4):
            pronoun = self.pronoun(subject, "acc" if kind == "transitive" else "dat")
        elif kind != "transitive":
            person = self.definite(PEOPLE if kind == "ditransitive" else more[0], subject)
        if kind == "ditransitive" or (kind == "transitive" and not pronoun[0]):
            thing = self.object(more[0], subject)
        return Complements(
            pronoun[0],
            grammar.join(person.de("dat") if person else "", thing.de("acc") if thing else ""),
            en=grammar.join(pronoun[1], person.en if person else "", thing.en if thing else ""),
            kein=bool(thing and thing.kein),
            indefinite=bool(thing and thing.indefinite),
        )

    def clause(
        self, tense: str, subject: NP, time: float = 0.5, nicht: float = 0.12, place: float = 0.4
    ) -> Clause:
        """A clause; the shares say how many have a time, a "nicht", a place."""
        if tense == "planned":
            tense = self.pick(words("future future can should would must want"))
        barred = LEXICON["momentary"] if tense == "now" else ""
        barred = LEXICON["unplanned"] if tense not in ("now", "past", "habit") else barred
        kind = self.pick(KINDS)
        rows = [row for row in grammar.VERBS[kind] if row[0].inf not in barred.split()]
        verb, more = self.pick(rows)
        extra = self.complements(kind, verb, more, subject)
        placed = verb.inf in PLACED and self.chance(place)
        return Clause(
            subject,
            verb,
            extra,
            tense,
            nicht=not extra.indefinite and self.chance(nicht),
            time=self.time(tense) if self.chance(time) else NONE,
            place=self.anywhere() if placed else NONE,
        )

    def without_object(self, subject: NP, groups: str) -> tuple[Clause, Noun]:
        """A clause whose object is asked for or taken up, and a noun that could be the object."""
        while True:
            verb, more = self.pick(grammar.VERBS["transitive"])
            wanted = [group for group in more[0].split() if group in groups.split()]
            if wanted:
                time = self.time("past") if self.chance(0.4) else NONE
                clause = Clause(subject, verb, Complements(), "past", time=time)
                return clause, self.noun(self.pick(wanted))

    def happening(self, initial: bool = False, time: float = 0.5) -> Clause:
        """A clause in any tense."""
        tense = self.pick(["past"] * 6 + [*grammar.PAST_MODALS] + ["planned"] * 6)
        return self.clause(tense, self.subject(initial), time)

    def habit(self, often: bool) -> Clause:
        """A present, which is the simple present in English: with an adverb or a time."""
        c = self.clause("habit", self.subject(), time=1, nicht=0)
        if often and not c.extra.kein:
            return replace(c, time=NONE, often=self.row(LEXICON["often"]))
        return c

    def now(self) -> Clause:
        """The present of what is going on."""
        c = self.clause("now", self.subject(), time=0, nicht=0)
        return replace(c, time=("gerade", "right now"))

    def aim(self, subject: NP) -> Clause:
        """What somebody wants to do, for an infinitive with zu."""
        while (c := self.clause("would", subject, 0, 0, 0)).extra.kein:
            pass
        return c

    def went(self) -> Clause:
        """Somebody went somewhere."""
        subject = self.subject()
        verb, _ = self.pick(grammar.VERBS["motion"])
        return Clause(subject, verb, self.complements("motion", verb, [], subject), "past")

    # Sentences

    def front(self) -> Pair:
        """A masculine object before the German verb, known as the object by its article."""
        clause, noun = self.without_object(self.subject(initial=False), THINGS)
        if noun.gender != "m":
            return self.front()
        thing = grammar.noun_phrase(noun, "der", self.adjectives(noun, 0.4))
        whole = replace(clause, extra=Complements(en=thing.en))
        return f"{thing.de('acc')} {grammar.german(clause, 'first')}", grammar.english(whole)

    def predicate(self) -> Pair:
        """What something is or was like."""
        group = self.pick(list(LEXICON["adjectives_of"]))
        thing = self.definite(group, share=0, many=0.2)
        word = self.pick(LEXICON["adjectives_of"][group].split())
        word_en, comparative, _ = grammar.ADJECTIVES[word]
        how, how_en = self.pick(GRADES[:3] if comparative == "-" else GRADES)
        was = self.chance(0.4)
        be_de, be_en = (grammar.WAS_DE, grammar.WAS_EN) if was else (grammar.BE_DE, grammar.BE_EN)
        de = grammar.join(thing.de("nom"), be_de[thing.person], how, word)
        return de, grammar.join(thing.en, be_en[thing.person], how_en, word_en)

    def comparison(self) -> Pair:
        """What is more so than something else, or as much."""
        group = self.pick(words(COMPARED))
        one, two = (self.definite(group, share=0, many=0) for _ in "12")
        choice = LEXICON["adjectives_of"][group].split()
        word = self.pick([word for word in choice if grammar.ADJECTIVES[word][1] != "-"])
        en, more, more_en = grammar.ADJECTIVES[word]
        if one.en.split()[-1] == two.en.split()[-1]:
            return self.comparison()
        how, how_en = f"{more} als", f"{more_en} than"
        if self.chance(0.5):
            how, how_en = f"so {word} wie", f"as {en} as"
        return f"{one.de('nom')} ist {how} {two.de('nom')}", f"{one.en} is {how_en} {two.en}"

    def profession(self) -> Pair:
        """Who is or was what: without an article in German."""
        gender, de, en = self.pick([words(entry) for entry in LEXICON["professions"]])
        noun = self.pick([noun for noun in grammar.GROUPS["kin"] if noun.gender == gender])
        who = self.phrase("own", noun, many=0)
        be_de, be_en = self.row(["ist is", "war was"])
        return f"{who.de('nom')} {be_de} {de}", grammar.with_article(f"{who.en} {be_en} a {en}")

    def state(self, subject: NP) -> Pair:
        """How somebody was, with the German verb last."""
        state, state_en = self.row(STATES)
        who = PRONOUNS[subject.again]
        de = f"{who.de('nom')} {state} {grammar.WAS_DE[who.person]}"
        return de, f"{who.en} {grammar.WAS_EN[who.person]} {state_en}"

    def slot(self, kind: str, before: list[Slot]) -> Slot:
        """The filling of a slot; `before` holds those to its left, which some take up."""
        if kind in SLOTS:
            return SLOTS[kind](self)
        topic = next((slot.subject for slot in before if isinstance(slot, Clause)), PRONOUNS["ich"])
        if kind == "then":
            return self.clause("past", PRONOUNS[topic.again], 0, 0.25)
        if kind == "state":
            return self.state(topic)
        if kind == "aim":
            return self.aim(topic)
        det, _, groups = kind.partition(" ")
        if det == "the":
            return self.definite(groups, many=0)
        return self.phrase({"a": "ein", "some": "-"}[det], self.noun(groups), many=0)

    def compose(self) -> Pair:
        """A sentence from any pattern, each slot filled alike on both sides."""
        filled: dict[str, Slot] = {}

        def fill(match: re.Match[str], side: int) -> str:
            name, _, form = match.group(1).partition(".")
            while name not in filled:
                value = self.slot(re.sub(r" \d$", "", name), list(filled.values()))
                if value not in filled.values():
                    filled[name] = value
            return written(filled[name], form, side)

        pattern = self.pick(WEIGHTED)
        de, en = (re.sub("{(.*?)}", partial(fill, side=s), text) for s, text in enumerate(pattern))
        return de[0].upper() + de[1:], en[0].upper() + en[1:]


def written(value: Slot, form: str, side: int) -> str:
    """One side of a slot: a case of a phrase or a word order of a clause."""
    if isinstance(value, tuple):
        return value[side]
    if isinstance(value, Clause):
        return (grammar.german, grammar.english)[side](value, form or "main")
    return value.en if side else value.de(form or "nom")


SLOTS: dict[str, Callable[[Composer], Slot]] = {
    "any": lambda me: me.happening(initial=True),
    "timed": lambda me: me.happening(initial=True, time=1),
    "asked": lambda me: me.happening(),
    "open": lambda me: me.clause("past", me.subject(initial=False), 0, 0),
    "plan": lambda me: me.clause("planned", me.subject(initial=False), 0.2),
    "main": lambda me: me.clause("past", me.subject(again=True), 0.4),
    "often": lambda me: me.habit(often=True),
    "habit": lambda me: me.habit(often=False),
    "now": Composer.now,
    "what": lambda me: me.without_object(me.subject(initial=False), THINGS)[0],
    "tried": lambda me: Clause(me.subject(), TRY, Complements(), "past"),
    "went": Composer.went,
    "who": Composer.who,
    "which": Composer.which,
    "owned": Composer.owned,
    "spot": Composer.spot,
    "front": Composer.front,
    "predicate": Composer.predicate,
    "compared": Composer.comparison,
    "job": Composer.profession,
    "old": lambda me: me.row(["alt old", "neu new", "schön beautiful", "kaputt broken"]),
    "to": lambda me: me.place("acc"),
    "name": lambda me: me.name(),
    "his name": lambda me: me.name("m"),
    "city": lambda me: me.row(LEXICON["cities"]),
    "number": lambda me: me.counted(21, 999),
    "age": lambda me: me.counted(2, 99),
    "teen": lambda me: me.counted(10, 20),
    "clock": lambda me: grammar.clock(1 + me.below(12), 15 * me.below(4)),
    "date": lambda me: me.date("en"),
    "date of": lambda me: me.date("e"),
    "weekday": lambda me: me.row(LEXICON["weekdays"]),
}


def make_splits(sizes: dict[str, int] | None = None) -> dict[str, list[Pair]]:
    """Test and valid first, with what is held out; then training without it. No repeats."""
    translations: dict[str, str] = {}
    splits: dict[str, list[Pair]] = {}
    for seed, (split, size) in enumerate((sizes or SIZES).items(), start=1):
        composer = Composer(seed, unseen=split != "train")
        splits[split] = []
        while len(splits[split]) < size:
            de, en = composer.compose()
            if de not in translations:
                translations[de] = en
                splits[split].append((de, en))
            elif translations[de] != en:
                raise ValueError(f"two translations of {de!r}: {translations[de]!r} and {en!r}")
    return splits


def main() -> None:
    """Write the six files."""
    parser = argparse.ArgumentParser(description="Write the demonstration corpus.")
    parser.add_argument("--out", type=Path, default=grammar.DEMO, help="folder to write to")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for split, lines in make_splits().items():
        for side, language in enumerate(("de", "en")):
            text = "".join(pair[side] + "\n" for pair in lines)
            (folder / f"{split}.{language}").write_bytes(text.encode())


if __name__ == "__main__":
    main()
