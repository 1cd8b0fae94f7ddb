"""Processes that train together: started, awaited, killed and compared."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import multiprocessing.forkserver
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from conftest import QUICK, Ended, Mapped, MonkeyPatch, merged, mt_command
from torch import Tensor

from mt.cli.main import main
from mt.config.load import config_from_mapping
from mt.model import checkpoint
from mt.runs import model_folder
from mt.runtime.machine import free_port
from mt.training.launch import train


def distributed_settings(tiny_mapping: Mapped) -> dict[str, Any]:
    """A run whose weights do not depend on the last bit of a sum.

    Adam makes full-size steps of rounding errors. So there are no key biases, whose gradient is 0
    but for rounding, and eps is large beside them. ReLU's gradient jumps at 0, GELU's does not.
    """
    changes = {
        "data": {"test": []},
        "model": {"dropout": 0.0, "attention_bias": False, "activation": "gelu"},
        "optim": {"eps": 1e-3},
        "train": {"max_steps": 12, "valid_every": 6, "log_every": 3, "ema": 0.9},
    }
    return merged(merged(tiny_mapping, QUICK), changes)


def torchrun(processes: int, *options: object) -> list[str]:
    """The command line of torchrun, up to the module to run."""
    launcher = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={processes}",
    ]  # fmt: skip
    return [*launcher, *map(str, options), "-m"]


def command_of(mapping: Mapped, run: Path) -> list[str]:
    """`mt train` in this run directory, as a module and its arguments."""
    config = run.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(dict(mapping)), encoding="utf-8")
    return ["mt", "train", "-c", str(config), "--run-dir", str(run), "--device", "cpu"]


STARTED: list[subprocess.Popen[str]] = []


def start(command: list[str], **variables: object) -> subprocess.Popen[str]:
    environment = (
        mt_command()[1]
        | {"OMP_NUM_THREADS": "1"}
        | {name: str(value) for name, value in variables.items()}
    )
    pipe = subprocess.PIPE
    STARTED.append(
        subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, encoding="utf-8")
    )
    return STARTED[-1]


def ended(process: subprocess.Popen[str], seconds: float = 100) -> Ended:
    out, err = process.communicate(timeout=seconds)
    return Ended(process.returncode, out.encode(), err)


def trained(mapping: Mapped, run: Path, processes: int) -> Path:
    """Train with so many processes, and return the run directory."""
    if processes == 1:
        assert train(config_from_mapping(mapping, "test"), run, "cpu").exit_code == 0
        return run
    (folder := run.with_suffix(".ranks")).mkdir(exist_ok=True)
    done = run_ranks(folder, command_of(mapping, run)[1:], processes=processes)
    assert [rank.code for rank in done] == [0] * processes, done[0].err
    return run


def state_of(run: Path) -> dict[str, Any]:
    return checkpoint.load_state(run / "checkpoints" / "last")


def tensors_of(run: Path) -> dict[str, Tensor]:
    """Weights, their average, and the optimiser's moments."""
    state, tensors = state_of(run), checkpoint.load_weights(run / "checkpoints" / "last")
    moments = {
        f"{key} {i}": m[key]
        for i, m in state["optimizer"]["state"].items()
        for key in ("exp_avg", "exp_avg_sq")
    }
    averages = {f"ema {name}": tensor for name, tensor in tensors.items()}
    return averages | state["weights"] | moments


def check_close(run: Path, other: Path) -> None:
    """Assert equal weights within 1e-6, at the same position in the data."""
    ours, others = tensors_of(run), tensors_of(other)
    assert ours.keys() == others.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], others[name], rtol=0, atol=1e-6, msg=name)
    own, theirs = (
        {
            key: value
            for key, value in state_of(path)["train"].items()
            if key not in ("seconds", "scores")
        }
        for path in (run, other)
    )
    assert own == theirs


def stop_all() -> None:
    """Terminate what `start` has started and is still running."""
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.terminate()
        process.communicate()


def ranks_below(process: subprocess.Popen[str]) -> dict[int, int]:
    """rank -> process id of the processes that torchrun has started."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1]) == process.pid:
                environment = (folder / "environ").read_bytes().split(b"\0")
                (rank,) = (int(line[5:]) for line in environment if line.startswith(b"RANK="))
                found[rank] = int(folder.name)
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def has_step(run: Path, step: int) -> bool:
    return (run / "checkpoints" / model_folder.step_name(step)).exists()


@functools.cache
def fork_server() -> Any:
    """Starts processes that need not import torch and mt, which takes seconds: they are forked."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "mt.training.launch", "processes"])
    with MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        multiprocessing.forkserver.ensure_running()
    return context


def run_ranks(
    folder: Path, arguments: list[str], run: Callable[[], Any] = main, processes: int = 2,
    seconds: float = 100,
) -> list[Ended]:  # fmt: skip
    """Run `mt` in the folders `0`, `1`, ... as so many ranks, without torchrun.

    torchrun would hide the exit codes. `run` is called in place of mt's `main`. After `seconds` the
    ranks that still run are killed; their exit code is None.
    """
    common = {
        "WORLD_SIZE": processes,
        "LOCAL_WORLD_SIZE": processes,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
    }
    started = []
    for rank in range(processes):
        there = folder / str(rank)
        there.mkdir(exist_ok=True)
        variables = {"RANK": rank, "LOCAL_RANK": rank, **common}
        started.append(
            fork_server().Process(target=_run_rank, args=(there, variables, arguments, run))
        )
        started[-1].start()
    try:
        end = time.monotonic() + seconds
        for process in started:
            process.join(max(0.0, end - time.monotonic()))
        return [
            Ended(process.exitcode, (there / "out").read_bytes(), (there / "err").read_text())
            for process, there in ((one, folder / str(i)) for i, one in enumerate(started))
        ]
    finally:
        for process in started:
            process.kill()


def _run_rank(
    folder: Path, variables: Mapping[str, object], arguments: list[str], run: Callable[[], Any]
) -> None:
    os.chdir(folder)
    os.environ.update({name: str(value) for name, value in variables.items()})
    for number, name in ((1, "out"), (2, "err")):
        with open(name, "wb") as file:
            os.dup2(file.fileno(), number)
    sys.argv = ["mt", *arguments]
    run()


def shortened(corpus: Path, copy: Path) -> None:
    """Another corpus of the same names: the first half of each text."""
    copy.mkdir(parents=True)
    for path in corpus.iterdir():
        lines = path.read_bytes().splitlines(keepends=True)
        (copy / path.name).write_bytes(b"".join(lines[: len(lines) // 2]))
