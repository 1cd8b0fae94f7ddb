"""How the training text writes its lines, and other lines written so for the model, and back.

The pieces of `MANN` have nothing in common with those of `Mann`, so a model knows little of lines
in capitals; less so in Title Case, lower case, or without a final stop. `mt translate` gives it
such a line as the training text would write it (truecasing, Lita et al., 2003), and writes the
output as the line was.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum, auto
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from typing_extensions import assert_never

from mt.data.reading.languages import base_code
from mt.data.reading.words import UNSPACED
from mt.data.tokens import noise
from mt.errors import CheckpointError
from mt.files import parse_json

# The file beside a tokenizer that holds what `Styles.learn` has found.
WRITING = "writing.json"
# Lines of a language from which is learnt; less than twice as many of more.
LINES = 200_000
# Share of training lines in one case from which the model knows it, and such lines stay.
KNOWN = 0.05
# Share of training lines with a final stop from which a line without one gets it.
STOPS = 0.9
# Words that begin most lines, of those that do so more often than they have a capital inside.
OPENERS = 2_000
# A model copies a name that so many lines have on both sides, and this share of those with it.
NAMED = 100
COPIED = 0.9
# Words of so many letters begin with a capital in any Title Case, and how many there must be.
TITLE_LETTERS = 4
TITLE_WORDS = 3
# Web and e-mail addresses.
_NOT_IN_ADDRESS = rf"\s<>\"{UNSPACED}，。；：！？"
ADDRESS = (
    rf"(?i:(?<![a-z\d])(?:[a-z][a-z\d+.-]{{0,30}}://|www\.))"
    rf"[^{_NOT_IN_ADDRESS}]*[^{_NOT_IN_ADDRESS}.,;:!?'’”»)\]}}…]"
    r"|(?a:(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
)
# Tags, placeholders, addresses and names with @, whose case has a meaning.
_KEPT = (
    r"<[^<>\s]*>|\{[^{}\s]*\}|%(?:\(\w+\))?(?:\d+\$)?[-+#]*\d*(?:\.\d+)?[sdif](?![^\W\d_])"
    rf"|{ADDRESS}|[^\s@:/]{{0,64}}@\S*"
)
_KEPT_OR_WORD = re.compile(rf"(?P<kept>{_KEPT})|[^\W\d_]+(?:[-'’.][^\W\d_]+)*")
_KEPT_ONLY = re.compile(f"({_KEPT})")
_LETTERS = re.compile(r"[^\W\d_]+")
_SENTENCE_END = re.compile(r"[.!?…]\W{0,9}\s")


class Case(Enum):
    """In which case a line is written as a whole."""

    CAPITALS = auto()
    TITLE = auto()
    LOWER = auto()


def case_of(text: str) -> Case | None:
    """The case of a line; None for usual text, and where letters have no case."""
    capitals = title = lower = True
    n_words = n_mixed = n_long = n_capitals = n_titled = 0
    for match in _KEPT_OR_WORD.finditer(text):
        if match["kept"] is not None:
            continue
        word = match[0]
        capital, titled, low, mixed = _fits_cases(word)
        if mixed:
            n_mixed += 1
            continue
        capitals, title, lower = capitals and capital, title and titled, lower and low
        if not (capitals or title or lower):
            return None
        n_words += 1
        n_long += len(word) >= TITLE_LETTERS
        n_capitals += capital and len(word) > 1
        n_titled += not (capital or low)
    title = title and n_long >= TITLE_WORDS and n_titled > n_capitals
    cases = [case for case, fits in zip(Case, (capitals, title, lower), strict=True) if fits]
    return cases[0] if len(cases) == 1 and n_words > n_mixed else None


@lru_cache(maxsize=1 << 16)  # half the time of lines in lower case
def _fits_cases(word: str) -> tuple[bool, bool, bool, bool]:
    """Whether a line with this word may be in capitals, in Title Case and in lower case.

    The last is whether it tells nothing of them, as a word like `McDonald` or `USA-Reise`.
    """
    parts = [word] if word.isalpha() else _LETTERS.findall(word)
    letters = "".join(parts)
    # A Chinese letter is neither; ß stays in capitals.
    is_capitals = all(letter.isupper() or letter == "ß" for letter in letters)
    return (
        is_capitals,
        len(word) < TITLE_LETTERS or word[0].isupper() or word[0].istitle(),
        all(letter.islower() for letter in letters),
        not is_capitals and any(letter.isupper() for part in parts for letter in part[1:]),
    )


def _words(text: str) -> Iterator[tuple[re.Match[str], bool]]:
    """The words of a line, each with whether it begins a sentence."""
    end = 0
    for match in _KEPT_OR_WORD.finditer(text):
        between = text[end : match.start()]
        is_first = bool(_SENTENCE_END.search(between)) if end else not re.search(r"\w", between)
        end = match.end()
        if match["kept"] is None:
            yield match, is_first


def _lacks_stop(text: str) -> bool:
    """Whether a line ends with a word, or a bracket, that a final stop may follow."""
    is_end = text[-1:].isalnum() or text[-1:] == ")"
    return is_end and not _KEPT_ONLY.search(text.rsplit(maxsplit=1)[-1])


# --- of a language ----------------------------------------------------------------------------


@dataclass(frozen=True)
class LanguageStyle:
    """How the training text is written in a language."""

    language: str
    words: Sequence[str]  # those that are written otherwise than other words in a sentence
    is_capital: bool  # whether other words have a capital, as rare ones have in German
    begins_with_capital: bool  # whether sentences do
    known_cases: Sequence[str]  # in which it writes whole lines, too
    final_stop: str  # that of nearly all lines, else ""
    openers: Sequence[str] = ()  # frequent words whose capital tells that a sentence begins
    names: Sequence[str] | None = None  # and placeholders that translations copy; None: unknown

    @classmethod
    def learn(cls, lines: Sequence[str], language: str, names: Sequence[str] = ()) -> LanguageStyle:
        """Count the words of lines; unknown ones are expected to look as those seen once."""
        inside, cases, ends = Counter[str](), Counter[str](), Counter[str]()
        begins = Counter[str]()
        n_first = n_capitalised = 0  # words that begin sentences
        for line in (drawn := lines[:: max(1, len(lines) // LINES)]):
            ends[line[-1:]] += 1
            if (case := case_of(line)) is not None:
                cases[case.name] += 1
                continue
            for number, (match, is_first) in enumerate(_words(line)):
                begins[match[0]] += number == 0  # what is after a stop may follow an ordinal
                if is_first:
                    n_first += 1
                    n_capitalised += match[0][0].isupper()
                else:
                    inside[match[0]] += 1
        forms = defaultdict[str, Counter[str]](Counter)
        for word, count in inside.items():
            forms[noise.lower_case(word, language)][word] = count
        rare = [next(iter(seen)) for seen in forms.values() if seen.total() == 1]
        stops = {end: count for end, count in ends.items() if end and end in noise.FINAL_STOPS}
        has_stops = stops and sum(stops.values()) >= STOPS * len(drawn)
        others = cls(
            language, [], is_capital=sum(word[0].isupper() for word in rare) > len(rare) / 2,
            begins_with_capital=n_capitalised > n_first / 2,
            known_cases=sorted(name for name, n in cases.items() if n >= KNOWN * len(drawn)),
            final_stop=max(stops, key=lambda stop: stops[stop]) if has_stops else "",
            openers=[word for word, n in begins.most_common(OPENERS) if n > inside[word]],
            names=[*names],
        )  # fmt: skip
        usual = {key: max(seen, key=lambda word: (seen[word], word)) for key, seen in forms.items()}
        # STRASSE has lost its ß, and capitals in Greek their accents.
        listed = {
            key: word
            for key, word in usual.items()
            if any(others.usual_word(form) != word for form in (key, others._capitals(word)))
        }
        known = replace(others, words=list(listed.values()))
        # A compound, such as l'homme, whose parts are listed; Masse beside Maße.
        listed |= {key: word for key, word in usual.items() if known.usual_word(key) != word}
        return replace(others, words=[listed[key] for key in sorted(listed)])

    @cached_property
    def _forms(self) -> dict[str, str]:
        from_capitals = {self._lower(self._capitals(word)): word for word in self.words}
        return from_capitals | {self._lower(word): word for word in self.words}

    def _lower(self, word: str) -> str:
        return noise.lower_case(word, self.language)

    def _capitals(self, word: str) -> str:
        return noise.upper_case(word, self.language)

    def usual_word(self, word: str) -> str:
        """A word as it is written within a sentence; of an unknown compound each part."""
        key = self._lower(word)
        return self._forms.get(key) or _LETTERS.sub(lambda part: self._usual_part(part[0]), key)

    def _usual_part(self, part: str) -> str:
        other = noise.title_case(part, self.language) if self.is_capital and part[1:] else part
        return self._forms.get(part, other)

    def usual_case(self, text: str, case: Case) -> tuple[str, int]:
        """A line in the usual case, and how many words that begin no sentence lose a capital."""
        parts, end, n_lowered = [], 0, 0
        for match, is_first in _words(text):
            is_capitals, *_, is_mixed = _fits_cases(match[0])
            # `iPhone` is in its usual case, and `NATO` in Title Case.
            if is_mixed or (case is Case.TITLE and is_capitals and len(match[0]) > 1):
                continue
            word = self.usual_word(match[0])
            n_lowered += not is_first and word[0].islower() and match[0][0].isupper()
            if is_first and self.begins_with_capital:
                word = noise.title_case(word, self.language)
            parts += [text[end : match.start()], word]
            end = match.end()
        return "".join([*parts, text[end:]]), n_lowered

    def without_first_capitals(self, text: str) -> str:
        """A line whose sentences do not begin with a capital, unless their first word has one."""
        parts, end = [], 0
        for match, is_first in _words(text):
            if is_first and match[0][1:] == self._lower(match[0][1:]):
                parts += [text[end : match.start()], self.usual_word(match[0])]
                end = match.end()
        return "".join([*parts, text[end:]])


# --- of a line --------------------------------------------------------------------------------


class Written(NamedTuple):
    """How a line was written where the model sees it otherwise."""

    case: Case | None
    has_stop: bool  # the final stop is not the line's own
    mixed: frozenset[str] = frozenset()  # words of the line that stay in any case, as `iPhone`


def copied_names(src: Sequence[str], tgt: Sequence[str]) -> list[str]:
    """Capitalised words and placeholders that nearly all pairs with them have on both sides."""
    either, both = Counter[str](), Counter[str]()
    step = max(1, len(src) // LINES)
    for pair in zip(src[::step], tgt[::step], strict=True):
        words, others = (
            {word[0] for word in _KEPT_OR_WORD.finditer(line) if not word[0][0].islower()}
            for line in pair
        )
        either.update(words | others)
        both.update(words & others)
    return [name for name, n in both.most_common() if n >= max(NAMED, COPIED * either[name])]


class Styles(NamedTuple):
    """How each language of the training text is written; of two of one name the source first."""

    styles: Sequence[LanguageStyle]

    @classmethod
    def learn(
        cls, src: Sequence[str], tgt: Sequence[str], texts: Sequence[int],
        languages: Sequence[tuple[str, str]], each_once: bool = False,
    ) -> Styles:  # fmt: skip
        """Learn from pairs of lines, each of a text: a place in `languages`, those of its sides.

        `each_once`: a line that is in several texts counts once, so that its words can be rare.
        """
        lines: dict[tuple[str, bool], list[str]] = {}
        for side, drawn in enumerate((src, tgt)):
            for line, text in zip(drawn, texts, strict=True):
                language = languages[text][side]
                is_second = side == 1 and language == languages[text][0]
                lines.setdefault((language, is_second), []).append(line)
        if each_once:
            lines = {key: list(dict.fromkeys(repeated)) for key, repeated in lines.items()}
        names = copied_names(src, tgt)
        return cls([LanguageStyle.learn(some, name, names) for (name, _), some in lines.items()])

    @classmethod
    def load(cls, folder: Path) -> Styles | None:
        """Read the file beside the tokenizer in a folder; CheckpointError if it is damaged."""
        try:
            values = parse_json((folder / WRITING).read_bytes())
            # Earlier files name the two sides of the one direction.
            styles = values.values() if isinstance(values, dict) else values
            for style in styles:
                style.pop("changed_numbers", None)  # of 0.3.0
            return cls([LanguageStyle(**style) for style in styles])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{folder / WRITING}: cannot be read as what mt learns of writing ({error}); copy "
                "it again from the run directory, or remove it to translate without"
            ) from error

    def to_json(self) -> str:
        return json.dumps([asdict(style) for style in self.styles], ensure_ascii=False)

    @property
    def unknown_cases(self) -> set[Case]:
        """Cases in which not all of the languages write whole lines."""
        known = [set(style.known_cases) for style in self.styles]
        return {case for case in Case if any(case.name not in cases for cases in known)}

    def between(self, source: str, target: str) -> Writing | None:
        """The styles of two languages, by another spelling of a code too, or as `src` and `tgt`."""
        src, tgt = (
            [s for s in self.styles if s.language == code]
            or [s for s in self.styles if base_code(s.language) in (base_code(code), side)]
            for code, side in ((source, "src"), (target, "tgt"))
        )
        return Writing(src[0], tgt[-1]) if src and tgt else None


class Writing(NamedTuple):
    """How the source and the target language of a translation are written in the training text."""

    src: LanguageStyle
    tgt: LanguageStyle

    def usual(self, line: str) -> tuple[str, Written | None]:
        """A source line in NFC as the model knows it, and how it was written; None if it stays."""
        text, mixed, case = line, frozenset[str](), None
        if (found := case_of(line)) is not None and found.name not in self.src.known_cases:
            usual, n_lowered = self.src.usual_case(line, found)
            # `Drei Kinder mit Hund` is usual in German; one capital may be all of a name.
            if usual != line and not (found is Case.TITLE and n_lowered < 2):
                text, case = usual, found
                mixed = frozenset(match[0] for match, _ in _words(line) if _fits_cases(match[0])[3])
        if has_stop := self.src.final_stop != "" and _lacks_stop(text):
            text += self.src.final_stop
        return (text, Written(case, has_stop, mixed)) if case or has_stop else (line, None)

    def written(self, output: str, line: Written) -> str:
        """An output written as its source line was."""
        if line.has_stop:
            output = noise.without_final_stop(output)
        match line.case:
            case None:
                return output
            case Case.CAPITALS:
                change = noise.upper_case
            case Case.TITLE:
                change = noise.title_case
            case Case.LOWER:
                return self.tgt.without_first_capitals(output)
            case unknown:
                assert_never(unknown)
        kept = _KEPT_ONLY
        if line.mixed:
            words = "|".join(map(re.escape, line.mixed))
            kept = re.compile(rf"({_KEPT}|(?<!\w)(?:{words})(?!\w))")
        parts = kept.split(output)
        parts[::2] = [change(part, self.tgt.language) for part in parts[::2]]
        return "".join(parts)
