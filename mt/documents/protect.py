"""Texts that must come out as they are, and terms with a given translation: `kept` tokens."""

from __future__ import annotations

import html
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from hashlib import sha256
from itertools import accumulate, zip_longest
from pathlib import Path

import regex

from mt.data.reading.words import composed, is_unspaced, tokens
from mt.data.tokens import noise
from mt.data.tokens.writing import ADDRESS, Case, case_of
from mt.documents.inline_tags import MarkupToken, TaggedText, partners_of
from mt.documents.markup import INLINE, tag_token
from mt.errors import ConfigError, DataError
from mt.translate.lines import SHOWN, Line, Step
from mt.translate.streaming import read_file

# What the model sees as it is: words, entities, and what touches other text, as {n} in {n}px.
WORDS = regex.compile(r"[\p{L}\p{M}\p{N} '’-]+|&#?\w+;")
OPENING = " \t\n\r([{>\"'„“‚‘«»¿¡"
APART = re.compile(r"\Z|[\s)\]}<\"'“”’«»]|[.,;:!?…]+(?!\w)")
TAG = re.compile(r"</?[A-Za-z][^<>]*>")
# What `--protect auto` finds: web and e-mail addresses, {0}, {{name}}, ${VAR}, $VAR, %s, %1$s; also
# <tag> and &entity;, where a document does not have them as such.
AUTO = [re.compile(pattern) for pattern in (
    ADDRESS,
    r"\{\{[^{}]+\}\}|[$%#]?\{[^{}\s]*\}|\$[A-Z_][A-Z0-9_]+|%%",
    r"(?<![\d%])%(?:\(\w+\))?(?:\d+\$)?[-+#,]*\d*(?:\.\d+)?[hlLzjt]{0,2}[sdifuxXeEgGc@](?![A-Za-z])",
    TAG.pattern,
    r"&(?:#\d+|#x[\da-fA-F]+|[A-Za-z]\w*);",
)]  # fmt: skip
# Articles and other small words of French, Italian and Catalan that lose their vowel before a word.
_ELIDED = re.compile(
    r"^((?:[cdjlmnst]|(?:jus|lors|puis)?qu|un|(?:d?a|co|de|ne|su)ll)')(?=\w)", re.IGNORECASE
)
TIME_LIMIT = 5.0  # seconds in which a pattern of the user's must have been through a text
MOST_LOST = 10_000  # names of what was left out that are counted, so that memory is bounded


