"""`mt data view`: which pairs, as TSV in a pipe and beside each other on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Mt, refused
from messages import says
from token_stores import write

from mt.cli.console import show_in_pager
from mt.data.reading.words import display_width
from mt.inspect.pair_view import PlacedPair, in_columns

PAIRS = [
    ("Guten Tag.", "Good day."),
    ("", "nothing"),
    ("Eins zwei drei vier fünf sechs sieben.", "One."),
    ("Tag und Nacht haben sie gearbeitet.", "\x1b[31mThey worked day and night."),
    ("Das ist gleich wie hier.", "Das ist gleich wie hier."),
]
VIEW = ["data", "view", "a.de", "a.en"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("a"), PAIRS)


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ([], [1, 2, 3, 4, 5]),
        (["--match", "[Dd]ay"], [1, 4]),
        (["--match", "^Tag"], [4]),
        (["--rule", "empty"], [2]),
        (["--rule", "copied"], [5]),
        (["--longer", "6"], [3]),
        (["--longer", "5"], [3, 4]),
        (["--min-ratio", "2"], [3]),
        (["--longer", "4", "--match", "a"], [4, 5]),
        (["--rule", "copied", "--longer", "5"], []),
    ],
)
def test_pairs_that_meet_all_conditions(options: list[str], lines: list[int], mt: Mt) -> None:
    ended = mt(*VIEW, *options)
    assert (ended.code, ended.err) == (0, "")
    rows = [row.split("\t") for row in ended.out.decode().splitlines()]
    assert [row[2] for row in rows] == [f"a.de:{line}" for line in lines]
    shown = [PAIRS[line - 1] for line in lines]
    assert [tuple(row[:2]) for row in rows] == [(s, t.replace("\x1b", "␛")) for s, t in shown]


def test_of_several_files_one_may_be_empty_and_what_is_left_out_is_said(mt: Mt) -> None:
    Path("1.tsv").write_text("de\ten\n")
    Path("2.tsv").write_text("de\ten\na\tb\nbroken\nc\td\n")
    ended = mt("data", "view", "{path: '?.tsv', errors: skip}", "--langs", "de-en")
    assert ended.code == 0
    assert ended.out == b"a\tb\t2.tsv, pair 1\nc\td\t2.tsv, pair 2\n"
    assert says(ended.err, "rows left out", "1, the first in", "2.tsv, line 3")


def test_a_sample_is_always_the_same_and_in_order(mt: Mt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ftfy", None)  # which only rules need
    lines = [f"line {i}" for i in range(500)]
    write(Path("a"), [(line, line) for line in lines])
    first, again = (mt(*VIEW, "--sample", "20").out.decode() for _ in range(2))
    places = [int(row.split(":")[1]) for row in first.splitlines()]
    assert first == again
    assert len(set(places)) == 20
    assert places == sorted(places)
    assert places[-1] > 250


def test_rejected_pairs_by_rule(mt: Mt) -> None:
    write(Path("a"), [*PAIRS, PAIRS[0]])
    cleaned = mt("data", "clean", "a.de", "a.en", "-o", "out", "--rejected", "bad.tsv")
    assert cleaned.code == 0, cleaned.err
    ended = mt("data", "view", "--rejected", "bad.tsv", "--rule", "duplicate")
    assert (ended.code, ended.err) == (0, "")
    src, tgt, place = ended.out.decode().rstrip("\n").split("\t")
    assert (src, tgt) == PAIRS[0]
    assert says(place, "a.de:6: duplicate")
    every = mt("data", "view", "--rejected", "bad.tsv", "--match", "noth|day").out.decode()
    assert [row.split("\t")[1] for row in every.splitlines()] == ["nothing", "Good day."]
    for options, parts in (
        (["--rejected", "a.de"], ["--rejected a.de, line 1", "rule, score", "found 1"]),
        (["--rejected", "bad.tsv", "--rule", "x"], ["--rule", "empty", "duplicate", "'x'"]),
        (["--rejected", "bad.tsv", "a.de"], ["--rejected", "--match"]),
        (["--rejected", "bad.tsv", "--langs", "de-en"], ["--rejected", "--match"]),
        (["a.de", "a.en", "--rule", "leak"], ["--rule leak", "--rejected"]),
    ):
        assert says(refused(mt("data", "view", *options)), *parts)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--rule", "copy"], ["--rule", "empty", "copied", "'copy'"]),
        (["--match", "(a"], ["--match", "regular expression", "(a"]),
        (["--match", "[[a]"], ["--match", "regular expression", "[[a]"]),
        (["--longer", "3", "none.tsv"], ["none.tsv", "no such file"]),
        (["t.txt", "u.txt"], ["t.txt", "a tab", "'{src: t.txt, tgt: u.txt}'"]),
    ],
)
def test_what_cannot_be_shown(options: list[str], parts: list[str], mt: Mt) -> None:
    Path("t.txt").write_text("eins\n")
    Path("u.txt").write_text("one\t1\n")  # a table, by its tab
    assert says(refused(mt(*VIEW, *options)), *parts)


def test_columns_fit_a_terminal() -> None:
    pair = PlacedPair("a.de:1", "日本語のテキストです" * 3, f"{'word ' * 12}{'x' * 50}\x1b[2J")
    for width in (40, 41, 80):
        head, *lines, last = in_columns(pair, width).split("\n")
        assert (head, last) == ("a.de:1", "")
        assert max(map(display_width, lines)) <= width
        sides = [line.split("│") for line in lines]
        assert len({display_width(left) for left, _ in sides}) == 1
        assert "".join(left.strip() for left, _ in sides) == pair.src
        right = " ".join(right.strip() for _, right in sides).split()
        assert right[:12] == ["word"] * 12
        assert "".join(right[12:]) == f"{'x' * 50}␛[2J"


def test_a_terminal_gets_columns_in_a_pager() -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "PAGER": "cat", "COLUMNS": "60", "TERM": "xterm"}
    command = [sys.executable, "-m", "mt", *VIEW, "--match", "worked"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = b""
        try:
            while block := os.read(ours, 4096):
                shown += block
        except OSError:  # the other end is closed
            pass
        assert process.wait(60) == 0, shown.decode()
    os.close(ours)
    text = shown.decode()
    assert says(text, "a.de:4", "Tag und Nacht haben sie", "│ ␛[31mThey worked day and")
    assert "\x1b[31m" not in text


def test_an_error_of_the_first_text_comes_before_a_pager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", "touch shown")
    with pytest.raises(ZeroDivisionError):
        show_in_pager(str(1 // 0) for _ in range(1))
    assert not Path("shown").exists()
