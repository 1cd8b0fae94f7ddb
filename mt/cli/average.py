"""`mt average`: one model from several checkpoints of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mt.cli.console import say


def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="run directory")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="model folder to write, a new one"),
    ],
    last: Annotated[
        int | None,
        typer.Option("--last", min=1, metavar="N", help="the newest N checkpoints; default: 5"),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(
            "--best", min=1, metavar="N", help="the N best checkpoints on the validation set"
        ),
    ] = None,
) -> None:
    """Average the weights of a run's last or best checkpoints. Vaswani et al., 2017, section 6.1.

    \b
    mt average runs/base --last 5 -o runs/base/averaged
    mt average runs/base --best 3 -o runs/base/averaged
    mt translate --model runs/base/averaged input.de -o output.en
    """
    from mt.errors import ConfigError
    from mt.model.checkpoint import average_run

    if last and best:
        raise ConfigError(
            "--last, --best: one of the two says which checkpoints are averaged; leave the other out"
        )
    steps = average_run(run, best or last or 5, output, by_score=best is not None)
    say(f"the mean of {len(steps)} checkpoints (updates {steps}) is in {output}")
