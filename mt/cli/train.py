"""`mt train`: start a training run or resume one."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated

from mt.cli import options as opt
from mt.cli.console import print_result
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
    time: Annotated[str | None, opt.execution_option("--time", metavar="TIME", help=
        "such as 90m or 1h30m: train as many epochs as fit, at most the config's; sets "
        "train.max_minutes; to resume, give it again")] = None,
    processes: Annotated[int, opt.execution_option("--processes", metavar="N", min=1, help=
        "processes that train together on this machine, on its cores or on N GPUs")] = 1,
    device: DeviceName = "auto",
) -> None:  # fmt: skip
    """Train a model. Run the same command again to resume a run that was interrupted.

    \b
    mt train --config base.yaml
    mt train --config multi30k.yaml --set data.root=corpora/multi30k
    mt train --config base.yaml --dry-run
    mt train --config base.yaml --time 24h
    mt train --config base.yaml --processes 2
    torchrun --standalone --nproc-per-node=gpu -m mt train --config base.yaml
    """
    from mt import api

    if time is not None:
        settings = [*(settings or []), f"train.max_minutes={minutes_of(time)}"]
    if processes == 1:
        outcome = api.train(config, run_dir, settings, device=device, fresh=fresh, dry_run=dry_run)
        if dry_run and os.environ.get("RANK", "0") == "0":
            print_result(outcome.reason)
        sys.exit(outcome.exit_code)
    from mt.runtime.local_processes import run_processes

    _, folder = api.load_for_training(config, run_dir, settings)
    given = ["train", "--config", config, "--run-dir", str(folder), "--device", device]
    given += [word for setting in settings or [] for word in ("--set", setting)]
    given += ["--fresh"] * fresh + ["--dry-run"] * dry_run
    sys.exit(run_processes(given, processes))


def minutes_of(time: str) -> float:
    """The minutes of `90m`, `2h` or `1h30m`. Raises ConfigError for what is none."""
    given = re.fullmatch(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", time)
    hours, minutes, seconds = (int(part or 0) for part in given.groups()) if given else (0, 0, 0)
    total = 60 * hours + minutes + seconds / 60
    if not total:
        raise ConfigError(f"--time: must be a time such as 90m, 2h or 1h30m, found {time!r}")
    return total
