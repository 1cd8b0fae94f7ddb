"""`mt data prepare`."""

from __future__ import annotations

import re
from typing import Annotated

from mt.cli import options as opt
from mt.cli.console import print_result
from mt.errors import ConfigError


def prepare(
    config: opt.ConfigName,
    settings: opt.Settings = None,
    run_dir: opt.RunDir = None,
    shard: Annotated[str, opt.execution_option("--shard", metavar="K/N", help=
        "encode part K of N, as job K of an array; the last job joins the parts")] = "1/1",
) -> None:  # fmt: skip
    """Train the tokenizer and encode text ahead of mt train.

    mt train finds both in the same run directory. The result is the same for any number of jobs; in
    an array of Slurm, K is $SLURM_ARRAY_TASK_ID. A job that was interrupted continues. Without
    --shard, what other jobs have left is encoded too.

    \b
    mt data prepare --config wmt14.yaml
    mt data prepare --config wmt14.yaml --shard 3/8
    """
    from mt.config.load import load_config, require_training_data

    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f"--shard: must be K/N with K in 1..N, such as 3/8, found {shard!r}")
    loaded = load_config(config, settings or [])
    require_training_data(loaded.config)
    folder = run_dir or loaded.run_dir

    from mt.training.launch import prepare_data

    print_result(prepare_data(loaded.config, folder, (int(match[1]), int(match[2]))))
