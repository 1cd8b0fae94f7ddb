"""Cut a source that is too long for the model into segments that fit."""

from __future__ import annotations

import itertools
import re

from mt.data.tokens.tokenizer import Tokenizer

# A long source is cut after these, best first: the end of a sentence, a clause, a word.
SEPARATORS = (
    re.compile(r"(?<=[.!?…])[\"'”“’‘»«)\]]*\s+|(?<=[。！？])[”’」』）]*"),
    re.compile(r"(?<=[,;:–—])\s+|(?<=[，；：、])"),
    re.compile(r"\s+"),
)


def split_source(text: str, tokenizer: Tokenizer, max_tokens: int) -> list[list[int]]:
    """Return the ids of the segments of a text, each of at most `max_tokens` tokens.

    It is cut at sentence ends, else at clauses, else between words, else anywhere. A token for the
    target language at the beginning of the text is repeated in each segment.
    """
    language, text = tokenizer.split_language(text)
    first = tokenizer.encode_src([language])[0] if language else []
    max_tokens = max(1, max_tokens - len(first))
    segments = [text]
    for separator in SEPARATORS:
        segments = [
            part for segment in segments for part in pack(separator, segment, tokenizer, max_tokens)
        ]
    rows = [ids for ids in tokenizer.encode_src(segments) if ids]
    return [
        first + ids[start : start + max_tokens]
        for ids in rows
        for start in range(0, len(ids), max_tokens)
    ]


def pack(separator: re.Pattern[str], text: str, tokenizer: Tokenizer, max_tokens: int) -> list[str]:
    """Cut a text after separators into as few segments as fit.

    A part without a separator stays whole, even if it is too long.
    """
    ends = [0, *(match.end() for match in separator.finditer(text)), len(text)]
    parts = [text[start:end] for start, end in itertools.pairwise(ends) if text[start:end].strip()]
    whole, *sizes = (len(ids) for ids in tokenizer.encode_src([text, *parts]))
    if whole <= max_tokens:
        return [text]
    packed: list[str] = []
    room = 0
    for part, size in zip(parts, sizes, strict=True):
        if packed and size <= room:
            packed[-1] += part
            room -= size
        else:
            packed.append(part)
            room = max_tokens - size
    return packed
