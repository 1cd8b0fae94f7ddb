"""`mt config`: check a config, show its values, describe its keys."""

from __future__ import annotations

import typer

from mt.cli.console import print_result
from mt.cli.options import ConfigName, Sets

app = typer.Typer(
    no_args_is_help=True, help="Validate, show and describe configs.", rich_markup_mode=None
)


@app.command("check")
def check(config: ConfigName, sets: Sets = None) -> None:
    """Validate a config with its data opened, without training. A model that it starts from is opened too.

    \b
    mt config check --config base.yaml
    """
    from mt.config.load import load_config, require_training_data
    from mt.data.corpus import check_sources
    from mt.errors import DataError

    loaded = load_config(config, sets or [])
    require_training_data(loaded.config)
    if faults := check_sources(loaded.config.data):
        raise DataError("\n".join(faults))
    if loaded.config.train.init_from or loaded.config.train.freeze:
        from mt.training.finetune import resolve_init_from

        resolve_init_from(loaded.config)
    print_result(f"{loaded.path}: good")


@app.command("show")
def show(config: ConfigName, sets: Sets = None) -> None:
    """Print every value of a config with where it comes from.

    \b
    mt config show --config tiny.yaml --set optim.peak_lr=1e-3
    """
    from mt.config.load import load_config, with_origins

    print_result(with_origins(load_config(config, sets or [])))


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of a config file, for editors.

    \b
    mt config schema > mt.schema.json
    """
    import json

    from mt.config.schema import json_schema

    print_result(json.dumps(json_schema(), indent=2))
