"""`mt evaluate`: which of several systems is better, by how much, and where."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mt.cli.console import print_result, say
from mt.cli.options import ANY_ENGINE, EngineGroup, described
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.cli.evaluate_inputs import System, Texts
    from mt.evaluation.comet import Comet
    from mt.evaluation.slices import Slicing
    from mt.evaluation.systems import Evaluation, Settings
    from mt.evaluation.table import Style


# The options of the search.
DECODING = ("beam_size", "length_penalty", "split_sentences", "as_written")


@dataclass(frozen=True)
class EvaluationGroup:
    """The options of this command, without those of the engine."""

    hyp: list[str] | None = None
    ref: list[str] | None = None
    model: list[str] | None = None
    src: str | None = None
    to: str | None = None
    from_: str | None = None
    test_set: list[str] | None = None
    metrics: str = "bleu,chrf,ter"
    comet_model: Path | None = None
    tokenize: str = "auto"
    tgt_lang: str | None = None
    as_json: bool = False
    as_tsv: bool = False
    width: int = 2
    perturb: str = ""
    differences: int = 0
    baseline: str | None = None
    confidence: bool = False
    paired_bs: bool | None = None
    paired_ar: bool = False
    confidence_n: int | None = None
    paired_bs_n: int | None = None
    paired_ar_n: int | None = None
    seed: int | None = None
    slices: str = ""
    domain: str | None = None
    train_src: list[str] | None = None
    tokenizer_of: Path | None = None
    beam_size: int | None = None
    length_penalty: float | None = None
    split_sentences: str = "auto"
    as_written: bool = False


@described("""
    Input:
    --hyp [NAME=]FILE: translation to score; repeatable, each is a system
    --ref FILE: reference, detokenised; repeat for several references per line
    --model -m [NAME=]FOLDER: model that translates --src; repeatable, each is a system
    --src FILE: source text, for --model, --slices and --differences
    --test-set NAME=SRC,REF: test set, instead of --src and --ref; repeatable. --hyp then names a
        file for each, separated by commas. More references: SRC,REF,REF (default: data.test of the
        first model's config)
    Output:
    --metrics NAMES: any of bleu, chrf, chrf++, ter and comet, separated by commas
    --comet-model FOLDER: COMET model on this machine, for the metric comet
    --tokenize NAME: sacreBLEU's tokenizer: 13a, intl, zh, ja-mecab, ko-mecab, char or none; auto
        follows the target language
    --tgt-lang CODE: target language, such as ja, for BLEU and TER; default: the model's
    as_tsv = --tsv: print tab-separated values
    --width -w N in 0..14: decimal places, as in sacrebleu; JSON and TSV are not rounded
    --perturb KINDS: scores of a --model on the test set as people write it, and their drop: any of
        caps, title, lower, no-final-stop, typos, noise, emoji, two-sentences, separated by commas
    --differences N in 0..: show the N lines whose chrF differs most from the first system's
    Confidence and significance:
    --baseline NAME: the system that others are compared with (default: the first --hyp, or else
        --model)
    --confidence: 95 % confidence intervals, by bootstrap resampling
    --paired-bs/--no-paired-bs: test differences between systems by paired bootstrap (default: with
        two systems or more, without --paired-ar)
    --paired-ar: test them by paired approximate randomisation
    --confidence-n N in 2..: resamples of --confidence (default: 1000)
    --paired-bs-n N in 2..: resamples of --paired-bs (default: 1000)
    --paired-ar-n N in 2..: trials of --paired-ar (default: 10000)
    --seed N in 1..: seed of intervals, tests and --perturb (default: SACREBLEU_SEED, or 12345)
    Slices of a test set:
    --slices NAMES: scores by source length (length), by how rare its rarest word is in the training
        data (rare), by unknown pieces (unknown); separated by commas
    --domain FILE: scores by the labels in this file, one per line
    --train-src FILE: source text in which rare counts words; repeatable (default: the first model's
        training data)
    --tokenizer-of FOLDER: run directory whose tokenizer decides what is unknown (default: the first
        model)
""")
def evaluate(given: EvaluationGroup, engine: EngineGroup) -> None:
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
    """
    from mt.cli.evaluate_inputs import (
        outputs_of,
        read_texts,
        systems_of,
        translate_sets,
        with_slices,
    )
    from mt.evaluation.metrics import check_metrics
    from mt.evaluation.perturb import check_kinds, evaluate_perturbed
    from mt.evaluation.systems import evaluate_systems
    from mt.evaluation.table import Style
    from mt.runs.model_folder import read_config
    from mt.search.options import SearchOptions

    check_metrics(_listed(given.metrics))
    _check_comet(given)
    check_kinds(kinds := _listed(given.perturb))
    _refuse(_slices_faults(given))
    systems = systems_of(given.hyp or [], given.model or [], given.baseline)
    _refuse(_input_faults(systems, given, engine))
    if given.perturb:
        _refuse(_perturb_faults(systems, kinds, given))
    _refuse(_output_faults(systems, given))
    tests = _paired_tests(2 if given.perturb else len(systems), given)
    intervals = given.confidence or given.confidence_n
    if given.seed is not None and not (tests or intervals or given.perturb):
        raise DataError(
            "--seed: only with --confidence, a paired test or --perturb; nothing is drawn here"
        )
    decoding = {name: getattr(given, name) for name in DECODING}
    search = SearchOptions(from_=given.from_, with_scores=False, **decoding)
    texts = read_texts(
        systems,
        given.test_set or [],
        given.src,
        given.ref or [],
        given.domain,
        source=given.from_,
        to=given.to,
    )
    models = [system.model for system in systems if system.model is not None]
    # Of several languages each has its own rare words, unless the files to count in are given.
    languages = [None if given.train_src else text.data.direction.source for text in texts]
    slicers = {code: _slicers(given, models, code) for code in dict.fromkeys(languages)}
    sets = [with_slices(text, slicers[code]) for text, code in zip(texts, languages, strict=True)]
    comet = _load_comet(given, texts, engine.device)
    settings = {
        direction: _settings(given, tests, models, comet, direction.to)
        for direction in dict.fromkeys(test_set.direction for test_set in sets)
    }
    evaluations: list[Evaluation] = []
    if given.perturb:
        src_lang = read_config(models[0]).data.src_lang
        for test_set in sets:
            chosen_settings = settings[test_set.direction]
            evaluations += evaluate_perturbed(
                test_set,
                kinds,
                (test_set.direction.source or src_lang, chosen_settings.tgt_lang),
                lambda perturbed: translate_sets(models[0], perturbed, search, engine),
                chosen_settings,
            )
    else:
        outputs = outputs_of(systems, texts, search, engine)
        for number, test_set in enumerate(sets):
            hyps = {system.name: outputs[system.name][number] for system in systems}
            evaluations.append(evaluate_systems(test_set, hyps, settings[test_set.direction]))
    style = Style(given.width, use_colour(), bool(given.perturb))
    _print(evaluations, style, given.as_json, given.as_tsv)


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
        _listed(given.metrics),
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
        for name in _listed(given.slices)
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


def _listed(text: str) -> list[str]:
    """Names separated by commas, in lower case, each once."""
    return list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))


