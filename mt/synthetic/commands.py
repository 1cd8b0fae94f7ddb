"""`mt backtranslate` and `mt distill`: corpora that models write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mt.cli import options as opt
from mt.cli.console import print_result, say
from mt.search.options import EngineOptions, SearchOptions


@dataclass(frozen=True)
class BacktranslateGroup:
    """The text, the corpus that is made of it, and the search."""

    # fmt: off
    source: Annotated[str, opt.argument(
        "text in the language to translate into, also compressed; - is stdin", "IN", "Input")]
    output: opt.CorpusFile
    to: opt.ToLanguage = None
    from_: opt.FromLanguage = None
    errors: opt.OnErrors = "strict"
    tag: Annotated[str | None, opt.output_option("--tag", metavar="WORD", help=
        "word before each synthetic source, such as <BT>")] = None
    resume: opt.Resume = False
    overwrite: opt.Overwrite = False
    beam_size: opt.BeamSize = None
    length_penalty: opt.LengthPenalty = None


def backtranslate(
    models: opt.Models,
    given: BacktranslateGroup,
    sampling: opt.SamplingGroup,
    engine: opt.EngineGroup,
) -> None:
    """Make a parallel corpus from monolingual text. See Sennrich et al., 2016.

    To train German-English on more English text, give an English-German model and that text. Each
    row of the output is a German translation, a tab and the English line. Lines are left out if
    they are blank, repeated, too long, or badly translated. Prints what to add to the config.
    FILE.tsv.corpus.yaml has the licences of the text and of what the model was trained on.

    \b
    mt backtranslate --model runs/en-de news.en -o news.tsv
    mt backtranslate --model runs/en-de news.en --sample --tag '<BT>' -o news.tsv
    """
    from mt.synthetic import backtranslate
    from mt.translate.streaming import TextFiles

    search = opt.make(SearchOptions, given, with_scores=False, sample=sampling.value())
    chosen = opt.make(EngineOptions, engine, models=models)
    entry = backtranslate.backtranslate(opt.make(TextFiles, given), given.tag, search, chosen)
    say("add to data.train, beside the parallel text:")
    print_result(entry)


@dataclass(frozen=True)
class DistillGroup:
    """The corpus, the text it is made of, the student, and the search."""

    # fmt: off
    output: opt.CorpusFile
    src: Annotated[Path | None, opt.input_option("--src", metavar="FILE", help=
        "text for the teacher to translate (default: its training data)")] = None
    ref: Annotated[Path | None, opt.input_option("--ref", metavar="FILE", help=
        "translations of --src, to choose among the --n-best")] = None
    from_: opt.FromLanguage = None
    student: Annotated[str, opt.output_option("--student", metavar="N-M", help=
        "layers of the student's encoder and decoder")] = "6-2"
    resume: opt.Resume = False
    overwrite: opt.Overwrite = False
    n_best: Annotated[int, opt.search_option("--n-best", metavar="N", min=1, help=
        "of N outputs, keep the most similar to the reference; 1 keeps the best by score")] = 1
    metric: Annotated[Literal["chrf", "bleu"] | None, opt.search_option(
        "--metric", metavar="NAME", help=
        "similarity to the reference: bleu or chrf of the sentence; bleu if not given")] = None
    beam_size: opt.BeamSize = None
    length_penalty: opt.LengthPenalty = None


def distill(models: opt.Models, given: DistillGroup, engine: opt.EngineGroup) -> None:
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
    from mt.synthetic.distill import DistillText, distill
    from mt.translate.streaming import TextFiles

    files, text = opt.make(TextFiles, given), opt.make(DistillText, given)
    search = opt.make(SearchOptions, given, with_scores=False)
    chosen = opt.make(EngineOptions, engine, models=models)
    config = distill(files, text, given.student, search, chosen)
    say(f"student's config: {config}; run: mt train --config {config}")
