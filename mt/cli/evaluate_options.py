"""The options of `mt evaluate`, and which of them contradict or lack each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mt.cli import options as opt
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.cli.evaluate_inputs import System

confidence_option = opt.options_in("Confidence and significance")
slices_option = opt.options_in("Slices of a test set")


@dataclass(frozen=True)
class EvaluationGroup:
    """The options of this command, without those of the engine."""

    # fmt: off
    hyp: Annotated[list[str] | None, opt.input_option("--hyp", metavar="[NAME=]FILE", help=
        "translation to score; repeatable, each is a system")] = None
    ref: Annotated[list[str] | None, opt.input_option("--ref", metavar="FILE", help=
        "reference, detokenised; repeat for several references per line")] = None
    model: Annotated[list[str] | None, opt.input_option(
        "--model", "-m", metavar="[NAME=]FOLDER", help=
        "model that translates --src; repeatable, each is a system")] = None
    src: Annotated[str | None, opt.input_option("--src", metavar="FILE", help=
        "source text, for --model, --slices and --differences")] = None
    test_set: Annotated[list[str] | None, opt.input_option(
        "--test-set", metavar="NAME[=SRC,REF]", help=
        "test set, instead of --src and --ref; repeatable. NAME alone, such as wmt20, is one that "
        "sacreBLEU fetches. --hyp then names a file for each, separated by commas. More "
        "references: SRC,REF,REF (default: data.test of the first model's config)")] = None
    langs: Annotated[str | None, opt.input_option("--langs", metavar="SRC-TGT", help=
        "languages of a --test-set NAME, such as de-en (default: the model's)")] = None
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
    as_tsv: Annotated[bool, opt.output_option("--tsv", help="print tab-separated values")] = False
    width: Annotated[int, opt.output_option("--width", "-w", metavar="N", min=0, max=14, help=
        "decimal places, as in sacrebleu; JSON and TSV are not rounded")] = 2
    perturb: Annotated[str, opt.output_option("--perturb", metavar="KINDS", help=
        "scores of a --model on the test set as people write it, and their drop: any of caps, "
        "title, lower, no-final-stop, typos, noise, emoji, two-sentences, separated by "
        "commas")] = ""
    differences: Annotated[int, opt.output_option("--differences", metavar="N", min=0, help=
        "show the N lines whose chrF differs most from the first system's")] = 0
    baseline: Annotated[str | None, confidence_option("--baseline", metavar="NAME", help=
        "system to compare the others with (default: the first --hyp, or else --model)")] = None
    confidence: Annotated[bool, confidence_option("--confidence", help=
        "95 % confidence intervals, by bootstrap resampling")] = False
    paired_bs: Annotated[bool | None, confidence_option("--paired-bs/--no-paired-bs", help=
        "test differences between systems by paired bootstrap (default: with two systems or more, "
        "without --paired-ar)")] = None
    paired_ar: Annotated[bool, confidence_option("--paired-ar", help=
        "test them by paired approximate randomisation")] = False
    confidence_n: Annotated[int | None, confidence_option(
        "--confidence-n", metavar="N", min=2, help=
        "resamples of --confidence (default: 1000)")] = None
    paired_bs_n: Annotated[int | None, confidence_option("--paired-bs-n", metavar="N", min=2, help=
        "resamples of --paired-bs (default: 1000)")] = None
    paired_ar_n: Annotated[int | None, confidence_option("--paired-ar-n", metavar="N", min=2, help=
        "trials of --paired-ar (default: 10000)")] = None
    seed: Annotated[int | None, confidence_option("--seed", metavar="N", min=1, help=
        "seed of intervals, tests and --perturb (default: SACREBLEU_SEED, or 12345)")] = None
    slices: Annotated[str, slices_option("--slices", metavar="NAMES", help=
        "scores by source length (length), by how rare its rarest word is in the training data "
        "(rare), by unknown pieces (unknown); separated by commas")] = ""
    domain: Annotated[str | None, slices_option("--domain", metavar="FILE", help=
        "scores by the labels in this file, one per line")] = None
    train_src: Annotated[list[str] | None, slices_option("--train-src", metavar="FILE", help=
        "source text in which rare counts words; repeatable (default: the first model's training "
        "data)")] = None
    tokenizer_of: Annotated[Path | None, slices_option("--tokenizer-of", metavar="FOLDER", help=
        "run directory whose tokenizer decides what is unknown (default: the first model)")] = None


def listed(text: str) -> list[str]:
    """Names separated by commas, in lower case, each once."""
    return list(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip()))


# --- options that contradict each other, or lack each other -----------------------------------


def check_options(
    given: EvaluationGroup,
    systems: Sequence[System],
    search: opt.SearchGroup,
    engine: opt.EngineGroup,
) -> None:
    """Raise DataError with the first thing that is wrong with the options."""
    for fault in (
        *_slices_faults(given),
        *_input_faults(systems, given, search, engine),
        *(_perturb_faults(systems, given) if given.perturb else ()),
        *_output_faults(systems, given),
    ):
        raise DataError(fault)


def _slices_faults(given: EvaluationGroup) -> Iterator[str]:
    from mt.evaluation.slices import SLICES

    names = listed(given.slices)
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
    systems: Sequence[System],
    given: EvaluationGroup,
    search: opt.SearchGroup,
    engine: opt.EngineGroup,
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
    if given.langs and not any("=" not in text for text in test_sets):
        yield "--langs: only with --test-set NAME, a set of sacreBLEU, such as wmt20"
    if given.langs and (search.from_ or search.to):
        yield "--langs: tells both languages; leave out --from and --to"
    if not test_sets and with_models and src is None and ref:
        yield f"{together} --src FILE too"
    if not test_sets and not ref and (src is not None or not with_models):
        yield "evaluate: no reference to score against; give --ref FILE, detokenised"
    hyps = [system.files for system in systems if system.model is None]
    in_sets = [part.partition("=")[2] for part in test_sets]
    if [*",".join([*hyps, *in_sets, given.domain or ""]).split(","), *ref, src].count("-") > 1:
        yield "evaluate: only one FILE can be - (stdin); name a file for the others"
    usual = vars(opt.SearchGroup()) | vars(opt.EngineGroup())
    if given.comet_model:
        usual["device"] = engine.device  # COMET uses it, too
    values = vars(search) | vars(engine)
    chosen = [name for name in usual if values[name] != usual[name]]
    if chosen and not with_models:
        named = ", ".join(f"--{name.strip('_').replace('_', '-')}" for name in chosen)
        yield f"evaluate: {named} only with --model; --hyp is scored as it is"


def _perturb_faults(systems: Sequence[System], given: EvaluationGroup) -> Iterator[str]:
    from mt.evaluation.perturb import KINDS

    if len(systems) != 1 or systems[0].model is None:
        yield "--perturb: takes one --model, and translates; leave out --hyp"
    if not listed(given.perturb):
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


def paired_tests(n_systems: int, given: EvaluationGroup) -> dict[str, int]:
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
    intervals = given.confidence or given.confidence_n
    if given.seed is not None and not (tests or intervals or given.perturb):
        raise DataError(
            "--seed: only with --confidence, a paired test or --perturb; nothing is drawn here"
        )
    if tests and n_systems == 1:
        raise DataError(
            f"--paired-{next(iter(tests))}: compares systems; give another --hyp or --model"
        )
    return tests


def check_comet_model(given: EvaluationGroup) -> None:
    """Refuse a metric without its package or model, and a model without such a metric."""
    from mt.evaluation.comet import check_comet
    from mt.evaluation.metrics import METRICS

    if any(METRICS[name].needs_model for name in listed(given.metrics)):
        check_comet(given.comet_model, "--comet-model")
    elif given.comet_model is not None:
        raise DataError("--comet-model: only with the metric comet; add it to --metrics")
