"""Interrupted translations that resume: what is kept, what is refused, and the same output."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import MonkeyPatch, Mt, mt_command, refused
from faults import raising
from messages import raises_saying, says

from mt.errors import DataError
from mt.files import write_whole
from mt.search import engine
from mt.translate import resume as module
from mt.translate import translator
from mt.translate.resume import ResumableOutput

LINES = [f"line {number}" for number in range(10)]
MADE = {"--beam-size": "5", "--model": "abc"}
WANTED = "".join(f"{line.upper()}\n" for line in LINES)


@pytest.fixture(autouse=True)
def every_block_counts(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_RECORDS", 0.0)


def work(
    path: Path, *, resume: bool = False, stop_after: int = 99, made: dict[str, str] = MADE,
    text: Iterable[str] = LINES, how: type[BaseException] = KeyboardInterrupt,
) -> list[str]:  # fmt: skip
    """Write the text in capitals, in blocks of 3; the lines that this start has written."""
    job, done = ResumableOutput(resume), list[str]()
    with job.open(path) as file:
        lines = job.remaining(iter(text), made)
        while block := list(itertools.islice(lines, 3)):
            if len(done) >= stop_after:
                file.write(b"half a block")
                raise how
            file.write("".join(f"{line.upper()}\n" for line in block).encode())
            job.finished(file, block)
            done += block
    return done


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_finished_job_leaves_nothing_but_its_output(tmp_path: Path) -> None:
    for resume in (False, True):  # --resume from the beginning is a job like any other
        (tmp_path / "out").write_text("what was there before")
        assert work(tmp_path / "out", resume=resume) == LINES
        assert files(tmp_path) == ["out"]
        assert (tmp_path / "out").read_text() == WANTED


@pytest.mark.parametrize("stop_after", [3, 6, 9])
@pytest.mark.parametrize("how", [KeyboardInterrupt, DataError])
def test_it_resumes_after_the_last_finished_block(
    tmp_path: Path, stop_after: int, how: type[BaseException]
) -> None:
    path = tmp_path / "out"
    path.write_text("what was there before")
    with pytest.raises(how) as error:
        work(path, stop_after=stop_after, how=how)
    assert path.read_text() == "what was there before"
    assert files(tmp_path) == ["out", "out.partial", "out.partial.json"]
    (said,) = vars(error.value)["__notes__"]
    assert says(said, f"{stop_after} lines are finished in {path}.partial", "--resume")
    assert work(path, resume=True) == LINES[stop_after:]
    assert path.read_text() == WANTED
    assert files(tmp_path) == ["out"]


def test_it_can_be_interrupted_again_and_again(tmp_path: Path) -> None:
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            work(tmp_path / "out", resume=True, stop_after=3)
        record = json.loads((tmp_path / "out.partial.json").read_text())
    assert record["lines"] == 9
    assert work(tmp_path / "out", resume=True) == LINES[9:]
    assert (tmp_path / "out").read_text() == WANTED


def test_nothing_is_left_where_nothing_was_done(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    for seconds, stop_after in ((0.0, 0), (60.0, 6)):  # nor what is done again within a minute
        monkeypatch.setattr(module, "SECONDS_BETWEEN_RECORDS", seconds)
        with pytest.raises(KeyboardInterrupt):
            work(tmp_path / "out", stop_after=stop_after)
        assert files(tmp_path) == []

    def write_and_stop(*of: Any) -> None:
        write_whole(*of)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_whole", write_and_stop)
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path / "out")
    assert files(tmp_path) == []


def test_lines_finished_long_before_the_interruption_stay(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """As of a pipe that gives no more lines for a while."""
    clock = [0.0]
    monkeypatch.setattr(module, "SECONDS_BETWEEN_RECORDS", 10.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def lines(stop: Callable[[], object]) -> Iterable[str]:
        yield from LINES[:6]
        clock[0] += 30.0
        stop()

    interrupt = raising(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path / "out", text=lines(interrupt))
    assert work(tmp_path / "out", resume=True) == LINES[6:]
    assert (tmp_path / "out").read_text() == WANTED
    monkeypatch.setattr(module, "sync_folder", interrupt)  # when the output has its name
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path / "out", text=lines(list))
    assert files(tmp_path) == ["out"]


@pytest.mark.parametrize("name", ["out.partial", "out.partial.json"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_file_of_the_user_is_not_removed(tmp_path: Path, name: str, resume: bool) -> None:
    (tmp_path / name).write_text("important")
    with raises_saying(DataError, tmp_path / name, "rename"):
        work(tmp_path / "out", resume=resume)
    assert (tmp_path / name).read_text() == "important"
    assert files(tmp_path) == [name]


def test_an_unfinished_output_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        work(path, stop_after=3)
    state = (tmp_path / "out.partial.json").read_bytes()

    def fault(**options: Any) -> str:
        with pytest.raises(DataError) as error:
            work(path, **options)
        assert files(tmp_path) == ["out.partial", "out.partial.json"]
        assert (tmp_path / "out.partial").read_bytes().startswith(b"LINE 0\nLINE 1\nLINE 2\n")
        assert (tmp_path / "out.partial.json").read_bytes() == state
        return str(error.value)

    again = f"{path.name}.partial.json to start over"
    assert says(fault(), f"{path}.partial", "interrupted", "add --resume", again)
    other = fault(resume=True, made={"--beam-size": "1", "--model": "abc", "--shortlist": "map"})
    assert says(other, "--resume", f"{path}.partial", "another --beam-size, --shortlist;", again)
    cut_elsewhere = ["line 0line", " 1", *LINES[2:]]
    for text in (["another", *LINES[1:]], LINES[:2], cut_elsewhere):
        assert says(fault(resume=True, text=text), "--resume", "first 3 lines", "input", again)
    # A line after those that are finished may be mended.
    assert work(path, resume=True, text=[*LINES[:9], "mended"]) == [*LINES[3:9], "mended"]


def test_a_damaged_record_is_reported(tmp_path: Path) -> None:
    path, state = tmp_path / "out", tmp_path / "out.partial.json"
    with pytest.raises(KeyboardInterrupt):
        work(path, stop_after=3)
    whole = state.read_text()
    for damaged in ("", "{}", "[]", whole.replace('"format": 2', '"format": 1')):
        state.write_text(damaged)
        with raises_saying(DataError, state, "damaged", "start over"):
            work(path, resume=True)
    state.write_text(whole)
    os.truncate(tmp_path / "out.partial", 5)
    with pytest.raises(DataError, match="is shorter than it says"):
        work(path, resume=True)


HOLD = """
import pathlib, sys
from mt.translate.resume import ResumableOutput
with ResumableOutput(resume=False).open(pathlib.Path(sys.argv[1])) as file:
    print("open", flush=True)
    sys.stdin.readline()
    file.write(b"kept")
