"""Sentences for the page: the best, the worst and the flagged."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from mt.data.reading.words import is_unspaced
from mt.data.reading.words import words as words_of
from mt.evaluation.metrics import Chrf
from mt.report.run_summary import RunSummary
from mt.runs.records import Sentence
from mt.translate.quality_flags import FLAGS, is_blank

MAX_SCORED = 20_000  # sentences that are scored one by one to find the best and the worst
LEAST_WORDS = 5  # the best ones have at least so many source words: short ones are easy
# Words of a text that are shown, and characters of them.
MAX_WORDS = 80
MAX_CHARACTERS = 800


@dataclass(frozen=True)
class Text:
    """A text as it is shown: parts that differ from the reference or not, and what was cut."""

    parts: list[tuple[str, bool]]
    cut: str = ""
    space: str = " "  # between parts


def choose_sentences(run: RunSummary, count: int) -> dict[str, Any]:
    """The `count` best and worst sentences by chrF2, and flagged ones, of the first set."""
    sets = [test for test in run.scored if test.sentences]
    if not sets or not count:
        why = "No outputs are kept in this run" if count else "None were asked for"
        return {"groups": {}, "note": f"{why}, so no sentences are shown."}
    test = sets[0]
    sentences = [line for line in test.sentences[:MAX_SCORED] if not is_blank(line.source)]
    metric = Chrf([[sentence.reference for sentence in sentences]])
    values = metric.line_values([sentence.output for sentence in sentences])
    scored = zip(values, sentences, strict=True)
    ranked = sorted(scored, key=lambda pair: (pair[0], len(pair[1].source)))
    worst = ranked[:count]
    long = [pair for pair in ranked if len(words_of(pair[1].source)) >= LEAST_WORDS]
    flagged = [pair for pair in ranked if pair[1].flags]
    groups = {
        "Worst": worst,
        "Flagged as suspicious": [pair for pair in flagged if pair not in worst][:count],
        "Best": [pair for pair in reversed(long or ranked) if pair not in worst][:count],
    }
    limit = f" of the first {MAX_SCORED:,} sentences" if len(test.sentences) > MAX_SCORED else ""
    penalty = run.config.decode.length_penalty if run.config else 1.0
    best = f"; best only from {LEAST_WORDS} words on" if long else ""
    has_scores = any(sentence.score is not None for sentence in sentences)
    formula = f" The model score is log-probability / length^{penalty:g}." if has_scores else ""
    note = (
        f"By chrF2 of the single sentence{limit}{best}. What differs from the reference is "
        f"underlined.{formula}"
    )
    shown = {
        title: [_shown(chrf, sentence) for chrf, sentence in pairs]
        for title, pairs in groups.items()
        if pairs
    }
    return {"groups": shown, "note": note, "flagged": len(flagged), "set_name": test.name}


def _shown(chrf: float, sentence: Sentence) -> dict[str, Any]:
    return {
        "source": excerpt(sentence.source),
        "reference": excerpt(sentence.reference),
        "output": marked(sentence.output, sentence.reference),
        "chrf": chrf,
        "score": sentence.score,
        "flags": [FLAGS.get(flag, flag) for flag in sentence.flags],
    }


def excerpt(text: str) -> Text:
    shown, cut = _cut(text)
    return Text([(shown, False)], cut)


def marked(text: str, reference: str) -> Text:
    """A text, cut if very long, with its words (or characters) that the reference lacks marked."""
    shown, cut = _cut(text)
    other, space = _cut(reference)[0], " "
    words, others = shown.split(), other.split()
    if is_unspaced(shown):
        words, others, space = list(shown), list(other), ""
    parts: list[tuple[str, bool]] = []
    matcher = difflib.SequenceMatcher(None, others, words, autojunk=False)
    for operation, _, _, start, end in matcher.get_opcodes():
        if start < end:
            parts.append((space.join(words[start:end]), operation != "equal"))
    return Text(parts, cut, space)


def _cut(text: str) -> tuple[str, str]:
    """The beginning of a text, and a remark if it is not all."""
    words = text.split()
    shown = " ".join(words[:MAX_WORDS])[:MAX_CHARACTERS]
    if len(words) > MAX_WORDS or len(shown) < len(" ".join(words)):
        return shown, f"cut: {len(words):,} words, {len(text):,} characters in all"
    return shown if words else text, ""
