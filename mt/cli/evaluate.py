"""`mt evaluate`: which of several systems is better, by how much, and where."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mt.cli import options as opt
from mt.cli.console import print_result, say
from mt.errors import DataError
from mt.search.options import EngineOptions, SearchOptions

if TYPE_CHECKING:
    from mt.cli.evaluate_inputs import System, Texts
    from mt.config.plan import Direction
    from mt.evaluation.comet import Comet
    from mt.evaluation.systems import Evaluation, EvaluationSet, Settings
    from mt.runs.model_folder import ModelFolder

statistics_option = opt.options_in("Confidence and significance")


@dataclass(frozen=True)
class EvaluationGroup:
    """The options of this command, without those of the search and the engine."""

    # fmt: off
    hyp: Annotated[list[str] | None, opt.input_option("--hyp", metavar="[NAME=]FILE", help=
        "translation to score; repeatable, each is a system; the first, or else the first --model, "
        "is what others are compared with")] = None
    ref: Annotated[list[str] | None, opt.input_option("--ref", metavar="FILE", help=
        "reference, detokenised; repeat for several references per line (default: data.test of "
        "the first model's config)")] = None
    model: Annotated[list[str] | None, opt.input_option(
        "--model", "-m", metavar="[NAME=]FOLDER", help=
        "model that translates --src; repeatable, each is a system")] = None
    src: Annotated[str | None, opt.input_option("--src", metavar="FILE", help=
        "source text, for --model, COMET and --differences")] = None
    metrics: Annotated[str, opt.output_option(
        "--metrics", autocompletion=opt.metric_names, metavar="NAMES", help=
        "any of bleu, chrf, chrf++, ter and comet, separated by commas")] = "bleu,chrf,ter"
    comet_model: Annotated[Path | None, opt.output_option("--comet-model", metavar="FOLDER", help=
        "COMET model on this machine, for the metric comet")] = None
    tokenize: Annotated[str, opt.output_option("--tokenize", metavar="NAME", help=
        "sacreBLEU's tokenizer: 13a, intl, zh, ja-mecab, ko-mecab, char or none; auto follows the "
        "target language")] = "auto"
    tgt_lang: Annotated[str | None, opt.output_option("--tgt-lang", metavar="CODE", help=
        "target language, such as ja, for BLEU and TER; default: the model's")] = None
    as_json: opt.AsJson = False
    perturb: Annotated[str, opt.output_option("--perturb", metavar="KINDS", help=
        "scores of a --model on the test set as people write it, and their drop: any of caps, "
        "title, lower, no-final-stop, typos, noise, emoji, two-sentences, separated by "
        "commas")] = ""
    differences: Annotated[int, opt.output_option("--differences", metavar="N", min=0, help=
        "show the N lines whose chrF differs most from the first system's")] = 0
    confidence: Annotated[bool, statistics_option("--confidence", help=
        "95 % confidence intervals, by bootstrap resampling")] = False
    resamples: Annotated[int | None, statistics_option("--resamples", metavar="N", min=2, help=
        "resamples of intervals and tests (default: 1000)")] = None
    seed: Annotated[int | None, statistics_option("--seed", metavar="N", min=1, help=
        "seed of intervals, tests and --perturb (default: 12345)")] = None
    # fmt: on

    @property
    def metric_list(self) -> list[str]:
        """The names in `metrics`, each once."""
        return listed(self.metrics)

    def is_drawn(self, n_systems: int) -> bool:
        """Whether an interval, a test or a perturbation of so many systems is drawn at random."""
        return self.confidence or bool(self.perturb) or n_systems > 1


def evaluate(given: EvaluationGroup, search: SearchOptions, engine: EngineOptions) -> None:
    """Score translations with sacreBLEU; compare systems.

    The table says which differences between systems are significant. A --model translates the
    sources first; without --ref it takes the test sets of its config. - is stdin.

    \b
    mt evaluate --hyp output.en --ref reference.en --confidence
    mt evaluate --model runs/base --src test.de --ref test.en --json
    mt evaluate -m runs/base -m runs/big --differences 10
    mt evaluate -m runs/base --src test.de --ref test.en --perturb caps,typos
    mt evaluate --hyp output.ja --ref reference.ja --tgt-lang ja
    """
    from mt.cli.evaluate_inputs import (
        outputs_of,
        read_texts,
        systems_of,
        translate_sets,
    )
    from mt.evaluation.comet import check_comet
    from mt.evaluation.metrics import METRICS, check_metrics
    from mt.evaluation.perturb import check_kinds
    from mt.evaluation.systems import evaluate_systems
    from mt.evaluation.table import Style, format_evaluation, to_json
    from mt.runs.model_folder import open_model

    check_metrics(given.metric_list)
    check_kinds(listed(given.perturb))
    systems = systems_of(given.hyp or [], given.model or [])
    for fault in _faults(given, systems, search, engine):
        raise DataError(fault)
    if any(METRICS[name].needs_model for name in given.metric_list):
        check_comet(given.comet_model, "--comet-model")
    elif given.comet_model is not None:
        raise DataError("--comet-model: only with the metric comet; add it to --metrics")
    models = {system.path: open_model(Path(system.path)) for system in systems if system.is_model}
    texts = read_texts(systems, given.src, given.ref, search, models)
    comet = _load_comet(given, texts, engine.device)
    sets = [text.data for text in texts]
    directions = dict.fromkeys(test_set.direction for test_set in sets)
    settings = {
        each: _settings(given, models, comet, each.tgt if each else "") for each in directions
    }
    # The texts tell the language that each is translated into.
    decoding = replace(search, to=None, with_scores=False)
    translate = partial(translate_sets, search=decoding, engine=engine)
    evaluations: list[Evaluation] = []
    if given.perturb:
        evaluations += chain.from_iterable(
            _perturbed(each, listed(given.perturb), models, settings, translate) for each in sets
        )
    else:
        outputs = outputs_of(systems, models, texts, translate)
        for test_set, of_set in zip(sets, outputs, strict=True):
            evaluations.append(evaluate_systems(test_set, of_set, settings[test_set.direction]))
    if given.as_json:
        print_result(to_json(evaluations))
        return
    style = Style(use_colour(), bool(given.perturb))
    text = "\n\n".join(format_evaluation(evaluation, style) for evaluation in evaluations)
    print_result(text, is_printable=True)


def listed(text: str) -> list[str]:
    """Names separated by commas, in lower case, each once."""
    return list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))


def _faults(
    given: EvaluationGroup,
    systems: Sequence[System],
    search: SearchOptions,
    engine: EngineOptions,
) -> Iterator[str]:
    """Yield what contradicts or lacks something else."""
    src, ref = given.src, given.ref or []
    is_model = [system.is_model for system in systems]
    together = "evaluate: --model and --src go together; give"
    if not systems and src is None:
        yield "evaluate: nothing to score; give --hyp FILE, or --model FOLDER --src FILE"
    if not systems:
        yield f"{together} --model FOLDER too"
    if any(is_model) and src is None and ref:
        yield f"{together} --src FILE too"
    if not ref and (src is not None or not all(is_model)):
        yield "evaluate: no reference to score against; give --ref FILE, detokenised"
    hyps = [system.path for system in systems if not system.is_model]
    if [*hyps, *ref, src].count("-") > 1:
        yield "evaluate: only one FILE can be - (stdin); name a file for the others"
    chosen = [*opt.given(search), *opt.given(engine)]
    if given.comet_model and "--device" in chosen:
        chosen.remove("--device")  # COMET uses it, too
    if chosen and not any(is_model):
        yield f"evaluate: {', '.join(chosen)} only with --model; --hyp is scored as it is"
    yield from _comparison_faults(given, systems)


def _comparison_faults(given: EvaluationGroup, systems: Sequence[System]) -> Iterator[str]:
    """Yield what is wrong with the options about differences, of systems or of perturbed text."""
    from mt.evaluation.perturb import KINDS

    if given.perturb:
        if [system.is_model for system in systems] != [True]:
            yield "--perturb: takes one --model, and translates; leave out --hyp"
        if not listed(given.perturb):
            yield f"--perturb: must name one of {', '.join(KINDS)}, found {given.perturb!r}"
        if given.differences:
            yield "--perturb: not with --differences; leave out one"
    if given.differences and len(systems) == 1:
        yield "--differences: compares systems; give another --hyp or --model"
    names = [system.name for system in systems]
    if given.differences and given.as_json and "differences" in names:
        yield (
            "--differences: is the key `differences` in --json, which is also the name of a "
            "system; rename the system: NAME=differences"
        )
    for option in ("--seed", "--resamples"):
        if option in opt.given(given) and not given.is_drawn(len(systems)):
            yield (
                f"{option}: only with --confidence, --perturb or several systems; nothing is drawn "
                "here"
            )


def _load_comet(given: EvaluationGroup, texts: Sequence[Texts], device: str) -> Comet | None:
    """Load the model, if a metric needs it. Raises DataError if it needs sources, and has none."""
    from mt.evaluation.comet import Comet
    from mt.evaluation.metrics import METRICS

    metrics = [METRICS[name] for name in given.metric_list]
    if any(metric.needs_sources for metric in metrics) and texts[0].data.sources is None:
        raise DataError("metric comet: reads the source too; give --src FILE")
    if not any(metric.needs_model for metric in metrics):
        return None
    from mt.runtime.devices import choose_device  # loads torch

    return Comet(given.comet_model, "--comet-model", gpu=choose_device(device).is_cuda)


def _settings(
    given: EvaluationGroup,
    models: Mapping[str, ModelFolder],
    comet: Comet | None,
    into: str,
) -> Settings:
    """The settings for the test sets of one target language."""
    from mt.cli.evaluate_inputs import scoring_of
    from mt.evaluation.bleu_tokenizer import choose_tokenizer
    from mt.evaluation.significance import RESAMPLES, SEED
    from mt.evaluation.systems import Settings

    language, choice = scoring_of(models, given.tgt_lang, given.tokenize, into)
    tokenizer = choose_tokenizer(language, choice, say, "--tokenize")
    return Settings(
        given.metric_list,
        tokenizer,
        given.confidence,
        given.resamples or RESAMPLES,
        given.seed or SEED,
        given.differences,
        comet,
        language,
    )


def _perturbed(
    test_set: EvaluationSet,
    kinds: Sequence[str],
    models: Mapping[str, ModelFolder],
    settings: Mapping[Direction | None, Settings],
    translate: Callable[..., list[list[str]]],
) -> Iterator[Evaluation]:
    """Evaluate a model on a test set and on its perturbations."""
    from mt.evaluation.perturb import evaluate_perturbed

    (model,) = models.values()
    chosen = settings[test_set.direction]
    source, _ = test_set.direction or ("", "")
    languages = source or model.config.data.src_lang, chosen.tgt_lang
    return evaluate_perturbed(
        test_set, kinds, languages, lambda sets: translate(model, sets), chosen
    )


def use_colour() -> bool:
    """Whether stdout is a terminal that shows colours, and NO_COLOR (no-color.org) is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return bool(sys.stdout) and sys.stdout.isatty() and not plain
