"""`mt report`: one HTML page about a run, or about several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mt.cli import options as opt
from mt.cli.console import print_result, say


def report(
    runs: Annotated[list[Path], opt.argument("run directories", "RUN", "Input")],
    output: Annotated[str | None, opt.output_option("--output", "-o", metavar="FILE", help=
        "page to write, completely or not at all; - is stdout (default: report.html in the run; of "
        "several runs, in this folder)")] = None,
    sentences: Annotated[int, opt.output_option("--sentences", metavar="N", min=0, max=20, help=
        "best, worst and flagged sentences to show, of each")] = 3,
) -> None:  # fmt: skip
    """Make one HTML page about a run, also one in progress.

    It shows curves, scores with confidence intervals, sentences and settings.
    Of several runs, curves lie over each other and scores are compared with the first run's.

    \b
    mt report runs/base
    mt report runs/base runs/large -o compared.html
    """
    from mt.inspect.pictures import check_replaceable, save_file
    from mt.report.page import GENERATOR, make_page
    from mt.report.run_summary import require_run
    from mt.runs.run_dir import REPORT

    for folder in runs:
        require_run(folder)
    chosen = output or str(runs[0] / REPORT if len(runs) == 1 else Path(REPORT))
    if chosen != "-":
        check_replaceable(Path(chosen), GENERATOR)
    page = make_page(runs, n_sentences=sentences)
    if chosen == "-":
        print_result(page)
        return
    save_file(Path(chosen), page)
    say(f"{chosen}: {len(page.encode()) / 1e3:,.0f} kB")
