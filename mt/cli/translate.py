"""`mt translate`: translate a file or a stream, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mt.cli.console import say
from mt.cli.help import CONSTRAINTS, EXECUTION, INPUT, OUTPUT, SEARCH, argument, option
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
    source: Annotated[str, argument(INPUT, "IN", "text file, plain or .gz; - is stdin")] = "-",
    form: Annotated[
        str,
        option(INPUT, "--format", "format of input and output lines: text, tsv or jsonl", "NAME"),
    ] = "text",
    column: Annotated[
        int | None,
        option(
            INPUT,
            "--column",
            "column to translate in TSV lines; 1 is the first, and the default",
            "N",
            min=1,
        ),
    ] = None,
    field: Annotated[
        str | None,
        option(INPUT, "--field", "field to translate in JSON lines; text if not given", "NAME"),
    ] = None,
    errors: Errors = "strict",
    output: Output = "-",
    n_best: Annotated[
        int,
        option(
            OUTPUT, "--n-best", "outputs per input line, as `index ||| text ||| score`", "N", min=1
        ),
    ] = 1,
    scores: Annotated[
        bool, option(OUTPUT, "--scores", "put the score and a tab before each output")
    ] = False,
    alignments: Alignments = False,
    alignment_heads: AlignmentHeads = None,
    resume: Resume = False,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    exact: Annotated[
        bool,
        option(SEARCH, "--exact", "stop a sentence only when no open hypothesis can still win"),
    ] = False,
    mbr: Annotated[
        str | None,
        option(
            SEARCH,
            "--mbr",
            "minimum Bayes risk: choose among the --n-best by chrf or bleu",
            "METRIC",
        ),
    ] = None,
    ensemble: Annotated[
        str | None,
        option(
            SEARCH,
            "--ensemble",
            "average probabilities (probability, if not given) or log-probabilities (log)",
            "MEAN",
        ),
    ] = None,
    prefix: Annotated[
        Path | None,
        option(
            CONSTRAINTS,
            "--prefix",
            "target prefixes, one per input line: outputs start with them",
            "FILE",
        ),
    ] = None,
    min_length: Annotated[
        int, option(CONSTRAINTS, "--min-length", "shortest output, in tokens", "N")
    ] = 0,
    no_repeat_ngram: Annotated[
        int,
        option(CONSTRAINTS, "--no-repeat-ngram", "never repeat N tokens in a row; 0 is off", "N"),
    ] = 0,
    repetition_penalty: Annotated[
        float,
        option(
            CONSTRAINTS,
            "--repetition-penalty",
            "multiply log-probabilities of tokens already in the output by P",
            "P",
        ),
    ] = 1.0,
    forbid: Annotated[
        list[str] | None,
        option(
            CONSTRAINTS,
            "--forbid",
            "a token of the vocabulary never to output; repeatable",
            "TOKEN",
        ),
    ] = None,
    sampling: SamplingGroup = NO_SAMPLING,
    workers: Workers = None,
    max_wait: Annotated[
        float | None,
        option(
            EXECUTION,
            "--max-wait",
            "wait at most SECONDS for a batch to fill, then translate it",
            "SECONDS",
            min=0,
            show_default="0.2 for stdin",
        ),
    ] = None,
    batch_tokens: BatchTokens = None,
    engine: EngineName = "auto",
    shortlist: Annotated[
        Path | None,
        option(
            EXECUTION,
            "--shortlist",
            (
                "faster: only the likely target pieces in this vmap.txt, which mt export "
                "ctranslate2 --shortlist writes; for --engine ctranslate2"
            ),
            "FILE",
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
    from mt.translate.streaming import TextFiles
    from mt.translate.translate_file import translate_file

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
