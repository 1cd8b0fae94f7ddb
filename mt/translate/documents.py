"""Documents: subtitles (SRT), XLIFF 1.2 and 2, and HTML. Their texts, and what is around them.

A parser says where the parts of a document begin; all but the translated texts is written as it was
read, byte for byte. That is why HTML and XLIFF are read with the parsers of the standard library,
which tell the places of what they find: lxml writes attributes and entities in its own way. An SRT
file has no more grammar than `TIMING`.
"""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, TypeAlias
from xml.parsers import expat

from mt.data.reading.compression import suffix_of
from mt.errors import DataError
from mt.translate.inline_tags import MarkupToken, TaggedText, TokenKind, has_words
from mt.translate.lines import Translation

Protect: TypeAlias = Callable[[list[MarkupToken]], list[MarkupToken]]

# Ending of a file name -> format.
SUFFIXES = {
    ".srt": "srt",
    **dict.fromkeys((".xlf", ".xliff", ".sdlxliff", ".mxliff", ".mqxliff"), "xliff"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
}

# What an XML or HTML file says of its encoding.
ENCODING = re.compile(r"""(?:encoding|charset)\s*=\s*["']?([\w.:-]+)""")
TIMING = re.compile(r"\s*(?:\d+:)?\d+:\d+[,.]\d+\s*-->")
SUBTITLE_TAG = re.compile(r"(</?[A-Za-z][^<>]*>|\{\\[^{}]*\})")
# The speaker of a line of a dialogue changes at a dash.
DASH = re.compile(r"((?:<[^<>]*>|\{\\[^{}]*\})*)([-–—‐]\s*)")

# HTML: elements inside a line of text. All others end it.
INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|input|ins|kbd|label|mark|"
    "math|q|s|samp|script|small|span|strike|strong|style|sub|sup|svg|time|tt|u|var|wbr"
)
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "wbr"}
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
ATTRIBUTE = re.compile(r"""([^\s"'<>/=]+)\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""")

# XLIFF: elements whose content is code, and those that are a single tag; which text they belong to.
XLIFF_CODE = dict.fromkeys(("ph", "it", "x", "cp"), "") | {
    **dict.fromkeys(("bpt", "bx", "sc", "sm"), "after"),
    **dict.fromkeys(("ept", "ex", "ec", "em"), "before"),
}
# States of a target whose text may be replaced; without a state it may not.
OPEN_STATES = {"new", "needs-translation", "initial"}


@dataclass
class DocumentText:
    """A text, and the tokens [first, last) in whose place its translation stands."""

    tagged: TaggedText
    first: int
    last: int
    line: int  # of the document, from 1
    around: tuple[str, str] = ("", "")  # what is written before and after the translation
    attribute: str = ""  # as written, in the token `first`; "": the text is no attribute


@dataclass
class Document:
    """The parts of a document, and its texts in their order."""

    tokens: list[MarkupToken]
    texts: list[DocumentText] = field(default_factory=list)
    n_done: int = 0  # texts that have a translation already

    @property
    def needs_alignment(self) -> bool:
        """Whether there are tags whose place depends on how words have moved."""
        return any(text.tagged.needs_alignment for text in self.texts)

    def render(self, translations: Iterable[Translation], count: Callable[[int, Any], None]) -> str:
        """The document with its translations. `count` gets the line and the tags of each text."""
        parts, at = [], 0
        found = list(zip(self.texts, translations, strict=True))
        # Attributes first: their tags may be in texts.
        for text, translation in sorted(
            found, key=lambda one: (not one[0].attribute, one[0].first)
        ):
            rendered = text.tagged.render(translation.texts[0], "".join(translation.alignments[:1]))
            count(text.line, rendered)
            token = self.tokens[text.first]
            if text.attribute:
                written = text.attribute.split("=", 1)[0]
                value = rendered.text.replace('"', "&quot;")
                same = rf"(?<![^\s\"'/]){re.escape(text.attribute)}"  # not of data-title, say
                before, after = re.split(same, token.raw, maxsplit=1)
                token.raw = f'{before}{written}="{value}"{after}'
                continue
            parts += [token.raw for token in self.tokens[at : text.first]]
            parts += [text.around[0], rendered.text, text.around[1]]
            at = text.last
        return "".join([*parts, *(token.raw for token in self.tokens[at:])])


def format_of(name: str) -> str:
    """The format that the name of an input tells; lines of text if none."""
    return SUFFIXES.get(suffix_of(Path(name)), "text")


