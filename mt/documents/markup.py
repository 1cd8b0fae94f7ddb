"""HTML and subtitles (SRT) cut into texts, tags and breaks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mt.documents.inline_tags import MarkupToken, TokenKind
from mt.errors import DataError

# Elements inside a line of text. All others end it.
INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|input|ins|kbd|label|mark|"
    "math|nobr|output|picture|q|rb|rp|rt|ruby|s|samp|script|small|source|span|strike|strong|style|"
    "sub|sup|svg|time|tt|u|var|wbr"
)
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"}
CODE = {"script", "style", "svg", "math", "textarea"}  # no words
QUOTED = {"code", "kbd", "samp", "var"}  # words that stay, in the middle of others
_LIST_MARK = r"(?:[-–—•*·]|\d{1,2}[.)])[ \t]+"
LINE_START = re.compile(rf"(\A{_LIST_MARK}|[ \t]*\r?\n\s*(?:{_LIST_MARK})?)")
ATTRIBUTE = re.compile(r"""([^\s"'<>/=]+)\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""")
_ATTRIBUTES = r"""(?:=\s*"[^"]*"|=\s*'[^']*'|=(?!\s*["'])|[^>=])*"""
# A comment as the standard ends it, what is no element, an element whose content is no markup, a
# tag, an open tag.
_MARKUP = re.compile(
    r"<!--(?:-?>|.*?(?:--!?>|\Z))|(?P<break><!doctype[^>]*>|<\?[^>]*>|<!\[cdata\[.*?\]\]>|<!\[[^>]*>)"
    r"|(?:<!|</(?![a-z]))[^>]*>"
    rf"|(?P<start><(?P<name>script|style|textarea|title)(?=[\s/>]){_ATTRIBUTES}>)"
    r"(?P<content>.*?)(?=</(?P=name)[\s/>]|\Z)"
    rf"|(?P<tag></?[a-z]{_ATTRIBUTES}(?:>|\Z))|(?P<cut></?[a-z](?P<open>[^>=]*=\s*[\"'])?)",
    re.DOTALL | re.IGNORECASE,
)


def _parts(content: str, name: str) -> Iterator[MarkupToken]:
    """Texts, tags and breaks of HTML as they are written; raises DataError."""
    at = 0
    for match in _MARKUP.finditer(content):
        tag = match["start"] or match["tag"] or ""
        if match["open"] is not None:
            line = content.count("\n", 0, match.start()) + 1
            raise DataError(
                f"{name}, line {line:,}: a tag has a quotation mark that never closes, found "
                f"{content[match.start() : match.start() + 40]!r}; close it"
            )
        if match["cut"] or (tag and not tag.endswith(">")):
            continue  # a tag that the end of the document cuts off is text
        yield MarkupToken("text", content[at : match.start()])
        at = match.end()
        if tag:
            yield tag_token(tag)
            yield MarkupToken("text", match["content"] or "")
        else:
            yield MarkupToken("break" if match["break"] else "point", match[0])
    yield MarkupToken("text", content[at:])


def tag_token(raw: str) -> MarkupToken:
    """A tag: the start or end of a pair, or a single one."""
    name = re.split(r"[\s/>]", raw.removeprefix("<").removeprefix("/"), maxsplit=1)[0].lower()
    if raw.startswith("</"):
        return MarkupToken("end", raw, name)
    pairs = ATTRIBUTE.findall(raw)
    attributes = {key.lower(): value[1:-1] if value[0] in "\"'" else value for key, value in pairs}
    is_single = name in VOID or raw.endswith("/>")
    return MarkupToken("point" if is_single else "start", raw, name, attributes)


def html_tokens(content: str, name: str) -> Iterator[MarkupToken]:
    """Cut HTML, an element that is not translated as one token. DataError begins with `name`."""
    skipped = MarkupToken("point", "")  # an element that is not translated, so far
    inside: list[str] = []  # names of open elements: its own, and those in it
    n_pre = first = end = 0
    for token in _parts(content, name):
        kind, raw, tag, attributes = token.kind, token.raw, token.name, token.attributes
        start, end = end, end + len(raw)
        if inside:
            skipped.raw += raw
            skipped.content += raw * (kind == "text")
            if kind == "start":
                inside.append(tag)
            elif kind == "end" and tag in inside:
                del inside[len(inside) - 1 - inside[::-1].index(tag) :]
            if not inside:
                yield _quoted(skipped)
            continue
        classes = (attributes.get("class") or "").split()
        is_fixed = attributes.get("translate") == "no" or "notranslate" in classes
        if kind == "start" and (is_fixed or tag in CODE | QUOTED):
            skipped, inside, first = MarkupToken("point", raw, tag), [tag], start
        elif tag == "pre":
            n_pre = max(0, n_pre + (kind == "start") - (kind == "end"))
            yield MarkupToken("break", raw, tag, attributes)
        elif kind == "text" and n_pre:  # each line is a text
            yield from lines_of(raw)
        else:
            kind_of_tag: TokenKind = "break" if tag and not INLINE.fullmatch(tag) else kind
            yield MarkupToken(kind_of_tag, raw, tag, {} if is_fixed else attributes)
    if inside and skipped.name not in CODE:
        line = content.count("\n", 0, first) + 1
        raise DataError(
            f"{name}, line {line:,}: an element that is not translated has no end tag, found "
            f"{content[first : first + 40]!r}; close it"
        )
    if inside:
        yield _quoted(skipped)


def lines_of(raw: str) -> Iterator[MarkupToken]:
    """The lines of a text, with breaks between them that hold the marks of lists."""
    for number, text in enumerate(LINE_START.split(raw)):
        yield MarkupToken("break" if number % 2 or not text.strip() else "text", text)


def _quoted(token: MarkupToken) -> MarkupToken:
    """An element that is not translated: one with words is kept, between others."""
    if not INLINE.fullmatch(token.name):
        token.kind = "break"
    elif token.name not in CODE:
        token.keep_words()
    return token


# --- subtitles, whose format has no more grammar than `TIMING` ----------------------------------

TIMING = re.compile(r"[\s\ufeff]*\d+:[\d:.,;]+\s*-->")
SUBTITLE_TAG = re.compile(r"(</?[A-Za-z][^<>]*>|\{\\[^{}]*\})")
DASH = re.compile(r"((?:<[^<>]*>|\{\\[^{}]*\})*)([-–—‐]\s*)")  # before another speaker


def srt_tokens(content: str, name: str) -> Iterator[MarkupToken]:
    """Cut subtitles, the lines of each being a text; a dash before a line begins another."""
    if "\r" in content and "\n" not in content:
        raise DataError(f"{name}: its lines end in carriage returns; tr '\\r' '\\n' < FILE > NEW")
    if not TIMING.search(content):
        raise DataError(f"{name}: has no subtitle such as 0:01,0 --> 0:02,5; or give --format text")
    lines, in_text = re.findall(r"[^\n]*\n|[^\n]+", content), False
    for line, following, after in zip(lines, [*lines, ""][1:], [*lines, "", ""][2:], strict=True):
        is_number = line.strip().isdecimal() and TIMING.match(following)
        in_text = bool(TIMING.match(line)) or (in_text and not is_number)
        if not in_text or TIMING.match(line) or not line.strip():
            yield MarkupToken("break", line)
            continue
        text = line.rstrip()
        if dash := DASH.match(text):
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
        name = "".join(re.findall(r"^(?:</?|\{\\)([^\W\d_]+)", part)).lower()
        if number % 2 and part[0] == "{":  # {\an8} stands alone, {\i1} is ended by {\i0}
            pair = re.fullmatch(r"\{\\[bius]([01])\}", part)
            kind = "point" if pair is None else "start" if pair[1] == "1" else "end"
        elif number % 2:
            kind = "end" if part[1] == "/" else "start"
        yield MarkupToken(kind, part, name)
