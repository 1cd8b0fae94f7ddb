"""Inline tags: taken out of a text before it is translated, put back by the word alignment.

A pair of tags goes around the words of the translation that come from the words between them, and a
single tag beside the translation of its neighbour, as in the translators of browsers. A tag inside
a pair stays inside it. One that finds no place stands at the end of the pair or text that it is in.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import regex

from mt.data.reading.words import composed, has_letter, is_unspaced

# `point`: a single tag; `newline`: a line break of a subtitle; `kept`: stays as it is written, and
# the model sees its `content`; `break`: no part of any text.
TokenKind = Literal["text", "start", "end", "point", "newline", "kept", "break"]
SPACES, WHITE = re.compile(r"[ \t\r\n\f]+"), (" ", "\n")
ENTITY = re.compile(r"&#?\w+;")
NO_SPACE = re.compile(r"(?<=[^\s(\[{„“«>])\x00|(?<=\S)\x01(?=\w)")  # beside a hidden text
WORD = re.compile(r"\w+(?:['’-]\w+)*")  # `Strg+C` is two, as is `Ctrl+C`
CORE = re.compile(r"\w(?:.*\w)?", re.DOTALL)  # a word without the punctuation around it
NOTE = regex.compile(r"[*†‡§¶#\p{S}\p{M}\p{C}]+|[\[(]?[\d,;\s–-]+[\])]")  # and symbols
BLANK_LINE = re.compile(r"\A\s*\n|[ \t]*\r?\n\s*?(?=\r?\n)|\s*\n\s*\Z")
DEEPEST = 50  # pairs inside each other; deeper ones are placed as single tags


@dataclass
class MarkupToken:
    """A part of a document as it is written; all parts, joined, are the document."""

    kind: TokenKind
    raw: str
    name: str = ""
    attributes: Mapping[str, str | None] = field(default_factory=dict)
    content: str = ""  # of a `kept` one
    # Whether the model sees a space before the token or after it that is no text outside of it.
    space_before: bool = False
    space_after: bool = False
    term: str = ""  # of a glossary, as the source has it; `raw` is its translation
    sticks: Literal["", "before", "after"] = ""  # to the text before it, or after

    def keep_words(self) -> None:
        """Of an element that is not translated: `kept` if it has words."""
        text = html.unescape(self.content)
        self.content = " ".join(text.split())
        if self.content:
            self.kind = "kept"
            self.space_before, self.space_after = text[0].isspace(), text[-1].isspace()


@dataclass
class InlineTag:
    """A tag, or a pair of them, with all that is between. `start` and `end` are in the source."""

    opening: MarkupToken
    start: int
    end: int
    closing: MarkupToken | None = None  # of a pair
    inner: list[InlineTag] = field(default_factory=list)
    place: tuple[int, int] = (0, 0)  # in the translation
    is_lost: bool = False  # has no place: stands at the end, but a line break nowhere


Span: TypeAlias = tuple[int, int]


class _AlignedPart(NamedTuple):
    start: int  # in the translation
    end: int
    src_start: int  # of the part of the source that it comes from
    src_end: int


class TaggedText:
    """A text without its tags, for the model, and what is needed to put them back."""

    def __init__(self, tokens: Sequence[MarkupToken], escapes: bool = True) -> None:
        """`escapes`: the text has entities. White space that it would have twice joins a tag."""
        self.escapes = escapes
        partners = partners_of(tokens)
        for start, end in partners.items():
            _keep_without_letters(tokens[start:end])
        # Entities of characters that cannot stand for themselves, or did not in these texts.
        texts = "".join(token.raw for token in tokens if token.kind == "text")
        spelled = {"&": "&amp;", "<": "&lt;"} | ({} if ">" in texts else {">": "&gt;"})
        spelled |= {html.unescape(entity): entity for entity in ENTITY.findall(texts)}
        usable = {char: raw for char, raw in spelled.items() if len(char) == 1 and char > " "}
        self._spelled = str.maketrans(usable if escapes else {})
        for token in tokens:
            if token.term:
                token.raw = token.raw.translate(self._spelled)
        self.parts = tokens
        self.has_words = has_words(tokens)
        letters = (c for token in tokens for c in token.term or token.raw * (token.kind == "text"))
        self._is_capital = next(filter(str.isalpha, letters), "").isupper()
        self.text = ""  # for the model; empty if all words are kept
        self.root = InlineTag(MarkupToken("point", ""), 0, 0, MarkupToken("point", ""))
        ends, opened = set(partners.values()), [self.root]
        self._tokens = [(self.root.opening, 0)]  # tags in order, and where they stand
        for number, token in enumerate(tokens if self.has_words else ()):
            if token.kind == "text":
                self._add_text(token.raw)
                continue
            self._tokens.append((token, len(self.text)))
            if number in ends:
                tag = opened.pop()
                tag.closing, tag.end = token, len(self.text)
                continue
            token.space_before = token.space_before and self._add_space()
            tag = InlineTag(token, len(self.text), len(self.text))
            opened[-1].inner.append(tag)
            if token.kind == "kept":
                self.text += SPACES.sub(" ", token.content)
                tag.end = len(self.text)
            if token.space_after or token.kind == "newline":
                self._add_space()
            if number in partners:
                opened.append(tag)
        self.root.end = len(self.text)
        self._strip_end()

    def _add_text(self, raw: str) -> None:
        # A line feed outside of documents, as in a JSON text, is the end of a segment.
        lines = [html.unescape(raw)] if self.escapes else raw.split("\n")
        text = "\n".join(SPACES.sub(" ", line) for line in lines)
        if text.startswith(WHITE) and (not self.text or self.text.endswith(WHITE)):
            text = text.lstrip(" \n")
            self._tokens[-1][0].raw += raw[: len(raw) - len(raw.lstrip(" \t\r\n\f"))]
        self.text += text

    def _add_space(self) -> bool:
        is_added = self.text != "" and not self.text.endswith(WHITE)
        self.text += " " * is_added
        return is_added

    def _strip_end(self) -> None:
        """Give white space at the end to the first tag after it."""
        if not self.text.endswith(WHITE):
            return
        raw = [token.raw for token in self.parts if token.kind == "text"][-1]
        following = (token for token, place in self._tokens[1:] if place == len(self.text))
        first = next(following, self.root.closing or self.root.opening)
        first.raw = raw[len(raw.rstrip(" \t\r\n\f")) :] + first.raw
        self.text = self.text.rstrip(" \n")
        for _, tag in _tags(self.root):
            tag.start, tag.end = min(tag.start, len(self.text)), min(tag.end, len(self.text))
        self.root.end = len(self.text)

    @property
    def needs_alignment(self) -> bool:
        """Whether the place of some tag depends on how words have moved."""
        return any(
            tag.opening.kind != "newline" and not _is_fixed(parent, tag)
            for parent, tag in _tags(self.root)
        )

    def render(self, translated: str, links: str = "") -> tuple[str, list[MarkupToken]]:
        """Put the tags into a translation, by its `word_links`; return also those left over."""
        if not self.has_words:
            texts = (part for part in self.parts if part.kind in ("kept", "text"))
            first = next((part for part in texts if part.raw.strip()), None)
            return "".join(self._raw(part, part is first) for part in self.parts), []
        placing = _Placing(self.text, translated, links)
        self.root.place = (0, len(translated))
        placing.place_inner(self.root)
        text, _ = self._written(self.root, 0, translated)
        text = NO_SPACE.sub(" " * (not is_unspaced(translated)), text).translate({0: None, 1: None})
        if any(part.kind == "newline" for part in self.parts):  # a blank line ends a subtitle
            text = BLANK_LINE.sub("", text)
        return text, placing.lost

    def _raw(self, token: MarkupToken, is_first: bool) -> str:
        if token.kind == "kept" and token.term and is_first and self._is_capital:
            return token.raw[:1].upper() + token.raw[1:]
        return token.raw

    def _written(self, tag: InlineTag, at: int, translated: str) -> tuple[str, int]:
        """Write a tag with all inside it; also return the place of what follows."""
        parts = [self._raw(tag.opening, tag.place[0] == 0)]
        if tag.opening.kind in ("kept", "newline"):  # in place of a text, or of a space
            at = max(at, tag.place[1])
        for inner in sorted(tag.inner, key=lambda unit: unit.place[0]):
            if inner.opening.kind == "newline" and inner.is_lost:
                continue
            start = max(at, inner.place[0])
            parts.append(translated[at:start].translate(self._spelled))
            text, at = self._written(inner, start, translated)
            if inner.opening.space_before:  # its own spaces are not written twice
                parts[-1] = parts[-1].removesuffix(" ")
            at += inner.opening.space_after and translated.startswith(" ", at)
            kept = None if _kept_alone(tag) else _kept_alone(inner)
            if inner.opening.kind == "kept" and inner.start == inner.end:  # not seen by the model
                text = f"\0{text.strip(' ')}\1"
            elif kept and inner.place[0] == len(translated) and any(parts):
                text = " " * (not kept.opening.space_before) + text
            parts.append(text)
        if tag.closing is not None:
            end = max(at, tag.place[1])
            parts += [translated[at:end].translate(self._spelled), tag.closing.raw]
            at = end
        return "".join(map(str.strip, parts) if tag.is_lost else parts), at


class _Placing:
    """Finds the places of tags in one translation."""

    def __init__(self, text: str, translated: str, links: str) -> None:
        self.text = text
        self.translated = translated
        self.units = _units(text, translated, links)
        self.lost: list[MarkupToken] = []

    def place_inner(self, parent: InlineTag) -> None:
        """Place the tags in a pair that has its place; none overlaps another."""
        low, high = parent.place
        taken = bytearray(len(self.translated))
        at = low  # of the last tag without a partner here: they stay in order
        # Line breaks come last: they stand where pairs leave room.
        for tag in sorted(parent.inner, key=lambda tag: tag.opening.kind == "newline"):
            if tag.opening.kind == "newline":
                place = self._line_break(tag, taken, low, high)
            elif _is_fixed(parent, tag):
                place = (low, high)
                if tag.start == tag.end:
                    place = (low, low) if tag.start == parent.start else (high, high)
            elif tag.start < tag.end and (kept := _kept_alone(tag)):
                place = self._kept(kept, taken, low, high)
            elif not self.text[tag.start : tag.end].strip():
                place = self._beside(tag, low, high)
            else:
                place = self._around(tag, taken, low, high)
            tag.is_lost = place is None
            if tag.is_lost and tag.opening.kind != "newline":
                self.lost.append(tag.opening)
            tag.place = place or (high, high)
            if tag.opening.kind in ("start", "end") and tag.closing is None:
                at = max(at, tag.place[0])
                tag.place = at, at
            taken[slice(*tag.place)] = b"\1" * (tag.place[1] - tag.place[0])
            self.place_inner(tag)

    def _around(self, tag: InlineTag, taken: bytearray, low: int, high: int) -> Span | None:
        """The stretch with the most characters that come from the tag's less those that do not."""
        place, best, total, start = None, 0, 0, low
        # Of `l'eau` only the longest word is what comes of `eau`, the others are its article.
        elided = [unit for unit in self.units if unit.src_start < tag.start < unit.src_end]
        elided.sort(key=lambda unit: unit.start - unit.end)
        elided = elided[1:] if self.text[tag.start - 1] in "'’" else []
        for unit in self.units:
            if unit.start < low or unit.end > high or any(taken[unit.start : unit.end]):
                total = 0
                continue
            if total <= 0:
                total, start = 0, unit.start
            is_inside = max(unit.src_start, tag.start) < min(unit.src_end, tag.end)
            total += (unit.end - unit.start) * (1 if is_inside and unit not in elided else -1)
            if total > best:
                place, best = (start, unit.end), total
        if place is None:
            return None
        start, end = place
        if self.text[tag.start] == " " and start > low and self.translated[start - 1] == " ":
            start -= 1
        if self.text[tag.end - 1] == " " and end < high and self.translated[end] == " ":
            end += 1
        return start, end

    def _beside(self, tag: InlineTag, low: int, high: int) -> Span | None:
        """The place after the translation of what stands before a tag, or before that after it."""
        before = len(self.text[: tag.start].rstrip(" "))
        after = len(self.text) - len(self.text[tag.start :].lstrip(" "))
        ends = [unit.end for unit in self.units if unit.src_start < before <= unit.src_end]
        starts = [unit.start for unit in self.units if unit.src_start <= after < unit.src_end]
        places = []
        if ends:
            is_spaced = before < tag.start and self.translated[max(ends) :].startswith(" ")
            places.append(max(ends) + is_spaced)
        if starts:
            is_spaced = tag.start < after and self.translated[: min(starts)].endswith(" ")
            # Where nothing says to which text a tag belongs, it is that without a space between.
            sticks = tag.opening.sticks or ("before", "after")[before < tag.start == after]
            places.insert(0 if sticks == "after" else len(places), min(starts) - is_spaced)
        return next(((place, place) for place in places if low <= place <= high), None)

    def _kept(self, tag: InlineTag, taken: bytearray, low: int, high: int) -> Span | None:
        """Where the text itself is, or what the model has made of it."""
        content = self.text[tag.start : tag.end]
        if tag.opening.term:  # the model may have found its translation
            content = html.unescape(tag.opening.raw)
        word = "[A-Za-z0-9_]" if is_unspaced(self.translated) else r"\w"
        bounds = (f"(?<!{word})" * content[0].isalnum(), f"(?!{word})" * content[-1].isalnum())
        is_own = content in html.unescape(tag.opening.raw) and not tag.opening.term
        same = re.compile(re.escape(content).join(bounds), 0 if is_own else re.IGNORECASE)
        found = (match.span() for match in same.finditer(self.translated, low, high))
        spans = [span for span in found if not any(taken[slice(*span)])]
        around = self._around(tag, taken, low, high)
        wanted = tag.start * len(self.translated) / len(self.text)
        nearest = min(spans, key=lambda span: abs(span[0] - wanted), default=around)
        return around if around in spans else nearest

    def _line_break(self, tag: InlineTag, taken: bytearray, low: int, high: int) -> Span | None:
        """The space that parts the translation as the source was parted, or nearly."""
        if tag.start == 0 or tag.start >= len(self.text):  # a line above or below has no words
            return (high, high) if tag.start else (low, low)
        wanted = round(tag.start * len(self.translated) / max(1, len(self.text)))
        found = (match.start() for match in re.finditer(" ", self.translated))
        if spaces := [space for space in found if low < space < high and not taken[space]]:
            space = min(spaces, key=lambda place: abs(place - wanted))
            return space, space + 1
        return (wanted, wanted) if is_unspaced(self.translated) and low < wanted < high else None


