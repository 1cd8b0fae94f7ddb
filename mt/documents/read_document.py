"""The content of a document → its texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from mt.documents.document import Document, DocumentText, Protect, merged
from mt.documents.html_tokens import html_tokens
from mt.documents.inline_tags import MarkupToken, TaggedText, has_words
from mt.documents.subtitles import srt_tokens
from mt.documents.xliff import XliffReader
from mt.errors import DataError

# What an XML or HTML file says of its encoding.
ENCODING = re.compile(
    r"""<(?:\?xml|meta)\s[^<>]*?(?:encoding|charset)\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE
)
# An attribute of an HTML tag.
ATTRIBUTE = re.compile(r"""([^\s"'<>/=]+)\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""")


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
        return XliffReader(content, name, protect).document
    cut = srt_tokens if form == "srt" else html_tokens
    tokens = merged(cut(content, name))
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
