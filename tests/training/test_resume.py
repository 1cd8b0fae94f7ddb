"""A training that was killed or stopped ends with the weights of one that was not, bit for bit.

What is killed here runs in a process of its own, forked from a server that has imported torch
already, and kills itself at the very place that a test names.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import yaml
from conftest import Mapped, MonkeyPatch, config_of, log_of, metrics_of, mt_command
from messages import says
from processes import fork_server
from run_comparison import EVERY, check_equal, kept_steps

from mt import artefacts
from mt.cli.console import terminate
from mt.config.load import config_from_mapping
from mt.data.tokens.batches import Prefetcher
from mt.data.tokens.plan import Plan
from mt.model import checkpoint
from mt.runs import model_folder
from mt.runtime.machine import received
from mt.training import checkpoints as checkpoints_module
from mt.training import update, validation
from mt.training.launch import train
from mt.training.update import Updater


def at_call(
    owner: Any, name: str, number: int, act: Callable[[], None], *, after: bool = False
) -> None:
    """Call `act` before (or after) call `number` of a function, counted from 0."""
    real, seen = getattr(owner, name), [0]

    def watched(*arguments: Any, **options: Any) -> Any:
        due = seen[0] == number
        seen[0] += 1
        if due and not after:
            act()
        result = real(*arguments, **options)
        if due and after:
            act()
        return result

    setattr(owner, name, watched)


def place(where: str, act: Callable[[], None]) -> None:
    """Call `act` at a place such as `update 5`, from 0, or `save_file 1`, in the second save."""
    name, number = where.split()
    if name == "micro-batch":  # of training, not of the preflight
        at_call(Updater, "train_step", 0, lambda: at_call(update, "batch_loss", int(number), act))
    elif name == "update":
        at_call(Updater, "train_step", int(number), act)
    elif name == "validation":
        at_call(validation.Validation, "losses", int(number), act, after=True)
    elif name == "renamed":  # partial -> its place: the link `last` is not set yet
        at_call(artefacts, "sync_folder", int(number) + 2, act)  # after those of two token stores
    elif name == "link":
        at_call(checkpoints_module, "set_link", int(number), act)
    elif name == "save_file":
        at_call(safetensors.torch, name, int(number), act, after=True)
    else:
        at_call(checkpoint, name, int(number), act)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def child(mapping: Mapped, run_dir: Path, where: str, number: int) -> None:
    """Train in this process and send it a signal at a place; exit with the code of the command."""
    place(where, lambda: send(number))
    sys.exit(train(config_from_mapping(mapping, "test"), run_dir, "cpu").exit_code)


@pytest.fixture
def disturbed(interruptible: Mapped, tmp_path: Path) -> Callable[..., Path]:
    """`disturbed("update 5")`: a run that received SIGKILL, or another signal, at that place."""

    def start(
        where: str, number: int = signal.SIGKILL, code: int = -signal.SIGKILL,
        run_dir: Path | None = None, mapping: Mapped = interruptible,
    ) -> Path:  # fmt: skip
        run_dir = run_dir or tmp_path / "run"
        process = fork_server().Process(target=child, args=(mapping, run_dir, where, number))
        process.start()
        process.join(120)
        assert process.exitcode == code
        return run_dir

    return start


PLACES = [
    "micro-batch 25",  # while gradients accumulate, in an epoch, between two checkpoints
    "renamed 2",  # the last one is complete, but neither `last` nor `best` names it yet
]
MORE_PLACES = [
    "update 0",
    "update 2",  # before the first checkpoint
    "update 4",  # right after a checkpoint
    "update 9",  # at the start of an epoch
    "micro-batch 48",
    "validation 0",
    "validation 1",
    "validation 2",
    "save_file 0",
    "save_file 1",  # the second checkpoint is half written
    "save_file 2",
    "link 2",
]


@pytest.mark.parametrize(
    "where", [*PLACES, *(pytest.param(place, marks=pytest.mark.slow) for place in MORE_PLACES)]
)
def test_killed_and_resumed_equals_undisturbed(
    where: str, disturbed: Callable[..., Path], interruptible: Mapped, undisturbed: Path
) -> None:
    run_dir = disturbed(where)
    assert train(config_of(interruptible), run_dir, "cpu").exit_code == 0
    check_equal(run_dir, undisturbed)


class LostError(Exception):
    """Ends a training without a checkpoint."""


def test_a_checkpoint_between_two_validations_resumes_exactly(
    interruptible: Mapped, undisturbed: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """Here the clock asks for one after each update; the eighth fails in its second batch."""
    run_dir = tmp_path / "run"
    real, left = update.batch_loss, [0]

    def failing(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise LostError
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(update, "batch_loss", failing)
        patch.setattr(Updater, "train_step", Updater.train_step)  # undoes what `place` does
        place("update 7", lambda: left.__setitem__(0, 2))
        with pytest.raises(LostError):
            train(config_of(interruptible, {"train": {"save_every_minutes": 1e-9}}), run_dir, "cpu")
    assert kept_steps(run_dir) == [4, 7]
    assert train(config_of(interruptible), run_dir, "cpu").exit_code == 0
    check_equal(run_dir, undisturbed, stopped=7)


def test_the_command_stops_on_sigterm_and_resumes(
    interruptible: Mapped, undisturbed: Path, tmp_path: Path
) -> None:
    """As a batch system sends it: a checkpoint is saved, code 143, and how to resume."""
    config, run_dir = tmp_path / "tiny.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(interruptible), encoding="utf-8")
    options = ("--run-dir", run_dir, "--device", "cpu")
    command, env = mt_command("train", "-c", config, *options)
    said: list[str] = []
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if "step 2 |" in line:
                process.send_signal(signal.SIGTERM)
    assert process.returncode == 143
    stopped = r"stopped by SIGTERM after update (\d+); run the same command again"
    (step,) = map(int, re.findall(stopped, said[-1]))
    assert model_folder.read_meta(run_dir / "checkpoints" / "last", ["state.pt"])["step"] == step
    assert "Traceback" not in "".join(said)
    assert train(config_of(interruptible), run_dir, "cpu").exit_code == 0
    assert f"resuming after update {step} from " in log_of(run_dir)
    # The checkpoint of the interruption is one of the newest for a while, and deleted in the end.
    check_equal(run_dir, undisturbed, step)


def test_ctrl_c_in_the_middle_of_an_update_finishes_it(
    disturbed: Callable[..., Path], interruptible: Mapped, undisturbed: Path
) -> None:
    run_dir = disturbed("micro-batch 25", signal.SIGINT, 130)
    step = model_folder.read_meta(model_folder.checkpoints(run_dir)[-1], [])["step"]
    assert step > EVERY
    said = log_of(run_dir).splitlines()[-1]
    assert says(said, f"stopped by SIGINT after update {step};", "same command again")
    assert train(config_of(interruptible), run_dir, "cpu").exit_code == 0
    check_equal(run_dir, undisturbed, step)


def test_a_validation_that_a_signal_interrupted_is_done_on_resuming(
    disturbed: Callable[..., Path], interruptible: Mapped, undisturbed: Path, tmp_path: Path
) -> None:
    """In the update before it, or in the validation itself: the checkpoint is saved at once."""
    for where, number, code in [
        ("update 7", signal.SIGTERM, 143),
        ("validation 1", signal.SIGUSR1, 138),
    ]:
        run_dir = disturbed(where, number, code, tmp_path / where)
        meta = model_folder.read_meta(model_folder.checkpoints(run_dir)[-1], [])
        assert (meta["step"], meta["score"]) == (2 * EVERY, None)
        assert [line["step"] for line in metrics_of(run_dir) if line["kind"] == "valid"] == [EVERY]
        assert train(config_of(interruptible), run_dir, "cpu").exit_code == 0
        check_equal(run_dir, undisturbed)


@pytest.mark.parametrize(("sampled", "steps"), [(0, []), (1, [9])])
def test_a_signal_does_not_wait_for_an_epoch_to_be_sampled(
    sampled: int, steps: list[int], interruptible: Mapped, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    calls = list[int]()
    is_ready = Prefetcher.ready

    def for_epoch(self: Plan, epoch: int, stop: threading.Event) -> Plan:
        calls.append(epoch)
        if epoch == sampled and len(calls) > 1:  # after the preflight
            assert stop.wait(60)  # set when the prefetcher is closed, and polled while sampling
        return self

    def ready(self: Prefetcher, seconds: float) -> bool:
        if not (found := is_ready(self, seconds)) and calls[-1] == sampled:
            send(signal.SIGTERM)
        return found

    monkeypatch.setattr(Plan, "for_epoch", for_epoch)
    monkeypatch.setattr(Prefetcher, "ready", ready)
    assert train(config_of(interruptible), tmp_path, "cpu").exit_code == 143
    assert kept_steps(tmp_path)[-1:] == steps


def test_a_closed_terminal_stops_a_run_but_not_under_nohup(
    interruptible: Mapped, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    real, sent = Updater.train_step, list[int]()

    def once(*arguments: Any) -> Any:
        if not sent:
            sent.append(signal.SIGHUP)
            send(signal.SIGHUP)
        return real(*arguments)

    monkeypatch.setattr(Updater, "train_step", once)
    short = config_of(interruptible, train={"max_steps": 2}, data={"valid": None})
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert train(short, tmp_path / "closed", "cpu").exit_code == 129
        sent.clear()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert train(short, tmp_path / "nohup", "cpu").exit_code == 0
        assert sent
    finally:
        signal.signal(signal.SIGHUP, before)
    (folder,) = model_folder.checkpoints(tmp_path / "closed")
    assert folder.name == model_folder.step_name(1)


def test_two_ctrl_c_end_it(interruptible: Mapped, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """Without a checkpoint; afterwards signals have their earlier handlers."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def twice(*_: Any) -> None:
        send(signal.SIGINT)
        send(signal.SIGINT)

    monkeypatch.setattr(Updater, "train_step", twice)
    with pytest.raises(KeyboardInterrupt) as stop:
        train(config_of(interruptible), tmp_path, "cpu")
    assert says(*vars(stop.value)["__notes__"], "the same command", "resumes")
    assert model_folder.checkpoints(tmp_path) == []
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_ctrl_c_that_an_import_swallowed_ends_it(interruptible: Mapped, tmp_path: Path) -> None:
    """As soon as it would train, since the exception is lost."""
    with pytest.raises(KeyboardInterrupt):
        terminate(signal.SIGINT, None)
    try:
        outcome = train(config_of(interruptible), tmp_path, "cpu")
    finally:
        received.clear()
    assert (outcome.exit_code, model_folder.checkpoints(tmp_path)) == (130, [])
