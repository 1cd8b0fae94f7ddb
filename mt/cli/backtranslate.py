"""`mt backtranslate`: a corpus from monolingual text, its sources written by a reverse model."""

from __future__ import annotations

from typing import Annotated

from mt.cli.console import print_result, say
from mt.cli.help import INPUT, OUTPUT, argument, option
from mt.cli.options import (
    ANY_ENGINE,
    NO_SAMPLING,
    BeamSize,
    Corpus,
    EngineGroup,
    Errors,
    LengthPenalty,
    Models,
    Overwrite,
    Resume,
    SamplingGroup,
    with_groups,
)


@with_groups
def backtranslate(
    model: Models,
    source: Annotated[
        str,
        argument(INPUT, "IN", "text in the language to translate into, plain or .gz; - is stdin"),
    ],
    output: Corpus,
    errors: Errors = "strict",
    tag: Annotated[
        str | None,
        option(OUTPUT, "--tag", "word before each synthetic source, such as <BT>", "WORD"),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    sampling: SamplingGroup = NO_SAMPLING,
    engine: EngineGroup = ANY_ENGINE,
) -> None:
    """Make a parallel corpus from monolingual text. See Sennrich et al., 2016.

    To train German-English on more English text, give an English-German model and that text. Each
    row of the output is a German translation, a tab and the English line. Lines are left out if
    they are blank, repeated, too long, or badly translated. Prints what to add to the config.

    \b
    mt backtranslate --model runs/en-de news.en -o news.tsv
    mt backtranslate --model runs/en-de news.en --sample --tag '<BT>' -o news.tsv
    """
    from mt.search.options import SearchOptions
    from mt.translate import backtranslate
    from mt.translate.streaming import TextFiles

    files = TextFiles(
        source=source, output=output, errors=errors, resume=resume, overwrite=overwrite
    )
    search = SearchOptions(
        beam_size=beam_size,
        length_penalty=length_penalty,
        with_scores=False,
        sample=sampling.value(),
    )
    entry = backtranslate.backtranslate(files, tag, search, engine.value(model), say)
    say("add to data.train, beside the parallel text:")
    print_result(entry)
