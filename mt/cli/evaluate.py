"""`mt evaluate`: which of several systems is better, by how much, and where."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mt.cli import options as opt
from mt.cli.console import print_result, say
from mt.errors import DataError
from mt.search.options import EngineOptions, SearchOptions

if TYPE_CHECKING:
    from mt.evaluation.comet import Comet
    from mt.evaluation.systems import Evaluation, EvaluationSet, Settings
    from mt.runs.model_folder import ModelFolder

statistics_option = opt.options_in("Confidence and significance")
NamedLines = dict[str, list[str]]  # the lines of files, by what messages call them


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
    normalize: Annotated[Literal["nfc"] | None, opt.output_option("--normalize", help=
        "nfc: compare both sides composed; without it as they are, as sacreBLEU does")] = None
    as_json: opt.AsJson = False
    perturb: Annotated[str, opt.output_option("--perturb", metavar="KINDS", help=
        "scores of a --model on the test set as people write it, and their drop: any of caps, "
        "title, lower, no-final-stop, typos, noise, emoji, separated by "
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
    from mt.evaluation.metrics import check_metrics
    from mt.evaluation.perturb import perturbations
    from mt.evaluation.systems import evaluate_systems
    from mt.evaluation.table import format_evaluation, to_json
    from mt.runs.model_folder import open_model

    kinds = listed(given.perturb)
    check_metrics(listed(given.metrics))
    systems = systems_of(given.hyp or [], given.model or [])
    for fault in _faults(given, systems, search, engine):
        raise DataError(fault)
    models = {system.name: open_model(Path(system.path)) for system in systems if system.is_model}
    if given.ref:
        sets = [_given_set(systems, given.src, given.ref, _direction_of(models, search))]
    else:
        sets = _configured_sets(*next(iter(models.items())), search)
    sets = [test_set.in_nfc() for test_set in sets] if given.normalize else sets
    comet = _load_comet(given, sets[0], engine.device)
    settings = {
        each: _settings(given, models, comet, each[1])
        for each in dict.fromkeys(test_set.direction for test_set in sets)
    }
    # The texts tell the language that each is translated into.
    search = replace(search, to=None, with_scores=False)
    evaluations: list[Evaluation] = []
    if kinds:
        (model,) = models.values()
        for test_set in sets:
            of_set = settings[test_set.direction]
            languages = test_set.direction[0] or model.config.data.src_lang, of_set.tgt_lang
            changed = perturbations(test_set, kinds, languages, of_set.seed)
            translated = translate_sets(model, [*changed.values()], search, engine)
            found = dict(zip(changed, translated, strict=True))
            evaluations.append(evaluate_systems(test_set, found, of_set, changed))
    else:
        outputs = {
            name: translate_sets(model, sets, search, engine, name if len(systems) > 1 else "")
            for name, model in models.items()
        }
        for number, test_set in enumerate(sets):
            found = {name: of_model[number] for name, of_model in outputs.items()}
            found |= test_set.hyps
            ordered = {system.name: found[system.name] for system in systems}
            evaluations.append(evaluate_systems(test_set, ordered, settings[test_set.direction]))
    if given.as_json:
        print_result(to_json(evaluations))
        return
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"  # no-color.org
    in_colour = bool(sys.stdout) and sys.stdout.isatty() and not plain
    texts = [format_evaluation(evaluation, in_colour, bool(kinds)) for evaluation in evaluations]
    print_result("\n\n".join(texts), is_printable=True)


def listed(text: str) -> list[str]:
    """Names separated by commas, in lower case, each once."""
    return list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))


def _faults(
    given: EvaluationGroup, systems: Sequence[System], search: SearchOptions, engine: EngineOptions
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
    if given.tokenize != "auto" and "bleu" not in listed(given.metrics):
        yield "--tokenize: only with the metric bleu; add it to --metrics, or leave out --tokenize"
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
        kinds = listed(given.perturb) or [given.perturb]
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            yield f"--perturb: must name one of {', '.join(KINDS)}, found {unknown[0]!r}"
        if given.differences:
            yield "--perturb: not with --differences; leave out one"
    if given.differences and len(systems) == 1:
        yield "--differences: compares systems; give another --hyp or --model"
    if given.differences and given.as_json and "differences" in [system.name for system in systems]:
        yield "--differences: `differences` is a key of --json; rename the system: NAME=differences"
    if not (given.confidence or given.perturb or len(systems) > 1):
        for option in sorted({"--seed", "--resamples"}.intersection(opt.given(given))):
            yield f"{option}: draws nothing without --confidence, --perturb or several systems"


# --- settings ---------------------------------------------------------------------------------


def _load_comet(given: EvaluationGroup, test_set: EvaluationSet, device: str) -> Comet | None:
    """Load the model, if a metric needs it; MtError, before anything is translated, without it."""
    from mt.evaluation.comet import Comet, check_comet
    from mt.evaluation.metrics import METRICS

    metrics = [METRICS[name] for name in listed(given.metrics)]
    if not any(metric.needs_model for metric in metrics):
        if given.comet_model is not None:
            raise DataError("--comet-model: only with the metric comet; add it to --metrics")
        return None
    check_comet(given.comet_model, "--comet-model")
    if any(metric.needs_sources for metric in metrics) and test_set.sources is None:
        raise DataError("metric comet: reads the source too; give --src FILE")
    from mt.runtime.devices import choose_device  # loads torch

    return Comet(given.comet_model, "--comet-model", gpu=choose_device(device).is_cuda)


def _settings(
    given: EvaluationGroup, models: Mapping[str, ModelFolder], comet: Comet | None, into: str
) -> Settings:
    """The settings for test sets into one language: as given, else those of the models' configs."""
    from mt.evaluation.bleu_tokenizer import choose_tokenizer
    from mt.evaluation.significance import RESAMPLES, SEED
    from mt.evaluation.systems import Settings

    tgt_lang = given.tgt_lang
    pairs = {}
    for name, model in models.items():
        is_own = given.tokenize == "auto" and tgt_lang is None
        choice = model.config.train.bleu_tokenize if is_own else given.tokenize
        ways = [*sorted(model.data.directions, key=model.data.usual.__ne__), model.data.usual]
        pairs[name] = (tgt_lang or into or ways[0].tgt, choice)
    if len(set(pairs.values())) > 1:
        each = "; ".join(f"{name} {', '.join(pair)}" for name, pair in pairs.items())
        raise DataError(
            f"evaluate: target language and BLEU tokenizer of the models differ: {each}; give "
            "--tgt-lang, or --tgt-lang and --tokenize, for all"
        )
    language, choice = next(iter(pairs.values()), (tgt_lang or into, given.tokenize))
    return Settings(
        listed(given.metrics),
        choose_tokenizer(language, choice, say, "--tokenize"),
        given.confidence,
        given.resamples or RESAMPLES,
        given.seed or SEED,
        given.differences,
        comet,
        language,
        given.normalize == "nfc",
    )


