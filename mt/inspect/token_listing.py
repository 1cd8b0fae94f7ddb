"""Lines as tokens with ids; the characters spelled in bytes, the unknown texts, and counts."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, zip_longest

from mt.data.reading.text_files import normalize_line
from mt.data.reading.words import display_width, is_unspaced, words
from mt.data.tokens.tokenizer import BYTE, UNK, Side, Tokenizer

WIDTH = 100  # columns of a line of tokens, on a wide terminal or none


@dataclass
class TokenCounts:
    """Counts over the lines of one side."""

    name: str  # source or target
    vocabulary: Side
    lines: int = 0
    words: int = 0
    tokens: int = 0
    unknown: int = 0
    bytes: int = 0
    longest: int = 0
    used: set[int] = field(default_factory=set)

    def split(self, line: str) -> list[tuple[str, int]]:
        """Pieces and ids of a line, which is counted; a piece that is unknown is its text."""
        processor = self.vocabulary.processor
        text = normalize_line(line)
        ids = processor.encode(text)
        pieces = processor.encode(text, out_type=str)
        self.lines += 1
        self.words += len(words(text) if is_unspaced(text) else text.split())
        self.tokens += len(ids)
        self.unknown += ids.count(UNK)
        self.bytes += sum(BYTE.fullmatch(piece) is not None for piece in pieces)
        self.longest = max(self.longest, len(ids))
        self.used.update(ids)
        return list(zip(pieces, ids, strict=True))


def list_tokens(tokenizer: Tokenizer, texts: dict[str, Iterable[str]], shown: int) -> Iterator[str]:
    """Show the first `shown` lines of `source` and `target` token by token, then counts of all."""
    of_sides = {"source": tokenizer.src, "target": tokenizer.tgt}
    sides = {name: TokenCounts(name, of_sides[name]) for name in texts}
    for number, lines in enumerate(zip_longest(*texts.values()), 1):
        for name, line in zip(texts, lines, strict=True):
            if line is None:
                continue
            tokens = sides[name].split(line)
            if number <= shown:
                yield f"{name} {number:,}: {normalize_line(line)}".rstrip()
                yield from _rows(tokens)
                yield from _rare(tokens)
                yield ""
    yield from _summary(list(sides.values()))


def _rows(tokens: list[tuple[str, int]]) -> Iterator[str]:
    """Pieces with their ids below, in as many rows as needed."""
    columns = min(WIDTH, shutil.get_terminal_size((WIDTH, 0)).columns)
    pieces = ids = " "
    for piece, number in tokens:
        width = max(display_width(piece), len(str(number)))
        if len(ids) + 1 + width > columns and ids.strip():
            yield from (pieces.rstrip(), ids.rstrip())
            pieces = ids = " "
        pieces += " " + piece + " " * (width - display_width(piece))
        ids += f" {number:<{width}}"
    if ids.strip():
        yield from (pieces.rstrip(), ids.rstrip())


def _rare(tokens: list[tuple[str, int]]) -> Iterator[str]:
    """Name the characters that are spelled in bytes, and the texts that are unknown."""
    in_bytes: list[str] = []
    matches = (BYTE.fullmatch(piece) for piece, _ in tokens)
    for spelled, run in groupby(matches, key=bool):
        if spelled:
            in_bytes += bytes(int(match[1], 16) for match in run if match).decode(
                "utf-8", "replace"
            )
    if in_bytes:
        yield f"  in bytes: {_named(in_bytes)}"
    if unknown := [piece for piece, number in tokens if number == UNK]:
        yield f"  unknown: {_named(unknown)}"


def _named(texts: list[str]) -> str:
    """Each text once, with its code points: ☃ (U+2603)."""
    codes = {text: " ".join(f"U+{ord(character):04X}" for character in text) for text in texts}
    return ", ".join(f"{text} ({code})" for text, code in codes.items())


def _summary(sides: list[TokenCounts]) -> Iterator[str]:
    def share(part: int, side: TokenCounts) -> str:
        return f"{part:,} ({100 * part / max(1, side.tokens):.2f} %)"

    rows = {
        "": [side.name for side in sides],
        "lines": [f"{side.lines:,}" for side in sides],
        "words": [f"{side.words:,}" for side in sides],
        "tokens": [f"{side.tokens:,}" for side in sides],
        "tokens per word": [f"{side.tokens / max(1, side.words):.2f}" for side in sides],
        "tokens of the longest line": [f"{side.longest:,}" for side in sides],
        "byte tokens": [share(side.bytes, side) for side in sides],
        "unknown tokens": [share(side.unknown, side) for side in sides],
        "vocabulary used": [f"{len(side.used):,} of {side.vocabulary.size:,}" for side in sides],
    }
    for name, cells in rows.items():
        yield f"{name:<27}" + "".join(f"{cell:>22}" for cell in cells)
