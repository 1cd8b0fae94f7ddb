"""`mt data prepare`."""

from __future__ import annotations

from mt.cli import options as opt
from mt.cli.console import print_result


def prepare(
    config: opt.ConfigName, settings: opt.Settings = None, run_dir: opt.RunDir = None
) -> None:
    """Train the tokenizer and encode text ahead of mt train.

    mt train finds both in the same run directory. A command that was interrupted continues.

    \b
    mt data prepare --config wmt14.yaml
    """
    from mt.config.load import load_config, require_training_data

    loaded = load_config(config, settings or [])
    require_training_data(loaded.config)
    folder = run_dir or loaded.run_dir

    from mt.api import cleaner
    from mt.training.launch import prepare_data

    print_result(prepare_data(loaded.config, folder, cleaner(loaded.config)))
