"""Final scores with confidence intervals, and runs against each other."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mt.config.data_schema import DataConfig
from mt.config.plan import DataPlan, plan_data
from mt.config.schema import Config
from mt.data.reading.corpus import local_files
from mt.errors import DataError, MtError, first_line
from mt.evaluation.bleu_tokenizer import fitting_tokenizer, tokenizer_of
from mt.evaluation.metrics import Score
from mt.evaluation.perturb import CHANGES, PLAIN
from mt.evaluation.significance import RESAMPLES, SEED
from mt.evaluation.systems import EvaluationSet, Settings, SystemScore, evaluate_systems
from mt.report.run_summary import NOT_KEPT, RecordedScore, RunSummary, scored_texts
from mt.runs.outputs import Sentence
from mt.terminal import say
from mt.training.validation import as_sentences, read_text, valid_language

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


def translate_again(run: RunSummary) -> None:
    """Translate the scored sets whose outputs were not kept, with the best checkpoint.

    A test set that the training has not scored yet is left alone. Nothing is written into the run;
    what cannot be translated becomes a remark.
    """
    from mt.search.options import EngineOptions, SearchOptions
    from mt.translate.assemble import make_translator
    from mt.translate.load import load_engine

    if run.config is None:
        return
    engine = EngineOptions(models=[run.folder], engine="torch")
    data = located(run.config, run.manifest)
    texts = scored_texts(data)
    for scored in run.scored:
        if scored.sentences or scored.name not in texts:
            continue
        try:
            src, ref = read_text(texts[scored.name], data.root)
            say(f"{run.label}: translating {len(src):,} lines of {scored.name}")
            source, to = texts[scored.name].direction
            with load_engine(SearchOptions(), engine) as loaded:
                translator = make_translator(loaded, to if data.has_tokens else None, source)
                scored.sentences = as_sentences(src, ref, list(translator.translate(src)))
        except MtError as error:
            run.remarks.append(f"{scored.name} was not translated: {first_line(error)}")
            continue
        run.remarks.append(
            f"{scored.name} was translated for this page with the best checkpoint: another "
            "precision, engine or version of mt than in training may change a score a little."
        )
    if all(test.sentences for test in run.tests):
        run.remarks = [remark for remark in run.remarks if remark != NOT_KEPT]


def located(config: Config, manifest: Mapping[str, Any]) -> DataPlan:
    """The plan of a run's data with paths that start where they did when it was trained."""
    data = plan_data(config.data)
    cwd = manifest.get("cwd")
    if data.root.is_absolute() or not isinstance(cwd, str) or Path.cwd() == Path(cwd):
        return data
    here = [path for text in data.named for path in local_files(text.source, data.root)[:1]]
    if here and all(path.exists() for path in here):
        return data
    return replace(data, root=Path(cwd) / data.root)


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


def read_perturbed(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Read what `mt evaluate --perturb --json` printed: of each test set the first metric.

    Where lines are joined, the plain text is another one, and so is called another test set.
    """
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        rows: dict[str, list[dict[str, Any]]] = {}
        if PLAIN not in tree:
            raise LookupError(f"it has no system {PLAIN}")
        name = tree[PLAIN][0]["name"]
        for label, scores in tree.items():
            if label not in CHANGES:
                raise LookupError(f"{label} is no perturbation")
            for score in scores:
                if score["name"] != name:
                    continue
                test = score.get("paired_bs")
                difference = f"{test['difference']:+.1f} ± {test['margin']:.1f}" if test else ""
                row = {"label": label, "name": name, "value": float(score["value"])}
                of_set = rows.setdefault(score.get("test_set") or "", [])
                of_set.append({**row, "difference": difference})
        return rows
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        remedy = "give the file of mt evaluate --perturb --json > FILE"
        raise DataError(f"--perturbed {path}: cannot be read ({error}); {remedy}") from error


def compare(
    runs: Sequence[RunSummary], scores: Sequence[Sequence[ScoredSet]]
) -> list[dict[str, Any]]:
    """Compare the runs on every set that two of them have been scored on.

    Sets of the same name but another text are different ones. The paired bootstrap needs the
    outputs of both runs; without, the scores stand side by side.
    """
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
    labels = [run.label for run in runs]
    return [_compare(labels, group) for group in groups if len(group) > 1]


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
    data, recorded = plan_data(run.config.data), run.recorded_files
    text = scored_texts(data).get(name)
    files = local_files(text.source, data.root) if text else []
    digests = [recorded[str(path)].get("sha256") for path in files if str(path) in recorded]
    return [str(digest) for digest in digests if digest]


def _compare(labels: Sequence[str], group: list[tuple[int, ScoredSet]]) -> dict[str, Any]:
    """Rows for the runs, the first of which is the baseline; the paired test, or why none."""
    (first, baseline), *others = group
    same = [
        (index, scored)
        for index, scored in others
        if baseline.sentences and scored.texts == baseline.texts
    ]
    test = (
        f"no test: more than {MAX_RESAMPLED:,} lines"
        if same
        else "no test: the outputs of these runs on this set are not kept; --translate makes them "
        "again"
    )
    tokenize = tokenizer_of(baseline.bleu.score.signature)
    results: dict[int, SystemScore] = {}
    if same and len(baseline.sentences) <= MAX_RESAMPLED:
        systems = {f"{index}": scored.outputs for index, scored in [(first, baseline), *same]}
        data = EvaluationSet("", [[ref for _, ref in baseline.texts]])
        settings = Settings(["bleu"], tokenize)
        try:
            evaluated = evaluate_systems(data, systems, settings).systems
            results = {index: evaluated[f"{index}"][0] for index, _ in same}
            test = f"paired bootstrap against {labels[first]}, {RESAMPLES:,} resamples, seed {SEED}"
        except (MtError, ImportError, RuntimeError) as error:
            test = f"no test: {first_line(error)}"
    rows = []
    for index, scored in group:
        bleu, result = scored.bleu, None
        if index in results:
            result = results[index].comparison
        difference = bleu.score.value - baseline.bleu.score.value
        if (tokenizer := tokenizer_of(bleu.score.signature)) != tokenize:
            bleu = results.get(index, bleu)  # with the tokenizer of the baseline
            difference = result.difference if result else math.nan
            test += f"; {labels[index]} was scored by the tokenizer {tokenizer}, this is {tokenize}"
        equal = result is not None and scored.outputs == baseline.outputs
        rows.append(
            {
                "number": index,
                "label": labels[index],
                "bleu": bleu,
                "difference": difference if math.isfinite(difference) else None,
                "p_value": result.p_value if result and not equal else None,
                "significant": bool(result and result.significant),
                "same": equal,
            }
        )
    lines = len(baseline.sentences)
    return {"name": baseline.name, "lines": lines, "rows": rows, "test": test}
