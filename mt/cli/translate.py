"""`mt translate`: translate a file or a stream, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mt.cli.console import say
from mt.cli.help import CONSTRAINTS, EXECUTION, INPUT, OUTPUT, SEARCH
from mt.cli.options import (
    AlignmentHeads,
    Alignments,
    BatchTokens,
    BeamSize,
    DeviceName,
    EngineName,
    Errors,
    LengthPenalty,
    Models,
    Output,
    Precision,
    Resume,
    Sample,
    Seed,
    Temperature,
    TopK,
    TopP,
    Workers,
)


def translate(
    model: Models,
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="text file, plain or .gz; - is stdin",
            rich_help_panel=INPUT,
        ),
    ] = "-",
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="format of input and output lines: text, tsv or jsonl",
            rich_help_panel=INPUT,
        ),
    ] = "text",
    column: Annotated[
        int | None,
        typer.Option(
            "--column",
            min=1,
            metavar="N",
            help="column to translate in TSV lines; 1 is the first, and the default",
            rich_help_panel=INPUT,
        ),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(
            "--field",
            metavar="NAME",
            help="field to translate in JSON lines; text if not given",
            rich_help_panel=INPUT,
        ),
    ] = None,
    errors: Errors = "strict",
    output: Output = "-",
    n_best: Annotated[
        int,
        typer.Option(
            "--n-best",
            min=1,
            metavar="N",
            help="outputs per input line, as `index ||| text ||| score`",
            rich_help_panel=OUTPUT,
        ),
    ] = 1,
    scores: Annotated[
        bool,
        typer.Option(
            "--scores",
            help="put the score and a tab before each output",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    alignments: Alignments = False,
    alignment_heads: AlignmentHeads = None,
    resume: Resume = False,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="stop a sentence only when no open hypothesis can still win",
            rich_help_panel=SEARCH,
        ),
    ] = False,
    mbr: Annotated[
        str | None,
        typer.Option(
            "--mbr",
            metavar="METRIC",
            help="minimum Bayes risk: choose among the --n-best by chrf or bleu",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    ensemble: Annotated[
        str | None,
        typer.Option(
            "--ensemble",
            metavar="MEAN",
            help="average probabilities (probability, if not given) or log-probabilities (log)",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    prefix: Annotated[
        Path | None,
        typer.Option(
            "--prefix",
            metavar="FILE",
            help="target prefixes, one per input line: outputs start with them",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = None,
    min_length: Annotated[
        int,
        typer.Option(
            "--min-length",
            metavar="N",
            help="shortest output, in tokens",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = 0,
    no_repeat_ngram: Annotated[
        int,
        typer.Option(
            "--no-repeat-ngram",
            metavar="N",
            help="never repeat N tokens in a row; 0 is off",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = 0,
    repetition_penalty: Annotated[
        float,
        typer.Option(
            "--repetition-penalty",
            metavar="P",
            help="multiply log-probabilities of tokens already in the output by P",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = 1.0,
    forbid: Annotated[
        list[str] | None,
        typer.Option(
            "--forbid",
            metavar="TOKEN",
            help="a token of the vocabulary never to output; repeatable",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = None,
    sample: Sample = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    workers: Workers = None,
    max_wait: Annotated[
        float | None,
        typer.Option(
            "--max-wait",
            min=0,
            metavar="SECONDS",
            help="wait at most SECONDS for a batch to fill, then translate it",
            show_default="0.2 for stdin",
            rich_help_panel=EXECUTION,
        ),
    ] = None,
    batch_tokens: BatchTokens = None,
    engine: EngineName = "auto",
    shortlist: Annotated[
        Path | None,
        typer.Option(
            "--shortlist",
            metavar="FILE",
            help="faster: only the likely target pieces in this vmap.txt, which mt export "
            "ctranslate2 --shortlist writes; for --engine ctranslate2",
            rich_help_panel=EXECUTION,
        ),
    ] = None,
    precision: Precision = "auto",
    device: DeviceName = "auto",
) -> None:
    """Translate text, line by line. Each input line gives one output line, in the same order.

    \b
    mt translate --model runs/base input.de -o output.en
    cat input.de | mt translate --model runs/base --beam-size 1 > output.en
    mt translate --model runs/base --format jsonl --resume in.jsonl -o out.jsonl
    mt translate --model runs/base --sample --n-best 16 --mbr chrf in.de -o out.en
    """
    from mt.cli.convert import convert_model
    from mt.translate.translate_file import TranslateOptions, translate_file

    options = TranslateOptions(
        models=model,
        source=source,
        output=output,
        beam_size=beam_size,
        length_penalty=length_penalty,
        n_best=n_best,
        scores=scores,
        line_format=form,
        column=column,
        field=field,
        errors=errors,
        resume=resume,
        max_wait=max_wait,
        alignments=alignments,
        alignment_heads=alignment_heads,
        prefix=prefix,
        min_length=min_length,
        no_repeat_ngram=no_repeat_ngram,
        repetition_penalty=repetition_penalty,
        forbid=forbid or (),
        exact=exact,
        sample=sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        mbr=mbr,
        ensemble=ensemble,
        workers=workers,
        batch_tokens=batch_tokens,
        engine=engine,
        shortlist=shortlist,
        convert=convert_model,
        precision=precision,
        device=device,
    )
    translate_file(options, say)
