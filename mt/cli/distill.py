"""`mt distill`: a corpus that a teacher writes of its training data."""

from __future__ import annotations

from pathlib import Path

from mt.cli.console import say
from mt.cli.options import ANY_ENGINE, EngineGroup, described


@described("""
    Input:
    --src FILE: text for the teacher to translate (default: its training data)
    --ref FILE: translations of --src, to choose among the --n-best
    Output:
    --student N-M: layers of the student's encoder and decoder
    Search:
    --n-best N in 1..: of N outputs, keep the most similar to the reference; 1 keeps the best by
        score
    --metric NAME: similarity to the reference: bleu or chrf of the sentence; bleu if not given
""")
def distill(
    models: list[Path],
    corpus: str,
    src: Path | None = None,
    ref: Path | None = None,
    from_: str | None = None,
    student: str = "6-2",
    resume: bool = False,
    overwrite: bool = False,
    n_best: int = 1,
    metric: str | None = None,
    beam_size: int | None = None,
    length_penalty: float | None = None,
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
    mt distill -m runs/1 -m runs/2 --n-best 5 -o distilled.tsv
    """
    from mt.search.options import SearchOptions
    from mt.translate import distill
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
