"""The page: summaries of runs → one HTML file that needs nothing else."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mt.config.schema import Config
from mt.inspect.pictures import N_SERIES
from mt.report.corpora import read_corpora
from mt.report.curves import draw_curves
from mt.report.provenance import commands_of, differing_keys, duration, notable_lines, status_of
from mt.report.run_summary import VALIDATION, RunSummary, labels_of, read_run
from mt.report.scores import compare, read_perturbed, score_run, translate_again
from mt.report.sentences import choose_sentences, most_changed
from mt.terminal import printable, say

TEMPLATE = "page.html.jinja"
STYLE = "page.css"
GENERATOR = "mt report"  # stands in the head of every page
# Pairs from which on reading the training data takes so long that it is said.
LARGE = 500_000


def make_page(
    folders: Sequence[Path],
    *,
    n_sentences: int = 3,
    translate: bool = False,
    perturbed: Path | None = None,
) -> str:
    """Return the HTML page about one or several runs.

    `n_sentences`: best, worst and flagged sentences to show, of each. `translate`: translate the
    test sets of runs that have not kept their outputs. `perturbed`: a file for `read_perturbed`.
    Raises CheckpointError where a folder is no run.
    """
    runs = [*map(read_run, folders, labels_of(folders))]
    perturbations = read_perturbed(perturbed) if perturbed else {}  # first: what follows takes long
    if translate:
        for run in runs:
            translate_again(run)
    now = datetime.now()  # without a zone, as in the log
    chapters = [_chapter(run, n_sentences, now) for run in runs]
    pictures, thinned = draw_curves(runs)
    configs = [run.config for run in runs if run.config is not None]
    return render_page(
        TEMPLATE,
        generator=GENERATOR,
        title=f"{len(runs)} runs" if len(runs) > 1 else runs[0].label,
        chapters=chapters,
        pictures=pictures,
        perturbed=perturbations,
        thinned=thinned,
        compared=compare(runs, [chapter["scores"] for chapter in chapters]),
        between=differing_keys(configs, with_data=True),
        n_series=N_SERIES,
    )


def render_page(template: str, **values: Any) -> str:
    """Fill in a template: everything is escaped, but what the template says is an SVG of ours.

    The template also gets the style, and the time as `made`.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"safe_svg": Markup, "duration": duration, "large_number": large_number}
    style = Markup((Path(__file__).parent / STYLE).read_text(encoding="utf-8"))
    page = environment.get_template(template).render(
        **values, style=style, made=f"{datetime.now():%Y-%m-%d %H:%M}"
    )
    # Half of a surrogate pair cannot be written as UTF-8.
    return printable(page).encode("utf-8", "replace").decode("utf-8")


def _chapter(run: RunSummary, n_sentences: int, now: datetime) -> dict[str, Any]:
    """The values of the page about one run, by the names that the template uses."""
    sentences = choose_sentences(run, n_sentences)
    scores = score_run(run)
    speeds = [value for value in run.metrics.train["tokens_per_second"] if math.isfinite(value)]
    speed = round(statistics.median(speeds)) if speeds else None
    pairs: Any = run.manifest.get("pairs")
    if isinstance(pairs, int) and pairs > LARGE:
        say(f"{run.label}: reading the training data, to compare it and count leaks")
    typed, again = commands_of(run)
    tests = [score for score in scores if score.name != VALIDATION]
    return {
        "run": run,
        "status": status_of(run, now),
        "headline": [*tests[:2], *(score for score in scores if score.name == VALIDATION)],
        "scores": scores,
        "history": most_changed(run),
        "sentences": sentences,
        "corpora": read_corpora(run),
        "differences": differing_keys([Config(), run.config]) if run.config else {},
        "typed": typed,
        "again": again,
        "notable": notable_lines(run),
        "speed": speed,
    }


def large_number(count: int) -> str:
    """`1.4 M`, `20 k`, `650`."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= 0.9995 * size:  # 999,999 is 1 M, not 1e+03 k
            return f"{count / size:.3g} {letter}"
    return str(count)
