"""`mt config`: check a config, show its values, describe its keys."""

from __future__ import annotations

from typing import Annotated

from mt.cli import options as opt
from mt.cli.console import print_result, say
from mt.cli.help import command_group
from mt.errors import DataError, leaf_for

app = command_group("config", "Check, show and describe configs.")


@app.command("check")
def check(config: opt.ConfigName, settings: opt.Settings = None) -> None:
    """Check a config and its data, without training. A model to fine-tune is opened too.

    \b
    mt config check --config base.yaml
    """
    from mt.config.load import load_config, require_training_data
    from mt.config.plan import plan_data
    from mt.data.reading.check import check_data

    loaded = load_config(config, settings or [])
    require_training_data(loaded.config)
    plan = plan_data(loaded.config.data)
    data = check_data(plan)
    if loaded.config.tokenizer.model is not None:
        from mt.data.tokens.tokenizer import own_tokenizer

        try:
            own_tokenizer(loaded.config.tokenizer)
        except DataError as error:
            data.faults.append(str(error))
    if plan.clean is not None:
        with leaf_for("data.clean"):
            from mt.cleaning.plan import files_against

        try:
            files_against(plan.clean, plan.root)
        except DataError as error:
            data.faults.append(str(error))
    if data.faults:
        raise DataError("\n".join(data.faults))
    for line in (*data.unread, *(f"warning: {warning}" for warning in data.warnings)):
        say(line)
    if loaded.config.train.init_from:
        from mt.training.finetune import load_base

        load_base(loaded.config)
    print_result(f"{loaded.path}: good")


@app.command("show")
def show(config: opt.ConfigName, settings: opt.Settings = None) -> None:
    """Print every value of a config and its origin.

    \b
    mt config show --config tiny.yaml --set optim.peak_lr=1e-3
    """
    from mt.config.load import load_config, with_origins

    print_result(with_origins(load_config(config, settings or [])))


@app.command("schema")
def schema(
    markdown: Annotated[bool, opt.output_option("--markdown", help=
        "print a table of all keys instead: the page configs/keys.md")] = False,
) -> None:  # fmt: skip
    """Print the JSON Schema of configs: what each key means and takes. Editors can use it.

    \b
    mt config schema > mt.schema.json
    """
    import json

    from mt.config.key_table import key_table
    from mt.config.schema import json_schema

    print_result(key_table() if markdown else json.dumps(json_schema(), indent=2))
