"""`mt translate`: translate a file or a stream, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mt.cli.console import say
from mt.cli.help import CONSTRAINTS, EXECUTION, INPUT, OUTPUT, SEARCH
from mt.cli.options import (
    NO_SAMPLING,
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
    SamplingGroup,
    Workers,
    with_groups,
)


@with_groups
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
    sampling: SamplingGroup = NO_SAMPLING,
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
    from mt.search.options import EngineOptions, SearchOptions
    from mt.translate.formats import LineFormat
    from mt.translate.translate_file import TextFiles, translate_file

    files = TextFiles(
        source=source,
        output=output,
        errors=errors,
        prefixes=prefix,
        resume=resume,
        max_wait=max_wait,
    )
    search = SearchOptions(
        beam_size=beam_size,
        length_penalty=length_penalty,
        n_best=n_best,
        with_scores=scores,
        exact=exact,
        mbr=mbr,
        prefixes=prefix is not None,
        min_length=min_length,
        no_repeat_ngram=no_repeat_ngram,
        repetition_penalty=repetition_penalty,
        forbid=tuple(forbid or ()),
        sample=sampling.value(),
        alignments=alignment_heads or ("auto" if alignments else None),
    )
    options = EngineOptions(
        models=model,
        ensemble=ensemble,
        engine=engine,
        precision=precision,
        device=device,
        workers=workers,
        batch_tokens=batch_tokens,
        shortlist=shortlist,
    )
    line_format = LineFormat(form, column, field, 1 if mbr else n_best, scores)
    translate_file(files, line_format, search, options, say)
