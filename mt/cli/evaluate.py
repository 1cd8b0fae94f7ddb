"""`mt evaluate`: which of several systems is better, by how much, and where."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from mt.cli.console import print_result, say
from mt.cli.evaluate_options import (
    EvaluationGroup,
    check_comet_model,
    check_options,
    listed,
    paired_tests,
)
from mt.cli.options import EngineGroup, LineSearchGroup, with_groups
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.cli.evaluate_inputs import System, Texts
    from mt.evaluation.comet import Comet
    from mt.evaluation.slices import Slicing
    from mt.evaluation.systems import Evaluation, EvaluationSet, Settings, TextDirection
    from mt.evaluation.table import Style
    from mt.search.options import SearchOptions


@with_groups
def evaluate(given: EvaluationGroup, search: LineSearchGroup, engine: EngineGroup) -> None:
    """Score translations with sacreBLEU; compare systems.

    The table says which differences between systems are significant. A --model translates the
    sources first; without --ref and --test-set it takes the test sets of its config. - is stdin.

    \b
    mt evaluate --hyp output.en --ref reference.en --confidence
    mt evaluate --model runs/base --src test.de --ref test.en --json
    mt evaluate -m runs/base -m runs/big --slices length --differences 10
    mt evaluate -m runs/base --src test.de --ref test.en --perturb caps,typos
    mt evaluate --hyp output.ja --ref reference.ja --tgt-lang ja
    mt evaluate --hyp x.en,y.en --test-set a=a.de,a.en --test-set b=b.de,b.en
    mt evaluate --model runs/base --test-set wmt20 --langs de-en
    """
    from mt.cli.corpora import languages as languages_of
    from mt.cli.evaluate_inputs import read_texts, systems_of, with_slices
    from mt.evaluation.metrics import check_metrics
    from mt.evaluation.perturb import check_kinds
    from mt.evaluation.table import Style

    check_metrics(listed(given.metrics))
    check_comet_model(given)
    check_kinds(listed(given.perturb))
    systems = systems_of(given.hyp or [], given.model or [], given.baseline)
    check_options(given, systems, search, engine)
    tests = paired_tests(2 if given.perturb else len(systems), given)
    refs, from_, to = given.ref or [], search.from_, search.to
    if given.langs:
        from_, to = languages_of(given.langs, [])
    section = "valid" if given.fit_confidence else "test"
    texts = read_texts(
        systems, given.test_set or [], given.src, refs, given.domain, section, from_, to
    )
    models = [system.model for system in systems if system.model is not None]
    if given.fit_confidence or given.reliability:
        name = Path(given.src or "").name  # of a set that has none
        sets = [replace(text.data, name=text.data.name or name) for text in texts]
        options = replace(search, to=None).value(confidence=given.reliability)
        print_result(_confidence(models[0], sets, options, engine, given.as_json))
        return
    # Of several languages each has its own rare words, unless the files to count in are given.
    languages = [None if given.train_src else text.data.direction.source for text in texts]
    slicers = {code: _slicers(given, models, code) for code in dict.fromkeys(languages)}
    sets = [with_slices(text, slicers[code]) for text, code in zip(texts, languages, strict=True)]
    comet = _load_comet(given, texts, engine.device)
    settings = {
        direction: _settings(given, tests, models, comet, direction.to)
        for direction in dict.fromkeys(test_set.direction for test_set in sets)
    }
    # The texts tell the language that each is translated into.
    options = replace(search, to=None).value(with_scores=False)
    if given.perturb:
        evaluations = [
            evaluation
            for test_set in sets
            for evaluation in _evaluate_perturbed(
                test_set, listed(given.perturb), models[0], settings, options, engine
            )
        ]
    else:
        evaluations = _evaluate_systems(systems, texts, sets, settings, options, engine)
    style = Style(given.width, use_colour(), bool(given.perturb))
    _print(evaluations, style, given.as_json, given.as_tsv)


def _confidence(
    model: Path,
    sets: Sequence[EvaluationSet],
    search: SearchOptions,
    engine: EngineGroup,
    as_json: bool,
) -> str:
    """Fit the model's confidence, or with `search.confidence` measure it; return what to print."""
    from mt.cli.evaluate_inputs import best_texts, translate_sets
    from mt.runs.model_folder import read_folder
    from mt.runs.outputs import Sentence
    from mt.training.calibration import fit_model, good_lines, reliability

    translated = translate_sets(model, sets, search, engine)
    good = [
        good_lines(outputs, test_set.refs)
        for test_set, outputs in zip(sets, best_texts(translated), strict=True)
    ]
    if not search.confidence:
        lines = [line for lines in translated for line in lines]
        sentences = [Sentence("", "", line.texts[0], line.scores[0], line.flags) for line in lines]
        described = read_folder(model)
        penalty = search.decode_config(described.config).length_penalty
        return fit_model(described.folder, sentences, [*chain.from_iterable(good)], penalty)
    measured = {
        test_set.name: reliability([line.confidence or 0.0 for line in lines], is_good)
        for test_set, lines, is_good in zip(sets, translated, good, strict=True)
    }
    if as_json:
        return json.dumps({name: each.values() for name, each in measured.items()}, indent=1)
    tables = [[name, each.table()] for name, each in measured.items()]
    return "\n\n".join("\n".join(filter(None, table)) for table in tables)


