"""`mt report`: the page about a run, of good runs and bad ones."""

from __future__ import annotations

import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from conftest import Mt, lines_of, metrics_of, refused
from messages import says
from run_folders import HOSTILE, SCRIPT, hostile_run, train_line, write_run

from mt.report.curves import INTERVALS, thin
from mt.report.page import make_page


class Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def values(self, *names: str) -> list[str]:
        """The values of all attributes of these names."""
        return [value for name, value in self.attributes if name in names]

    @property
    def runs_scripts(self) -> bool:
        """Whether anything on the page can run."""
        handlers = [name for name, _ in self.attributes if name.startswith("on")]
        return bool({"script", "iframe", "object", "embed", "img"} & self.tags or handlers)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))


@pytest.fixture(scope="module")
def html(tiny_run: Path) -> str:
    return make_page([tiny_run])


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_the_page_is_whole_by_itself(page: Page, html: str) -> None:
    assert not page.runs_scripts
    links, ids = page.values("src", "href", "xlink:href"), page.values("id")
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "@import" not in html
    assert "url(http" not in html
    assert len(set(ids)) == len(ids), "ids are unique over all pictures"
    targets = set(re.findall(r"url\(#([^)]+)\)", html))
    assert targets | {link[1:] for link in links if link.startswith("#")} <= set(ids)


def test_the_pictures_take_the_colours_of_the_page(html: str) -> None:
    svgs = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    drawn = [svg for svg in svgs if 'role="img"' in svg]
    assert len(drawn) == 12, "six figures, over updates and over time"
    for svg in drawn:
        assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) <= {"#000000"}
        assert "<text" in svg
        assert "font-family" not in svg
        assert "var(--series-1)" in svg


def test_the_page_has_the_scores_with_intervals(page: Page, tiny_run: Path) -> None:
    (test,) = metrics_of(tiny_run, "test")
    best = max(line["bleu"] for line in metrics_of(tiny_run, "valid"))
    for bleu in (test["bleu"], best):
        assert re.search(rf"{bleu:.2f} ± \d+\.\d\d", page.text)
    assert test["signature"] in page.text
    assert "200 of 200 updates" in page.text


def test_the_page_says_what_was_trained(page: Page) -> None:
    assert "model.d_model 512 32" in page.text
    assert "optim.schedule" not in page.text, "as in base.yaml"
    assert "No update was skipped." in page.text
    assert "the pale line is training, with its dropout, the strong one validation" in page.text


def test_sentences(page: Page) -> None:
    assert "Worst" in page.texts
    assert "Best" in page.texts
    assert "model score" in page.text


def test_texts_of_a_run_stay_texts(tmp_path: Path) -> None:
    html = make_page([hostile_run(tmp_path / "run")])
    html.encode("utf-8")
    page = Page(html)
    assert not page.runs_scripts
    assert SCRIPT in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert html.count('dir="auto"') > 20
    assert HOSTILE[3] in page.text
    assert "␀ ␛[31m" in page.text
    assert "\0" not in html
    assert "cut: 3,001 words, 15,001 characters in all" in page.text
    assert "The last line of metrics.jsonl is incomplete" in page.text
    assert "7 updates were skipped" in page.text
    assert "nan" not in page.text.split()
    stage = "data.stages[1] began after update 20, at a dotted line; an epoch has 60 + < sentences"
    assert stage in page.text
    assert len(html) < 400_000


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    """No validation or test set, no update logged, then no metrics.jsonl, then a broken config."""
    run = write_run(tmp_path / "new")
    page = Page(make_page([run]))
    assert "Nothing has been scored yet." in page.text
    assert page.text.count("not recorded") == 6
    assert "No update was skipped" not in page.text
    assert "the pale line" not in page.text
    (run / "metrics.jsonl").unlink()
    (run / "manifest.json").write_text("[1", encoding="utf-8")
    (run / "config.yaml").write_text("model: {d_modle: 3}", encoding="utf-8")
    page = Page(make_page([run]))
    assert "no update has been logged" in page.text
    assert "d_modle" in page.text
    assert "manifest.json: parameters, pairs and device are not known" in page.text


