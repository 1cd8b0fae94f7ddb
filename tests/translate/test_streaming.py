"""Input and output of `mt translate`: files, stdin, streams that stay open, output places."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import MonkeyPatch, Mt, mt_command, open_pipes, refused
from corpora import write
from messages import raises_saying, says
from stand_in_engine import StandInEngine, stand_in_translator

from mt.errors import DataError
from mt.files import whole_file
from mt.translate import streaming
from mt.translate.lines import Translation
from mt.translate.resume import ResumableOutput
from mt.translate.streaming import open_output, read_ahead, read_input, windows, write_lines

# --- windows -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [None, 5.0])
def test_windows_hold_all_lines_in_order(wait: float | None) -> None:
    for text, sizes in (("abcdefghij", [3, 1, 4, 2]), ("abcdef", [5, 1]), ("", [])):
        found = list(windows(iter(text), iter([*sizes, 9]).__next__, wait))
        assert "".join(itertools.chain(*found)) == text
        assert [len(window) for window in found] == sizes

    def lines() -> Iterator[str]:
        yield "one"
        raise DataError("line 2")

    with pytest.raises(DataError, match="line 2"):
        list(windows(lines(), lambda: 10, wait))


def test_the_first_result_comes_after_few_lines_and_little_time(monkeypatch: MonkeyPatch) -> None:
    n_read = itertools.count(1)
    for seconds, most in ((10.0, 200), (-1.0, 2)):
        monkeypatch.setattr(streaming, "READING", seconds)
        engine = StandInEngine(lambda text: Translation((text,), (0.0,)))
        endless = (f"line {next(n_read)}" for _ in itertools.count())
        before = next(n_read)
        first = next(stand_in_translator(engine).translate(endless))
        assert first.texts == (f"line {before + 1}",)
        assert next(n_read) - before - 1 == most


def test_a_line_is_answered_while_the_pipe_stays_open(tiny_run: Path) -> None:
    """A client that sends the next line only when it has read the answer to the last one."""
    command, environment = mt_command("translate", "-m", tiny_run)
    with open_pipes(command, environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answers = []
        for line in (b"eins\n", b"\n", b"zwei drei\n"):
            process.stdin.write(line)
            process.stdin.flush()
            answers.append(process.stdout.readline())
        assert answers[1] == b"\n"
        assert all(answer.endswith(b"\n") and answer.strip() for answer in (answers[0], answers[2]))
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(30) == 0


# --- reading ahead ------------------------------------------------------------------------------


def test_items_come_in_order_and_errors_in_their_turn() -> None:
    makers: set[int | None] = set()

    def items() -> Iterator[int]:
        for number in range(20):
            makers.add(threading.current_thread().ident)
            yield number
        raise ZeroDivisionError("after all of them")

    found = read_ahead(items())
    assert [next(found) for _ in range(20)] == list(range(20))
    with pytest.raises(ZeroDivisionError, match="after all of them"):
        next(found)
    assert threading.get_ident() not in makers
    assert list(read_ahead(iter([]))) == []


# --- where lines come from and go to -----------------------------------------------------------


def test_lines_of_a_file_a_packed_file_and_stdin(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    content = "\ufeffeins\r\nzwei\u2028drei\x85\n\n\ttab\ufeff\x00\rvier\r\r\nfünf".encode()
    expected = ["eins", "zwei\u2028drei\x85", "", "\ttab\ufeff\x00\rvier\r", "fünf"]
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(content))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    for source in (str(tmp_path / "plain"), str(tmp_path / "packed.gz"), "-"):
        assert list(read_input(source)) == expected
    (tmp_path / "empty").write_bytes(b"")
    assert list(read_input(str(tmp_path / "empty"))) == []


@pytest.mark.parametrize("errors", ["strict", None])
def test_bytes_outside_utf_8(errors: str | None, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """Without --errors, a command cannot recommend it."""
    path = tmp_path / "latin"
    path.write_bytes(b"eins\nf\xfcnf zw\xf6lf\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    for source, name in ((str(path), str(path)), ("-", "stdin")):
        with pytest.raises(DataError) as caught:
            list(read_input(source, errors))
        message = str(caught.value)
        assert says(message, f"{name}, line 2, byte 1", "fc 6e 66 20", "iconv -f WINDOWS-1252")
        remedy = "Or give --errors replace: they become U+FFFD"
        assert message.endswith(remedy) == (errors is not None)
    assert list(read_input(str(path), "replace")) == ["eins", "f\ufffdnf zw\ufffdlf"]


def test_faults_of_the_input_are_found_at_opening(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"there is no file .*missing\.de") as missing:
        read_input(str(tmp_path / "missing.de"))
    assert "--errors" not in str(missing.value)  # would be no remedy
    with raises_saying(DataError, tmp_path, "is a folder", "name a file", "--model"):
        read_input(str(tmp_path))
    (tmp_path / "in.xz").write_bytes(b"\xfd7zXZ\x00 and so on")
    with pytest.raises(DataError, match="truncated or damaged"):
        read_input(str(tmp_path / "in.xz"))
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match="stdin: is closed; name an input file"):
        read_input("-")
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(DataError, match=r"stdout: is closed.* -o"), open_output("-"):
        raise AssertionError("nothing must be translated")


@pytest.mark.parametrize(
    "error", [DataError("in the middle"), KeyboardInterrupt(), SystemExit(143), RuntimeError("x")]
)
def test_output_appears_whole_or_not_at_all(tmp_path: Path, error: BaseException) -> None:
    def lines() -> Iterator[str]:
        yield from ["new"] * 50_000
        raise error

    for path in (tmp_path / "none", tmp_path / "old"):
        if path.name == "old":
            path.write_text("old\n", encoding="utf-8")
        with pytest.raises(type(error)) as caught, open_output(str(path)) as file:
            write_lines(file, lines())
        assert caught.value is error
    assert [entry.name for entry in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text(encoding="utf-8") == "old\n"
    with open_output(str(tmp_path / "old")) as file:
        write_lines(file, ["new", "äß\u2028"])
        assert (tmp_path / "old").read_text(encoding="utf-8") == "old\n"  # until all is written
    assert (tmp_path / "old").read_bytes() == "new\näß\u2028\n".encode()
    assert [entry.name for entry in tmp_path.iterdir()] == ["old"]


def test_a_place_that_cannot_be_written_is_found_on_entering(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for path, folder, reason in (
        (tmp_path / "nowhere" / "out", tmp_path / "nowhere", "No such file or directory"),
        (tmp_path / "file" / "out", tmp_path / "file", "Not a directory"),
    ):
        parts = f"--output {path}", folder, reason, "unchanged", "room"
        with raises_saying(DataError, *parts), open_output(str(path)):
            raise AssertionError("nothing must be translated")
    with pytest.raises(DataError, match=r"is a folder.*name a file"), open_output(str(tmp_path)):
        raise AssertionError("nothing must be translated")


def test_links_devices_and_pipes_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with open_output(str(tmp_path / "link")) as file:
        write_lines(file, ["x"])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x\n"
    with open_output(os.devnull) as file:
        write_lines(file, ["x"])
    assert not Path(os.devnull).is_file()  # still a device
    os.mkfifo(tmp_path / "pipe")
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    with open_output(str(tmp_path / "pipe")) as file:
        write_lines(file, ["x"])
    reader.join()
    assert received == [b"x\n"]


def test_output_over_input_is_refused(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    text, other = tmp_path / "text", tmp_path / "other"
    text.write_bytes(b"eins\n")
    other.write_bytes(b"one\n")
    (tmp_path / "symlink").symlink_to(text)
    (tmp_path / "hardlink").hardlink_to(text)
    (tmp_path / "job.partial").symlink_to(text)
    for name in ("text", "symlink", "hardlink", "../" + tmp_path.name + "/text", "job"):
        output = tmp_path / name
        message = f"--output {output}: is the same file as {{}} ({text}), which would be lost; "
        translated = refused(mt("translate", "-m", tiny_run, text, "-o", output))
        assert translated.startswith(message.format("the input"))
        forced = refused(mt("translate", "-m", tiny_run, other, "--prefix", text, "-o", output))
        assert forced.startswith(message.format("--prefix"))
        if name == "job":  # only `mt translate` writes to NAME.partial first
            continue
        for sides in (["--src", text, "--tgt", other], ["--src", other, "--tgt", text]):
            scored = refused(mt("score", "-m", tiny_run, *sides, "-o", output))
            assert scored.startswith(message.format("--src" if sides[1] == text else "--tgt"))
    assert text.read_bytes() == b"eins\n"


def test_nothing_is_written_into_a_models_folder(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    text = write(tmp_path / "text", "eins\n")
    (tmp_path / "link").symlink_to(tiny_run / "tokenizer.model")
    before = {path: path.stat().st_mtime_ns for path in tiny_run.rglob("*") if path.is_file()}
    best = tiny_run / "checkpoints" / "best"
    commands: list[list[object]] = [
        ["translate", "-m", tiny_run, text, "-o", tiny_run / "tokenizer.model"],
        ["translate", "-m", best, text, "-o", tmp_path / "link"],
        ["score", "-m", tiny_run, "--src", text, "--tgt", text, "-o", tiny_run / "new.txt"],
        ["tokenizer", "encode", "-m", tiny_run, text, "-o", tiny_run / "config.yaml"],
        ["backtranslate", "-m", tiny_run, text, "-o", best / "new.tsv"],
    ]
    for command in commands:
        assert says(refused(mt(*command)), "--output", command[-1], "--model", "elsewhere")
    own = tmp_path / "own.model"
    shutil.copy(tiny_run / "tokenizer.model", own)
    message = refused(mt("tokenizer", "decode", "-m", own, text, "-o", own))
    assert says(message, "--output", own, "--model", "another file")
    message = refused(mt("translate", "-m", tiny_run, text, "--shortlist", text, "-o", text))
    assert says(message, "--output", text, "same file")
    after = {path: path.stat().st_mtime_ns for path in tiny_run.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.parametrize(("suffix", "program"), [("gz", "gzip"), ("xz", "xz"), ("zst", "zstd")])
def test_a_packed_output_is_refused(
    suffix: str, program: str, mt: Mt, tiny_run: Path, tmp_path: Path
) -> None:
    text = write(tmp_path / "text", "eins\n")
    message = refused(mt("translate", "-m", tiny_run, text, "-o", tmp_path / f"out.{suffix}"))
    assert says(message, f"out.{suffix}", "plain text", f"into {program}")
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    for opener in (whole_file, ResumableOutput(False).open):
        private = write(tmp_path / "private", "before")
        private.chmod(0o600)
        with open_output(str(private), opener) as file:
            file.write(b"after")
        assert (private.read_text(), private.stat().st_mode & 0o777) == ("after", 0o600)


def test_a_standard_stream_over_input_is_refused(
    run_mt: Callable[..., subprocess.CompletedProcess[str]], tiny_run: Path, tmp_path: Path
) -> None:
    """`mt translate text >> text` would read its own output without end."""
    text = tmp_path / "text"
    text.write_bytes(b"eins\n")
    with text.open("ab") as appended:
        ended = run_mt(
            "translate", "-m", tiny_run, text, stdout=appended, stderr=-1, capture_output=False
        )
    assert ended.returncode == 2
    assert ended.stderr.startswith("mt: --output stdout: is the same file as the input")
    with text.open("rb") as stdin:
        ended = run_mt("translate", "-m", tiny_run, "-o", text, stdin=stdin)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"mt: --output {text}: is the same file as the input (-)")
    assert text.read_bytes() == b"eins\n"
