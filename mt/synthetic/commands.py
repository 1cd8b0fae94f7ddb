"""`mt backtranslate` and `mt distill`: corpora that models write."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from mt.cli.console import print_result, say
from mt.cli.options import (
    ANY_ENGINE,
    NO_SAMPLING,
    BeamSize,
    CorpusFile,
    EngineGroup,
    FromLanguage,
    LengthPenalty,
    Models,
    OnErrors,
    Overwrite,
    Resume,
    SamplingGroup,
    ToLanguage,
    argument,
    input_option,
    output_option,
    search_option,
    with_groups,
)

# fmt: off
Source = Annotated[str, argument(
    "text in the language to translate into, also compressed; - is stdin", "IN", "Input")]
Tag = Annotated[str | None, output_option("--tag", metavar="WORD", help=
    "word before each synthetic source, such as <BT>")]
# fmt: on


@with_groups
def backtranslate(
    models: Models,
    source: Source,
    corpus: CorpusFile,
    to: ToLanguage = None,
    from_: FromLanguage = None,
    errors: OnErrors = "strict",
    tag: Tag = None,
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
    FILE.tsv.corpus.yaml has the licences of the text and of what the model was trained on.

    \b
    mt backtranslate --model runs/en-de news.en -o news.tsv
    mt backtranslate --model runs/en-de news.en --sample --tag '<BT>' -o news.tsv
    """
    from mt.search.options import SearchOptions
    from mt.synthetic import backtranslate
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


# fmt: off
Src = Annotated[Path | None, input_option("--src", metavar="FILE", help=
    "text for the teacher to translate (default: its training data)")]
Ref = Annotated[Path | None, input_option("--ref", metavar="FILE", help=
    "translations of --src, to choose among the --n-best")]
Student = Annotated[str, output_option("--student", metavar="N-M", help=
    "layers of the student's encoder and decoder")]
NBest = Annotated[int, search_option("--n-best", metavar="N", min=1, help=
    "of N outputs, keep the most similar to the reference; 1 keeps the best by score")]
Metric = Annotated[Literal["chrf", "bleu"] | None, search_option("--metric", metavar="NAME", help=
    "similarity to the reference: bleu or chrf of the sentence; bleu if not given")]
# fmt: on


@with_groups
def distill(
    models: Models,
    corpus: CorpusFile,
    src: Src = None,
    ref: Ref = None,
    from_: FromLanguage = None,
    student: Student = "6-2",
    resume: Resume = False,
    overwrite: Overwrite = False,
    n_best: NBest = 1,
    metric: Metric = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    engine: EngineGroup = ANY_ENGINE,
) -> None:
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
    from mt.search.options import SearchOptions
    from mt.synthetic import distill
    from mt.translate.streaming import TextFiles

    files = TextFiles(output=corpus, resume=resume, overwrite=overwrite)
    text = distill.DistillText(src, ref, metric)
    search = SearchOptions(
        from_=from_,
        beam_size=beam_size,
        length_penalty=length_penalty,
        n_best=n_best,
        with_scores=False,
    )
    config = distill.distill(files, text, student, search, engine.value(models))
    say(f"student's config: {config}; run: mt train --config {config}")
