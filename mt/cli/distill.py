"""`mt distill`: a corpus written by a teacher, and the config of a smaller student."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mt.cli.console import say
from mt.cli.help import INPUT, OUTPUT, SEARCH, option
from mt.cli.options import (
    ANY_ENGINE,
    BeamSize,
    Corpus,
    EngineGroup,
    LengthPenalty,
    Models,
    Overwrite,
    Resume,
    with_groups,
)


@with_groups
def distill(
    model: Models,
    output: Corpus,
    src: Annotated[
        Path | None,
        option(
            INPUT,
            "--src",
            "text for the teacher to translate",
            "FILE",
            show_default="its training data",
        ),
    ] = None,
    ref: Annotated[
        Path | None,
        option(INPUT, "--ref", "translations of --src, to choose among the --n-best", "FILE"),
    ] = None,
    student: Annotated[
        str, option(OUTPUT, "--student", "layers of the student's encoder and decoder", "N-M")
    ] = "6-2",
    resume: Resume = False,
    overwrite: Overwrite = False,
    n_best: Annotated[
        int,
        option(
            SEARCH,
            "--n-best",
            "of N outputs, keep the most similar to the reference; 1 keeps the best by score",
            "N",
            min=1,
        ),
    ] = 1,
    metric: Annotated[
        str | None,
        option(
            SEARCH,
            "--metric",
            "similarity to the reference: bleu or chrf of the sentence; bleu if not given",
            "NAME",
        ),
    ] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    engine: EngineGroup = ANY_ENGINE,
) -> None:
    """Distil a model: its output trains a faster one.

    See Kim and Rush, 2016. The teacher translates the source side of its training data, or --src.
    Each row of the output is a source line, a tab and the teacher's translation. The student's
    config is written beside it, with the suffix .yaml.

    \b
    mt distill --model runs/base -o distilled.tsv
    mt train --config distilled.yaml
    mt distill --model runs/base --n-best 8 --student 12-1 -o distilled.tsv
    """
    from mt.search.options import SearchOptions
    from mt.translate import distill
    from mt.translate.streaming import TextFiles

    files = TextFiles(output=output, resume=resume, overwrite=overwrite)
    text = distill.DistillText(src, ref, metric)
    search = SearchOptions(
        beam_size=beam_size, length_penalty=length_penalty, n_best=n_best, with_scores=False
    )
    config = distill.distill(files, text, student, search, engine.value(model), say)
    say(f"student's config: {config}; run: mt train --config {config}")
