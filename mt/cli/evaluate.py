"""`mt evaluate`: metrics of translations."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mt.cli.console import print_result, say
from mt.cli.help import INPUT, OUTPUT
from mt.cli.options import (
    BatchTokens,
    BeamSize,
    DeviceName,
    EngineName,
    LengthPenalty,
    Precision,
)

if TYPE_CHECKING:
    from mt.evaluation.metrics import Score


def evaluate(
    hyp: Annotated[
        list[str] | None,
        typer.Option(
            "--hyp",
            metavar="FILE",
            help="translation to score; repeatable",
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
        Path | None,
        typer.Option(
            "--model",
            "-m",
            metavar="FOLDER",
            help="model that translates --src, instead of --hyp",
            rich_help_panel=INPUT,
        ),
    ] = None,
    src: Annotated[
        str | None,
        typer.Option(
            "--src",
            metavar="FILE",
            help="source text for --model",
            rich_help_panel=INPUT,
        ),
    ] = None,
    metrics: Annotated[
        str,
        typer.Option(
            "--metrics",
            metavar="NAMES",
            help="any of bleu, chrf and ter, separated by commas",
            rich_help_panel=OUTPUT,
        ),
    ] = "bleu,chrf,ter",
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
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = None,
    engine: EngineName = "auto",
    precision: Precision = "auto",
    device: DeviceName = "auto",
) -> None:
    """Score translations with sacreBLEU. With --model, translate --src first. - is stdin.

    \b
    mt evaluate --hyp output.en --ref reference.en
    mt evaluate --model runs/base --src test.de --ref test.en --json
    mt evaluate --hyp output.ja --ref reference.ja --tgt-lang ja
    """
    from mt.evaluation.bleu_tokenizer import choose_tokenizer
    from mt.evaluation.metrics import check_counts, check_metrics, score_corpus

    names = [name.strip().lower() for name in metrics.split(",") if name.strip()]
    check_metrics(names)
    decoding = {
        "--beam-size": beam_size is not None,
        "--length-penalty": length_penalty is not None,
        "--batch-tokens": batch_tokens is not None,
        "--engine": engine != "auto",
        "--precision": precision != "auto",
        "--device": device != "auto",
    }
    _check_options(model, src, hyp, ref, [option for option, given in decoding.items() if given])
    references = {f"--ref {path}": _read(path, "--ref") for path in ref or []}
    outputs = {path: _read(path, "--hyp") for path in hyp or []}
    if model is None or src is None:
        check_counts({**{f"--hyp {path}": lines for path, lines in outputs.items()}, **references})
        bleu_tokenizer = choose_tokenizer(tgt_lang or "", tokenize, say)
    else:
        from mt.cli.convert import convert_model
        from mt.decoding.translate import load_translator

        sources = _read(src, "--src")
        check_counts({f"--src {src}": sources, **references})
        given = {"beam_size": beam_size, "length_penalty": length_penalty}
        with load_translator(
            [model],
            given,
            batch_tokens=batch_tokens,
            engine=engine,
            convert=convert_model,
            with_scores=False,
            precision=precision,
            device=device,
            say=say,
        ) as translator:
            tgt_lang, tokenize = _scoring_of(model, tgt_lang, tokenize)
            bleu_tokenizer = choose_tokenizer(tgt_lang, tokenize, say)
            outputs = {str(model): [one.texts[0] for one in translator.translate(sources)]}
        say(translator.tally.summary())
    _print_scores(
        {
            name: score_corpus(lines, list(references.values()), names, bleu_tokenizer)
            for name, lines in outputs.items()
        },
        as_json,
    )


def _scoring_of(model: Path, tgt_lang: str | None, tokenize: str) -> tuple[str, str]:
    """Target language and BLEU tokenizer: as given, else those of the model's config."""
    from mt.model.checkpoint import find_model, read_meta

    config = read_meta(find_model(model), [])["config"]
    if tokenize == "auto" and tgt_lang is None:
        tokenize = config["train"].get("bleu_tokenize", "auto")  # version 0.1 had no such key
    return tgt_lang or config["data"]["tgt_lang"], tokenize


def _check_options(
    model: Path | None,
    src: str | None,
    hyp: Sequence[str] | None,
    ref: Sequence[str] | None,
    decoding: Sequence[str],
) -> None:
    """Refuse missing and contradictory options. `decoding`: options that only --model takes."""
    from mt.errors import DataError

    if not hyp and model is None and src is None:
        raise DataError("evaluate: nothing to score; give --hyp FILE, or --model FOLDER --src FILE")
    if hyp and (model is not None or src is not None):
        raise DataError(
            "evaluate: --hyp names a finished translation, --model and --src make a new one; "
            "give one or the other"
        )
    if not hyp and (model is None or src is None):
        missing = "--model FOLDER" if model is None else "--src FILE"
        raise DataError(f"evaluate: --model and --src go together; give {missing} too")
    if not ref:
        raise DataError("evaluate: no reference to score against; give --ref FILE, detokenised")
    if [*(hyp or []), *(ref or []), src].count("-") > 1:
        raise DataError("evaluate: only one FILE can be - (stdin); name a file for the others")
    if hyp and decoding:
        raise DataError(
            f"evaluate: {', '.join(decoding)} only with --model; --hyp is scored as it is"
        )


def _read(path: str, option: str) -> list[str]:
    """All lines of a file, or of stdin (`-`); `option` names the file's option in messages."""
    from mt.data.text_files import decode_lines, read_lines
    from mt.errors import DataError

    if Path(path).is_dir():
        raise DataError(f"{option}: {path} is a folder, a text file is required; name a file in it")
    if path == "-":
        if not sys.stdin:
            raise DataError(f"{option} -: stdin is closed; name a file, or send text to it")
        return list(decode_lines(sys.stdin.buffer, f"{option} stdin"))
    return list(read_lines(Path(path), option))


def _print_scores(results: Mapping[str, Sequence[Score]], as_json: bool) -> None:
    """Print the scores of each system, by its file or model."""
    from mt.evaluation.metrics import format_scores, to_json

    if as_json:
        tree = {name: json.loads(to_json(scores)) for name, scores in results.items()}
        print_result(json.dumps(tree, indent=2))
        return
    for name, scores in results.items():
        heading = f"{name}\n" if len(results) > 1 else ""
        print_result(heading + format_scores(scores))
