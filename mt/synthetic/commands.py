"""`mt backtranslate` and `mt distill`: corpora that models write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from mt.cli import options as opt
from mt.cli.console import print_result, say
from mt.search.options import EngineOptions, SearchOptions


def backtranslate(
    models: opt.Models,
    source: Annotated[str, opt.argument(
        "text in the language to translate into, also compressed; - is stdin", "IN", "Input")],
    output: opt.CorpusFile,
    errors: opt.OnErrors = "strict",
    tag: Annotated[str | None, opt.output_option("--tag", metavar="WORD", help=
        "word before each synthetic source, such as <BT>")] = None,
    *,
    job: opt.CorpusJobGroup,
    search: opt.SampledSearchGroup,
    engine: EngineOptions,
) -> None:  # fmt: skip
    """Make a parallel corpus from monolingual text. See Sennrich et al., 2016.

    To train German-English on more English text, give an English-German model and that text. Each
    row of the output is a German translation, a tab and the English line. Lines are left out if
    they are blank, repeated, too long, or badly translated. Prints what to add to the config.
    FILE.tsv.corpus.yaml has the licences of the text and of what the model was trained on.

    \b
    mt backtranslate --model runs/en-de news.en -o news.tsv
    mt backtranslate --model runs/en-de news.en --sample --tag '<BT>' -o news.tsv
    """
    from mt.synthetic.make_corpus import backtranslate
    from mt.translate.streaming import TextFiles

    files = TextFiles(source=source, output=output, errors=errors, **vars(job))
    options = search.value(with_scores=False)
    entry = backtranslate(files, tag, options, replace(engine, models=models))
    say("add to data.train, beside the parallel text:")
    print_result(entry)


def distill(
    models: opt.Models,
    output: opt.CorpusFile,
    src: Annotated[Path | None, opt.input_option("--src", metavar="FILE", help=
        "text for the teacher to translate (default: its training data)")] = None,
    student: Annotated[str, opt.output_option("--student", metavar="N-M", help=
        "layers of the student's encoder and decoder")] = "6-2",
    *,
    job: opt.CorpusJobGroup,
    n_best: Annotated[int, opt.search_option("--n-best", metavar="N", min=1, help=
        "of N outputs of the training data, keep that with the best BLEU; 1: by its score")] = 1,
    search: SearchOptions,
    engine: EngineOptions,
) -> None:  # fmt: skip
    """Distil a model: its output trains a faster one.

    See Kim and Rush, 2016. The teacher translates the source side of its training data, or --src.
    Each row of the output is a source line, a tab and the teacher's translation. The student's
    config is written beside it, with the suffix .yaml, and in FILE.tsv.corpus.yaml the licences of
    the text and of what the teacher was trained on.

    \b
    mt distill --model runs/base -o distilled.tsv
    mt train --config distilled.yaml
    mt distill --model runs/base --n-best 8 --student 12-1 -o distilled.tsv
    mt distill -m runs/1 -m runs/2 --n-best 5 -o distilled.tsv
    """
    from mt.synthetic.distill import distill
    from mt.translate.streaming import TextFiles

    files = TextFiles(output=output, **vars(job))
    search = replace(search, n_best=n_best, with_scores=False)
    config = distill(files, src, student, search, replace(engine, models=models))
    say(f"student's config: {config}; run: mt train --config {config}")