# --- options that contradict each other, or lack each other -----------------------------------


def _refuse(faults: Iterable[str]) -> None:
    """Raise DataError with the first of the faults."""
    for fault in faults:
        raise DataError(fault)


def _slices_faults(given: EvaluationGroup) -> Iterator[str]:
    from mt.evaluation.slices import SLICES

    names = _listed(given.slices)
    if unknown := [name for name in names if name not in SLICES]:
        yield (
            f"--slices: choose among {', '.join(SLICES)}, found {', '.join(unknown)}; correct the "
            "list (--domain slices by labels in a file)"
        )
    if given.train_src and "rare" not in names:
        yield "--train-src: only with --slices rare"
    if given.tokenizer_of and "unknown" not in names:
        yield "--tokenizer-of: only with --slices unknown"


def _input_faults(
    systems: Sequence[System], given: EvaluationGroup, engine: EngineGroup
) -> Iterator[str]:
    src, ref, test_sets = given.src, given.ref or [], given.test_set or []
    with_models = any(system.model is not None for system in systems)
    together = "evaluate: --model and --src go together; give"
    if not systems and src is None:
        yield "evaluate: nothing to score; give --hyp FILE, or --model FOLDER --src FILE"
    if not systems:
        yield f"{together} --model FOLDER too"
    if test_sets and (src is not None or ref):
        yield "evaluate: --test-set takes the place of --src and --ref; give one or the other"
    if not test_sets and with_models and src is None and ref:
        yield f"{together} --src FILE too"
    if not test_sets and not ref and (src is not None or not with_models):
        yield "evaluate: no reference to score against; give --ref FILE, detokenised"
    hyps = [system.files for system in systems if system.model is None]
    in_sets = [part.partition("=")[2] for part in test_sets]
    if [*",".join([*hyps, *in_sets, given.domain or ""]).split(","), *ref, src].count("-") > 1:
        yield "evaluate: only one FILE can be - (stdin); name a file for the others"
    values, usual = vars(given) | vars(engine), vars(EvaluationGroup()) | vars(ANY_ENGINE)
    if given.comet_model:
        usual["device"] = engine.device  # COMET uses it, too
    of_models = ("to", "from_", *DECODING, *vars(engine))
    chosen = [name for name in of_models if values[name] != usual[name]]
    if chosen and not with_models:
        named = ", ".join(f"--{name.strip('_').replace('_', '-')}" for name in chosen)
        yield f"evaluate: {named} only with --model; --hyp is scored as it is"


