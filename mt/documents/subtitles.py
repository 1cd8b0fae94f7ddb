"""Subtitles (SRT) cut into texts, tags and breaks. The format has no more grammar than `TIMING`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mt.documents.inline_tags import MarkupToken, TokenKind
from mt.errors import DataError

# The start of a line with the times of a subtitle.
TIMING = re.compile(r"\s*(?:\d+:)?\d+:\d+[,.]\d+\s*-->")
SUBTITLE_TAG = re.compile(r"(</?[A-Za-z][^<>]*>|\{\\[^{}]*\})")
# The speaker of a line of a dialogue changes at a dash.
DASH = re.compile(r"((?:<[^<>]*>|\{\\[^{}]*\})*)([-–—‐]\s*)")


def srt_tokens(content: str, name: str) -> Iterator[MarkupToken]:
    """Cut subtitles. The lines of one are a text; a dash at the start of a line begins another.

    Raises DataError, which begins with `name`, for what has no subtitle.
    """
    if "\r" in content and "\n" not in content:
        raise DataError(
            f"{name}: its line ends are carriage returns (\\r) without line feeds, which are "
            "required. Convert it: tr '\\r' '\\n' < FILE > FILE.lf"
        )
    if not TIMING.search(content):
        raise DataError(
            f"{name}: has no subtitle, a line such as 00:00:01,000 --> 00:00:02,500 is required; "
            "give --format text if it is no SRT file"
        )
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
        name = "".join(re.findall(r"^(?:</?|\{\\)([^\W\d_]+)", part)).lower()
        if number % 2 and part[0] == "{":  # {\an8} stands alone, {\i1} is ended by {\i0}
            pair = re.fullmatch(r"\{\\[bius]([01])\}", part)
            kind = "point" if pair is None else "start" if pair[1] == "1" else "end"
        elif number % 2:
            kind = "end" if part[1] == "/" else "start"
        yield MarkupToken(kind, part, name)
