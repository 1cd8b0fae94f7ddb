"""A document: its parts as they were written, and the texts among them.

All but the translated texts is written as it was read, byte for byte: XLIFF is read with expat,
which tells places; lxml writes attributes in its own way.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from mt.documents.inline_tags import MarkupToken, TaggedText
from mt.documents.markup import ATTRIBUTE
from mt.translate.lines import Translation

# Gets the tokens of a text and returns them, some of them kept.
Protect: TypeAlias = Callable[[list[MarkupToken]], list[MarkupToken]]


@dataclass
class DocumentText:
    """A text, and the tokens [first, last) in whose place its translation stands."""

    tagged: TaggedText
    first: int
    last: int
    line: int  # of the document, from 1
    before: str = ""  # what is written before the translation
    after: str = ""
    attribute: int | None = None  # its number in the token `first`; None: it is no attribute


@dataclass
class Document:
    """The parts of a document, and its texts in their order."""

    tokens: list[MarkupToken]
    texts: list[DocumentText] = field(default_factory=list)
    n_done: int = 0  # texts that have a translation already
    # Languages that it names: on which side, as which, and in which line.
    languages: list[tuple[str, str, int]] = field(default_factory=list)
    unnamed: MarkupToken | None = None  # <xliff> that does not name the language of its targets

    def render(
        self, translations: Iterable[Translation]
    ) -> tuple[str, list[tuple[int, MarkupToken]]]:
        """The document with its translations; and the tags without a place, with their lines."""
        lost, parts, at = list[tuple[int, MarkupToken]](), list[str](), 0
        pairs = zip(self.texts, translations, strict=True)
        # Attributes first: their tags may be in texts.
        for text, translation in sorted(pairs, key=lambda p: (p[0].attribute is None, p[0].first)):
            links = "".join(translation.alignments[:1])
            written, without_place = text.tagged.render(translation.texts[0], links)
            lost += [(text.line, token) for token in without_place]
            token = self.tokens[text.first]
            if text.attribute is not None:
                start, end = [*ATTRIBUTE.finditer(token.raw)][text.attribute].span(2)
                mark = "'" if token.raw[start] == "'" else '"'
                value = written.replace(mark, html.escape(mark)).join([mark] * 2)
                token.raw = token.raw[:start] + value + token.raw[end:]
                continue
            parts += [token.raw for token in self.tokens[at : text.first]]
            parts += [text.before, written, text.after]
            at = text.last
        return "".join([*parts, *(token.raw for token in self.tokens[at:])]), lost


def merged(tokens: Iterable[MarkupToken]) -> list[MarkupToken]:
    """Join texts that follow each other."""
    joined: list[MarkupToken] = []
    for token in tokens:
        if joined and token.kind == joined[-1].kind == "text":
            joined[-1].raw += token.raw
        elif token.raw or token.kind == "end":
            joined.append(token)
    return joined