def _perturb_faults(
    systems: Sequence[System], kinds: Sequence[str], given: EvaluationGroup
) -> Iterator[str]:
    from mt.evaluation.perturb import KINDS

    if len(systems) != 1 or systems[0].model is None:
        yield "--perturb: takes one --model, and translates; leave out --hyp"
    if not kinds:
        yield f"--perturb: must name one of {', '.join(KINDS)}, found {given.perturb!r}"
    for name in ("slices", "domain", "baseline", "differences"):
        if getattr(given, name):
            yield f"--perturb: not with --{name}; leave out one"


def _output_faults(systems: Sequence[System], given: EvaluationGroup) -> Iterator[str]:
    differences, as_json, as_tsv = given.differences, given.as_json, given.as_tsv
    if as_json and as_tsv:
        yield "evaluate: --json and --tsv are two formats; give one or the other"
    if differences and len(systems) == 1:
        yield "--differences: compares systems; give another --hyp or --model"
    if differences and as_tsv:
        yield "--differences: not in --tsv; give --json, or neither"
    if differences and as_json and any(system.name == "differences" for system in systems):
        yield (
            "--differences: is the key `differences` in --json, which is also the name of a "
            "system; rename the system: NAME=differences"
        )


def _paired_tests(n_systems: int, given: EvaluationGroup) -> dict[str, int]:
    """Samples by paired test: of those asked for, else of the bootstrap; none for one system."""
    from mt.evaluation.significance import SAMPLES

    bs, resamples, trials = given.paired_bs, given.paired_bs_n, given.paired_ar_n
    ar = given.paired_ar or trials
    if bs is False and resamples is not None:
        raise DataError("--paired-bs-n: only with --paired-bs, not with --no-paired-bs")
    tests = {}
    if bs or resamples or (bs is None and n_systems > 1 and not ar):
        tests["bs"] = resamples or SAMPLES["bs"]
    if ar:
        tests["ar"] = trials or SAMPLES["ar"]
    if tests and n_systems == 1:
        raise DataError(
            f"--paired-{next(iter(tests))}: compares systems; give another --hyp or --model"
        )
    return tests


# --- COMET ------------------------------------------------------------------------------------


def _check_comet(given: EvaluationGroup) -> None:
    """Refuse a metric without its package or model, and a model without such a metric."""
    from mt.evaluation.comet import check_comet
    from mt.evaluation.metrics import METRICS

    if any(METRICS[name].needs_model for name in _listed(given.metrics)):
        check_comet(given.comet_model, "--comet-model")
    elif given.comet_model is not None:
        raise DataError("--comet-model: only with the metric comet; add it to --metrics")


def _load_comet(given: EvaluationGroup, texts: Sequence[Texts], device: str) -> Comet | None:
    """Load the model, if a metric needs it. Raises DataError if it needs sources, and has none."""
    from mt.evaluation.metrics import METRICS

    names = _listed(given.metrics)
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
