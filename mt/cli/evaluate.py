"""`mt evaluate`: which of several systems is better, by how much, and where."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from mt.cli import options as opt
from mt.cli.console import print_result, say
from mt.cli.evaluate_options import (
    EvaluationGroup,
    check_comet_model,
    check_options,
    listed,
    paired_tests,
)
from mt.errors import DataError
from mt.search.options import SearchOptions

if TYPE_CHECKING:
    from mt.cli.evaluate_inputs import Texts, TranslateSets
    from mt.evaluation.comet import Comet
    from mt.evaluation.slices import Slicing
    from mt.evaluation.systems import Evaluation, EvaluationSet, Settings, TextDirection
    from mt.evaluation.table import Style


def evaluate(given: EvaluationGroup, search: opt.SearchGroup, engine: opt.EngineGroup) -> None:
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
    from mt.cli.evaluate_inputs import (
        TextOptions,
        outputs_of,
        read_texts,
        systems_of,
        translate_sets,
        with_slices,
    )
    from mt.evaluation.metrics import check_metrics
    from mt.evaluation.perturb import check_kinds
    from mt.evaluation.systems import evaluate_systems
    from mt.evaluation.table import Style

    check_metrics(listed(given.metrics))
    check_comet_model(given)
    check_kinds(listed(given.perturb))
    systems = systems_of(given.hyp or [], given.model or [], given.baseline)
    check_options(given, systems, search, engine)
    tests = paired_tests(2 if given.perturb else len(systems), given)
    languages = languages_of(given.langs, []) if given.langs else (search.from_, search.to)
    wanted = opt.make(TextOptions, given, from_=languages[0], to=languages[1])
    texts = read_texts(systems, wanted)
    models = [system.model for system in systems if system.model is not None]
    # The texts tell the language that each is translated into.
    options = opt.make(SearchOptions, search, to=None, with_scores=False)
    translate = partial(translate_sets, search=options, engine=engine)
    # Of several languages each has its own rare words, unless the files to count in are given.
    codes = [None if given.train_src else text.data.direction.source for text in texts]
    slicers = {code: _slicers(given, models, code) for code in dict.fromkeys(codes)}
    sets = [with_slices(text, slicers[code]) for text, code in zip(texts, codes, strict=True)]
    comet = _load_comet(given, texts, engine.device)
    directions = dict.fromkeys(test_set.direction for test_set in sets)
    settings = {each: _settings(given, tests, models, comet, each.to) for each in directions}
    if given.perturb:
        kinds = listed(given.perturb)
        perturbed = (_perturbed(each, kinds, models[0], settings, translate) for each in sets)
        evaluations = list(chain.from_iterable(perturbed))
    else:
        outputs = outputs_of(systems, texts, translate)
        evaluations = [
            evaluate_systems(test_set, of_set, settings[test_set.direction])
            for test_set, of_set in zip(sets, outputs, strict=True)
        ]
    style = Style(given.width, use_colour(), bool(given.perturb))
    _print(evaluations, style, given.as_json, given.as_tsv)


def _perturbed(
    test_set: EvaluationSet,
    kinds: Sequence[str],
    model: Path,
    settings: Mapping[TextDirection, Settings],
    translate: TranslateSets,
) -> Iterator[Evaluation]:
    """Evaluate a model on a test set and on its perturbations."""
    from mt.cli.evaluate_inputs import best_texts
    from mt.evaluation.perturb import evaluate_perturbed
    from mt.runs.model_folder import read_config

    chosen = settings[test_set.direction]
    languages = test_set.direction.source or read_config(model).data.src_lang, chosen.tgt_lang
    return evaluate_perturbed(
        test_set, kinds, languages, lambda sets: best_texts(translate(model, sets)), chosen
    )


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
    seed = (given.seed or default_seed()) if is_drawn else None
    tokenizer = choose_tokenizer(language, choice, say, "--tokenize")
    metrics, differences = listed(given.metrics), given.differences
    return Settings(metrics, tokenizer, n_resamples, tests, seed, differences, comet, language)


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
