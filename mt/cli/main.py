"""The program `mt`: its commands and its entry point.

Commands parse their options, load the config and call one function. They import torch and other
heavy packages in their bodies, so that `mt --help` is quick.
"""

from __future__ import annotations

import io
import os
import platform
import signal
import sys
from typing import Annotated, NoReturn

import typer

from mt import __version__
from mt.cli import config, data, export, import_, inspect, tokenizer
from mt.cli.average import average
from mt.cli.console import Commands, print_result, terminate
from mt.cli.doctor import doctor
from mt.cli.evaluate import evaluate
from mt.cli.help import PanelCommand
from mt.cli.report import report
from mt.cli.score import score
from mt.cli.train import train
from mt.cli.translate import translate
from mt.runtime.machine import limit_spinning
from mt.synthetic.commands import backtranslate, distill
from mt.tuning.commands import tune

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)
# In the order of `mt --help`.
for command in (
    train, translate, score, evaluate, tune, average, backtranslate, distill, doctor,
    report,
):  # fmt: skip
    app.command(cls=PanelCommand)(command)
for group in (config, data, import_, export, inspect, tokenizer):
    app.add_typer(group.app)


def _print_version(wanted: bool) -> None:
    """Print one property per line, the device being what `--device auto` would take."""
    if not wanted:
        return
    import torch

    from mt.runtime.devices import choose_device

    print_result(
        f"mt {__version__}\n"
        f"torch {torch.__version__}\n"
        f"Python {platform.python_version()}\n"
        f"device: {choose_device()}"
    )
    raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the versions of mt, torch and Python, and the device, then exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Train Transformers for machine translation, translate with them, and score the result."""


def main() -> NoReturn:
    """Run `mt` with the arguments of this process, then exit."""
    if sys.stderr is None:  # closed; messages must not end up in the output
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    signal.signal(signal.SIGTERM, terminate)
    limit_spinning()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal's encoding lacks must not end in a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:]
    # What a run or a model card records of the command is text, whatever a file is called.
    sys.argv = [os.fsencode(word).decode(errors="backslashreplace") for word in sys.argv]
    app(arguments, prog_name="mt")
    sys.exit(0)
