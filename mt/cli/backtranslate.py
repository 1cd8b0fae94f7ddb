"""`mt backtranslate`: a corpus from monolingual text, its sources written by a reverse model."""

from __future__ import annotations

from typing import Annotated

import typer

from mt.cli.console import print_result, say
from mt.cli.help import INPUT, OUTPUT
from mt.cli.options import (
    BatchTokens,
    BeamSize,
    Corpus,
    DeviceName,
    EngineName,
    Errors,
    LengthPenalty,
    Models,
    Precision,
    Resume,
    Sample,
    Seed,
    Temperature,
    TopK,
    TopP,
    Workers,
)


def backtranslate(
    model: Models,
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="text in the language to translate into, plain or .gz; - is stdin",
            rich_help_panel=INPUT,
        ),
    ],
    output: Corpus,
    errors: Errors = "strict",
    tag: Annotated[
        str | None,
        typer.Option(
            "--tag",
            metavar="WORD",
            help="word before each synthetic source, such as <BT>",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    resume: Resume = False,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    sample: Sample = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    engine: EngineName = "auto",
    workers: Workers = None,
    batch_tokens: BatchTokens = None,
    precision: Precision = "auto",
    device: DeviceName = "auto",
) -> None:
    """Make a parallel corpus from monolingual text. See Sennrich et al., 2016.

    To train German-English on more English text, give an English-German model and that text. Each
    row of the output is a German translation, a tab and the English line. Lines are left out if
    they are blank, repeated, too long, or badly translated. Prints what to add to the config.

    \b
    mt backtranslate --model runs/en-de news.en -o news.tsv
    mt backtranslate --model runs/en-de news.en --sample --tag '<BT>' -o news.tsv
    """
    from mt.cli.convert import convert_model
    from mt.translate import backtranslate
    from mt.translate.translate_file import TranslateOptions

    options = TranslateOptions(
        models=model,
        source=source,
        output=output,
        beam_size=beam_size,
        length_penalty=length_penalty,
        errors=errors,
        resume=resume,
        sample=sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        engine=engine,
        convert=convert_model,
        workers=workers,
        batch_tokens=batch_tokens,
        precision=precision,
        device=device,
    )
    entry = backtranslate.backtranslate(options, tag, say)
    say("add to data.train, beside the parallel text:")
    print_result(entry)
