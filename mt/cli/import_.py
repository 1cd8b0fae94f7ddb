"""`mt import`: a model of another program becomes one of mt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mt.cli.console import say
from mt.cli.help import PanelCommand, command_group
from mt.cli.options import described
from mt.errors import ConfigError

app = command_group("import", "Make a model of one of another program.")


@app.command("huggingface", cls=PanelCommand)
@described("""
    folder = DIR: folder with config.json, weights, source.spm, target.spm
""")
def huggingface(folder: Path, new_folder: Path) -> None:
    """Import a Marian model (OPUS-MT) of transformers.

    The folder is as Hugging Face transformers, or mt export huggingface, writes it. The new
    folder's config.yaml is a config to fine-tune the model; see mt/interop/README.md.

    \b
    hf download Helsinki-NLP/opus-mt-de-en --local-dir opus-mt-de-en
    mt import huggingface opus-mt-de-en -o opus
    mt translate --model opus input.de -o output.en
    mt train --config opus/config.yaml --run-dir runs/tuned \\
        --set "data.train={src: train.de, tgt: train.en}"
    """
    from mt.interop.huggingface_import import import_model

    say(f"{new_folder}: {import_model(folder, new_folder)}")


@app.command("marian", cls=PanelCommand, hidden=True)
def marian(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="folder with model.npz")],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FOLDER")] = None,
) -> None:
    """Say how a model that Marian itself wrote is converted first.

    \b
    mt import marian FOLDER -o OUT
    """
    from mt.interop.huggingface_folder import MARIAN

    raise ConfigError(f"import marian {folder}: {MARIAN} -o {output or 'FOLDER'}")