# --- systems ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class System:
    """A system to evaluate: a model, or a file with its outputs."""

    name: str
    path: str
    is_model: bool


def systems_of(hyp: Sequence[str], model: Sequence[str]) -> list[System]:
    """The systems; the first is the baseline. `NAME=FILE` names one; else its path is its name."""
    systems: dict[str, System] = {}
    for text, is_model in [*((file, False) for file in hyp), *((path, True) for path in model)]:
        name, _, path = text.partition("=")
        # An existing file may have = in its name.
        if not name or not path or "/" in name or os.path.exists(text):
            name, path = str(Path(text)) if is_model else text, text
        if name in systems:
            raise DataError(
                f"evaluate: two systems are called {name}; give one of them another name: "
                f"NAME={name}"
            )
        systems[name] = System(name, path, is_model)
    return list(systems.values())


# --- test sets --------------------------------------------------------------------------------


def _given_set(
    systems: Sequence[System], source: str | None, ref: Sequence[str], direction: tuple[str, str]
) -> EvaluationSet:
    """Read the files --src, --ref and --hyp. Raises DataError for unequal counts."""
    from mt.evaluation.metrics import check_counts
    from mt.evaluation.systems import EvaluationSet
    from mt.translate.streaming import read_input

    def read(option: str, path: str) -> list[str]:
        named[f"{option} {path}"] = lines = list(read_input(path, option=option))
        return lines

    named: NamedLines = {}
    hyps = {one.name: read("--hyp", one.path) for one in systems if not one.is_model}
    sources = None if source is None else read("--src", source)
    refs = [read("--ref", path) for path in ref]
    check_counts(named)
    called = " and ".join(f"--ref {path}" for path in ref)
    return EvaluationSet("", refs, sources, direction, hyps=hyps).with_references(called)


