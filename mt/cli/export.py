"""`mt export`: write a model in the format of another program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mt.cli.console import say
from mt.cli.options import Model

app = typer.Typer(
    no_args_is_help=True, help="Hand a model to another runtime.", rich_markup_mode=None
)


@app.command("ctranslate2")
def ctranslate2(
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="folder to write, a new one")
    ],
) -> None:
    """Write a model for CTranslate2. Both must give the same probabilities before anything is written.

    \b
    mt export ctranslate2 --model runs/base -o base.ct2
    """
    from mt.interop.ctranslate2 import export
    from mt.model.checkpoint import load_model

    say(f"{output}: {export(load_model(model), output)}")
