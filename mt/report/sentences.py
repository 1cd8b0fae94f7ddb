"""Sentences for the page: the best, the worst and the flagged, and one as training went on."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mt.config.data_schema import DataConfig
from mt.config.plan import plan_data
from mt.data.reading.words import is_unspaced
from mt.data.reading.words import words as words_of
from mt.errors import MtError
from mt.evaluation.metrics import Chrf
from mt.report.run_summary import RunSummary, scored_texts
from mt.runs.outputs import Sentence
from mt.terminal import say
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
    space: str = " "  # between parts


def choose_sentences(run: RunSummary, count: int) -> dict[str, Any]:
    """The `count` best, worst and flagged sentences of the first test set, or the validation set.

    Best and worst are by chrF2 of the sentence. The best checkpoint reads these few sentences once
    more, with the outputs that were kept, for their attention. `groups`: sentences by title.
    """
    sets = [test for test in run.scored if test.sentences]
    if not sets or not count:
        return {"groups": {}}
    test = sets[0]
    sentences = [line for line in test.sentences[:MAX_SCORED] if not is_blank(line.source)]
    metric = Chrf([[sentence.reference for sentence in sentences]])
    values = metric.line_values([sentence.output for sentence in sentences])
    scored = zip(values, sentences, strict=True)
    ranked = sorted(scored, key=lambda pair: (pair[0], len(pair[1].source)))
    worst = ranked[:count]
    long_enough = [
        pair for pair in ranked if len(words_of(pair[1].source)) >= LEAST_WORDS
    ] or ranked
    flagged = [pair for pair in ranked if pair[1].flags]
    groups = {
        "Worst": worst,
        "Flagged as suspicious": [pair for pair in flagged if pair not in worst][:count],
        "Best": [pair for pair in reversed(long_enough) if pair not in worst][:count],
    }
    limit = f" of the first {MAX_SCORED:,} sentences" if len(test.sentences) > MAX_SCORED else ""
    penalty = run.config.decode.length_penalty if run.config else 1.0
    note = (
        f"By chrF2 of the single sentence{limit}; best only from {LEAST_WORDS} words on. Words "
        "that differ from the reference are underlined. The model score is log-probability / "
        f"length^{penalty:g}."
    )
    loaded, attention_note = _load(run, sum(map(len, groups.values())))
    data = plan_data(run.config.data if run.config else DataConfig())
    text = scored_texts(data).get(test.name)
    to = text.direction.tgt if text and data.has_tokens else None
    shown = {
        title: [_shown(chrf, sentence, loaded, to) for chrf, sentence in pairs]
        for title, pairs in groups.items()
        if pairs
    }
    note = f"{note} {attention_note}"
    return {"groups": shown, "note": note, "flagged": len(flagged), "set_name": test.name}


def _load(run: RunSummary, n_shown: int) -> tuple[LoadedModel | None, str]:
    """The best checkpoint, and what is said about attention; None where it cannot be loaded."""
    if not n_shown:
        return None, ""
    from mt.model.checkpoint import load_model

    try:
        loaded = load_model(run.folder)
    except MtError as error:
        return None, f"Attention is not shown: {str(error).removeprefix('--model ')}"
    say(f"{run.label}: attention of {n_shown} sentences")
    return loaded, (
        f"Attention: the best checkpoint read these {n_shown} sentences with their outputs once "
        "more. Each row is a target word; the stronger the colour of a cell, the more it attends "
        "to the source word of the column."
    )


def _shown(
    chrf: float, sentence: Sentence, loaded: LoadedModel | None, to: str | None
) -> dict[str, Any]:
    attention, reason = _attention(sentence, loaded, to) if loaded else (None, "")
    return {
        "source": excerpt(sentence.source),
        "reference": excerpt(sentence.reference),
        "output": marked(sentence.output, sentence.reference),
        "chrf": chrf,
        "score": sentence.score,
        "flags": [FLAGS.get(flag, flag) for flag in sentence.flags],
        "attention": attention,
        "note": f"no attention map: {reason}" if reason else "",
    }


def _attention(
    sentence: Sentence, loaded: LoadedModel, to: str | None
) -> tuple[dict[str, Any] | None, str]:
    """The cross-attention of a sentence, a row for each target word, or None and the reason."""
    from mt.inspect.attention import read_attention
    from mt.runtime.devices import choose_device

    too_long = f"longer than {MAX_MAPPED} words"
    if max(len(sentence.source.split()), len(sentence.output.split())) > MAX_MAPPED:
        return None, too_long
    if is_blank(sentence.output):
        return None, "the output is blank"
    try:
        device = choose_device("cpu", "fp32")
        attention = read_attention(loaded, device, sentence.source, sentence.output, to=to)
    except MtError as error:
        return None, str(error)
    if max(len(attention.rows), len(attention.columns)) > 2 * MAX_MAPPED:  # without spaces
        return None, too_long
    weights, title = attention.chosen()
    rows = [
        (word, [round(float(weight), 3) for weight in np.nan_to_num(row)])
        for word, row in zip(attention.rows, weights, strict=True)
    ]
    return {"columns": attention.columns, "rows": rows, "title": title}, ""


def excerpt(text: str) -> Text:
    shown, cut = _cut(text)
    return Text([(shown, False)], cut)


def marked(text: str, reference: str) -> Text:
    """A text, cut if it is very long, with the words that are not in the reference marked.

    Of a script without spaces, characters.
    """
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


def most_changed(run: RunSummary) -> dict[str, Any] | None:
    """The sample sentence whose translation changed most often, and its versions.

    A translation that stayed the same is shown once, at its first update.
    """
    if len(run.samples) < 2:
        return None
    *_, last = run.samples.values()
    candidates = [(sentence, _versions(run, i, sentence)) for i, sentence in enumerate(last)]
    readable = [pair for pair in candidates if len(pair[0].source) <= MAX_CHARACTERS] or candidates
    sentence, versions = max(readable, key=lambda pair: (len(pair[1]), len(pair[0].source)))
    every = np.linspace(0, len(versions) - 1, min(MAX_STEPS, len(versions)))
    shown = [versions[i] for i in sorted({round(i) for i in every})]
    note = "An update is listed where the translation is another one than before."
    if len(shown) < len(versions):
        note += f" {len(shown)} of {len(versions)} versions are shown."
    return {
        "source": excerpt(sentence.source),
        "reference": excerpt(sentence.reference),
        "steps": [(step, marked(output, sentence.reference)) for step, output in shown],
        "note": note,
    }


def _versions(run: RunSummary, position: int, sentence: Sentence) -> list[tuple[int, str]]:
    """The translations of the sample at `position` that differ from the one before, by update.

    All validations have the same sentences, unless the validation set was changed.
    """
    versions: list[tuple[int, str]] = []
    for step, samples in run.samples.items():
        if position < len(samples) and samples[position].source == sentence.source:
            output = samples[position].output
            if not versions or versions[-1][1] != output:
                versions.append((step, output))
    return versions
