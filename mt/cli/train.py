"""`mt train`: start a training run or resume one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from mt.cli.console import print_result
from mt.cli.options import ConfigName, DeviceName, Sets


def train(
    config: ConfigName,
    sets: Sets = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="FOLDER", help="default: runs/NAME of the config"),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="set a used run directory aside and start over")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="try preparation, largest batch and a translation, print what it will be; keep nothing",
        ),
    ] = False,
    device: DeviceName = "auto",
) -> None:
    """Train a model, or go on with a run that was stopped. The same command does both.

    \b
    mt train --config base.yaml
    mt train --config multi30k.yaml --set data.root=corpora/multi30k --set train.max_steps=2000
    mt train --config base.yaml --dry-run
    torchrun --standalone --nproc-per-node=gpu -m mt train --config base.yaml
    """
    from mt.config.load import load_config, require_training_data
    from mt.errors import ConfigError

    try:
        loaded = load_config(config, sets or [])
        require_training_data(loaded.config)
    except ConfigError as error:
        if "LOCAL_RANK" not in os.environ:
            raise
        from mt.runtime.distributed import report_once

        report_once(error)
    folder = run_dir or Path(loaded.config.run.dir or f"runs/{loaded.name}")
    from mt.training import launch as training

    outcome = training.train(loaded.config, folder, device, fresh, dry_run)
    if dry_run and os.environ.get("RANK", "0") == "0":
        print_result(outcome.reason)
    sys.exit(outcome.exit_code)
