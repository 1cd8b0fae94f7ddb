"""`mt translate`: lines of text in, their translations out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mt.cli.console import say
from mt.cli.options import (
    AlignmentHeads,
    Alignments,
    BatchTokens,
    BeamSize,
    DeviceName,
    LengthPenalty,
    Models,
    Output,
    Precision,
)


def translate(
    model: Models,
    source: Annotated[
        str, typer.Argument(metavar="IN", help="text file, plain or .gz; - is stdin")
    ] = "-",
    output: Output = "-",
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    n_best: Annotated[
        int,
        typer.Option(
            "--n-best", min=1, metavar="N", help="outputs per line, as `n ||| text ||| score`"
        ),
    ] = 1,
    scores: Annotated[
        bool, typer.Option("--scores", help="score and tab before each output")
    ] = False,
    form: Annotated[
        str, typer.Option("--format", metavar="NAME", help="of the lines: text, tsv or jsonl")
    ] = "text",
    column: Annotated[
        int | None,
        typer.Option("--column", min=1, metavar="N", help="of a TSV line, from 1; default: 1"),
    ] = None,
    field: Annotated[
        str | None, typer.Option("--field", metavar="NAME", help="of a JSON line; default: text")
    ] = None,
    errors: Annotated[
        str,
        typer.Option("--errors", metavar="HOW", help="bytes that are not UTF-8: strict or replace"),
    ] = "strict",
    resume: Annotated[
        bool, typer.Option("--resume", help="go on after what an interrupted job has finished")
    ] = False,
    max_wait: Annotated[
        float | None,
        typer.Option(
            "--max-wait",
            min=0,
            metavar="SECONDS",
            help="answer so soon if no more lines come; stdin: 0.2",
        ),
    ] = None,
    alignments: Alignments = False,
    alignment_heads: AlignmentHeads = None,
    prefix: Annotated[
        Path | None,
        typer.Option(
            "--prefix", metavar="FILE", help="what each output must begin with, line for line"
        ),
    ] = None,
    min_length: Annotated[
        int, typer.Option("--min-length", metavar="N", help="pieces of an output at least")
    ] = 0,
    no_repeat_ngram: Annotated[
        int,
        typer.Option(
            "--no-repeat-ngram", metavar="N", help="no N pieces in a row twice; 0 allows it"
        ),
    ] = 0,
    repetition_penalty: Annotated[
        float,
        typer.Option(
            "--repetition-penalty", metavar="P", help="log-probability of used pieces, times P"
        ),
    ] = 1.0,
    forbid: Annotated[
        list[str] | None,
        typer.Option("--forbid", metavar="PIECE", help="never this piece; can be given again"),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="end a search only when nothing in the beam can win")
    ] = False,
    sample: Annotated[
        bool, typer.Option("--sample", help="draw outputs at random, --n-best of each line")
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", metavar="T", help="with --sample: below 1 less random"),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", metavar="K", help="with --sample: from the K most probable pieces"),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p", metavar="P", help="with --sample: from the best that hold this share"
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", help="with --sample: another number, other samples"),
    ] = None,
    mbr: Annotated[
        str | None,
        typer.Option(
            "--mbr", metavar="NAME", help="of --n-best the one most like the rest: chrf or bleu"
        ),
    ] = None,
    ensemble: Annotated[
        str | None,
        typer.Option(
            "--ensemble", metavar="MEAN", help="of several models: probability (default) or log"
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=1, metavar="N", help="processes on a CPU; default: its cores"
        ),
    ] = None,
    batch_tokens: BatchTokens = None,
    precision: Precision = "auto",
    device: DeviceName = "auto",
) -> None:
    """Translate a text line by line. As many lines come out as go in, in the same order.

    \b
    mt translate --model runs/base input.de -o output.en
    cat input.de | mt translate --model runs/base --beam-size 1 > output.en
    mt translate --model runs/base --format jsonl --field text --resume input.jsonl -o output.jsonl
    mt translate --model runs/base --sample --top-p 0.9 --n-best 16 --mbr chrf input.de -o output.en
    """
    from mt.decoding.translate_file import TranslateOptions, translate_file

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
        precision=precision,
        device=device,
    )
    translate_file(options, say)