def _evaluate_perturbed(
    test_set: EvaluationSet,
    kinds: Sequence[str],
    model: Path,
    settings: Mapping[TextDirection, Settings],
    search: SearchOptions,
    engine: EngineGroup,
) -> Iterator[Evaluation]:
    from mt.cli.evaluate_inputs import best_texts, translate_sets
    from mt.evaluation.perturb import evaluate_perturbed
    from mt.runs.model_folder import read_config

    chosen = settings[test_set.direction]
    source = test_set.direction.source or read_config(model).data.src_lang
    return evaluate_perturbed(
        test_set,
        kinds,
        (source, chosen.tgt_lang),
        lambda perturbed: best_texts(translate_sets(model, perturbed, search, engine)),
        chosen,
    )


def _evaluate_systems(
    systems: Sequence[System],
    texts: Sequence[Texts],
    sets: Sequence[EvaluationSet],
    settings: Mapping[TextDirection, Settings],
    search: SearchOptions,
    engine: EngineGroup,
) -> list[Evaluation]:
    from mt.cli.evaluate_inputs import outputs_of
    from mt.evaluation.systems import evaluate_systems

    outputs = outputs_of(systems, texts, search, engine)
    return [
        evaluate_systems(
            test_set,
            {system.name: outputs[system.name][number] for system in systems},
            settings[test_set.direction],
        )
        for number, test_set in enumerate(sets)
    ]


def _settings(
    given: EvaluationGroup,
    tests: dict[str, int],
    models: Sequence[Path],
    comet: Comet | None,
    into: str | None,
) -> Settings:
    """The settings for the test sets of one target language."""
    from mt.cli.evaluate_inputs import scoring_of
    from mt.evaluation.bleu_tokenizer import choose_tokenizer
    from mt.evaluation.significance import RESAMPLES, default_seed
    from mt.evaluation.systems import Settings

    language, choice = scoring_of(models, given.tgt_lang, given.tokenize, into)
    n_resamples = given.confidence_n or (RESAMPLES if given.confidence else None)
    is_drawn = bool(tests or n_resamples or given.perturb)
    return Settings(
        listed(given.metrics),
        choose_tokenizer(language, choice, say, "--tokenize"),
        n_resamples,
        tests,
        (given.seed or default_seed()) if is_drawn else None,
        given.differences,
        comet,
        language,
    )


def _slicers(
    given: EvaluationGroup, models: Sequence[Path], language: str | None
) -> dict[str, Callable[[Sequence[str]], Slicing]]:
    """Functions that slice the sources of one language, by the names of --slices."""
    from mt.evaluation.slices import slicer

    files = given.train_src or []
    return {
        name: slicer(name, files, given.tokenizer_of, models, language)
        for name in listed(given.slices)
    }


def _print(evaluations: Sequence[Evaluation], style: Style, as_json: bool, as_tsv: bool) -> None:
    from mt.evaluation.json_tsv import to_json, to_tsv
    from mt.evaluation.table import format_evaluation

    if as_json:
        print_result(to_json(evaluations))
    elif as_tsv:
        print_result(to_tsv(evaluations))
    else:
        text = "\n\n".join(format_evaluation(evaluation, style) for evaluation in evaluations)
        print_result(text, is_printable=True)


def use_colour() -> bool:
    """Whether stdout is a terminal that shows colours, and NO_COLOR (no-color.org) is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return bool(sys.stdout) and sys.stdout.isatty() and not plain


def _load_comet(given: EvaluationGroup, texts: Sequence[Texts], device: str) -> Comet | None:
    """Load the model, if a metric needs it. Raises DataError if it needs sources, and has none."""
    from mt.evaluation.metrics import METRICS

    names = listed(given.metrics)
    reading = [name for name in names if METRICS[name].needs_sources]
    if reading and any(text.data.sources is None for text in texts):
        raise DataError(
            f"metric {reading[0]}: reads the source too; give --src FILE, or "
            "--test-set NAME=SRC,REF"
        )
    if not any(METRICS[name].needs_model for name in names):
        return None
    from mt.evaluation.comet import Comet
    from mt.runtime.devices import choose_device

    return Comet(given.comet_model, "--comet-model", gpu=choose_device(device).is_cuda)
