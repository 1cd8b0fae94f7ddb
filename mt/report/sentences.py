"""Sentences for the page: the best, the worst and the flagged, and one as training went on."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from mt.errors import MtError
from mt.evaluation.metrics import Chrf
from mt.inspect.attention_map import chosen
from mt.report.facts import Run
from mt.runs.outputs import Sentence
from mt.translate.quality_flags import FLAGS, is_blank

if TYPE_CHECKING:
    from mt.model.checkpoint import LoadedModel

# Sentences that are scored one by one to find the best and the worst.
MAX_SCORED = 20_000
# The best ones have at least so many source words: short ones are easy.
LEAST_WORDS = 5
# Words of a text that are shown, and characters of them.
MAX_WORDS = 80
MAX_CHARACTERS = 800
# Words on either side of an attention map.
MAX_MAPPED = 32
# Steps at which one sentence's translation is shown.
MAX_STEPS = 14


@dataclass(frozen=True)
class Text:
    """A text as it is shown: parts that differ from the reference or not, and what was cut."""

    parts: list[tuple[str, bool]]
    cut: str = ""


@dataclass(frozen=True)
class AttentionMap:
    """Which source words each target word attends to."""

    columns: tuple[str, ...]
    rows: list[tuple[str, list[float]]]  # target word, weights from 0 to 1
    title: str


@dataclass(frozen=True)
class Shown:
    """A sentence on the page."""

    source: Text
    reference: Text
    output: Text
    chrf: float
    score: float | None
    flags: list[str]
    original: Sentence
    attention: AttentionMap | None = None
    note: str = ""  # why there is no attention map


@dataclass
class Group:
    """Sentences under one heading."""

    title: str
    sentences: list[Shown]


@dataclass
class Sentences:
    """The sentences of a run, by group, and how they were chosen."""

    groups: list[Group] = field(default_factory=list)
    note: str = ""
    flagged: int = 0
    set_name: str = ""


@dataclass(frozen=True)
class Progress:
    """One sentence of the validation set, and its translation at several updates."""

    source: Text
    reference: Text
    steps: list[tuple[int, Text]]
    note: str


def choose_sentences(run: Run, count: int) -> Sentences:
    """The `count` best, worst and flagged sentences of the first test set, or the validation set.

    Best and worst are by chrF2 of the sentence.
    """
    sets = [one for one in run.scored if one.sentences]
    if not sets or not count:
        return Sentences()
    test = sets[0]
    sentences = [one for one in test.sentences[:MAX_SCORED] if not is_blank(one.source)]
    metric = Chrf([[one.reference for one in sentences]])
    values = metric.line_values([one.output for one in sentences])
    scored = list(zip(values, sentences, strict=True))
    ranked = sorted(scored, key=lambda pair: (pair[0], len(pair[1].source)))
    worst = ranked[:count]
    long_enough = [pair for pair in ranked if len(pair[1].source.split()) >= LEAST_WORDS] or ranked
    best = [pair for pair in reversed(long_enough) if pair not in worst][:count]
    flagged = [pair for pair in ranked if pair[1].flags]
    limit = f" of the first {MAX_SCORED:,} sentences" if len(test.sentences) > MAX_SCORED else ""
    chosen_groups = [
        ("Worst", worst),
        ("Flagged as suspicious", [pair for pair in flagged if pair not in worst][:count]),
        ("Best", best),
    ]
    return Sentences(
        [
            Group(title, [_shown(chrf, one) for chrf, one in pairs])
            for title, pairs in chosen_groups
            if pairs
        ],
        f"By chrF2 of the single sentence{limit}; best only from {LEAST_WORDS} words on. Words "
        "that differ from the reference are underlined. The model score is log-probability / "
        f"length^{run.config.decode.length_penalty if run.config else 1.0:g}.",
        len(flagged),
        test.name,
    )


def _shown(chrf: float, sentence: Sentence) -> Shown:
    return Shown(
        source=excerpt(sentence.source),
        reference=excerpt(sentence.reference),
        output=marked(sentence.output, sentence.reference),
        chrf=chrf,
        score=sentence.score,
        flags=[FLAGS.get(flag, flag) for flag in sentence.flags],
        original=sentence,
    )


def excerpt(text: str) -> Text:
    """A text, cut if it is very long."""
    shown, cut = _cut(text)
    return Text([(shown, False)], cut)


def marked(text: str, reference: str) -> Text:
    """A text, cut if it is very long, with the words that are not in the reference marked."""
    shown, cut = _cut(text)
    words, others = shown.split(), _cut(reference)[0].split()
    parts: list[tuple[str, bool]] = []
    matcher = difflib.SequenceMatcher(None, others, words, autojunk=False)
    for operation, _, _, start, end in matcher.get_opcodes():
        if start < end:
            parts.append((" ".join(words[start:end]), operation != "equal"))
    return Text(parts, cut)


def _cut(text: str) -> tuple[str, str]:
    """The beginning of a text, and a remark if it is not all."""
    words = text.split()
    shown = " ".join(words[:MAX_WORDS])[:MAX_CHARACTERS]
    if len(words) > MAX_WORDS or len(shown) < len(" ".join(words)):
        return shown, f"cut: {len(words):,} words, {len(text):,} characters in all"
    return shown if words else text, ""


# --- one sentence over the training -------------------------------------------------------------


def progress(run: Run) -> Progress | None:
    """The sample sentence whose translation changed most often, and its versions.

    A translation that stayed the same is shown once, at its first update.
    """
    if len(run.samples) < 2:
        return None
    steps = sorted(run.samples)
    # The same sentences in all validations; a changed validation set begins anew.
    last = run.samples[steps[-1]]
    candidates = []
    for position, sentence in enumerate(last):
        versions: list[tuple[int, str]] = []
        for step in steps:
            block = run.samples[step][position : position + 1]
            if block and block[0].source == sentence.source:
                output = block[0].output
                if not versions or versions[-1][1] != output:
                    versions.append((step, output))
        candidates.append((len(versions), len(sentence.source), versions, sentence))
    readable = [one for one in candidates if one[1] <= MAX_CHARACTERS] or candidates
    if not readable:
        return None
    _, _, versions, sentence = max(readable, key=lambda one: (one[0], one[1]))
    every = sorted(
        {round(i) for i in np.linspace(0, len(versions) - 1, min(MAX_STEPS, len(versions)))}
    )
    shown = [versions[i] for i in every]
    note = "An update is listed where the translation is another one than before."
    if len(shown) < len(versions):
        note += f" {len(shown)} of {len(versions)} versions are shown."
    return Progress(
        excerpt(sentence.source),
        excerpt(sentence.reference),
        [(step, marked(output, sentence.reference)) for step, output in shown],
        note,
    )


# --- attention ----------------------------------------------------------------------------------


def add_attention(run: Run, sentences: Sentences, say: Callable[[str], None]) -> str:
    """Draw the cross-attention of the chosen sentences; returns why not, or what was run.

    The best checkpoint reads each of these few sentences and the output that was kept.
    """
    if not sentences.groups:
        return ""
    from mt.model.checkpoint import load_model

    try:
        loaded = load_model(run.folder)
    except MtError as error:
        return f"Attention is not shown: {str(error).removeprefix('--model ')}"
    n_shown = sum(len(group.sentences) for group in sentences.groups)
    say(f"{run.label}: attention of {n_shown} sentences")
    for group in sentences.groups:
        group.sentences = [_with_attention(loaded, shown) for shown in group.sentences]
    return (
        f"Attention: the best checkpoint read these {n_shown} sentences with their outputs once "
        "more. Each row is a target word; the stronger the colour of a cell, the more it attends "
        "to the source word of the column."
    )


def _with_attention(loaded: LoadedModel, shown: Shown) -> Shown:
    from mt.inspect.attention import read_attention
    from mt.runtime.devices import choose_device

    sentence = shown.original
    longest = max(len(sentence.source.split()), len(sentence.output.split()))
    if longest > MAX_MAPPED:
        return replace(shown, note=f"no attention map: longer than {MAX_MAPPED} words")
    if is_blank(sentence.output):
        return replace(shown, note="no attention map: the output is blank")
    try:
        device = choose_device("cpu", "fp32")
        found = read_attention(loaded, device, sentence.source, sentence.output)
    except MtError as error:
        return replace(shown, note=f"no attention map: {error}")
    if max(len(found.rows), len(found.columns)) > 2 * MAX_MAPPED:  # a script without spaces
        return replace(shown, note=f"no attention map: longer than {MAX_MAPPED} words")
    weights, title = chosen(found.weights, None, None)
    rows = [
        (word, [round(float(weight), 3) for weight in np.nan_to_num(row)])
        for word, row in zip(found.rows, weights, strict=True)
    ]
    return replace(shown, attention=AttentionMap(found.columns, rows, title))
