"""How a command ends: by a signal, a closed pipe, a full disk or a defect."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import MonkeyPatch, Mt, mt_command, refused, write_lines
from messages import says

from mt.files import whole_file

SIGNALS = pytest.mark.parametrize(
    ("number", "message"), [(signal.SIGINT, "mt: interrupted\n"), (signal.SIGTERM, "")]
)


@SIGNALS
def test_signals_end_it(number: int, message: str, tiny_run: Path, tmp_path: Path) -> None:
    """Stdin stays open, so the command works until the signal arrives. No partial file remains."""
    command, env = mt_command("translate", "-m", tiny_run, "-o", tmp_path / "out")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        while not (tmp_path / "out.partial.json").exists():  # from here on the part is its own
            assert process.poll() is None, "ended too early"
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.decode()) == (128 + number, b"", message)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_within_an_import_has_its_exit_code(tmp_path: Path) -> None:
    """A dataclass is made by `exec`: Python then ended by SIGINT, after the message."""
    (tmp_path / "interrupted.py").write_text(
        "import sys\nimport mt.config.load\nfrom mt.cli.main import main\n"
        "mt.config.load.load_config = lambda *_: exec('raise KeyboardInterrupt')\n"
        "sys.argv = ['mt', 'config', 'check', '-c', 'tiny.yaml']\nmain()\n"
    )
    [python, *_], env = mt_command()
    command = [python, "-m", "interrupted"]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, b"mt: interrupted\n")


def test_a_closed_pipe_ends_translate_quietly(tiny_run: Path, tmp_path: Path) -> None:
    """As in `mt translate ... | head -1`."""
    (tmp_path / "in").write_bytes(b"\n" * 200_000)
    command, environment = mt_command("translate", "-m", tiny_run, tmp_path / "in")
    environment.pop("PYTHONUNBUFFERED", None)
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == b"\n"
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_result_on_a_full_disk_and_into_a_closed_pipe(
    run_mt: Callable[..., subprocess.CompletedProcess[str]], tiny_config: Path
) -> None:
    """Of `mt config check`, whose one line stays in Python's buffer until it is flushed."""
    options: dict[str, Any] = {"capture_output": False, "stderr": subprocess.PIPE}
    options["env"] = {"PYTHONUNBUFFERED": ""}  # as where it is not set
    check = partial(run_mt, "config", "check", "-c", tiny_config, **options)
    with open("/dev/full", "wb") as file:
        ended = check(stdout=file.fileno())
    assert ended.returncode == 2
    assert says(ended.stderr, "mt: stdout", "No space left on device", "free space")
    with open("/dev/full", "wb") as file:
        ended = run_mt("config", "check", "-c", "none.yaml", **options | {"stderr": file.fileno()})
    assert ended.returncode == 2  # although nobody sees the message
    reader, writer = os.pipe()
    os.close(reader)
    ended = check(stdout=writer)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_no_escape_sequence_reaches_the_terminal(
    mt: Mt, tiny_run: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "in", ["eins \x1b[31mzwei"])
    ran = [
        mt("translate", "-m", "\x1b[2Ja\r", "in"),
        mt("translate", "-m", "x", "in", "\x1bno"),
        mt("train", "--config", "tiny.yaml", "--set", "train.\x1b]0;x\x07=1", "--set", "a.b=\x9b1"),
        mt("inspect", "attention", "-m", tiny_run, "eins \x1b[31mzwei \x9b1m", "--target", "one"),
        mt("inspect", "tokens", "-m", tiny_run, "--src", "in"),
    ]
    for ended in ran:
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", ended.err + ended.out.decode()), ended
    assert says(ran[0].err, "␛[2Ja␍")
    lines = ran[2].err.splitlines()
    assert len(lines) > 1
    assert all(line.startswith("mt: ") for line in lines)
    assert says(ran[3].out.decode(), "␛[31mzwei")
    # A translation is data: byte for byte what the model wrote, also onto a terminal.
    copied = mt("translate", "-m", tiny_run, "in", "--format", "tsv")
    assert copied.out.startswith(b"eins \x1b[31mzwei\t")


def test_arguments_are_utf8(mt: Mt) -> None:
    for arguments in (("train", "-c", "tiny", "--run-dir", "a\udcff"), ("translate", "a\udcff")):
        assert says(refused(mt(*arguments)), r"b'a\xff'", "must be UTF-8", "rename")


TOO_LONG = "x" * 300


def test_a_name_that_is_too_long_is_one_message(
    tiny_run: Path, tiny_config: Path, tmp_path: Path, mt: Mt, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "in", ["eins zwei", "drei"] * 20)
    names = {"RUN": tiny_run, "IN": "in", "CONFIG": tiny_config}
    for command in [
        "translate -m RUN IN -o {}.txt", "score -m RUN --src IN --tgt IN -o {}.txt",
        "backtranslate -m RUN IN -o {}.tsv", "report RUN -o {}.html", "average RUN --last 2 -o {}",
        "export ctranslate2 -m RUN -o {}", "import huggingface RUN -o {}",
        "tokenizer train IN -o {}", "inspect lr --config CONFIG -o {}.svg",
        "data clean --config CONFIG -o {}", "data clean --config CONFIG -o out --work {}",
        "data prepare --config CONFIG --run-dir {}", "train --config CONFIG --run-dir {}",
        "train --config {}.yaml", "translate -m RUN {}.txt", "translate -m {} IN",
        "score -m {} --src IN --tgt IN -o out",
    ]:  # fmt: skip
        arguments = [names.get(word, word.format(TOO_LONG)) for word in command.split()]
        assert says(refused(mt(*arguments)), TOO_LONG)
        assert {path.name for path in tmp_path.iterdir()} == {"in"}


def test_a_working_directory_that_was_removed(tmp_path: Path) -> None:
    """Libraries would fail later, each in its own way."""
    gone = tmp_path / "gone"
    gone.mkdir()
    command, environment = mt_command("doctor")
    shell = ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", *command]
    ended = subprocess.run(shell, cwd=gone, env=environment, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert says(ended.stderr.decode(), "mt: the working directory does not exist any more; cd")


def test_a_full_disk_is_named_with_its_file(tmp_path: Path) -> None:
    full = "No space left on device"
    with pytest.raises(OSError, match=full) as caught, whole_file(tmp_path / "out"):
        raise OSError(errno.ENOSPC, full)
    assert caught.value.filename == str(tmp_path / "out")
