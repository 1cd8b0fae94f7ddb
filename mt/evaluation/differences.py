"""Lines that two systems translate most differently, and the words in which they differ."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from mt.data.reading.words import tokens
from mt.evaluation.metrics import Chrf

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class DifferingLine:
    """A line that a baseline and another system translate differently."""

    line: int  # from 1
    texts: tuple[str, str]  # of the baseline, of the other system
    chrf: tuple[float, float]  # of these lines alone
    spans: tuple[Spans, Spans]  # (start, end) in characters of the words that differ


def largest_differences(
    baseline: Sequence[str], system: Sequence[str], refs: Sequence[Sequence[str]], n: int
) -> list[DifferingLine]:
    """The `n` lines whose chrF (BLEU of one line says little) differs most, worst loss first."""
    texts = list(zip(baseline, system, strict=True))
    rows = [row for row, (text, other) in enumerate(texts) if text != other]
    if not rows:
        return []
    metric = Chrf([[ref[row] for row in rows] for ref in refs])
    values = [metric.line_values([texts[row][side] for row in rows]) for side in (0, 1)]
    both = zip(rows, *values, strict=True)
    ranked = sorted(both, key=lambda row: (-abs(row[2] - row[1]), row[0]))
    chosen = sorted(ranked[:n], key=lambda row: (row[2] - row[1], row[0]))
    return [
        DifferingLine(row + 1, texts[row], (baseline, other), differing_words(*texts[row]))
        for row, baseline, other in chosen
    ]


def differing_words(first: str, second: str) -> tuple[Spans, Spans]:
    """(start, end) of the words and marks that only one of two texts has, neighbours joined."""
    places = [_places(text) for text in (first, second)]
    cut = zip((first, second), places, strict=True)
    words = [[text[begin:end] for begin, end in at] for text, at in cut]
    # Else the frequent words of a long line would count as differing.
    matcher = difflib.SequenceMatcher(None, words[0], words[1], autojunk=False)
    spans: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for kind, *ends in matcher.get_opcodes():
        if kind != "equal":
            for side, (begin, end) in enumerate((ends[:2], ends[2:])):
                if begin < end:
                    spans[side].append((places[side][begin][0], places[side][end - 1][1]))
    return tuple(spans[0]), tuple(spans[1])


def mark(text: str, spans: Spans, before: str, after: str) -> str:
    for start, end in reversed(spans):
        text = text[:start] + before + text[start:end] + after + text[end:]
    return text


def _places(text: str) -> list[tuple[int, int]]:
    """(start, end) of each word and punctuation mark."""
    words = tokens(text)
    both = zip(words, accumulate(map(len, words)), strict=True)
    return [(end - len(word), end) for word, end in both if not word.isspace()]
