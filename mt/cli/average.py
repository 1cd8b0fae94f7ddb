"""`mt average`: one model from several checkpoints of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mt.cli.console import say
from mt.cli.options import (
    argument,
    plain_option,
)
from mt.errors import ConfigError

# fmt: off
RunDir = Annotated[Path, argument("run directory", "RUN")]
Output = Annotated[Path, plain_option("--output", "-o", metavar="FOLDER", help=
    "new model folder to write")]
Last = Annotated[int | None, plain_option("--last", metavar="N", min=1, help=
    "average the newest N checkpoints; 5 if not given")]
Best = Annotated[int | None, plain_option("--best", metavar="N", min=1, help=
    "average the N checkpoints with the best validation score")]
# fmt: on


def average(
    run_dir: RunDir,
    output: Output,
    last: Last = None,
    best: Best = None,
) -> None:
    """Average the weights of a run's checkpoints. See Vaswani et al., 2017, section 6.1.

    \b
    mt average runs/base --last 5 -o runs/base/averaged
    mt average runs/base --best 3 -o runs/base/averaged
    mt translate --model runs/base/averaged input.de -o output.en
    """
    from mt.model.checkpoint import average_run

    if last and best:
        raise ConfigError("--last, --best: give one of them, not both")
    steps = average_run(run_dir, best or last, output, by_score=best is not None)
    checkpoints = f"{len(steps)} checkpoint{'s' * (len(steps) != 1)} (updates {steps})"
    say(f"the mean of {checkpoints} is in {output}")
