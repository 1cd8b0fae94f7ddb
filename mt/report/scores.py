"""Final scores with confidence intervals, and runs against each other."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mt.config.data_schema import DataConfig
from mt.config.plan import plan_data
from mt.data.reading.corpus import local_files
from mt.errors import MtError, first_line
from mt.evaluation.bleu_tokenizer import fitting_tokenizer, tokenizer_of
from mt.evaluation.metrics import Score
from mt.evaluation.significance import RESAMPLES, SEED
from mt.evaluation.systems import EvaluationSet, Settings, SystemScore, evaluate_systems
from mt.report.run_summary import RecordedScore, RunSummary, scored_texts
from mt.runs.records import Sentence
from mt.training.validation import valid_language

METRICS = ("bleu", "chrf")
# Resampling takes about a second for a thousand lines; larger sets have narrow intervals anyway.
MAX_RESAMPLED = 10_000


@dataclass
class ScoredSet:
    """The final scores of a run on one set."""

    name: str
    step: int
    sentences: list[Sentence]  # empty if they are not known
    bleu: SystemScore
    chrf: SystemScore | None = None
    note: str = ""

    @property
    def texts(self) -> list[tuple[str, str]]:
        return [(sentence.source, sentence.reference) for sentence in self.sentences]

    @property
    def outputs(self) -> list[str]:
        return [sentence.output for sentence in self.sentences]


def score_run(run: RunSummary) -> list[ScoredSet]:
    """The scores of the test sets and of the best validation.

    All sets that one tokenizer fits have that of the last: a run that was resumed without the
    package of its tokenizer has another one since.
    """
    data = plan_data(run.config.data if run.config else DataConfig())
    into = {name: text.direction.tgt for name, text in scored_texts(data).items()}
    others = valid_language(data)
    kinds = [fitting_tokenizer(into.get(test.name, others)) for test in run.scored]
    tests = list(zip(kinds, run.scored, strict=True))
    last = {kind: tokenizer_of(test.signature) for kind, test in tests}
    return [_score(test, last[kind]) for kind, test in tests]


def _score(recorded: RecordedScore, tokenize: str) -> ScoredSet:
    bleu = SystemScore("bleu", Score("BLEU", recorded.bleu, recorded.signature))
    scored = ScoredSet(recorded.name, recorded.step, recorded.sentences, bleu)
    if (before := tokenizer_of(recorded.signature)) != tokenize:
        scored.note = f"not comparable: the tokenizer is {before}, elsewhere {tokenize}"
    if not scored.sentences:
        return scored
    n_lines = len(scored.sentences)
    settings = Settings(METRICS, tokenize, intervals=n_lines <= MAX_RESAMPLED)
    data = EvaluationSet("", [[ref for _, ref in scored.texts]])
    try:
        bleu, chrf = evaluate_systems(data, {"": scored.outputs}, settings).systems[""]
    except (MtError, ImportError, RuntimeError) as error:  # a tokenizer that is not installed
        reasons = [f"not scored again: {first_line(error)}", scored.note]
        scored.note = "; ".join(filter(None, reasons))
        return scored
    scored.bleu, scored.chrf, scored.note = bleu, chrf, ""
    if before != tokenize:
        scored.note = f"scored again; the training recorded BLEU {recorded.bleu:.2f} by {before}"
    elif math.isfinite(recorded.bleu) and abs(recorded.bleu - bleu.score.value) > 0.005:
        scored.note = f"the training recorded BLEU {recorded.bleu:.2f}"
    elif not settings.intervals:
        scored.note = f"no interval: more than {MAX_RESAMPLED:,} lines"
    return scored


def compare(
    runs: Sequence[RunSummary], scores: Sequence[Sequence[ScoredSet]]
) -> list[dict[str, Any]]:
    """Compare the runs on each set, by name and text, that two of them have been scored on."""
    groups: list[list[tuple[int, ScoredSet]]] = []
    for index, of_run in enumerate(scores):
        for score in of_run:
            for group in groups:
                other, first = group[0]
                if score.name == first.name and not _differ(runs[other], first, runs[index], score):
                    group.append((index, score))
                    break
            else:
                groups.append([(index, score)])
    return [_compare([run.label for run in runs], group) for group in groups if len(group) > 1]


def _differ(a: RunSummary, of_a: ScoredSet, b: RunSummary, of_b: ScoredSet) -> bool:
    """Whether two sets of the same name are known to be different texts."""
    if of_a.sentences and of_b.sentences:
        return of_a.texts != of_b.texts
    digests = _digests(a, of_a.name), _digests(b, of_b.name)
    return all(digests) and digests[0] != digests[1]


def _digests(run: RunSummary, name: str) -> list[str]:
    """The recorded SHA-256 of the files of a set; empty if they are not known."""
    if run.config is None:
        return []
    data = plan_data(run.config.data)
    text = scored_texts(data).get(name)
    paths = local_files(text.source, data.root) if text else []
    sections = [run.manifest.get(key) for key in ("test_data", "data")]
    recorded = ChainMap(*[files for files in sections if isinstance(files, dict)])
    files = [recorded.get(str(path)) for path in paths]
    digests = [file.get("sha256") for file in files if isinstance(file, dict)]
    return [str(digest) for digest in digests if digest]


def _compare(labels: Sequence[str], group: list[tuple[int, ScoredSet]]) -> dict[str, Any]:
    """Rows for the runs, the first of which is the baseline; the paired test, or why none."""
    first, baseline = group[0]
    texts = baseline.texts
    same = {str(index): scored.outputs for index, scored in group if texts == scored.texts}
    tokenize = tokenizer_of(baseline.bleu.score.signature)
    results: dict[int, SystemScore] = {}
    if not texts or len(same) == 1:
        test = "no test: the outputs of these runs on this set are not kept; mt evaluate tests them"
    elif len(texts) > MAX_RESAMPLED:
        test = f"no test: more than {MAX_RESAMPLED:,} lines"
    else:
        data = EvaluationSet("", [[ref for _, ref in texts]])
        try:
            evaluated = evaluate_systems(data, same, Settings(["bleu"], tokenize)).systems
            results = {int(index): scores[0] for index, scores in evaluated.items()}
            test = f"paired bootstrap against {labels[first]}, {RESAMPLES:,} resamples, seed {SEED}"
        except (MtError, ImportError, RuntimeError) as error:
            test = f"no test: {first_line(error)}"
    rows = []
    for index, scored in group:
        bleu = scored.bleu
        result = results[index].comparison if index in results else None
        difference = bleu.score.value - baseline.bleu.score.value
        if (tokenizer := tokenizer_of(bleu.score.signature)) != tokenize:
            bleu = results.get(index, bleu)  # with the tokenizer of the baseline
            difference = result.difference if result else math.nan
            test += f"; {labels[index]} was scored by the tokenizer {tokenizer}, this is {tokenize}"
        equal = result is not None and scored.outputs == baseline.outputs
        row = {"number": index, "label": labels[index], "bleu": bleu, "same": equal}
        row["difference"] = difference if math.isfinite(difference) else None
        row["p_value"] = result.p_value if result and not equal else None
        row["significant"] = bool(result and result.significant)
        rows.append(row)
    return {"name": baseline.name, "lines": len(texts), "rows": rows, "test": test}
