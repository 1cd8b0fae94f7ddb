"""Ranks that are killed, stopped or diverge, and errors that one of them finds."""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Mapped, log_of, merged, metrics_of, mt_command
from faults import raising
from messages import says
from processes import (
    command_of,
    distributed_settings,
    ended,
    has_step,
    ranks_below,
    run_ranks,
    start,
    state_of,
    tensors_of,
    torchrun,
    trained,
    wait_for,
)

from mt.cli.main import main
from mt.data.tokens.batches import Update
from mt.runs import model_folder
from mt.runtime.machine import free_port
from mt.training import update as updates
from mt.training.trainer import MAX_SKIPPED_UPDATES
from mt.training.update import Updater

pytestmark = pytest.mark.usefixtures("no_process_left")


@pytest.fixture(scope="module")
def settings(tiny_mapping: Mapped) -> dict[str, Any]:
    return distributed_settings(tiny_mapping)


@pytest.fixture
def long(settings: Mapped) -> dict[str, Any]:
    """Long enough to be interrupted."""
    changes = {"data": {"valid": None}, "train": {"max_steps": 150, "valid_every": 10}}
    return merged(settings, changes)


@pytest.mark.slow
def test_torchrun_restarts_a_killed_process_at_the_checkpoint(long: Mapped, tmp_path: Path) -> None:
    """Three times: the weights equal those of an uninterrupted run, bit for bit."""
    quiet, run = trained(long, tmp_path / "quiet", 2), tmp_path / "run"
    process = start([*torchrun(2, "--max-restarts=3"), *command_of(long, run)])
    for step, victim in ((20, 1), (60, 0), (100, 1)):
        wait_for(lambda step=step: has_step(run, step))  # type: ignore[misc]
        os.kill(ranks_below(process)[victim], signal.SIGKILL)
    done = ended(process)
    assert done.code == 0, done.err
    assert log_of(run).count("resuming after update") == 3
    ours, others = tensors_of(run), tensors_of(quiet)
    assert all(torch.equal(ours[name], others[name]) for name in others)


REAL = Updater.train_step