def has_words(tokens: Iterable[MarkupToken]) -> bool:
    return any(has_letter(html.unescape(token.raw)) for token in tokens if token.kind == "text")


def _is_fixed(parent: InlineTag, tag: InlineTag) -> bool:
    """Whether a tag goes around all that is in its pair or text, or stands at an end of it."""
    if tag.start == tag.end:
        return tag.start in (parent.start, parent.end)
    return (tag.start, tag.end) == (parent.start, parent.end)


def _kept_alone(tag: InlineTag | None) -> InlineTag | None:
    """A kept text, maybe in pairs of tags without another text."""
    while tag is not None and tag.opening.kind != "kept":
        spans = {(inner.start, inner.end): inner for inner in tag.inner}
        tag = spans.get((tag.start, tag.end)) if tag.start < tag.end else None
    return tag


def _keep_without_letters(element: Sequence[MarkupToken]) -> None:
    """Keep the number in an element; the model does not see the mark of a note, or a symbol."""
    parts = [token for token in element if token.kind in ("text", "kept")]
    text = "".join(html.unescape(token.content or token.raw) for token in parts).strip()
    is_note = NOTE.fullmatch(text) or any(
        token.name in ("sup", "sub") or "#" in str(token.attributes.get("href"))
        for token in element
    )
    if text and not has_letter(text) and (is_note or re.search(r"\d", text)):
        for token in parts:
            if is_note:
                token.kind = "point"
            elif token.kind == "text":
                token.content = token.raw
                token.keep_words()


