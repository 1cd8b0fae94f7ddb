"""`mt backtranslate`: a corpus from monolingual text, its sources written by a reverse model."""

from __future__ import annotations

from pathlib import Path

from mt.cli.console import print_result, say
from mt.cli.options import ANY_ENGINE, NO_SAMPLING, EngineGroup, SamplingGroup, described


@described("""
    Input:
    source = IN: text in the language to translate into, also compressed; - is stdin
    Output:
    --tag WORD: word before each synthetic source, such as <BT>
""")
def backtranslate(
    models: list[Path],
    source: str,
    corpus: str,
    to: str | None = None,
    from_: str | None = None,
    errors: str = "strict",
    tag: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    beam_size: int | None = None,
    length_penalty: float | None = None,
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
        source=source, output=corpus, errors=errors, resume=resume, overwrite=overwrite
    )
    search = SearchOptions(
        to=to,
        from_=from_,
        beam_size=beam_size,
        length_penalty=length_penalty,
        with_scores=False,
        sample=sampling.value(),
    )
    entry = backtranslate.backtranslate(files, tag, search, engine.value(models))
    say("add to data.train, beside the parallel text:")
    print_result(entry)
