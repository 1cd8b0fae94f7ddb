"""`mt train`, and what surrounds it: `mt data prepare`, `mt average` and `mt doctor`."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Annotated

from mt.cli import options as opt
from mt.cli.console import print_result, say
from mt.errors import ConfigError
from mt.search.options import DeviceName


def train(
    config: opt.ConfigName,
    settings: opt.Settings = None,
    run_dir: opt.RunDir = None,
    fresh: Annotated[bool, opt.output_option("--fresh", help=
        "start over: rename an existing run directory to NAME.old-N first")] = False,
    dry_run: Annotated[bool, opt.execution_option("--dry-run", help=
        "prepare the data, run the largest batch and one translation, estimate time and memory; "
        "keep nothing")] = False,
    processes: Annotated[int, opt.execution_option("--processes", metavar="N", min=1, help=
        "processes that train together on this machine, on its cores or on N GPUs")] = 1,
    device: DeviceName = "auto",
) -> None:  # fmt: skip
    """Train a model. Run the same command again to resume a run that was interrupted.

    \b
    mt train --config base.yaml
    mt train --config multi30k.yaml --set data.root=corpora/multi30k
    mt train --config base.yaml --dry-run
    mt train --config base.yaml --processes 2
    torchrun --standalone --nproc-per-node=gpu -m mt train --config base.yaml
    """
    from mt import api

    if processes == 1:
        outcome = api.train(config, run_dir, settings, device=device, fresh=fresh, dry_run=dry_run)
        if dry_run and os.environ.get("RANK", "0") == "0":
            print_result(outcome.reason)
        sys.exit(outcome.exit_code)
    from mt.runtime.machine import run_processes, usable_cores

    if processes > (cores := usable_cores()):
        from mt.runtime.devices import find_device

        if find_device(device).type == "cpu":
            found = f"found {processes}; more would wait for each other"
            raise ConfigError(f"--processes: must be at most {cores}, the cores here, {found}")
    _, folder = api.load_for_training(config, run_dir, settings)
    given = ["train", "--config", config, "--run-dir", str(folder), "--device", device]
    given += [word for setting in settings or [] for word in ("--set", setting)]
    given += ["--fresh"] * fresh + ["--dry-run"] * dry_run
    sys.exit(run_processes(given, processes))


def prepare(
    config: opt.ConfigName, settings: opt.Settings = None, run_dir: opt.RunDir = None
) -> None:
    """Train the tokenizer and encode text ahead of mt train.

    mt train finds both in the same run directory. A command that was interrupted continues.

    \b
    mt data prepare --config wmt14.yaml
    """
    from mt import api

    loaded, folder = api.load_for_training(config, run_dir, settings)
    from mt.training.launch import prepare_data

    print_result(prepare_data(loaded, folder, api.cleaner(loaded)))


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


def doctor(as_json: opt.AsJson = False) -> None:
    """Report versions, devices, precisions and disk.

    Takes some seconds, for small timed products (GFLOP/s). Exit code 2: training could not start.

    \b
    mt doctor
    mt doctor --json
    """
    from mt.runtime.doctor import examine, format_report

    report = examine()
    print_result(json.dumps(report, indent=1) if as_json else format_report(report))
    for problem in report["problems"]:
        say(f"training cannot start: {problem}")
    if report["problems"]:
        sys.exit(2)
