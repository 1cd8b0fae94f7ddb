"""XLIFF 1.2 and 2: the texts of its units and segments."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from typing import Any
from xml.parsers import expat

from mt.documents.document import Document, DocumentText, Protect, merged
from mt.documents.inline_tags import MarkupToken, TaggedText, TokenKind, has_words
from mt.documents.markup import lines_of
from mt.errors import DataError

# Elements whose content is code, and those that are a single tag. What each begins or ends.
XLIFF_CODE: dict[str, TokenKind] = {
    **dict.fromkeys(("ph", "it", "x", "cp"), "point"),
    **dict.fromkeys(("bpt", "bx", "sc", "sm"), "start"),
    **dict.fromkeys(("ept", "ex", "ec", "em"), "end"),
}
LANGUAGE_ATTRIBUTES = ("source-language", "srcLang", "target-language", "trgLang")
# States of a target whose text may be replaced; without a state it may not.
OPEN_STATES = {"new", "needs-translation", "initial"}


@dataclass
class _Element:
    """An open element of an XLIFF file, and what was found in it."""

    name: str
    attributes: dict[str, str]
    first: int  # its token
    line: int
    is_fixed: bool  # not to be translated
    has_lines: bool  # its white space counts
    source: tuple[int, int] | None = None  # tokens between its tags
    source_line: int = 0
    after_source: int = 0  # the token before which a target can be written
    target: tuple[int, int] | None = None  # tokens, its tags included
    state: str = ""
    cut_source: tuple[int, int] = (0, 0)  # tokens between the tags of `seg-source`
    segments: list[_Element] = field(default_factory=list)  # of `seg-source`
    last: int = 0  # the token after it

    @property
    def place(self) -> tuple[int, int]:
        """The tokens of its target, or where that is to be."""
        return self.target or (self.after_source, self.after_source)


def _is_segment(element: _Element) -> bool:
    return element.name == "mrk" and element.attributes.get("mtype") == "seg"


class XliffReader:
    """Reads the units of XLIFF 1.2 and the segments of XLIFF 2."""

    def __init__(self, content: str, name: str, protect: Protect) -> None:
        self._protect = protect
        self._content = content.encode()
        self._starts: list[int] = []
        self.tokens: list[MarkupToken] = []
        self.document = Document(self.tokens)
        self._open = [_Element("", {}, 0, 0, is_fixed=False, has_lines=False)]  # and those in it
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
            raise DataError(
                f"{name}, line {error.lineno:,}: is not well-formed XML "
                f"({expat.ErrorString(error.code)}); correct it, or give --format text"
            ) from None
        spans = pairwise([0, *self._starts[1:], len(self._content)])
        for token, span in zip(self.tokens, spans, strict=True):
            token.raw = self._content[slice(*span)].decode()
        if self.tokens and not any(unit.source for unit in self._units):
            raise DataError(f"{name}: has no <source> in a <trans-unit> or <segment>")
        for unit in self._units:
            self._read(unit)

    def _add(self, kind: TokenKind, name: str = "", attributes: Any = None) -> None:
        if kind == "text" and self.tokens and self.tokens[-1].kind == "text":
            return  # expat gives a text in parts
        self._starts.append(self._parser.CurrentByteIndex)
        self.tokens.append(MarkupToken(kind, "", name, attributes or {}))

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        parent = self._open[-1]
        is_fixed = {"no": True, "yes": False}.get(attributes.get("translate", ""), parent.is_fixed)
        local, line = name.rpartition(":")[2], self._parser.CurrentLineNumber
        has_lines = (attributes.get("xml:space") or "preserve" * parent.has_lines) == "preserve"
        self._open.append(_Element(local, attributes, len(self.tokens), line, is_fixed, has_lines))
        if local in ("file", "xliff"):  # of XLIFF 1.2, of XLIFF 2
            found = (("source" if key[0] == "s" else "target", key) for key in LANGUAGE_ATTRIBUTES)
            named = [(side, attributes[key], line) for side, key in found if key in attributes]
            self.document.languages += named
        self._add("start", local, attributes)
        if "srcLang" in attributes and "trgLang" not in attributes:  # XLIFF 2
            self.document.unnamed = self.tokens[-1]

    def _end(self, name: str) -> None:
        element = self._open.pop()
        self._add("end", element.name)
        element.last = last = len(self.tokens)
        parent = self._open[-1]
        above = {code.name: code for code in self._open}
        is_outermost = _is_segment(element) and not any(map(_is_segment, self._open))
        is_of_unit = {"trans-unit", "seg-source"} <= above.keys() and "alt-trans" not in above
        if is_outermost and is_of_unit:
            above["trans-unit"].segments.append(element)
        if element.name in ("trans-unit", "segment"):
            self._units.append(element)
        elif parent.name in ("trans-unit", "segment"):
            match element.name:
                case "source":
                    parent.source = (element.first + 1, last - 1)
                    parent.has_lines = element.has_lines
                    parent.source_line, parent.after_source = element.line, last
                case "seg-source":
                    parent.cut_source = (element.first + 1, last - 1)
                    parent.after_source = last
                case "target":
                    parent.target = (element.first, last)
                    parent.state = element.attributes.get("state", "")

    def _read(self, unit: _Element) -> None:
        """Add the text of a unit, unless it has a translation or is not to have one."""
        if unit.source is None or unit.is_fixed:
            return
        is_segment = unit.name == "segment"
        state = unit.attributes.get("state", "") if is_segment else unit.state
        is_open = unit.attributes.get("approved") != "yes" and state in OPEN_STATES
        first, last = unit.place
        there = [token.raw for token in self.tokens[first:last] if token.kind == "text"]
        if not is_open and any(html.unescape(text).strip() for text in there):
            self.document.n_done += 1
            return
        prefix = re.match(r"<([\w.-]+:)?", self.tokens[unit.source[0] - 1].raw)
        name = f"{prefix[1] or '' if prefix else ''}target"
        before = self.tokens[unit.source[0] - 2].raw
        start = f"{before if not before.strip() else ''}<{name}>"
        if unit.target is not None:  # maybe an element without an end tag of its own
            start = self.tokens[first].raw.rstrip("/> \n") + ">"
        if not is_segment:
            start = with_attribute(start, "state", "needs-review-translation")
            start = with_attribute(start, "state-qualifier", "mt-suggestion")
        texts = self._texts_of(unit)
        if not texts:
            return
        if is_segment:
            segment = self.tokens[unit.first]
            segment.raw = with_attribute(segment.raw, "state", "translated")
            segment.raw = re.sub(r"""\ssubState\s*=\s*("[^"]*"|'[^']*')""", "", segment.raw)
        texts[0].before = start + texts[0].before
        texts[-1].after += f"</{name}>"
        self.document.texts += texts

    def _texts_of(self, unit: _Element) -> list[DocumentText]:
        """The texts of a unit, to be written one after the other in the place of a target."""
        if not unit.segments:
            assert unit.source is not None
            return self._text(unit, *unit.source, unit.source_line)
        before, texts = "", list[DocumentText]()
        at, end = unit.cut_source
        for segment in unit.segments:
            before += self._raw(at, segment.first + 1)
            at = segment.last - 1
            found = self._text(unit, segment.first + 1, at, segment.line)
            if segment.is_fixed or not found:
                before += self._raw(segment.first + 1, at)
                continue
            found[0].before, before = before + found[0].before, ""
            texts += found
        if texts:
            texts[-1].after += before + self._raw(at, end)
        return texts

    def _text(self, unit: _Element, start: int, end: int, line: int) -> list[DocumentText]:
        """The text between two tokens, or its lines where white space counts, if it has words."""
        before, texts = "", list[DocumentText]()
        source = _xliff_tokens(self.tokens[start:end])
        if unit.has_lines:
            cut = (lines_of(part.raw) if part.kind == "text" else [part] for part in source)
            source = [*chain.from_iterable(cut)]
        for is_break, group in groupby(source, lambda token: token.kind == "break"):
            part = list(group)
            raw = "".join(token.raw for token in part)
            if is_break or not has_words(part):
                before += raw
            else:
                tagged = TaggedText(self._protect(part))
                texts.append(DocumentText(tagged, *unit.place, line, before))
                before = ""
            line += raw.count("\n")
        if texts:
            texts[-1].after = before
        return texts

    def _raw(self, first: int, last: int) -> str:
        return "".join(token.raw for token in self.tokens[first:last])


