"""`mt train --processes`: several processes without torchrun, their signals and exit codes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import Mapped, MonkeyPatch, Mt, merged, metrics_of, refused
from messages import says
from processes import check_close, command_of, distributed_settings, ended, start, trained

from mt.runtime import machine

pytestmark = pytest.mark.usefixtures("no_process_left")


def started(*commands: str) -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen(["sh", "-c", command]) for command in commands]


@pytest.mark.parametrize(
    ("commands", "code"),
    [
        (("exit 0", "exit 0"), 0),
        (("exit 2", "exit 2"), 2),
        (("exit 0", "exit 75"), 75),
        (("kill -KILL $$", "sleep 0.3; exit 75"), 137),
    ],
)
def test_the_exit_code_is_that_of_the_first_to_fail(commands: tuple[str, ...], code: int) -> None:
    assert machine._wait(started(*commands)) == code


def test_a_process_that_does_not_end_after_a_failure_is_killed(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SHUTDOWN_SECONDS", 0.2)
    processes = started("exit 3", "exec sleep 100")
    assert machine._wait(processes) == 3
    assert processes[1].returncode == -signal.SIGKILL


@pytest.mark.parametrize("started", ["2", "many"])
def test_nested_processes_are_refused(started: str, mt: Mt, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", started)
    message = refused(mt("train", "--config", "tiny.yaml", "--processes", 2))
    assert says(message, "--processes", f"{started} processes", "leave it out")


def test_more_processes_than_cores_are_refused(mt: Mt, monkeypatch: MonkeyPatch) -> None:
    """On a CPU: on GPUs each has its own."""
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    message = refused(mt("train", "--config", "tiny.yaml", "--processes", 40, "--device", "cpu"))
    assert says(message, "--processes", "at most 2", "cores", "found 40", "wait for each other")
    monkeypatch.setattr(machine, "run_processes", lambda arguments, count: 70 + count)
    assert mt("train", "--config", "tiny.yaml", "--processes", 2).code == 72
    monkeypatch.setattr("mt.runtime.devices.find_device", lambda name: torch.device("cuda", 0))
    assert mt("train", "--config", "tiny.yaml", "--processes", 3).code == 73


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_hangup_that_is_ignored_stays_so(handler: signal.Handlers) -> None:
    """Under nohup; the other processes inherit that."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        with machine.signals_to(lambda *_: None):
            is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert is_ignored == (handler == signal.SIG_IGN)
        assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="-m looks into the folder in any case")
def test_a_users_file_is_no_module_of_a_process(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """A file of the current folder that is called as a module of Python."""
    (tmp_path / "tokenize.py").write_text("raise SystemExit('a script of the user')\n")
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "mt", "--version"]
    done = subprocess.run(command, env=machine.with_own_imports(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
@pytest.mark.skipif(machine.usable_cores() < 2, reason="each process needs a core")
def test_two_processes_train_as_one_and_are_stopped(tiny_mapping: Mapped, tmp_path: Path) -> None:
    """Interrupted in the middle and run again, they come to the weights of a single process."""
    changes = {"train": {"max_steps": 80}, "tokenizer": {"vocab_size": "auto"}}
    settings = merged(distributed_settings(tiny_mapping), changes)
    alone = trained(settings, tmp_path / "alone", 1)
    together = tmp_path / "together"
    command = [sys.executable, "-m", *command_of(settings, together), "--processes", "2"]
    process = start(command)
    while not (together / "metrics.jsonl").exists() or not metrics_of(together):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    stopped = ended(process)
    assert stopped.code == 143, stopped.err
    resumed = ended(start(command))
    assert resumed.code == 0, resumed.err
    check_close(together, alone)