def test_several_runs_are_compared(tiny_run: Path, tmp_path: Path) -> None:
    other = tmp_path / "spoilt <b>"
    shutil.copytree(tiny_run, other, symlinks=True)
    (path,) = (other / "outputs").glob("*-test-1.jsonl")
    lines = [json.loads(line) for line in lines_of(path)]
    for line in lines[::2]:
        line["output"] = "seven"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    shutil.rmtree(other / "checkpoints")
    page = Page(make_page([tiny_run, other], n_sentences=1))
    assert "2 runs compared" in page.text
    assert "spoilt <b>" in page.text
    assert re.search(r"-\d+\.\d\d 0\.00\d\d yes", page.text)
    assert "paired bootstrap against run, 1,000 resamples, seed 12345" in page.text
    assert "+0.00 – the same outputs" in page.text, "of the validation set"


def test_a_million_updates_make_a_page_of_bounded_size(tmp_path: Path) -> None:
    lines = [train_line(step) for step in range(50, 1_000_001, 50)]
    lines[777]["grad_norm"] = 1e6
    html = make_page([write_run(tmp_path / "long", train=lines)])
    assert len(html) < 600_000
    assert "Of 20,000 logged points each curve shows" in html


def test_thinning_keeps_ends_spikes_and_gaps() -> None:
    x = np.arange(100_000.0)
    y = np.sin(x / 9_000)
    y[31_337] = 50
    y[60_000:62_000] = np.nan
    thin_x, thin_y = thin(x, y)
    assert len(thin_x) <= 2 * INTERVALS + 2
    assert (np.diff(thin_x) > 0).all()
    assert (thin_x[0], thin_x[-1]) == (0, 99_999)
    assert thin_y[list(thin_x).index(31_337)] == 50
    assert np.isnan(thin_y[(thin_x >= 60_000) & (thin_x < 62_000)]).any()
    assert np.array_equal(thin_y, y[thin_x.astype(int)], equal_nan=True)
    few = np.arange(5.0)
    assert np.array_equal(thin(few, few)[1], few)


@pytest.mark.parametrize("value", [10**400, math.nan, math.inf, None, "9"])
def test_figures_that_nothing_can_be_leave_a_page(value: object, tmp_path: Path, mt: Mt) -> None:
    """As in a folder from a stranger, or after a disk fault."""
    figures = {"seconds": value, "perplexity": value, "p_value": value, "difference": value}
    lines = [{"kind": "valid", "step": step, "bleu": 1.0, **figures} for step in (1, 2, 10**400)]
    run = write_run(tmp_path / "run")
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    (run / "manifest.json").write_text(json.dumps(manifest | {"parameters": value, "pairs": value}))
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert mt("report", run).code == 0


def test_the_page_stands_in_the_run_and_replaces_only_pages(tmp_path: Path, mt: Mt) -> None:
    run = write_run(tmp_path / "run")
    first = mt("report", run)
    assert first.code == 0, first.err
    assert "report.html" in first.err
    assert (run / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert mt("report", run).code == 0, "an earlier page is replaced"
    before = (run / "metrics.jsonl").read_bytes()
    for output, parts in (
        (run / "metrics.jsonl", ["metrics.jsonl", "not written by mt report", "another file"]),
        (tmp_path / "no" / "page.html", ["page.html", "cannot be written", "elsewhere"]),
        (tmp_path, [tmp_path, "must be a file"]),
    ):
        assert says(refused(mt("report", run, "-o", output)), "-o", *parts)
    assert (run / "metrics.jsonl").read_bytes() == before
    assert mt("report", run, "-o", "-").out.startswith(b"<!doctype html>")
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_what_is_no_run_is_refused(tmp_path: Path, mt: Mt) -> None:
    write_run(tmp_path / "run")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "meta.json").write_text("{}")
    for name, parts in [
        ("nowhere", ["nothing exists"]),
        ("run/metrics.jsonl", ["a file"]),
        ("run/outputs", ["config.yaml, manifest.json, metrics.jsonl, train.log"]),
        ("model", ["model folder", "give the run directory"]),
    ]:
        message = refused(mt("report", tmp_path / name))
        assert says(message, f"RUN {tmp_path / name}", "run directory", *parts)
        assert not list(tmp_path.rglob("*.html"))
