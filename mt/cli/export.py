"""`mt export`: write a model in the format of another program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mt.cli.console import say
from mt.cli.help import OUTPUT, PanelCommand
from mt.cli.options import Model

app = typer.Typer(
    no_args_is_help=True, help="Convert a model for another program.", rich_markup_mode=None
)


@app.command("ctranslate2", cls=PanelCommand)
def ctranslate2(
    model: Model,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="new folder to write",
            rich_help_panel=OUTPUT,
        ),
    ],
) -> None:
    """Convert a model for CTranslate2. Writes it only if both give the same probabilities.

    \b
    mt export ctranslate2 --model runs/base -o base.ct2
    """
    from mt.interop.ctranslate2 import export
    from mt.model.checkpoint import load_model

    say(f"{output}: {export(load_model(model), output)}")


@app.command("huggingface", cls=PanelCommand)
def huggingface(
    model: Model,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="new folder to write",
            rich_help_panel=OUTPUT,
        ),
    ],
    license_name: Annotated[
        str | None,
        typer.Option(
            "--license",
            metavar="NAME",
            help="licence for the model card, such as apache-2.0; none is stated if not given",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Convert a model for Hugging Face transformers, without code of its own.

    Writes it only if both give the same probabilities, and compares translations of data.valid. The
    folder's README.md is a model card.

    \b
    mt export huggingface --model runs/base -o base.hf --license apache-2.0
    """
    from mt.interop.huggingface_export import export
    from mt.model.checkpoint import load_model

    say(f"{output}: {export(load_model(model), output, license_name)}")
