"""`mt report`: one HTML page about a run, or about several."""

from __future__ import annotations

from pathlib import Path

from mt.cli.console import print_result, say
from mt.cli.options import described


@described("""
    Input:
    runs = RUN: run directories
    Output:
    --output -o FILE: page to write, completely or not at all; - is stdout (default: report.html in
        the run; of several runs, in this folder)
    --sentences N in 0..20: best, worst and flagged sentences to show, of each
    --perturbed FILE: what mt evaluate --perturb --json has printed about the first run, to chart
    --translate: translate again what was scored, in runs that have not kept the outputs
""")
def report(
    runs: list[Path],
    output: str | None = None,
    sentences: int = 3,
    translate: bool = False,
    perturbed: Path | None = None,
) -> None:
    """Make one HTML page about a run, also one in progress.

    It shows curves, scores with confidence intervals, sentences with their attention, data and
    leaks, settings, machine, and the command that reproduces the run. Of several runs, curves lie
    over each other and scores are compared with the first run's.

    \b
    mt report runs/base
    mt report runs/base runs/large -o compared.html
    mt report runs/base --perturbed perturbed.json
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
    page = make_page(runs, n_sentences=sentences, translate=translate, perturbed=perturbed)
    if chosen == "-":
        print_result(page)
        return
    save_file(Path(chosen), page)
    say(f"{chosen}: {len(page.encode()) / 1e3:,.0f} kB")
