"""`mt average`: one model from several checkpoints of a run, or from several models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from mt.cli import options as opt
from mt.cli.console import say
from mt.errors import ConfigError


def average(
    models: Annotated[list[Path], opt.argument(
        "run directory whose checkpoints are averaged, or several models", "MODEL...")],
    output: Annotated[Path, opt.plain_option("--output", "-o", metavar="FOLDER", help=
        "new model folder to write")],
    last: Annotated[int | None, opt.plain_option("--last", metavar="N", min=1, help=
        "average the newest N checkpoints; 5 if not given")] = None,
    best: Annotated[int | None, opt.plain_option("--best", metavar="N", min=1, help=
        "average the N checkpoints with the best validation score")] = None,
    weights: Annotated[str | None, opt.plain_option("--weights", metavar="NUMBERS", help=
        "of several models: how much each counts, such as 0.7,0.3 (default: all the same)")] = None,
) -> None:  # fmt: skip
    """Average the weights of a run's checkpoints. See Vaswani et al., 2017, section 6.1.

    Or those of several models, such as a general model and one fine-tuned from it: the average
    keeps more of the general one.

    \b
    mt average runs/base --last 5 -o runs/base/averaged
    mt average runs/base --best 3 -o runs/base/averaged
    mt average runs/general runs/medical --weights 0.3,0.7 -o medical-and-general
    """
    from mt.model.checkpoint import average_models, average_run

    if len(models) > 1:
        if last or best:
            raise ConfigError("--last, --best: choose checkpoints of one run; name one, or no N")
        shares = _shares(weights, len(models))
        every = zip(shares, average_models(models, shares, output), strict=True)
        parts = (f"{share / sum(shares):.0%} {folder}" for share, folder in every)
        say(f"the mean of {' and '.join(parts)} is in {output}")
        return
    if weights:
        raise ConfigError("--weights: are those of several models, found one; name two or more")
    if last and best:
        raise ConfigError("--last, --best: give one of them, not both")
    steps = average_run(models[0], best or last, output, by_score=best is not None)
    checkpoints = f"{len(steps)} checkpoint{'s' * (len(steps) != 1)} (updates {steps})"
    say(f"the mean of {checkpoints} is in {output}")


def _shares(weights: str | None, count: int) -> list[float]:
    """The share of each model. Raises ConfigError unless `weights` has a number for each."""
    if weights is None:
        return [1.0] * count
    try:
        shares = [float(number) for number in weights.split(",")]
    except ValueError:
        shares = []
    are_shares = all(0 <= share < math.inf for share in shares) and 0 < sum(shares) < math.inf
    if len(shares) != count or not are_shares:
        raise ConfigError(
            f"--weights {weights}: must be {count} numbers from 0 on with commas between, one for "
            "each model, such as " + ",".join(["0.5"] * count)
        )
    return shares
