"""`mt inspect`: look inside a model."""

from __future__ import annotations

import typer

from mt.cli.console import print_result
from mt.cli.options import ConfigName, Sets

app = typer.Typer(no_args_is_help=True, help="Look inside a model.", rich_markup_mode=None)


@app.command("model")
def model(config: ConfigName, sets: Sets = None) -> None:
    """Print every parameter matrix with its shape. Below are totals per block and the closed forms.

    \b
    mt inspect model --config base.yaml
    mt inspect model --config vaswani2017.yaml
    """
    from mt.config.load import load_config
    from mt.model.summary import format_summary, summarise

    values = load_config(config, sets or []).config
    size, joint = values.tokenizer.vocab_size, values.tokenizer.joint
    print_result(format_summary(summarise(values.model, size, size, joint)))
