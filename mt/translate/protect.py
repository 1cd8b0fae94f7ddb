"""Texts that must come out as they are, and terms with a given translation.

Each becomes a token of the kind `kept` (see `inline_tags`). For a protected text, a model that was
trained with placeholders gets one of them, and copies it. Terms, and texts for any other model, are
seen as they are, and the word alignment tells what part of the translation they replace. Terms as
placeholders cost 1.2 BLEU, by the alignment nothing (see README.md).
"""

from __future__ import annotations

import html
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from mt.data.reading.words import UNSPACED, tokens
from mt.data.tokens.placeholders import PLACEHOLDERS, knows_placeholders
from mt.errors import ConfigError, DataError
from mt.files import sha256_of
from mt.runs.model_folder import read_folder
from mt.translate.inline_tags import MarkupToken, TaggedText
from mt.translate.lines import Translation
from mt.translate.progress import SHOWN, LineNumbers
from mt.translate.streaming import read_file

_NOT_IN_ADDRESS = rf"\s<>\"{UNSPACED}，。；：！？"
# What `--protect auto` finds: web and e-mail addresses, {0}, {{name}}, ${VAR}, $VAR, %s, %1$s.
AUTO = [re.compile(pattern) for pattern in (
    rf"(?:(?:https?|ftp)://|www\.)[^{_NOT_IN_ADDRESS}]*[^{_NOT_IN_ADDRESS}.,;:!?'’”»)\]}}…]",
    r"(?a:[\w.+-]+@[\w-]+(?:\.[\w-]+)+)",
    r"\{\{[^{}]+\}\}|\$?\{[^{}\s]*\}|\$[A-Z_][A-Z0-9_]+",
    r"(?<![\d%])%(?:\(\w+\))?(?:\d+\$)?[-+#0]*\d*(?:\.\d+)?[sdifuxXeEgGc@](?![A-Za-z])",
)]  # fmt: skip
# In lines also tags and entities, which formats of documents know themselves.
MARKUP = [
    re.compile(r"</?[A-Za-z][^<>\s]*(?:\s[^<>]*)?>"),
    re.compile(r"&(?:#\d+|#x[\da-fA-F]+|[A-Za-z]\w*);"),
]
_PLACEHOLDER = re.compile("|".join(PLACEHOLDERS))