def read_document(form: str, content: str, name: str, protect: Protect = list) -> Document:
    """Find the texts of a document. Raises DataError, which begins with `name`.

    `protect` gets the tokens of a text and returns them, some of them kept.
    """
    declared = ENCODING.search(content, 0, 1024) if form != "srt" else None
    if declared and declared[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise DataError(
            f"{name}: says that it is {declared[1]}, but must be UTF-8, as the translation is; "
            f"convert it and what it says"
        )
    if form == "xliff":
        return _XliffReader(content, name, protect).document
    tokens = _merged(_srt_tokens(content) if form == "srt" else _html_tokens(content, name))
    if form == "srt" and not TIMING.search(content):
        raise DataError(
            f"{name}: has no subtitle, a line such as 00:00:01,000 --> 00:00:02,500 is required; "
            "give --format text if it is no SRT file"
        )
    document = Document(tokens)
    line, first = 1, 0
    for is_break, group in groupby(tokens, lambda token: token.kind == "break"):
        run = list(group)
        raw = "".join(token.raw for token in run)
        if form == "html":
            document.texts += _attributes(run, first, line, protect)
        if not is_break and has_words(run):
            start = line + raw[: len(raw) - len(raw.lstrip())].count("\n")
            tagged = TaggedText(protect(run), form == "html")
            document.texts.append(DocumentText(tagged, first, first + len(run), start))
        line += raw.count("\n")
        first += len(run)
    return document


def _merged(tokens: Iterable[MarkupToken]) -> list[MarkupToken]:
    """Join texts that follow each other."""
    merged: list[MarkupToken] = []
    for token in tokens:
        if merged and token.kind == merged[-1].kind == "text":
            merged[-1].raw += token.raw
        elif token.raw or token.kind == "end":
            merged.append(token)
    return merged


# --- subtitles ----------------------------------------------------------------------------------


def _srt_tokens(content: str) -> Iterator[MarkupToken]:
    """Cut subtitles. The lines of one are a text; a dash at the start of a line begins another."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", content)
    in_text = False
    for line, following, after in zip(lines, [*lines, ""][1:], [*lines, "", ""][2:], strict=True):
        is_number = line.strip().isdecimal() and TIMING.match(following)
        in_text = bool(TIMING.match(line)) or (in_text and not is_number)
        if not in_text or TIMING.match(line) or not line.strip():
            yield MarkupToken("break", line)
            continue
        text = line.rstrip()
        dash = DASH.match(text)
        if dash:
            text = text[dash.end() :]
            yield from _subtitle(dash[1])
            yield MarkupToken("break", dash[2])
        yield from _subtitle(text)
        is_next = TIMING.match(following) or (following.strip().isdecimal() and TIMING.match(after))
        goes_on = following.strip() and not is_next and not DASH.match(following)
        yield MarkupToken("newline" if goes_on else "break", line[len(line.rstrip()) :])


def _subtitle(text: str) -> Iterator[MarkupToken]:
    for number, part in enumerate(SUBTITLE_TAG.split(text)):
        kind: TokenKind = "text"
        if number % 2:
            kind = "point" if part[0] == "{" else "end" if part[1] == "/" else "start"
        yield MarkupToken(kind, part, "".join(re.findall(r"^</?(\w+)", part)).lower())


# --- HTML ---------------------------------------------------------------------------------------


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


def _html_tokens(content: str, name: str) -> Iterator[MarkupToken]:
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
    token.content = " ".join(html.unescape(token.content).split())
    if not INLINE.fullmatch(token.name):
        token.kind = "break"
    elif token.content and token.name not in CODE:
        token.kind = "kept"
    return token


def _attributes(
    tokens: Sequence[MarkupToken], first: int, line: int, protect: Protect
) -> Iterator[DocumentText]:
    """The attributes of tags that are translated."""
    for number, token in enumerate(tokens, first):
        if token.attributes.keys() & {"alt", "title"}:
            for match in ATTRIBUTE.finditer(token.raw):
                is_quoted = match[2][0] in "\"'"
                text = MarkupToken("text", match[2][1:-1] if is_quoted else match[2])
                if match[1].lower() in ("alt", "title") and has_words([text]):
                    tagged = TaggedText(protect([text]))
                    yield DocumentText(tagged, number, number + 1, line, attribute=match[0])
        line += token.raw.count("\n")


# --- XLIFF --------------------------------------------------------------------------------------


@dataclass
class _Element:
    """An open element of an XLIFF file, and what was found in it."""

    name: str
    attributes: dict[str, str]
    first: int  # its token
    line: int
    is_fixed: bool  # not to be translated
    source: tuple[int, int] | None = None  # tokens between its tags
    source_line: int = 0
    after_source: int = 0  # the token before which a target can be written
    target: tuple[int, int] | None = None  # tokens, its tags included
    state: str = ""


class _XliffReader:
    """Reads the units of XLIFF 1.2 and the segments of XLIFF 2."""

    def __init__(self, content: str, name: str, protect: Protect) -> None:
        self._protect = protect
        self._content = content.encode()
        self._starts: list[int] = []
        self.tokens: list[MarkupToken] = []
        self._open: list[_Element] = []
        self._units: list[_Element] = []
        self._parser = parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = lambda _: self._add("text")
        # Also keeps expat from replacing entities of the document's own.
        parser.DefaultHandler = lambda _: self._add("point")
        try:
            parser.Parse(content, True)
        except expat.ExpatError as error:
            place = f"{name}, line {error.lineno:,}"
            raise DataError(
                f"{place}: is not well-formed XML ({expat.ErrorString(error.code)}); correct it, "
                "or give --format text if it is no XLIFF file"
            ) from None
        for token, span in zip(
            self.tokens, pairwise([0, *self._starts[1:], len(self._content)]), strict=True
        ):
            token.raw = self._content[slice(*span)].decode()
        if self.tokens and not any(unit.source for unit in self._units):
            raise DataError(
                f"{name}: has no <source> in a <trans-unit> (XLIFF 1.2) or <segment> (XLIFF 2)"
            )
        self.document = Document(self.tokens)
        for unit in self._units:
            self._read(unit)

    def _add(self, kind: TokenKind, name: str = "", attributes: Any = None) -> None:
        if kind == "text" and self.tokens and self.tokens[-1].kind == "text":
            return  # expat gives a text in parts
        self._starts.append(self._parser.CurrentByteIndex)
        self.tokens.append(MarkupToken(kind, "", name, attributes or {}))

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        parent = self._open[-1] if self._open else None
        is_fixed = attributes.get("translate", "yes") == "no" or (
            parent is not None and parent.is_fixed and attributes.get("translate") != "yes"
        )
        local = name.rpartition(":")[2]
        line = self._parser.CurrentLineNumber
        self._open.append(_Element(local, attributes, len(self.tokens), line, is_fixed))
        self._add("start", local, attributes)

    def _end(self, name: str) -> None:
        element = self._open.pop()
        self._add("end", element.name)
        parent = self._open[-1] if self._open else None
        if element.name in ("trans-unit", "segment"):
            self._units.append(element)
        elif parent is not None and parent.name in ("trans-unit", "segment"):
            last = len(self.tokens)
            if element.name == "source":
                parent.source = (element.first + 1, last - 1)
                parent.source_line = element.line
            if element.name in ("source", "seg-source"):
                parent.after_source = last
            if element.name == "target":
                parent.target = (element.first, last)
                parent.state = element.attributes.get("state", "")

    def _read(self, unit: _Element) -> None:
        """Add the text of a unit, unless it has a translation or is not to have one."""
        if unit.source is None or unit.is_fixed:
            return
        is_segment = unit.name == "segment"
        has_text = unit.target is not None and has_words(self.tokens[slice(*unit.target)])
        state = unit.attributes.get("state", "") if is_segment else unit.state
        if has_text and (unit.attributes.get("approved") == "yes" or state not in OPEN_STATES):
            self.document.n_done += 1
            return
        source = _xliff_tokens(self.tokens[slice(*unit.source)])
        if not has_words(source):
            return
        opening = self.tokens[unit.source[0] - 1].raw
        prefix = re.match(r"<([\w.-]+:)?", opening)
        name = f"{prefix[1] or '' if prefix else ''}target"
        before = self.tokens[unit.source[0] - 2].raw
        indent = before if not before.strip() else ""
        first = last = unit.after_source
        start = f"<{name}>"
        if unit.target is not None:
            first, last = unit.target
            indent, start = "", self.tokens[first].raw.rstrip("/> \n") + ">"
        if is_segment:
            segment = self.tokens[unit.first]
            segment.raw = _with_attribute(segment.raw, "state", "translated")
        else:
            start = _with_attribute(start, "state", "needs-review-translation")
            start = _with_attribute(start, "state-qualifier", "mt-suggestion")
        around = (f"{indent}{start}", f"</{name}>")
        tagged = TaggedText(self._protect(source))
        text = DocumentText(tagged, first, last, unit.source_line, around)
        self.document.texts.append(text)


def _xliff_tokens(tokens: Sequence[MarkupToken]) -> list[MarkupToken]:
    """The content of a source, copied: code elements become single tags, CDATA becomes text."""
    found: list[MarkupToken] = []
    code: MarkupToken | None = None
    depth = 0
    in_cdata = False
    for token in tokens:
        if code is not None:
            code.raw += token.raw
            code.content += token.raw * (token.kind == "text")
            depth += (token.kind == "start") - (token.kind == "end")
            if depth == 0:
                code.content = " ".join(html.unescape(code.content).split())
                code.kind = "kept" if code.content and code.name not in XLIFF_CODE else "point"
                code = None
        elif token.raw in ("<![CDATA[", "]]>"):
            in_cdata = token.raw == "<![CDATA["
        elif token.kind == "start" and (
            token.name in XLIFF_CODE or token.attributes.get("translate") == "no"
            or token.attributes.get("mtype") == "protected"
        ):  # fmt: skip
            code = dataclasses.replace(token, kind="point")
            code.sticks = XLIFF_CODE.get(token.name, "")  # type: ignore[assignment]
            depth = 1
            found.append(code)
        else:
            raw = token.raw
            if in_cdata:
                raw = raw.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            found.append(dataclasses.replace(token, raw=raw))
    return _merged(found)


def _with_attribute(tag: str, name: str, value: str) -> str:
    """A start tag with an attribute, in place of an earlier value."""
    changed, n_changed = re.subn(rf"""(\s{name}\s*=\s*)("[^"]*"|'[^']*')""", rf'\1"{value}"', tag)
    if n_changed:
        return changed
    return re.sub(r"\s*(/?>)$", rf' {name}="{value}"\1', tag)
