"""The command line: parse, load the config, call one function. Heavy imports stand inside the commands."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import NoReturn

import typer

from mt.cli import config, export, inspect
from mt.cli.average import average
from mt.cli.console import Commands, terminate
from mt.cli.evaluate import evaluate, score
from mt.cli.train import train
from mt.cli.translate import translate

app = typer.Typer(
    cls=Commands,
    help="Train encoder-decoder Transformers for translation, translate with them, and score the result.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)
app.command()(train)
app.command()(translate)
app.command()(score)
app.command()(evaluate)
app.command()(average)
app.add_typer(config.app, name="config")
app.add_typer(export.app, name="export")
app.add_typer(inspect.app, name="inspect")


def main() -> NoReturn:
    """The console script `mt`."""
    if sys.stderr is None:  # closed; what is printed there must not end up in the output
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    signal.signal(signal.SIGTERM, terminate)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal's encoding lacks must not end in a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")
    app(prog_name="mt")
    sys.exit(0)
