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
from mt.inspect.pictures import SERIES
from mt.report.curves import draw_curves
from mt.report.run_summary import VALIDATION, RunSummary, labels_of, read_run
from mt.report.scores import compare, score_run
from mt.report.sentences import choose_sentences
from mt.terminal import printable

GENERATOR = "mt report"  # stands in the head of every page
# Keys that say which data is used; between runs, not as a difference from the defaults.
DATA_KEYS = ("data.root", "data.train", "data.valid", "data.test")


def make_page(folders: Sequence[Path], *, n_sentences: int = 3) -> str:
    """The HTML page about runs; `n_sentences` of the best, worst and flagged. CheckpointError."""
    runs = [*map(read_run, folders, labels_of(folders))]
    chapters = [_chapter(run, n_sentences) for run in runs]
    pictures, thinned = draw_curves(runs)
    configs = [run.config for run in runs if run.config is not None]
    folder = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    # Everything is escaped, but what the template says is an SVG of ours.
    environment.filters |= {"safe_svg": Markup, "duration": duration, "large_number": large_number}
    page = environment.get_template("page.html.jinja").render(
        title=f"{len(runs)} runs" if len(runs) > 1 else runs[0].label,
        chapters=chapters,
        pictures=pictures,
        thinned=thinned,
        compared=compare(runs, [chapter["scores"] for chapter in chapters]),
        between=differing_keys(configs, with_data=True),
        n_series=len(SERIES),
        style=Markup((folder / "page.css").read_text(encoding="utf-8")),
        made=f"{datetime.now():%Y-%m-%d %H:%M}",
    )
    # Half of a surrogate pair cannot be written as UTF-8.
    return printable(page).encode("utf-8", "replace").decode("utf-8")


def _chapter(run: RunSummary, n_sentences: int) -> dict[str, Any]:
    """The values of the page about one run, by the names that the template uses."""
    scores = score_run(run)
    speeds = [value for value in run.metrics.train["tokens_per_second"] if math.isfinite(value)]
    tests = [score for score in scores if score.name != VALIDATION]
    return {
        "run": run,
        "most": run.manifest.get("max_steps") or (run.config and run.config.train.max_steps),
        "headline": [*tests[:2], *(score for score in scores if score.name == VALIDATION)],
        "scores": scores,
        "sentences": choose_sentences(run, n_sentences),
        "differences": differing_keys([Config(), run.config]) if run.config else {},
        "speed": round(statistics.median(speeds)) if speeds else None,
    }


def large_number(count: int) -> str:
    """`1.4 M`, `20 k`, `650`."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= 0.9995 * size:  # 999,999 is 1 M, not 1e+03 k
            return f"{count / size:.3g} {letter}"
    return str(count)


def differing_keys(configs: Sequence[Config], with_data: bool = False) -> dict[str, list[str]]:
    """The keys whose values differ, with the value of each config."""
    trees: list[dict[str, dict[str, Any]]] = [config.model_dump(mode="json") for config in configs]
    differing = {}
    for section, keys in trees[0].items() if trees else ():
        for name in keys:
            key = f"{section}.{name}"
            values = [tree[section][name] for tree in trees]
            is_shown = with_data or key not in DATA_KEYS
            if key != "run.dir" and is_shown and any(value != values[0] for value in values):
                shown, whole = [_shown(key, value) for value in values], [*map(str, values)]
                differing[key] = shown if len({*shown}) == len({*whole}) else whole
    return differing


def _shown(key: str, value: Any) -> str:
    if key in DATA_KEYS and key != "data.root":
        sources = value if isinstance(value, list) else [value] if value else []
        return ", ".join(str(source["path"] or source["src"]) for source in sources) or "none"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(_shown("", entry) for entry in value) + "]"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)


def duration(seconds: float) -> str:
    """`1 h 52 min`, `48 s`."""
    if not math.isfinite(seconds):  # of a damaged line
        return "–"
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{hours / 24:.1f} days"