class Protection:
    """What `--protect` and `--glossary` keep, how often, and what the model has left out."""

    def __init__(self, protect: Sequence[str] = (), glossary: Path | None = None) -> None:
        """`protect`: `auto` or regular expressions. ConfigError, DataError for what is wrong."""
        self.settings = {"--protect": repr(protect)} if protect else {}
        self.symbols: Sequence[str] = ()  # placeholders of the model
        self.lines = LineNumbers()  # where the model has left something out
        self._patterns = [_pattern(text) for text in protect if text != "auto"]
        self._is_auto = "auto" in protect
        self._terms: dict[str, str] = {}
        self.inputs: dict[str, str | Path | None] = {"--glossary": glossary}
        if glossary is not None:
            self._terms = read_glossary(glossary)
            self.settings["--glossary"] = sha256_of(glossary)
        self._longest = max((len(tokens(term)) for term in self._terms), default=0)
        self._counts: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._hidden: deque[TaggedText | None] = deque()  # lines that are being translated

    def __bool__(self) -> bool:
        return bool(self._patterns or self._is_auto or self._terms)

    def why_aligned(self, model: Path) -> str:
        """Why alignments are needed, or "". Placeholders, if the model knows them, are used."""
        if knows_placeholders(read_folder(model).tokenizer):
            self.symbols = PLACEHOLDERS
        elif self._patterns or self._is_auto:
            return "--protect: the model was trained without data.augment.placeholders"
        return "--glossary: has terms" if self._terms else ""

    def hide(self, line: str) -> str:
        """A line as the model is to see it; `show` is called for the same lines in this order."""
        if not self:
            return line
        found = self.keep([MarkupToken("text", line.strip())], is_document=False)
        is_plain = all(token.kind == "text" for token in found)
        tagged = None if is_plain else TaggedText(found, escapes=False)
        self._hidden.append(tagged)
        return line if tagged is None else tagged.to_translate

    def show(self, translation: Translation, number: int) -> Translation:
        """The translation of line `number` with the texts that are kept."""
        if not self:
            return translation
        tagged = self._hidden.popleft()
        if tagged is None:
            return translation._replace(alignments=())
        pairs = zip_longest(translation.texts, translation.alignments, fillvalue="")
        rendered = [tagged.render(text, links) for text, links in pairs]
        flags = translation.flags
        if rendered[0].lost:
            self.lines.add(number)
            self.count_lost(rendered[0].lost)
            flags = (*flags, "misplaced")
        texts = tuple(one.text for one in rendered)
        return translation._replace(texts=texts, alignments=(), flags=flags)

    def keep(self, text: Sequence[MarkupToken], is_document: bool = True) -> list[MarkupToken]:
        """The tokens of a text, and what is kept as tokens of its own."""
        found = []
        symbols = iter(self.symbols)
        for token in text:
            if token.kind == "kept":
                token.content = next(symbols, token.content)
            if token.kind != "text":
                found.append(token)
                continue
            at, raw = 0, token.raw
            for start, end, target in self._spans(raw, is_document):
                written = raw[start:end]
                content = html.unescape(written) if is_document else written
                term = content if target else ""
                self._counts["terms" if target else "texts"] += 1
                kept = MarkupToken("kept", target or written, term=term)
                kept.content = content if target else next(symbols, content)
                found += [MarkupToken("text", raw[at:start]), kept]
                at = end
            found.append(MarkupToken("text", raw[at:]))
        return [token for token in found if token.raw or token.kind != "text"]

    def _spans(self, text: str, is_document: bool) -> Iterator[tuple[int, int, str]]:
        """Start and end of what is kept, and what is written for a term; else "".

        Of texts that overlap the first counts, of two that begin together the longer one.
        """
        patterns = [*self._patterns]
        if self._is_auto:
            patterns += AUTO if is_document else AUTO + MARKUP
        if self.symbols:  # of the user's own
            patterns.append(_PLACEHOLDER)
        spans = {match.span() for pattern in patterns for match in pattern.finditer(text)}
        at = 0
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            if start >= at and end > start:
                yield from self._terms_in(text, at, start)
                yield start, end, ""
                at = end
        yield from self._terms_in(text, at, len(text))

    def _terms_in(self, text: str, at: int, end: int) -> Iterator[tuple[int, int, str]]:
        """Terms of whole words, the longest at each place."""
        words = tokens(text[at:end]) if self._terms else []
        while words:
            for n_words in range(min(self._longest, len(words)), 0, -1):
                term = "".join(words[:n_words])
                if target := self._terms.get(term) or self._terms.get(term.lower()):
                    yield at, at + len(term), target
                    break
            at += sum(map(len, words[:n_words]))
            del words[:n_words]

    def count_lost(self, lost: Sequence[MarkupToken]) -> None:
        """Count what a model has left out."""
        for token in lost:
            self._lost[f"{token.term} → {token.raw}" if token.term else token.raw] += 1

    def summary(self) -> str:
        """What was kept, and what stands at the end of its line, as a line; "" for nothing."""
        if not self:
            return ""
        kept = " and ".join(f"{self._counts[kind]:,} {kind}" for kind in ("texts", "terms"))
        text = f"\nprotected: {kept}"
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
            raise DataError(
                f"{place} must be a term, a tab and its translation, found {line[:60]!r}"
            )
        if terms.setdefault(*cells) != cells[1]:
            raise DataError(
                f"{place} translates {cells[0]!r} by {cells[1]!r}, an earlier line by "
                f"{terms[cells[0]]!r}; remove one of them"
            )
    if not terms:
        raise DataError(f"--glossary: {path}: has no terms; a line is a term, a tab, a translation")
    return terms


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"--protect: must be auto or a regular expression, found {text!r} ({error}); put a "
            "backslash before a sign that is meant as such"
        ) from None
