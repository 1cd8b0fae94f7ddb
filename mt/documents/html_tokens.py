"""HTML cut into texts, tags and breaks. An element that is not translated is one token."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

from mt.documents.inline_tags import MarkupToken, TokenKind
from mt.errors import DataError

# Elements inside a line of text. All others end it.
INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|input|ins|kbd|label|mark|"
    "math|nobr|output|picture|q|rb|rp|rt|ruby|s|samp|script|small|source|span|strike|strong|style|"
    "sub|sup|svg|time|tt|u|var|wbr"
)
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"}
# Elements whose end tags may be left out, and those whose start ends them; a block ends a p.
_ROWS = ("tr", "tbody", "tfoot")
_CELLS = ("td", "th", *_ROWS)
OPTIONAL: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("dt", "dd"), ("dt", "dd")),
    **dict.fromkeys(("td", "th"), _CELLS),
    **{"tr": _ROWS, "li": ("li",), "option": ("option", "optgroup"), "p": ()},
}
NESTING = {"dl", "menu", "ol", "table", "ul"}  # hold such elements of their own
CODE = {"script", "style", "svg", "math", "textarea"}  # no words
QUOTED = {"code", "kbd", "samp", "var"}  # words that stay, in the middle of others


class _HtmlParser(HTMLParser):
    """Notes where each part of an HTML text begins, and what it is."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[tuple[int, TokenKind, str, dict[str, str | None]]] = []
        self._lines = [0, *(match.end() for match in re.finditer("\n", content))]
        # A parser of its own opinion on `&#` takes all that follows for text. Places are the same.
        self.feed(content.replace("&", "+"))
        self.close()

    def _add(self, kind: TokenKind, name: str = "", attributes: Iterable[Any] = ()) -> None:
        line, column = self.getpos()
        self.parts.append((self._lines[line - 1] + column, kind, name, dict(attributes)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add("point" if tag in VOID else "start", tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add("point", tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self._add("end", tag)

    def handle_data(self, data: str) -> None:
        self._add("text")

    def handle_comment(self, data: str) -> None:
        self._add("point")

    def handle_decl(self, decl: str) -> None:
        self._add("break")

    def handle_pi(self, data: str) -> None:
        self._add("break")

    def unknown_decl(self, data: str) -> None:
        self._add("break")


@dataclass
class _Skipped:
    """An element that is not translated, so far."""

    token: MarkupToken
    inside: list[str]  # names of open elements: its own, and those in it

    def ends_before(self, kind: TokenKind, tag: str) -> bool:
        """Whether the element, whose end tag is left out, has ended before a tag."""
        following = OPTIONAL.get(self.token.name)
        if following is None or not tag or INLINE.fullmatch(tag) or tag in self.inside[1:]:
            return False
        if kind == "end":  # of the parent
            return tag not in {*self.inside, "p", *VOID}
        is_next = tag in following or self.token.name == "p"
        return kind == "start" and is_next and not NESTING.intersection(self.inside)

    def add(self, kind: TokenKind, tag: str, raw: str) -> None:
        """Add a part of it."""
        self.token.raw += raw
        self.token.content += raw * (kind == "text")
        if kind == "start":
            self.inside.append(tag)
        elif kind == "end" and tag in self.inside:
            del self.inside[len(self.inside) - 1 - self.inside[::-1].index(tag) :]


def html_tokens(content: str, name: str) -> Iterator[MarkupToken]:
    """Cut HTML. An element that is not translated is one token."""
    try:
        parts = _HtmlParser(content).parts
    except AssertionError as error:  # of `<![` and something unknown
        raise DataError(f"{name}: cannot be read as HTML: {error}") from None
    starts = [start for start, *_ in parts]
    skipped: _Skipped | None = None
    n_pre = 0
    for (_, kind, tag, attributes), span in zip(
        parts, pairwise([*starts, len(content)]), strict=True
    ):
        raw = content[slice(*span)]
        if skipped is not None:
            has_ended = skipped.ends_before(kind, tag)
            if not has_ended:
                skipped.add(kind, tag, raw)
            if has_ended or not skipped.inside:
                yield _quoted(skipped.token)
                skipped = None
            if not has_ended:
                continue
        classes = (attributes.get("class") or "").split()
        is_fixed = attributes.get("translate") == "no" or "notranslate" in classes
        if kind == "start" and (is_fixed or tag in CODE | QUOTED):
            skipped = _Skipped(MarkupToken("point", raw, tag), [tag])
        elif tag == "pre":
            n_pre = max(0, n_pre + (kind == "start") - (kind == "end"))
            yield MarkupToken("break", raw, tag, attributes)
        elif kind == "text" and n_pre:  # each line is a text
            for text in re.split(r"([ \t]*\r?\n[ \t]*)", raw):
                yield MarkupToken("text" if text.strip() else "break", text)
        else:
            kind = "break" if tag and not INLINE.fullmatch(tag) else kind
            yield MarkupToken(kind, raw, tag, {} if is_fixed else attributes)
    if skipped is not None:
        yield _quoted(skipped.token)


def _quoted(token: MarkupToken) -> MarkupToken:
    """An element that is not translated: one with words is kept, between others."""
    if not INLINE.fullmatch(token.name):
        token.kind = "break"
    elif token.name not in CODE:
        token.keep_words()
    return token
