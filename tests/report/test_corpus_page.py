"""The page of `mt data stats --html`: what it shows, what it escapes, what it does not replace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browser import Browser, find_browser
from conftest import Mt
from messages import says
from token_stores import write

HOSTILE = "<script>alert(1)</script> \x1b[31mrot\x1b[0m & \u202eabc "
IN = ["data", "stats", "a.de", "a.en", "b.de", "b.en"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    good = [(f"Das ist Satz {i} von allen.", f"This is sentence {i} of all.") for i in range(30)]
    write(Path("a"), [*good, ("", HOSTILE), ("", "x")])
    write(Path("b"), good[:3])


def make_page(mt: Mt) -> str:
    cleaned = mt("data", "clean", "a.de", "a.en", "b.de", "b.en", "-o", "out", "--json")
    Path("report.json").write_bytes(cleaned.out)
    ended = mt(*IN, "--html", "page.html", "--cleaning", "report.json")
    assert ended.code == 0, ended.err
    return Path("page.html").read_text(encoding="utf-8")


def test_what_the_page_shows_and_escapes(mt: Mt) -> None:
    page = make_page(mt)
    text = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", page[page.index("<body>") :]))
    assert says(text, "2 corpora", "de → en", "kept by the cleaning", "85.7 %", "30 of 35")
    assert says(
        text, "read", "35", "empty", "2 5.71 %", "33", "duplicate", "3 8.57 %", "30", "kept"
    )
    assert says(text, "empty: 2 of 2", "&lt;script&gt;alert(1)", "1 of 2 sides blank", "a.de:31")
    assert says(text, "Lengths", "a.de", "b.de", "Corpora", "all corpora", "a side blank", "2")
    assert page.count("<svg") == 4  # words and characters of both sides
    assert "<script" not in page
    assert "\x1b" not in page
    assert not re.search(r"(?:src|href)=\"(?!#|data:)|url\((?!#)|@import", page)
    # What turns the direction of text ends within its element.
    assert [line.count("<bdi") for line in page.split("\n") if "\u202e" in line] == [2]

    again = mt(*IN, "--html", "page.html")
    assert again.code == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "What the cleaning kept" not in page


def test_what_cannot_be_shown(mt: Mt) -> None:
    before = Path("a.de").read_bytes()
    for options, parts in [
        (["--html", "a.de"], ["--html a.de", "exists", "mt data stats"]),
        (["--html", "no/p.html"], ["--html no/p.html", "no does not exist"]),
        (["--cleaning", "a.de"], ["--cleaning a.de", "--html"]),
        (["--html", "p.html", "--cleaning", "a.de"], ["--cleaning a.de", "mt data clean --json"]),
        (["--html", "p.html", "--cleaning", "none"], ["--cleaning none", "cannot be read"]),
    ]:
        ended = mt(*IN, *options)
        assert (ended.code, ended.out) == (2, b"")
        assert says(ended.err, *parts)
        assert Path("a.de").read_bytes() == before
        assert not list(Path().glob("*.html"))


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="no chromium or google-chrome on PATH")
def test_the_page_fits_wide_and_narrow_windows(mt: Mt) -> None:
    make_page(mt)
    with Browser() as browser:
        for width in (1280, 390):
            seen = browser.look(Path("page.html").absolute(), width)
            assert (seen.errors, seen.requests, seen.too_wide) == ([], [], [])
            browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
