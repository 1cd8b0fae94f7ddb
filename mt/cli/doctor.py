"""`mt doctor`: what this machine has for `mt`, and whether training could start."""

from __future__ import annotations

import json

import typer

from mt.cli import options as opt
from mt.cli.console import print_result, say


def doctor(as_json: opt.AsJson = False) -> None:
    """Report versions, devices, precisions and disk.

    Takes some seconds, for small timed products (GFLOP/s). Exit code 2: training could not start.

    \b
    mt doctor
    mt doctor --json
    """
    from mt.runtime.doctor import examine, format_report

    report = examine()
    print_result(json.dumps(report, indent=1) if as_json else format_report(report))
    for problem in report["problems"]:
        say(f"training cannot start: {problem}")
    if report["problems"]:
        raise typer.Exit(2)