class Protection(Step):
    """Keeps texts by `--protect` and `--glossary`, and counts them, also those left out."""

    def __init__(
        self, protect: Sequence[str] = (), glossary: Path | None = None,
        tags: Set[str] = frozenset(), names: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        """`protect`: `auto` or regular expressions. `tags`: what the model knows before a line."""
        self.names = names  # shown in place of texts that are more than words; None: they are
        self.settings = {"--protect": repr(protect)} if protect else {}
        self.tags = tags
        self._patterns = [_compiled(text) for text in protect if text != "auto"]
        self._is_auto = "auto" in protect
        # The tokens of each term with its translation, by the first one in lower case. The longest
        # come first, of two that differ in case the one that is not in lower case.
        self._terms: dict[str, list[tuple[list[str], str]]] = {}
        if glossary is not None:
            terms = read_glossary(glossary)
            self.settings["--glossary"] = sha256(repr(terms).encode()).hexdigest()
            self.names = names and [name for name in names if name not in repr(terms)]
            for term in sorted(terms, key=lambda term: (-len(_words(term)), term == term.lower())):
                words = _words(term)
                self._terms.setdefault(words[0].lower(), []).append((words, terms[term]))
        self._counts: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._hidden: dict[Line, tuple[TaggedText, str]] = {}  # lines that are being translated

    def __bool__(self) -> bool:
        return bool(self._patterns or self._is_auto or self._terms)

    def before(self, lines: Sequence[Line]) -> None:
        """Show the model lines without markup, and remember what is kept."""
        for line in lines:
            tokens = self.keep([MarkupToken("text", line.text.strip())], is_document=False)
            if all(token.kind == "text" for token in tokens):
                continue
            tagged = TaggedText(tokens, escapes=False)
            self._hidden[line] = tagged, line.text
            line.text = tagged.text

    def after(self, lines: Sequence[Line]) -> None:
        """Show what is kept, and count what the best output has left out."""
        for line in lines:
            texts, _, _, alignments, flags = line.translation
            if line in self._hidden:
                tagged, line.text = self._hidden.pop(line)
                pairs = zip_longest(texts, alignments, fillvalue="")
                rendered = [tagged.render(text, links) for text, links in pairs]
                texts = tuple(text.strip() for text, _ in rendered)
                self.count_lost(lost := rendered[0][1])
                if lost:
                    flags = (*flags, "misplaced")
            line.translation = line.translation._replace(texts=texts, alignments=(), flags=flags)

    def keep(self, text: Sequence[MarkupToken], is_document: bool = True) -> list[MarkupToken]:
        """The tokens of a text, and what is kept as tokens of its own."""
        merged_tokens = []
        line = "".join(token.raw for token in text if token.kind == "text")
        case = case_of(html.unescape(line) if is_document else line)
        there = " ".join(token.content or token.raw for token in text).lower()
        names = filter(lambda name: name.lower() not in there, self.names or ())

        def seen(text: str, start: int, end: int) -> str:
            is_apart = text[start - 1 : start] in OPENING and APART.match(text, end)
            if self.names is None or not is_apart or WORDS.fullmatch(text, start, end):
                return html.unescape(text[start:end]).replace("\xa0", " ")  # &nbsp; is a space
            return next(names, "").upper() if case is Case.CAPITALS else next(names, "")

        for token in text:
            if token.kind != "text":
                merged_tokens.append(token)
                continue
            at, raw = 0, token.raw
            shown, places = _unescaped(raw) if is_document else (raw, range(len(raw) + 1))
            for start, end, target in self._spans(shown, case, " " if is_document else "\n"):
                content, written = shown[start:end], raw[places[start] : places[end]]
                if not written:  # a part of an entity of several characters
                    continue
                self._counts["term" if target else "text"] += 1
                taken = MarkupToken("kept", target or written, term=content if target else "")
                taken.content = content
                if not (target or TAG.fullmatch(content)):
                    taken.content = seen(shown, start, end)
                elif not target:
                    tag = tag_token(content)
                    taken.kind, taken.name, taken.space_after = tag.kind, tag.name, tag.name == "br"
                merged_tokens += [MarkupToken("text", raw[at : places[start]]), taken]
                at = places[end]
            merged_tokens.append(MarkupToken("text", raw[at:]))
        merged_tokens = [token for token in merged_tokens if token.raw or token.kind != "text"]
        paired = partners_of(merged_tokens)
        for number, token in enumerate(merged_tokens):
            is_word = token.kind == "start" and number not in paired and "=" not in token.raw
            if token.content and is_word and not INLINE.fullmatch(token.name):
                token.kind = "kept"  # what a program fills in, such as <Name>
                token.content = seen(token.content, 0, len(token.content))
        return merged_tokens

    def _spans(self, text: str, case: Case | None, feed: str) -> Iterator[tuple[int, int, str]]:
        """Start and end of what is kept, with a term's translation or ""; the first and longest."""
        kept = {span for pattern in self._patterns for span in _matches(pattern, text)}
        if self._is_auto:
            kept |= {match.span() for pattern in AUTO for match in pattern.finditer(text)}
        at = 0
        for start, end in sorted(kept, key=lambda span: (span[0], -span[1])):
            part = text[start:end].strip()
            if start >= at and part and part not in self.tags:
                start = text.index(part, start)
                yield from self._terms_in(text, at, start, case, feed)
                at = start + len(part)
                yield start, at, ""
        yield from self._terms_in(text, at, len(text), case, feed)

    def _terms_in(
        self, text: str, at: int, end: int, case: Case | None, feed: str
    ) -> Iterator[tuple[int, int, str]]:
        """Terms of whole words, the longest at each place; `feed`: a line feed in their words."""
        if not self._terms:
            return
        text, written = composed(text[at:end])
        words = _words(text)
        spaced = [(feed if "\n" in word else " ") if word.isspace() else word for word in words]
        places = [*accumulate(map(len, words), initial=0)]
        first = 0
        while first < len(words):
            last = first + 1
            for term, target in self._terms.get(words[first].lower(), ()):
                given = spaced[first : first + len(term)]
                is_same = term == given or term == [word.lower() for word in given]
                start, end = places[first], places[first + len(given)]
                if is_same and not (_is_in_word(text, start) or _is_in_word(text, end)):
                    shown = target
                    if term != given and target[1:] == target[1:].lower():  # no EU, iPhone
                        if case is Case.CAPITALS:
                            shown = target.upper()
                        elif case is Case.TITLE:  # as lines of German nouns are
                            shown = noise.title_case(target, "")
                    yield at + written[start], at + written[end], shown
                    last = first + len(term)
                    break
            first = last

    def count_lost(self, lost: Iterable[MarkupToken]) -> None:
        """Count what a model has left out."""
        for token in lost:
            name = f"{token.term} → {token.raw}" if token.term else token.raw.strip()
            if name in self._lost or len(self._lost) < MOST_LOST:
                self._lost[name] += 1

    def summary(self) -> str:
        """A line about the texts that were kept, and those put at the end; "" for none."""
        if not self:
            return ""
        texts, terms = self._counts["text"], self._counts["term"]
        text = f"\nprotected: {texts:,} text{'s' * (texts != 1)}"
        text += f" and {terms:,} term{'s' * (terms != 1)}"
        if self._lost:
            named = [f"{name} ({n:,})" for name, n in self._lost.most_common(SHOWN)]
            more = ", ..." * (len(self._lost) > SHOWN)
            text += f"; left out by the model, put at the end: {', '.join(named)}{more}"
        return text


def read_glossary(path: Path) -> dict[str, str]:
    """The terms of a file with their translations. DataError names a line that is no such pair."""
    terms: dict[str, str] = {}
    for number, line in enumerate(read_file(path, "--glossary"), 1):
        cells = [" ".join(cell.split()) for cell in line.split("\t")]
        if not line.strip():
            continue
        place = f"--glossary: {path}, line {number:,}:"
        if len(cells) != 2 or not all(cells):
            raise DataError(f"{place} must be a term, a tab, a translation, found {line[:60]!r}")
        cells[0] = unicodedata.normalize("NFC", cells[0])
        if terms.setdefault(*cells) != cells[1]:
            raise DataError(
                f"{place} translates {cells[0]!r} by {cells[1]!r}, an earlier line by "
                f"{terms[cells[0]]!r}; remove one of them"
            )
    if not terms:
        raise DataError(f"--glossary: {path}: has no terms; a line is a term, a tab, a translation")
    return terms


def _unescaped(raw: str) -> tuple[str, list[int]]:
    """A text without entities, and where each character of it, and its end, is written."""
    text, places = "", list[int]()
    for match in re.finditer(r"&#?\w+;?|[^&]+|&", raw):
        part = html.unescape(match[0])
        places += range(*match.span()) if part == match[0] else [match.start()] * len(part)
        text += part
    return text, [*places, len(raw)]


def _words(text: str) -> list[str]:
    """The tokens of a text; what is elided before an apostrophe, as in `l'eau`, is one of them."""
    return [part for word in tokens(text.replace("’", "'")) for part in _ELIDED.split(word) if part]


def _is_in_word(text: str, place: int) -> bool:
    """Whether a combining mark, no letter for regular expressions, joins a word at this place."""
    if not 0 < place < len(text):
        return False
    before, after = (unicodedata.category(char)[0] for char in text[place - 1 : place + 1])
    return after == "M" or (before == "M" and after == "L" and not is_unspaced(text[place]))


def _compiled(text: str) -> regex.Pattern[str]:
    if not text.strip():
        raise ConfigError(f"--protect: must be a regular expression or auto, found {text!r}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # [[a]: may be read otherwise some day
            re.compile(text)
            return regex.compile(text)
    except (re.error, regex.error, OverflowError, RecursionError, FutureWarning) as error:
        raise ConfigError(
            f"--protect: must be a regular expression, found {text!r} ({error}); put a backslash "
            "before a sign that is meant as such"
        ) from None


def _matches(pattern: regex.Pattern[str], text: str) -> list[tuple[int, int]]:
    """The spans of the matches of a pattern of the user's. ConfigError if they take too long."""
    try:
        return [match.span() for match in pattern.finditer(text, timeout=TIME_LIMIT)]
    except TimeoutError:
        raise ConfigError(
            f"--protect {pattern.pattern!r}: takes over {TIME_LIMIT:g} s in the text that begins "
            f"{text[:40]!r}; write it without a repetition inside another, such as (a+)+"
        ) from None