def run_mt_with(train_step: Any) -> None:
    """Run mt with another function in the place of `Updater.train_step`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updater, "train_step", train_step)
        main()


def signalled() -> None:
    """Run mt; rank 1 receives SIGUSR1 in update 6, from 0."""

    def train_step(self: Updater, update: Update, step: int) -> Any:
        if step == 6 and os.environ["RANK"] == "1":
            signal.raise_signal(signal.SIGUSR1)
        return REAL(self, update, step)

    run_mt_with(train_step)


def test_a_signal_to_one_process_stops_all_at_the_same_update(long: Mapped, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = command_of(merged(long, {"train": {"max_steps": 9}}), run)[1:]
    first, second = run_ranks(tmp_path, command, signalled)
    assert (first.code, second.code, second.err) == (138, 138, "")
    (step,) = re.findall(r"stopped by SIGUSR1 after update (\d+); run the same comm", first.err)
    assert model_folder.read_meta(run / "checkpoints" / "last", ["state.pt"])["step"] == int(step)
    assert [rank.code for rank in run_ranks(tmp_path, command)] == [0, 0]


@pytest.mark.slow
def test_a_signal_to_torchrun_reaches_its_processes(long: Mapped, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start([*torchrun(2), *command_of(long, run)])
    wait_for(lambda: has_step(run, 10))
    process.send_signal(signal.SIGTERM)
    ended(process)
    (step,) = re.findall(r"stopped by SIGTERM after update (\d+);", log_of(run))
    assert model_folder.read_meta(run / "checkpoints" / "last", ["state.pt"])["step"] == int(step)


@pytest.mark.slow
def test_fresh_applies_to_the_first_start_of_a_job_only(long: Mapped, tmp_path: Path) -> None:
    """Otherwise a restart would set the run aside that it should resume."""
    run = trained(merged(long, {"train": {"max_steps": 10}}), tmp_path / "run", 1)
    process = start([*torchrun(2, "--max-restarts=1"), *command_of(long, run), "--fresh"])
    wait_for(lambda: has_step(run, 20))
    os.kill(ranks_below(process)[1], signal.SIGKILL)
    done = ended(process)
    assert done.code == 0, done.err
    assert log_of(run).count("resuming after update") == 1
    assert [path.name for path in tmp_path.glob("run.old*")] == ["run.old-1"]


def with_another_counter() -> None:
    """Run mt; after update 8 rank 1 alone counts 20 skipped updates, as a faulty device would."""
    numbers = itertools.count(1)

    def train_step(self: Updater, update: Update, step: int) -> Any:
        result = REAL(self, update, step)
        if next(numbers) == 8 and os.environ["RANK"] == "1":
            self._most_skipped += MAX_SKIPPED_UPDATES
        return result

    run_mt_with(train_step)


def test_ranks_that_disagree_give_up_together(long: Mapped, tmp_path: Path) -> None:
    """Otherwise one broadcasts while the other reduces, and both wait for 15 minutes."""
    run = tmp_path / "run"
    mapping = merged(long, {"train": {"max_steps": 12, "log_every": 4, "valid_every": 4}})
    done = run_ranks(tmp_path, command_of(mapping, run)[1:], with_another_counter, seconds=60)
    assert [rank.code for rank in done] == [3, 3], done[0].err + done[1].err
    assert says(log_of(run), "gave up at update 8", "intact:", "step-00000004")


def overflowing() -> None:
    """Run mt with the loss scale of fp16; in update 6, from 0, a gradient of rank 1 overflows.

    Prints the scale and the sum of all weights of this rank.
    """
    updater: Updater | None = None

    def train_step(self: Updater, update: Update, step: int) -> Any:
        nonlocal updater
        updater = self
        weight = self.model.encoder_layers[0].attention.output.weight
        factor = math.inf if step == 6 and os.environ["RANK"] == "1" else 1.0
        with weight.register_hook(lambda grad: grad * factor):
            return REAL(self, update, step)

    scaler = partial(torch.amp.GradScaler, init_scale=1024.0)
    with pytest.MonkeyPatch.context() as patch, suppress(SystemExit):
        patch.setattr(torch.amp, "GradScaler", lambda device, enabled: scaler(device))
        run_mt_with(train_step)
    assert updater is not None
    weights = [weight.double().sum() for weight in updater.model.parameters()]
    print(updater.scaler.get_scale(), float(torch.stack(weights).sum()))


def test_an_overflow_in_one_rank_lowers_the_loss_scale_of_all(long: Mapped, tmp_path: Path) -> None:
    """And all skip the update; ranks with two scales would sum gradients of two sizes."""
    run = tmp_path / "run"
    mapping = merged(long, {"train": {"max_steps": 9, "log_every": 9}})
    first, second = run_ranks(tmp_path, command_of(mapping, run)[1:], overflowing)
    assert first.out == second.out, first.err + second.err
    assert first.out.startswith(b"512.0 ")
    assert [line["skipped"] for line in metrics_of(run, "train")] == [1]
    assert all(bool(tensor.isfinite().all()) for tensor in tensors_of(run).values())


def test_an_error_is_reported_once(settings: Mapped, tmp_path: Path) -> None:
    """Found before the process group exists and after: one message, no traceback of ours."""
    for changes, message in (
        ({"data": {"max_tokenz": 3}}, "max_tokenz"),
        ({"data": {"train": [{"src": "no.src", "tgt": "train.tgt"}]}}, "no.src"),
        ({"train": {"precision": "fp16"}}, "precision: fp16 needs a GPU"),
        ({"train": {"init_from": "nowhere"}}, "train.init_from"),
        (  # each rank finds this by itself
            {"optim": {"schedule": "cosine", "warmup_steps": 7}, "train": {"max_epochs": 0.01}},
            "optim.warmup_steps: must be below the 1 updates",
        ),
    ):
        done = run_ranks(tmp_path, command_of(merged(settings, changes), tmp_path / "run")[1:])
        assert [rank.code for rank in done] == [2, 2]
        said = "".join(rank.err for rank in done)
        assert len([line for line in said.splitlines() if line.startswith("mt: ")]) == 1
        assert message in said
        assert "mt/training/" not in said


@pytest.mark.slow
def test_an_error_is_reported_if_rank_0_finds_it_last(settings: Mapped, tmp_path: Path) -> None:
    late = "import os, time\nif os.environ.get('RANK') == '0':\n    time.sleep(3)\n"
    (tmp_path / "sitecustomize.py").write_text(late, encoding="utf-8")
    mapping = merged(settings, {"data": {"max_tokenz": 3}})
    command = [*torchrun(2), *command_of(mapping, tmp_path / "run")]
    path = os.pathsep.join(filter(None, (str(tmp_path), mt_command()[1].get("PYTHONPATH"))))
    done = ended(start(command, PYTHONPATH=path))
    lines = [line for line in done.err.splitlines() if line.startswith("mt: ")]
    assert any("max_tokenz" in line for line in lines)


def with_a_batch_too_large(where: str) -> None:
    """Run mt; in update 6, from 0, the memory of rank 1 ends in the forward or backward pass.

    In the backward pass most gradients are there already, as the last one is missing.
    """
    full = raising(torch.OutOfMemoryError("CUDA out of memory"))

    def train_step(self: Updater, update: Update, step: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if step == 6 and where == "forward":
                patch.setattr(updates, "batch_loss", full)
            elif step == 6:
                self.model.encoder_layers[0].attention.output.weight.register_hook(full)
            return REAL(self, update, step)

    run_mt_with(train_step if os.environ["RANK"] == "1" else REAL)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_rank_without_memory_ends_all_together(long: Mapped, tmp_path: Path, where: str) -> None:
    """With a checkpoint, in which this update has changed nothing."""
    run = tmp_path / "run"
    command = command_of(merged(long, {"train": {"log_every": 7}}), run)[1:]
    first, second = run_ranks(tmp_path, command, partial(with_a_batch_too_large, where))
    assert (first.code, second.code, second.err) == (2, 2, "")
    (message,) = [line for line in first.err.splitlines() if line.startswith("mt: ")]
    assert says(message, "rank 1: batch.tokens_per_batch", "Lower it", "after update 7 is saved")
    assert state_of(run)["train"]["step"] == 7
    assert [line["skipped"] for line in metrics_of(run, "train")] == [1]
    assert all(bool(tensor.isfinite().all()) for tensor in tensors_of(run).values())
    done = run_ranks(tmp_path, command)
    assert [one.code for one in done] == [0, 0], done[0].err
    assert "resuming after update 7" in log_of(run)


ABORTING = """
import atexit, os
atexit.register(os.abort)
from mt.cli.main import main
main()
"""


@pytest.mark.slow
def test_a_rank_that_lost_another_exits_with_75(long: Mapped, tmp_path: Path) -> None:
    """Also if tearing Python down aborts, as threads of gloo and NCCL sometimes cause."""
    run, port = tmp_path / "run", free_port()
    script = tmp_path / "aborting.py"
    script.write_text(ABORTING, encoding="utf-8")
    command = [sys.executable, str(script), *command_of(long, run)[1:]]
    common = {"WORLD_SIZE": 3, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [start(command, RANK=rank, LOCAL_RANK=rank, **common) for rank in range(3)]
    wait_for(lambda: has_step(run, 10))
    processes[2].kill()
    done = [ended(process) for process in processes]
    assert [one.code for one in done] == [75, 75, -signal.SIGKILL]
    for rank in range(2):
        assert f"mt: rank {rank}: lost the connection to another rank" in done[rank].err
