"""`mt train`: start a training run or resume one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mt.cli.console import print_result
from mt.cli.help import EXECUTION, OUTPUT
from mt.cli.options import ConfigName, DeviceName, Settings

if TYPE_CHECKING:
    from mt.config.load import Loaded


def train(
    config: ConfigName,
    settings: Settings = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            metavar="FOLDER",
            help="run directory",
            show_default="runs/NAME, by the config's name",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="start over: rename an existing run directory to NAME.old-N first",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="prepare the data, run the largest batch and one translation, estimate time and "
            "memory; keep nothing",
            rich_help_panel=EXECUTION,
        ),
    ] = False,
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            min=1,
            metavar="N",
            help="processes that train together on this machine, on its cores or on N GPUs",
            rich_help_panel=EXECUTION,
        ),
    ] = 1,
    device: DeviceName = "auto",
) -> None:
    """Train a model. Run the same command again to resume a run that was interrupted.

    \b
    mt train --config base.yaml
    mt train --config multi30k.yaml --set data.root=corpora/multi30k
    mt train --config base.yaml --dry-run
    mt train --config base.yaml --processes 2
    torchrun --standalone --nproc-per-node=gpu -m mt train --config base.yaml
    """
    loaded = _load(config, settings or [])
    folder = run_dir or Path(loaded.config.run.dir or f"runs/{loaded.name}")

    if processes > 1:
        from mt.runtime.local_processes import run_processes

        given = ["train", "--config", config, "--run-dir", str(folder), "--device", device]
        given += [word for setting in settings or [] for word in ("--set", setting)]
        given += ["--fresh"] * fresh + ["--dry-run"] * dry_run
        sys.exit(run_processes(given, processes))

    from mt.training import launch

    outcome = launch.train(loaded.config, folder, device, fresh, dry_run)
    if dry_run and os.environ.get("RANK", "0") == "0":
        print_result(outcome.reason)
    sys.exit(outcome.exit_code)


def _load(config: str, settings: list[str]) -> Loaded:
    """Load the config; of several processes, only one reports what is wrong with it."""
    from mt.config.load import load_config, require_training_data
    from mt.errors import ConfigError

    try:
        loaded = load_config(config, settings)
        require_training_data(loaded.config)
    except ConfigError as error:
        if "LOCAL_RANK" not in os.environ:
            raise
        from mt.runtime.distributed import report_once

        report_once(error)
    return loaded
