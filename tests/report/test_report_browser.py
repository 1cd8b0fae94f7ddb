"""The page of `mt report` in a real browser, on wide and narrow windows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, find_browser
from run_folders import hostile_run, train_line, write_run

from mt.report.page import make_page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_browser() is None, reason="no chromium, chromium-browser or google-chrome on PATH"
    ),
]
WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


def test_the_browser_sees_faults(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    for body, fault in (
        ("<script>console.error('a')</script>", "errors"),
        ("<script>nowhere()</script>", "errors"),
        ("<div style='width: 2000px'>wide</div>", "too_wide"),
        ("<p style='white-space: nowrap'>" + "wide " * 400 + "</p>", "too_wide"),
        ("<img src='http://localhost:9/a.png'>", "requests"),
    ):
        path.write_text(f"<!doctype html><body>{body}</body>", encoding="utf-8")
        for width in WIDTHS:
            assert getattr(browser.look(path, width), fault), body


def test_the_page_fits_and_has_no_error(browser: Browser, tiny_run: Path, tmp_path: Path) -> None:
    """Of one run, several, a hostile one, and one that has just begun; in light and dark."""
    long_name = tmp_path / ("a-run-with-a-very-long-name-" * 6)
    shutil.copytree(tiny_run, long_name, symlinks=True)
    new = write_run(tmp_path / "new", train=[train_line(10)])
    cases = {
        "one": [tiny_run], "several": [tiny_run, long_name, new],
        "hostile": [hostile_run(tmp_path / "hostile")], "new": [new],
    }  # fmt: skip
    for name, folders in cases.items():
        path = tmp_path / f"{name}.html"
        path.write_text(make_page(folders), encoding="utf-8")
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                seen = browser.look(path, width, scheme=scheme)
                found = (seen.errors, seen.requests, seen.too_wide)
                assert found == ([], [], []), f"{name} at {width} pixels, {scheme}"
                open_all = "document.querySelectorAll('details').forEach(one => one.open = true)"
                browser.evaluate(open_all)
                assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_both_axes_are_chosen_and_printed(browser: Browser, tiny_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(make_page([tiny_run]), encoding="utf-8")
    shown = "['updates', 'time'].map(c => document.querySelector('.chart .' + c).offsetHeight > 0)"
    colour = "getComputedStyle(document.body).backgroundColor"
    browser.look(path, 1280, scheme="dark")
    dark = browser.evaluate(colour)
    assert browser.evaluate(shown) == [True, False]
    browser.evaluate("document.getElementById('by-time').click()")
    assert browser.evaluate(shown) == [False, True]
    assert browser.look(path, 720, scheme="dark", media="print").too_wide == []
    assert browser.evaluate(shown) == [True, True]
    assert browser.evaluate(colour) == "rgb(255, 255, 255)" != dark
    assert browser.pdf(tmp_path / "page.pdf") > 20_000
