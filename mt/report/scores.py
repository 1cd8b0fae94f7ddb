"""Final scores with confidence intervals, by source length, and runs against each other."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from mt.data.reading.corpus import data_root, local_files
from mt.errors import MtError, first_line
from mt.evaluation.bleu_tokenizer import DEFAULT
from mt.evaluation.significance import RESAMPLES, SEED, Interval
from mt.evaluation.slices import by_length
from mt.evaluation.systems import EvaluationSet, Settings, evaluate_systems
from mt.report.facts import Run, TestScore, scored_sources
from mt.runs.outputs import Sentence

METRICS = ("bleu", "chrf")
# Resampling takes about a second for a thousand lines; larger sets have narrow intervals anyway.
MAX_RESAMPLED = 10_000
# A set with fewer lines is not cut into slices.
LEAST_SLICED = 20


@dataclass(frozen=True)
class Value:
    """A score and its 95 % interval, if that could be computed."""

    value: float
    interval: Interval | None = None
    signature: str = ""


@dataclass(frozen=True)
class LengthSlice:
    """The sentences of a test set whose source has so many words."""

    label: str
    lines: int
    bleu: float
    chrf: float


@dataclass
class ScoredSet:
    """The final scores of a run on one set."""

    name: str
    step: int
    lines: int  # 0 if not known
    bleu: Value
    chrf: Value | None = None
    slices: list[LengthSlice] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One run in a comparison on one set."""

    run: int  # its number, from 0
    label: str
    bleu: Value
    difference: float | None = None  # from the first run
    p_value: float | None = None
    significant: bool = False
    same: bool = False  # every output is the first run's


@dataclass(frozen=True)
class Compared:
    """Several runs on the same set."""

    name: str
    lines: int
    rows: list[Row]
    test: str  # the signature of the paired test, or why there is none


def score_run(run: Run) -> list[ScoredSet]:
    """The scores of the test sets and of the best validation."""
    return [_score(one) for one in run.scored]


def _score(test: TestScore) -> ScoredSet:
    scored = ScoredSet(
        test.name, test.step, len(test.sentences), Value(test.bleu, signature=test.signature)
    )
    hyps, refs = _texts(test.sentences)
    if not hyps:
        return scored
    tokenize = tokenizer_of(test.signature)
    is_small = len(hyps) <= MAX_RESAMPLED
    slicings = []
    if len(hyps) >= LEAST_SLICED:
        slicings.append(by_length([sentence.source for sentence in test.sentences]))
    settings = Settings(METRICS, tokenize, n_resamples=RESAMPLES if is_small else None)
    try:
        evaluation = evaluate_systems(
            EvaluationSet("", refs, slicings=slicings), {"": hyps}, settings
        )
        bleu, chrf = evaluation.systems[""]
        if not is_small:
            scored.note = f"no interval: more than {MAX_RESAMPLED:,} lines"
        scored.bleu = Value(bleu.score.value, bleu.interval, bleu.score.signature)
        scored.chrf = Value(chrf.score.value, chrf.interval, chrf.score.signature)
        if math.isfinite(test.bleu) and abs(test.bleu - bleu.score.value) > 0.005:
            scored.note = f"the training recorded BLEU {test.bleu:.2f}"
        for slicing in slicings:
            scored.slices = [
                LengthSlice(part.label, len(part.lines), *values)
                for part, *values in zip(
                    slicing.slices, *(one.slices["length"] for one in (bleu, chrf)), strict=True
                )
            ]
    except (MtError, ImportError, RuntimeError) as error:  # a tokenizer that is not installed
        scored.note = f"not scored again: {first_line(error)}"
    return scored


def compare(runs: Sequence[Run], scores: Sequence[Sequence[ScoredSet]]) -> list[Compared]:
    """Compare the runs on every set that two of them have been scored on.

    Sets of the same name but another text are different ones. The paired bootstrap needs the
    outputs of both runs; without, the scores stand side by side.
    """
    groups: list[list[tuple[int, ScoredSet]]] = []
    for index, of_run in enumerate(scores):
        for one in of_run:
            for group in groups:
                other, first = group[0]
                if one.name == first.name and not _differ(runs[other], runs[index], one.name):
                    group.append((index, one))
                    break
            else:
                groups.append([(index, one)])
    return [_compare(group[0][1].name, runs, group) for group in groups if len(group) > 1]


def _differ(a: Run, b: Run, name: str) -> bool:
    """Whether the sets of this name are known to be different texts."""
    texts = _parallel(_sentences(a, name)), _parallel(_sentences(b, name))
    if all(texts):
        return texts[0] != texts[1]
    digests = _digests(a, name), _digests(b, name)
    return all(digests) and digests[0] != digests[1]


def _digests(run: Run, name: str) -> list[str]:
    """The recorded SHA-256 of the files of a set; empty if they are not known."""
    if run.config is None:
        return []
    data, recorded = run.config.data, run.recorded_files
    source = scored_sources(data).get(name)
    files = local_files(source, data_root(data)) if source else []
    found = [recorded[str(path)].get("sha256") for path in files if str(path) in recorded]
    return [str(digest) for digest in found if digest]


def _compare(name: str, runs: Sequence[Run], having: list[tuple[int, ScoredSet]]) -> Compared:
    (first, baseline), *others = having
    sentences = {index: _sentences(runs[index], name) for index, _ in having}
    rows = [Row(first, runs[first].label, baseline.bleu)]
    texts = _parallel(sentences[first])
    same = [index for index, _ in others if texts and _parallel(sentences[index]) == texts]
    why = (
        "no test: the outputs of these runs on this set are not kept; --translate makes them again"
    )
    results = {}
    if same and len(sentences[first]) <= MAX_RESAMPLED:
        systems = {f"{index}": [one.output for one in sentences[index]] for index in (first, *same)}
        refs = [[one.reference for one in sentences[first]]]
        try:
            tokenize = tokenizer_of(baseline.bleu.signature)
            settings = Settings(["bleu"], tokenize, n_samples={"bs": RESAMPLES})
            evaluated = evaluate_systems(EvaluationSet("", refs), systems, settings).systems
            results = {index: evaluated[f"{index}"][0].comparisons["bs"] for index in same}
            why = (
                f"paired bootstrap against {runs[first].label}, {RESAMPLES:,} resamples, "
                f"seed {SEED}"
            )
        except (MtError, ImportError, RuntimeError) as error:
            why = f"no test: {first_line(error)}"
    for index, scored in others:
        result = results.get(index)
        difference = scored.bleu.value - baseline.bleu.value
        equal = result is not None and _texts(sentences[index]) == _texts(sentences[first])
        rows.append(
            Row(
                index,
                runs[index].label,
                scored.bleu,
                difference if math.isfinite(difference) else None,
                result.p_value if result and not equal else None,
                bool(result and result.significant),
                equal,
            )
        )
    return Compared(name, len(sentences[first]), rows, why)


def _sentences(run: Run, name: str) -> list[Sentence]:
    return next((one.sentences for one in run.scored if one.name == name), [])


def _parallel(sentences: Sequence[Sentence]) -> list[tuple[str, str]]:
    return [(one.source, one.reference) for one in sentences]


def _texts(sentences: Sequence[Sentence]) -> tuple[list[str], list[list[str]]]:
    hyps = [sentence.output for sentence in sentences]
    return hyps, [[sentence.reference for sentence in sentences]]


def tokenizer_of(signature: str) -> str:
    """The BLEU tokenizer that a signature names, without a version that follows it."""
    match = re.search(r"\btok:([\w-]+?)(?:-\d[^|]*)?(?:\||$)", signature)
    return match[1] if match else DEFAULT
