"""`mt train`: start a training run or resume one; `mt data prepare`: make ready for it."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from mt.cli import options as opt
from mt.cli.console import print_result
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
    from mt.runtime.machine import run_processes

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