def _direction_of(models: Mapping[str, ModelFolder], search: SearchOptions) -> tuple[str, str]:
    """The languages of --from and --to; a model of both directions tells the other language."""
    source, to = search.from_ or "", search.to or ""
    known = None
    if models and (source or to):
        known = next(iter(models.values())).data.direction(source, to)
    return (source or known.src, to or known.tgt) if known else (source, to)


def _configured_sets(name: str, model: ModelFolder, search: SearchOptions) -> list[EvaluationSet]:
    """The texts of `data.test` in a model's config."""
    from mt.data.reading.corpus import read_pairs
    from mt.evaluation.systems import EvaluationSet
    from mt.training.validation import names_of

    codes = {"--from": search.from_, "--to": search.to}
    if given := " and ".join(f"{option} {code}" for option, code in codes.items() if code):
        raise DataError(
            f"{given}: the texts of data.test have languages of their own; give --src and --ref, "
            f"or leave {given} out"
        )
    data = model.data
    remedy = "give --src FILE and --ref FILE"
    if not data.test:
        raise DataError(f"--model {name}: its config has no data.test to translate; {remedy}")
    sets = []
    for title, text in zip(names_of(data.test), data.test, strict=True):
        try:
            pairs = list(read_pairs(text.source, data.root, text.name))
        except DataError as error:
            raise DataError(f"{error} This is data.test of {name}; or {remedy}") from error
        sources, refs = ([pair[side] for pair in pairs] for side in (0, 1))
        is_usual = text.direction == data.usual and not data.has_tokens
        is_told = not is_usual or (len(data.directions) > 1 and text.direction in data.directions)
        direction = text.direction if is_told else ("", "")
        sets.append(EvaluationSet(title, [refs], sources, direction).with_references(text.name))
    return sets


def translate_sets(
    model: ModelFolder, data: Sequence[EvaluationSet], search: SearchOptions,
    engine: EngineOptions, name: str = "",
) -> list[list[str]]:  # fmt: skip
    """Translate test sets with one model; report on each, by the system's name if it has one."""
    from mt.data.reading.languages import base_code
    from mt.terminal import Progress, can_show_bar
    from mt.translate.load import load_engine
    from mt.translate.translator import make_translator

    outputs = []
    for test_set in data:
        model.tokenizer.before_source(test_set.direction[1] or None, model.data)
    own = [*model.data.directions, *(text.direction for text in model.data.test)]
    known = {"", "src", *(base_code(c) for way in own for c in way[: 1 + model.data.has_tokens])}
    if others := [code for each in data if base_code(code := each.direction[0]) not in known]:
        search = replace(search, from_=others[0])  # which load_engine refuses
    with load_engine(search, replace(engine, models=[model])) as loaded:
        for test_set in data:
            source, to = (code or None for code in test_set.direction)
            sources = test_set.sources or []
            with Progress(len(sources), 0, can_show_bar()) as bar:
                translator = make_translator(
                    loaded, to, source, on_progress=bar.update, number_of=test_set.number
                )
                outputs.append([line.texts[0] for line in translator.translate(sources)])
            which = ", ".join(filter(None, [name, test_set.name]))
            say(f"{which}: " * bool(which) + translator.summary())
    return outputs
