"""The page: facts of runs → one HTML file that needs nothing else."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mt.inspect.pictures import N_SERIES
from mt.report.corpora import Corpora, read_corpora
from mt.report.curves import draw_curves
from mt.report.facts import VALIDATION, Run, labels_of, read_run
from mt.report.provenance import (
    Difference,
    Status,
    commands_of,
    differences_between,
    differences_from_base,
    duration,
    machine_of,
    notable_lines,
    page_time,
    status_of,
)
from mt.report.scores import ScoredSet, compare, score_run
from mt.report.sentences import Progress, Sentences, add_attention, choose_sentences, progress
from mt.report.translations import translate_again

TEMPLATE = "page.html.jinja"
STYLE = "page.css"
# Pairs from which on reading the training data takes so long that it is said.
LARGE = 500_000
# Control characters of a text, which HTML forbids, become the signs for them: ␀, ␛.
CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}


@dataclass
class Chapter:
    """What the page says about one run."""

    run: Run
    status: Status
    tiles: list[tuple[str, str, str]]  # name, value, remark
    scores: list[ScoredSet]
    progress: Progress | None
    sentences: Sentences
    attention_note: str
    corpora: Corpora
    differences: list[Difference]
    machine: list[tuple[str, str]]
    typed: str
    again: str
    notable: list[str]
    speed: int | None  # target tokens per second, the median


def make_page(
    folders: Sequence[Path],
    *,
    n_sentences: int = 3,
    translate: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> str:
    """Return the HTML page about one or several runs.

    `n_sentences`: best, worst and flagged sentences to show, of each. `translate`: translate the
    test sets of runs that have not kept their outputs. Raises CheckpointError where a folder is no
    run.
    """
    runs = [
        read_run(folder, label) for folder, label in zip(folders, labels_of(folders), strict=True)
    ]
    if translate:
        for run in runs:
            translate_again(run, say)
    chapters = [_chapter(run, n_sentences, say) for run in runs]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["safe_svg"] = Markup
    environment.filters["duration"] = duration
    environment.filters["count_of"] = _count
    style = (Path(__file__).parent / STYLE).read_text(encoding="utf-8")
    page = environment.get_template(TEMPLATE).render(
        chapters=chapters,
        style=Markup(style),
        curves=draw_curves(runs),
        compared=compare(runs, [chapter.scores for chapter in chapters]) if len(runs) > 1 else [],
        between=differences_between(runs),
        n_series=N_SERIES,
        made=f"{page_time():%Y-%m-%d %H:%M}",
    )
    # Half of a surrogate pair cannot be written as UTF-8.
    return page.translate(CONTROLS).encode("utf-8", "replace").decode("utf-8")


def _chapter(run: Run, n_sentences: int, say: Callable[[str], None]) -> Chapter:
    sentences = choose_sentences(run, n_sentences)
    note = add_attention(run, sentences, say)
    scores = score_run(run)
    typed, again = commands_of(run)
    pairs: Any = run.manifest.get("pairs")
    if isinstance(pairs, int) and pairs > LARGE:
        say(f"{run.label}: reading the training data, to compare it and count leaks")
    return Chapter(
        run=run,
        status=status_of(run, page_time()),
        tiles=_tiles(run, scores),
        scores=scores,
        progress=progress(run),
        sentences=sentences,
        attention_note=note,
        corpora=read_corpora(run),
        differences=differences_from_base(run.config) if run.config else [],
        machine=machine_of(run),
        typed=typed,
        again=again,
        notable=notable_lines(run),
        speed=_speed(run),
    )


def _tiles(run: Run, scores: Sequence[ScoredSet]) -> list[tuple[str, str, str]]:
    """The few figures at the top of the page."""
    tiles = []
    tests = [one for one in scores if one.name != VALIDATION]
    for one in [*tests[:2], *[one for one in scores if one.name == VALIDATION]]:
        remark = f"update {one.step:,}"
        if one.bleu.interval is not None:
            remark = f"± {one.bleu.interval.half_width:.2f} · {remark}"
        file = Path(one.name).name.removesuffix(".gz")
        name = "best validation" if one.name == VALIDATION else file
        if math.isfinite(one.bleu.value):
            tiles.append((f"BLEU, {name}", f"{one.bleu.value:.2f}", remark))
    if (speed := _speed(run)) is not None:
        tiles.append(("speed", f"{speed:,}", "target tokens/s, median"))
    if run.metrics.seconds:
        tiles.append(("training time", duration(run.metrics.seconds), "validation included"))
    parameters: Any = run.manifest.get("parameters")
    if isinstance(parameters, int):
        tiles.append(("parameters", _large(parameters), f"{parameters:,}"))
    pairs: Any = run.manifest.get("pairs")
    if isinstance(pairs, int):
        tiles.append(("sentence pairs", _large(pairs), f"{pairs:,} kept for training"))
    return tiles


def _speed(run: Run) -> int | None:
    speeds = [value for value in run.metrics.train["tokens_per_second"] if math.isfinite(value)]
    return round(statistics.median(speeds)) if speeds else None


def _count(value: Any) -> str:
    """A whole number for a table; a dash for anything else."""
    return f"{value:,}" if isinstance(value, int) else "–"


def _large(count: int) -> str:
    """`1.4 M`, `20 k`, `650`."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return str(count)
