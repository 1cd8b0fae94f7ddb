"""The page of `mt data stats --html`: corpora beside each other, and what a cleaning kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mt.cleaning.rejected import REASONS
from mt.cleaning.report import CleaningReport
from mt.errors import DataError
from mt.inspect.corpus_table import QUANTILES, WIDTHS, Values, table_rows
from mt.inspect.pictures import LINE_STYLES, N_SERIES, inline_svg, series_colour
from mt.report.curves import page_axes
from mt.report.page import render_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

TEMPLATE = "corpus_page.html.jinja"
GENERATOR = "mt data stats"
# Lines beyond this quantile are not drawn.
LAST_QUANTILE = f"{QUANTILES[-1]:g}"


def read_cleaning_report(path: Path) -> CleaningReport:
    """The report that `mt data clean --json` printed. Raises DataError."""
    try:
        return CleaningReport.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"--cleaning {path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"--cleaning {path}: is not what mt data clean --json prints ({error}). Run it again, "
            "with > FILE.json"
        ) from error


def make_corpus_page(values: Values, cleaning: CleaningReport | None = None) -> str:
    """The HTML page about the statistics of corpora, as `statistics_of` gives them."""
    corpora = values["corpora"]
    shown = corpora[:-1] or corpora  # of several, the last are all together
    names = [corpus["name"] for corpus in shown]
    return render_page(
        TEMPLATE,
        generator=GENERATOR,
        title=names[0] if len(names) == 1 else f"{len(names)} corpora",
        values=values,
        all=corpora[-1],
        names=names,
        rows=list(table_rows(values)),
        pictures=_pictures(values, shown),
        leaks=[(corpus["name"], *leak) for corpus in corpora for leak in corpus["leaks"].items()],
        cleaning=cleaning,
        reasons=REASONS,
        n_series=N_SERIES,
    )


def _pictures(values: Values, corpora: Sequence[Values]) -> Iterator[dict[str, str]]:
    """Yield a histogram of each kind of length and each side."""
    for kind in WIDTHS:
        for side in ("source", "target"):
            lengths = [corpus[side][kind] for corpus in corpora]
            if any(length and length["mean"] is not None for length in lengths):
                title = f"{kind.capitalize()} a line, {values[side]}"
                name = f"{kind}-{side}"
                yield {
                    "title": title,
                    "svg": inline_svg(name, title, partial(_draw, lengths, kind)),
                }


def _draw(lengths: Sequence[Values | None], kind: str) -> Canvas:
    """Draw the histograms of several corpora over each other, up to almost the longest lines."""
    canvas, axes = page_axes(kind)
    end = 1
    for index, length in enumerate(lengths):
        if length is None or length["mean"] is None:
            continue
        width, bins = length["histogram"]["width"], length["histogram"]["lines"]
        shares = [100 * n / (sum(bins) + length["histogram"]["longer"]) for n in bins]
        edges = [number * width for number in range(len(bins) + 1)]
        style = LINE_STYLES[index % len(LINE_STYLES)]
        axes.stairs(shares, edges, color=series_colour(index), linestyle=style, linewidth=1.5)
        end = max(end, min(length["quantiles"][LAST_QUANTILE] + 2 * width, edges[-1]))
    axes.set_xlim(0, end)
    axes.set_ylim(0, None)
    return canvas
