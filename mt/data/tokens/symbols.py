"""Emoji and other symbols: taken out of a line for the model, put back into its translation.

A symbol between sentences or at the end of one stays there, and any other stands at the same share
of the words. What it touches in the line it touches in the output.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from mt.data.reading.words import is_unspaced
from mt.data.tokens import noise

# Emoji anywhere; at the ends of a line also other signs that stand alone: bullets, arrows, notes.
_EMOJI = "\u2600-\u2604\u2607-\u2668\u2670-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
_JOINERS = "\u200d\ufe0f\u20e3\U000e0020-\U000e007f"
_LOW_SIGNS = "•·~*#|_^`¬°†®™"
_SIGN = rf"[{_EMOJI}{_JOINERS}\u2190-\u21ff\u2300-\u245f\u2500-\u266f{_LOW_SIGNS}]"
# All other signs, looked for in a quarter of the time that `_SYMBOLS` takes.
_HIGH = re.compile("[\u2190-\U0010ffff]")
_RUN = rf"[{_EMOJI}][{_EMOJI}{_JOINERS}]*"
_SYMBOLS = re.compile(
    rf"\A{_SIGN}+(?=\s)|(?<=\s){_SIGN}+\Z|\({_RUN}(?:\s{_RUN})*\)|\[{_RUN}(?:\s{_RUN})*\]|{_RUN}"
)
_OPENING = "([{«„“‚‘¿¡\"'"
_CLOSING = ")]}»”“’‘\"',;:" + noise.FINAL_STOPS
_SENTENCE_END = re.compile(rf"[{re.escape(noise.FINAL_STOPS)}][)\]}}»”“’‘\"']*\Z")
_LEADING = re.compile(r"[^\w\s]{0,9}")
Span: TypeAlias = tuple[int, int]


class Symbol(NamedTuple):
    """A symbol that was taken out of a line."""

    text: str
    start: int  # in the line as written
    place: int  # in the line without symbols
    before: str = " "  # the space there, at the ends of a line as well, or nothing
    after: str = " "
    side: str = ""  # "before" the punctuation that it touches, or "after" it


class Symbols(NamedTuple):
    """The symbols of a line."""

    line: str  # with them, white space normalised
    plain: str  # without them
    symbols: tuple[Symbol, ...] = ()


def without_symbols(text: str) -> Symbols:
    """Take emoji and other symbols out of a line, unless nothing else is in it."""
    line = text.strip()
    if not _HIGH.search(line) and not {line[:1], line[-1:]}.intersection(_LOW_SIGNS):
        return Symbols(text, text)
    line = " ".join(line.split())
    matches = list(_SYMBOLS.finditer(line))
    if not matches:
        return Symbols(text, text)
    symbols, parts = list[Symbol](), list[str]()
    length, last, gap, end = 0, "", "", 0  # of the parts, and the space after them
    for match, following in zip(matches, [*matches[1:], None], strict=True):
        piece = line[end : match.start()]
        right = line[match.end() : following and following.start()]
        if left := piece.rstrip(" "):
            parts.append(gap + left)
            length, last, gap = length + len(parts[-1]), left[-1], ""
        before = " " if not length or piece != left else ""
        if not piece and symbols:
            before = symbols[-1].after
        first = right.lstrip(" ")[:1]
        after = " " if right[:1] == " " or not (right or following) else ""
        side = ""
        if length and right[:1] and right[0] in _CLOSING:
            side = "before"
        elif length and not before and last in _OPENING:
            side = "after"
        symbols.append(Symbol(match[0], match.start(), length, before, after, side))
        is_apart = before or after or not is_unspaced(last + first)
        gap = " " * bool(length and is_apart and not side)
        end = match.end() + (right[:1] == " ")
    for number in range(len(symbols) - 2, -1, -1):  # several before one stop
        if symbols[number].place == symbols[number + 1].place:
            symbols[number] = symbols[number]._replace(side=symbols[number + 1].side)
    plain = "".join([*parts, gap + line[end:] if line[end:] else ""])
    return Symbols(line, plain, tuple(symbols)) if plain else Symbols(text, text)


def with_symbols(text: str, symbols: Symbols, links: str = "") -> tuple[str, list[Span]]:
    """Put symbols into a translation, by its `links` if there are any; and where each stands."""
    src, tgt = _units(symbols.plain), _units(text)
    starts, lasts = [start for start, _ in src], [end - 1 for _, end in src]
    src_ends, tgt_ends = _sentence_ends(symbols.plain, src), _sentence_ends(text, tgt)
    placed = []
    pairs = [link.split("-") for link in links.split() if ":" not in links]
    after = {int(source): int(target) + 1 for source, target in pairs}
    for symbol in symbols.symbols:
        n_before = bisect_left(lasts if symbol.side == "after" else starts, symbol.place)
        number = _place(n_before, src_ends, tgt_ends)
        if n_before not in src_ends:
            number = min(after.get(n_before - 1, number), len(tgt))
        if symbol.side == "after" and number < len(tgt):
            place = _LEADING.match(text, tgt[number][0]).end()  # type: ignore[union-attr]
        elif number == 0:
            place = 0
        else:
            start, place = tgt[number - 1]
            if symbol.side == "before":
                before = re.search(r"[^\w\s]{0,9}\Z", text[max(start, place - 9) : place])
                place -= len(before[0]) if before else 0
        placed.append((place, symbol))
    written, end, spans = "", 0, []
    for place, symbol in sorted(placed, key=lambda pair: pair[0]):
        written += text[end:place]
        end = max(end, place)
        if not symbol.side and text[end : end + 1] == " ":
            end += 1
        written += symbol.before * (written[-1:] not in ("", " "))
        spans.append((len(written), len(written) + len(symbol.text)))
        written += symbol.text + symbol.after
    return (written + text[end:]).rstrip(" "), spans


def _units(text: str) -> list[Span]:
    return [match.span() for match in re.finditer(r"\S" if is_unspaced(text) else r"\S+", text)]


def _sentence_ends(text: str, units: Sequence[Span]) -> list[int]:
    ends = [n for n, span in enumerate(units, 1) if _SENTENCE_END.search(text[slice(*span)])]
    return ends if ends and ends[-1] == len(units) else [*ends, len(units)]


def _place(number: int, src_ends: Sequence[int], tgt_ends: Sequence[int]) -> int:
    """How many units of a translation come before what has `number` of the source before it."""
    share = number / max(1, src_ends[-1]) * tgt_ends[-1]
    sentence = bisect_left(src_ends, number)
    is_end = number > 0 and src_ends[sentence] == number
    if len(src_ends) != len(tgt_ends):
        return min(tgt_ends, key=lambda end: abs(end - share)) if is_end else round(share)
    (first, last), (start, end) = (
        (ends[sentence - 1] if sentence else 0, ends[sentence]) for ends in (src_ends, tgt_ends)
    )
    return start + round((number - first) / max(1, last - first) * (end - start))


def links_with_symbols(
    links: str, symbols: Symbols, output: str, text: str, spans: Sequence[Span]
) -> str:
    """The links of `word_links` between a line and its output without symbols, as those with them.

    `text`, `spans`: what `with_symbols` made of the output. A symbol is linked to itself.
    """
    src_spans = [(symbol.start, symbol.start + len(symbol.text)) for symbol in symbols.symbols]
    src, tgt = _Names(symbols.plain, symbols.line, src_spans), _Names(output, text, spans)
    words = (link.split("-") for link in links.split())
    moved = [(src.moved(source), tgt.moved(target)) for source, target in words]
    both = zip(src_spans, spans, strict=True)
    moved += [(src.of_symbol(source), tgt.of_symbol(target)) for source, target in both]
    named = sorted(filter(all, moved), key=lambda link: int(link[1].partition(":")[0]))
    return " ".join(map("-".join, named))


class _Names:
    """The names of words, or characters, in a text before and after symbols come in."""

    def __init__(self, plain: str, text: str, spans: Sequence[Span]) -> None:
        hidden = {place for span in spans for place in range(*span)}
        before = (place for place, char in enumerate(plain) if char != " ")
        after = (place for place, char in enumerate(text) if char != " " and place not in hidden)
        self.places = dict(zip(before, after, strict=False))
        self.plain_words, self.words = (
            [match.start() for match in re.finditer(r"\S+", line)] for line in (plain, text)
        )
        self.text = text
        self.is_unspaced = is_unspaced(plain)

    def moved(self, name: str) -> str:
        """The name of what `name` was before; "" if there is no such word."""
        start, _, end = name.partition(":")
        if end:
            places = self.places.get(int(start)), self.places.get(int(end) - 1)
            return "" if None in places else f"{places[0]}:{places[1] + 1}"  # type: ignore[operator]
        if int(start) >= len(self.plain_words):
            return ""
        return str(bisect_right(self.words, self.places.get(self.plain_words[int(start)], 0)) - 1)

    def of_symbol(self, span: Span) -> str:
        """The name of a symbol; "" if it is only part of a word."""
        start, end = span
        if self.is_unspaced:
            return f"{start}:{end}"
        around = {self.text[max(0, start - 1) : start], self.text[end : end + 1]}
        return str(bisect_right(self.words, start) - 1) if around <= {"", " "} else ""
