"""The program `mt`. Commands import heavy packages in their bodies, so that `--help` is quick."""

from __future__ import annotations

import io
import os
import platform
import signal
import sys
from typing import Annotated, NoReturn

import typer

from mt.cli.console import Commands, print_result, say, terminate
from mt.cli.help import command_group
from mt.package import VERSION
from mt.runtime.machine import limit_spinning
from mt.terminal import print_messages

# Where each command is, in the order of `mt --help`. What is in a leaf, such as mt.report, may be
# missing: the command then says so.
COMMANDS = {
    "train": "mt.cli.train:train",
    "translate": "mt.cli.translate:translate",
    "score": "mt.cli.translate:score",
    "evaluate": "mt.cli.evaluate:evaluate",
    "average": "mt.cli.train:average",
    "backtranslate": "mt.synthetic.commands:backtranslate",
    "distill": "mt.synthetic.commands:distill",
    "doctor": "mt.cli.train:doctor",
    "report": "mt.report.commands:report",
    "config": "mt.cli.config:app",
    "data": "mt.cli.main:data",
    "import": "mt.interop.commands:import_app",
    "export": "mt.interop.commands:export_app",
    "inspect": "mt.inspect.commands:app",
    "tokenizer": "mt.cli.tokenizer:app",
}
DATA_COMMANDS = {
    "clean": "mt.cleaning.commands:clean",
    "stats": "mt.inspect.commands:stats",
    "prepare": "mt.cli.train:prepare",
}

app = command_group("mt", "", COMMANDS, Commands)
data = command_group("data", "Count and clean corpora; prepare training.", DATA_COMMANDS)


def _print_version(wanted: bool) -> None:
    """Print one property per line, the device being what `--device auto` would take."""
    if not wanted:
        return
    import torch

    from mt.runtime.devices import choose_device

    versions = f"mt {VERSION}\ntorch {torch.__version__}\nPython {platform.python_version()}"
    print_result(f"{versions}\ndevice: {choose_device()}")
    raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help=
        "Print the versions of mt, torch and Python, and the device, then exit.")] = False,
) -> None:  # fmt: skip
    """Train Transformers for machine translation, translate with them, and score the result."""


def main() -> NoReturn:
    """Run `mt` with the arguments of this process, then exit."""
    if sys.stderr is None:  # closed; messages must not end up in the output
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    print_messages()
    try:
        os.getcwd()
    except OSError:  # libraries would fail later, each in its own way
        say("the working directory does not exist any more; cd to a folder that does")
        sys.exit(2)
    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as of a job in the background
        signal.signal(signal.SIGINT, terminate)
    limit_spinning()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal's encoding lacks must not end in a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")
    for word in map(os.fsencode, sys.argv):
        if word != word.decode(errors="replace").encode():  # tokenizers and safetensors take none
            say(f"{word!r}: must be UTF-8; set the terminal to UTF-8, or rename the file or folder")
            sys.exit(2)
    app(sys.argv[1:], prog_name="mt")
    sys.exit(0)