def _xliff_tokens(tokens: Sequence[MarkupToken]) -> list[MarkupToken]:
    """The content of a source, copied: code elements become single tags, CDATA becomes text."""
    written: list[MarkupToken] = []
    code: MarkupToken | None = None
    depth, in_cdata = 0, False
    for token in tokens:
        if code is not None:
            code.raw += token.raw
            code.content += token.raw * (token.kind == "text")
            depth += (token.kind == "start") - (token.kind == "end")
            if depth == 0:
                if code.name not in XLIFF_CODE:
                    code.keep_words()
                else:
                    code.kind = XLIFF_CODE[code.name]
                    ids = (code.attributes.get(key) for key in ("startRef", "rid", "id"))
                    code.name = f"{code.name[1:]} {next(filter(None, ids), '')}"  # as its partner's
                code = None
        elif token.raw in ("<![CDATA[", "]]>"):
            in_cdata = token.raw == "<![CDATA["
        elif token.kind == "start" and (
            token.name in XLIFF_CODE or token.attributes.get("translate") == "no"
            or token.attributes.get("mtype") == "protected"
        ):  # fmt: skip
            code, depth = dataclasses.replace(token, kind="point"), 1
            written.append(code)
        else:
            raw = html.escape(token.raw, quote=False) if in_cdata else token.raw
            written.append(dataclasses.replace(token, raw=raw))
    return merged(written)


def with_attribute(tag: str, name: str, value: str) -> str:
    """A start tag with an attribute, in place of an earlier value."""
    changed, n_changed = re.subn(rf"""(\s{name}\s*=\s*)("[^"]*"|'[^']*')""", rf'\1"{value}"', tag)
    return changed if n_changed else re.sub(r"\s*(/?>)$", rf' {name}="{value}"\1', tag)