"""


def test_two_jobs_do_not_write_to_one_place(tmp_path: Path) -> None:
    path = tmp_path / "out"
    pipe, (_, env) = subprocess.PIPE, mt_command()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], env=env, stdin=pipe, stdout=pipe, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with raises_saying(DataError, f"{path}.partial", "another mt", "--output"):
            work(path)
        other.communicate("\n", timeout=30)
    assert other.returncode == 0
    assert path.read_text() == "kept"
    assert files(tmp_path) == ["out"]


def test_a_record_without_its_partial_output_is_ignored(tmp_path: Path) -> None:
    """The power failed between two renames, or the user removed only the partial output."""
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path / "out", stop_after=3)
    (tmp_path / "out.partial").unlink()
    assert work(tmp_path / "out") == LINES
    assert files(tmp_path) == ["out"]


@pytest.fixture
def text(tiny_corpus: Path, tmp_path: Path) -> Path:
    lines = (tiny_corpus / "test.src").read_bytes().split(b"\n")[:23]
    lines[4] = b""
    (tmp_path / "text").write_bytes(b"\n".join(lines) + b"\n")
    return tmp_path / "text"


@pytest.mark.parametrize("at", [10, 23])  # of 23 lines
@pytest.mark.parametrize("options", [[], ["--n-best", 2], ["--format", "tsv", "--scores"]])
def test_a_resumed_translation_equals_an_uninterrupted_one(
    mt: Mt, tiny_run: Path, text: Path, tmp_path: Path, monkeypatch: MonkeyPatch,
    options: list[Any], at: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(engine, "WINDOW", 5)
    monkeypatch.setattr(translator, "FIRST_WINDOW", 5)
    out, whole, prefix = (tmp_path / name for name in ("out", "whole", "prefix"))
    prefix.write_text("\n".join(["one", "", "two"] * 7 + ["", ""]) + "\n")
    arguments: list[Any] = ["translate", "-m", tiny_run, text, "--prefix", prefix, *options]
    assert mt(*arguments, "-o", whole).code == 0

    finished: Callable[..., None] = ResumableOutput.finished

    def interrupt(self: ResumableOutput, file: Any, lines: list[str]) -> None:
        finished(self, file, lines)
        if self.lines == at:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ResumableOutput, "finished", interrupt)
    ended = mt(*arguments, "-o", out)
    assert ended.code == 130
    assert says(ended.err, f"mt: {at} lines are finished in {out}.partial", "--resume")
    assert not out.exists()
    monkeypatch.setattr(ResumableOutput, "finished", finished)
    said = refused(mt(*arguments, "--beam-size", 3, "--n-best", 3, "--resume", "-o", out))
    assert "was made with another --beam-size, --n-best;" in said
    assert "are finished" not in said  # resuming is not the remedy here
    words = prefix.read_text()
    prefix.write_text("two\n" * 23)
    said = refused(mt(*arguments, "--resume", "-o", out))
    prefix.write_text(words)
    assert "was made with another --prefix;" in said
    ended = mt(*arguments, "--resume", "-o", out)
    assert ended.code == 0
    assert says(ended.err, f"mt: {23 - at} lines (since --resume; {at} finished before")
    assert out.read_bytes() == whole.read_bytes()
    assert files(tmp_path) == ["out", "prefix", "text", "whole"]


def test_only_a_file_can_be_resumed(mt: Mt, tiny_run: Path, text: Path) -> None:
    assert refused(mt("translate", "-m", tiny_run, text, "--resume")) == (
        "--resume: continues an output file; name it with -o"
    )
