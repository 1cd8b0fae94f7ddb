"""`mt evaluate`: which of several systems is better, by how much, and where."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mt.cli.console import print_result, say
from mt.cli.evaluate_checks import (
    check_inputs,
    check_outputs,
    check_seed,
    check_slices,
    listed,
    paired_tests,
    slice_names,
)
from mt.cli.evaluate_comet import check_comet_options, load_comet
from mt.cli.evaluate_inputs import (
    read_texts,
    slicing_tokenizer,
    systems_of,
    training_counts,
    with_slices,
)
from mt.cli.evaluate_models import outputs_of, scoring_of
from mt.cli.help import INPUT, OUTPUT, SLICING, TESTS
from mt.cli.options import (
    BatchTokens,
    BeamSize,
    DeviceName,
    EngineName,
    LengthPenalty,
    Precision,
)

if TYPE_CHECKING:
    from mt.evaluation.systems import Evaluation


def evaluate(
    hyp: Annotated[
        list[str] | None,
        typer.Option(
            "--hyp",
            metavar="[NAME=]FILE",
            help="translation to score; repeatable, each is a system",
            rich_help_panel=INPUT,
        ),
    ] = None,
    ref: Annotated[
        list[str] | None,
        typer.Option(
            "--ref",
            metavar="FILE",
            help="reference, detokenised; repeat for several references per line",
            rich_help_panel=INPUT,
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="[NAME=]FOLDER",
            help="model that translates --src; repeatable, each is a system",
            rich_help_panel=INPUT,
        ),
    ] = None,
    src: Annotated[
        str | None,
        typer.Option(
            "--src",
            metavar="FILE",
            help="source text, for --model, --slices and --differences",
            rich_help_panel=INPUT,
        ),
    ] = None,
    test_set: Annotated[
        list[str] | None,
        typer.Option(
            "--test-set",
            metavar="NAME=SRC,REF",
            help="test set, instead of --src and --ref; repeatable. --hyp then names a file for "
            "each, separated by commas. More references: SRC,REF,REF",
            show_default="data.test of the first model's config",
            rich_help_panel=INPUT,
        ),
    ] = None,
    metrics: Annotated[
        str,
        typer.Option(
            "--metrics",
            metavar="NAMES",
            help="any of bleu, chrf, ter and comet, separated by commas",
            rich_help_panel=OUTPUT,
        ),
    ] = "bleu,chrf,ter",
    comet_model: Annotated[
        Path | None,
        typer.Option(
            "--comet-model",
            metavar="FOLDER",
            help="COMET model on this machine, for the metric comet",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    tokenize: Annotated[
        str,
        typer.Option(
            "--tokenize",
            metavar="NAME",
            help="sacreBLEU's tokenizer: 13a, intl, zh, ja-mecab, ko-mecab, char or none; "
            "auto follows the target language",
            rich_help_panel=OUTPUT,
        ),
    ] = "auto",
    tgt_lang: Annotated[
        str | None,
        typer.Option(
            "--tgt-lang",
            metavar="CODE",
            help="target language, such as ja; default: the model's",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print JSON", rich_help_panel=OUTPUT)
    ] = False,
    as_tsv: Annotated[
        bool, typer.Option("--tsv", help="print tab-separated values", rich_help_panel=OUTPUT)
    ] = False,
    width: Annotated[
        int,
        typer.Option(
            "--width",
            "-w",
            min=0,
            max=14,
            metavar="N",
            help="decimal places, as in sacrebleu; JSON and TSV are not rounded",
            rich_help_panel=OUTPUT,
        ),
    ] = 2,
    differences: Annotated[
        int,
        typer.Option(
            "--differences",
            min=0,
            metavar="N",
            help="show the N lines whose chrF differs most from the first system's",
            rich_help_panel=OUTPUT,
        ),
    ] = 0,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="NAME",
            help="the system that others are compared with",
            show_default="the first --hyp, or else --model",
            rich_help_panel=TESTS,
        ),
    ] = None,
    confidence: Annotated[
        bool,
        typer.Option(
            "--confidence",
            help="95 % confidence intervals, by bootstrap resampling",
            rich_help_panel=TESTS,
        ),
    ] = False,
    paired_bs: Annotated[
        bool | None,
        typer.Option(
            "--paired-bs/--no-paired-bs",
            help="test differences between systems by paired bootstrap",
            show_default="with two systems or more, without --paired-ar",
            rich_help_panel=TESTS,
        ),
    ] = None,
    paired_ar: Annotated[
        bool,
        typer.Option(
            "--paired-ar",
            help="test them by paired approximate randomisation",
            rich_help_panel=TESTS,
        ),
    ] = False,
    confidence_n: Annotated[
        int | None,
        typer.Option(
            "--confidence-n",
            min=2,
            metavar="N",
            help="resamples of --confidence",
            show_default="1000",
            rich_help_panel=TESTS,
        ),
    ] = None,
    paired_bs_n: Annotated[
        int | None,
        typer.Option(
            "--paired-bs-n",
            min=2,
            metavar="N",
            help="resamples of --paired-bs",
            show_default="1000",
            rich_help_panel=TESTS,
        ),
    ] = None,
    paired_ar_n: Annotated[
        int | None,
        typer.Option(
            "--paired-ar-n",
            min=2,
            metavar="N",
            help="trials of --paired-ar",
            show_default="10000",
            rich_help_panel=TESTS,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            min=1,
            metavar="N",
            help="seed of intervals and tests",
            show_default="SACREBLEU_SEED, or 12345",
            rich_help_panel=TESTS,
        ),
    ] = None,
    slices: Annotated[
        str,
        typer.Option(
            "--slices",
            metavar="NAMES",
            help="scores by source length (length), by how rare its rarest word is in the training "
            "data (rare), by unknown pieces (unknown); separated by commas",
            rich_help_panel=SLICING,
        ),
    ] = "",
    domain: Annotated[
        str | None,
        typer.Option(
            "--domain",
            metavar="FILE",
            help="scores by the labels in this file, one per line",
            rich_help_panel=SLICING,
        ),
    ] = None,
    train_src: Annotated[
        list[str] | None,
        typer.Option(
            "--train-src",
            metavar="FILE",
            help="source text in which rare counts words; repeatable",
            show_default="the first model's training data",
            rich_help_panel=SLICING,
        ),
    ] = None,
    tokenizer_of: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer-of",
            metavar="FOLDER",
            help="run directory whose tokenizer decides what is unknown",
            show_default="the first model",
            rich_help_panel=SLICING,
        ),
    ] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = None,
    engine: EngineName = "auto",
    precision: Precision = "auto",
    device: DeviceName = "auto",
) -> None:
    """Score translations with sacreBLEU; compare systems.

    The table says which differences between systems are significant. A --model translates the
    sources first; without --ref and --test-set it takes the test sets of its config. - is stdin.

    \b
    mt evaluate --hyp output.en --ref reference.en --confidence
    mt evaluate --model runs/base --src test.de --ref test.en --json
    mt evaluate -m runs/base -m runs/big --slices length --differences 10
    mt evaluate --hyp output.ja --ref reference.ja --tgt-lang ja
    mt evaluate --hyp x.en,y.en --test-set a=a.de,a.en --test-set b=b.de,b.en
    """
    from mt.evaluation.bleu_tokenizer import choose_tokenizer
    from mt.evaluation.metrics import check_metrics
    from mt.evaluation.significance import RESAMPLES, default_seed
    from mt.evaluation.systems import Settings, evaluate_systems

    names = listed(metrics)
    check_metrics(names)
    check_comet_options("comet" in names, comet_model)
    sliced = slice_names(slices)
    systems = systems_of(hyp or [], model or [], baseline)
    decoding = {
        "--beam-size": beam_size,
        "--length-penalty": length_penalty,
        "--batch-tokens": batch_tokens,
        "--engine": None if engine == "auto" else engine,
        "--precision": None if precision == "auto" else precision,
        "--device": None if device == "auto" else device,
    }
    only_models = decoding | ({"--device": None} if comet_model else {})  # COMET uses it, too
    check_inputs(systems, src, ref or [], test_set or [], domain, only_models)
    check_outputs(systems, differences, as_json, as_tsv)
    check_slices(sliced, train_src or [], tokenizer_of)
    texts = read_texts(systems, test_set or [], src, ref or [], domain)
    tests = paired_tests(
        len(systems), texts, paired_bs, paired_bs_n, paired_ar or bool(paired_ar_n), paired_ar_n
    )
    n_resamples = (confidence_n or RESAMPLES) if confidence or confidence_n else None
    check_seed(seed, tests, n_resamples)
    models = [system.model for system in systems if system.model is not None]
    data = with_slices(
        texts,
        sliced,
        lambda: training_counts(train_src or [], models),
        lambda: slicing_tokenizer(tokenizer_of, models),
    )
    comet = load_comet(comet_model, texts, device) if "comet" in names else None
    language, choice = scoring_of(models, tgt_lang, tokenize)
    settings = Settings(
        names,
        choose_tokenizer(language, choice, say, "--tokenize"),
        n_resamples,
        tests,
        (seed or default_seed()) if tests or n_resamples else None,
        differences,
        comet,
    )
    outputs = outputs_of(systems, texts, decoding)
    evaluations = [
        evaluate_systems(
            one, {system.name: outputs[system.name][number] for system in systems}, settings
        )
        for number, one in enumerate(data)
    ]
    _print(evaluations, width, as_json, as_tsv)


def _print(evaluations: Sequence[Evaluation], digits: int, as_json: bool, as_tsv: bool) -> None:
    from mt.evaluation.json_tsv import to_json, to_tsv
    from mt.evaluation.table import Style, format_evaluation

    if as_json:
        print_result(to_json(evaluations))
    elif as_tsv:
        print_result(to_tsv(evaluations))
    else:
        style = Style(digits, colour=use_colour())
        print_result("\n\n".join(format_evaluation(one, style) for one in evaluations))


def use_colour() -> bool:
    """Whether stdout is a terminal that shows colours, and NO_COLOR (no-color.org) is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return bool(sys.stdout) and sys.stdout.isatty() and not plain