def _tags(root: InlineTag) -> Iterator[tuple[InlineTag, InlineTag]]:
    for tag in root.inner:
        yield root, tag
        yield from _tags(tag)


def partners_of(tokens: Sequence[MarkupToken]) -> dict[int, int]:
    """The end of each start. Of two pairs that overlap, the one that ends later is two tags."""
    partners, opened = dict[int, int](), list[int]()
    for number, token in enumerate(tokens):
        if token.kind == "start" and len(opened) < DEEPEST:
            opened.append(number)
        elif token.kind == "end":
            start = next((tag for tag in opened[::-1] if tokens[tag].name == token.name), None)
            if start is not None:
                partners[start] = number
                del opened[opened.index(start) :]
    paired = {*partners, *partners.values()}
    for number, token in enumerate(tokens):
        if token.kind in ("start", "end") and number not in paired:
            token.sticks = "after" if token.kind == "start" else "before"
    return partners


def _units(text: str, translated: str, links: str) -> list[_AlignedPart]:
    """Cut a translation, by its links, into words, and the characters of signs and equal words."""
    src_words, tgt_words = (
        {str(number): match.span() for number, match in enumerate(re.finditer(r"\S+", line))}
        for line in (text, translated)
    )
    places = [composed(line)[1] for line in (text, translated)]
    named = [link.split("-") for link in links.split()]
    by_place = any(":" in tgt for _, tgt in named)
    linked: dict[Span, Span] = dict.fromkeys(() if by_place else tgt_words.values(), (0, 0))
    for src, tgt in named:
        src_span = _span(src, src_words, places[0])
        tgt_span = _span(tgt, tgt_words, places[1])
        if src_span is not None and tgt_span is not None:
            linked[tgt_span] = src_span
    units = []
    for span, src_span in sorted(linked.items()):
        parts = zip(_parts(translated, *span), _parts(text, *src_span), strict=True)
        for number, (to, of) in enumerate(parts):
            word, other = translated[slice(*to)], text[slice(*of)]
            if word == other:
                letters = zip(range(*to), range(*of), strict=True)
                units += [_AlignedPart(at, at + 1, place, place + 1) for at, place in letters]
            elif number == 1 and WORD.split(word) == WORD.split(other):
                words = zip(WORD.finditer(translated, *to), WORD.finditer(text, *of), strict=True)
                units += [_AlignedPart(*one.span(), *its.span()) for one, its in words]
            elif number == 1 or not other:
                units += [_AlignedPart(*to, *of)] * bool(word)
            else:  # `,` comes from that of `},`, and a sign that is not there from the outermost
                for at in range(*to):
                    first, last = (look(translated[at], *of) for look in (text.find, text.rfind))
                    place = (last + 1 or of[1]) - 1 if number else max(first, of[0])
                    units.append(_AlignedPart(at, at + 1, place, place + 1))
    return units


def _span(name: str, words: Mapping[str, Span], places: Sequence[int]) -> Span | None:
    """The characters that a link names: a word by its number, or `start:end` of the line in NFC."""
    if ":" in name:
        start, end = (places[min(int(number), len(places) - 1)] for number in name.split(":"))
        return start, end
    return words.get(name)


def _parts(text: str, start: int, end: int) -> list[Span]:
    core = CORE.search(text, start, end)
    first, last = core.span() if core else (start, end)
    return [(start, first), (first, last), (last, end)]
