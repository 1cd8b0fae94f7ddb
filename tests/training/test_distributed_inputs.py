"""What the ranks see: run directories, memory, GPUs, and each other."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Mapped, MonkeyPatch, log_of, merged
from faults import raising
from messages import raises_saying, says
from processes import command_of, distributed_settings, run_ranks, shortened, trained

from mt.cli.main import main
from mt.config.load import load_config
from mt.errors import ConfigError
from mt.runtime.devices import Device
from mt.runtime.distributed import World, process_group
from mt.runtime.machine import free_port
from mt.training.launch import agree_on_devices


@pytest.fixture(scope="module")
def settings(tiny_mapping: Mapped) -> dict[str, Any]:
    return distributed_settings(tiny_mapping)


@pytest.mark.parametrize("there", ["nothing", "another run"])
def test_a_run_directory_that_is_not_shared_is_refused(
    there: str, settings: Mapped, tiny_corpus: Path, tmp_path: Path
) -> None:
    """One message, by rank 0; nothing in the run directory of rank 1 changes."""
    mapping = merged(settings, {"data": {"valid": None}})
    other = tmp_path / "1" / "run"
    start_of_message = "holds no .lock. All processes must see what rank 0 writes: "
    if there == "another run":
        shortened(tiny_corpus, tmp_path / "corpus")
        changes = {"data": {"root": str(tmp_path / "corpus")}, "train": {"max_steps": 2}}
        trained(merged(mapping, changes), other, 1)
        start_of_message = "holds another tokenizer and another token store than rank 0 sees. All "
    before = {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}
    command = command_of(mapping, tmp_path / "run")
    command[command.index("--run-dir") + 1] = "run"
    first, second = run_ranks(tmp_path, command[1:])
    assert (first.code, second.code, second.err) == (2, 2, "")
    (message_line,) = [line for line in first.err.splitlines() if line.startswith("mt: ")]
    assert message_line.startswith(f"mt: rank 1: run directory run: {start_of_message}")
    remedy = "on a file system that all machines share, where nothing else writes"
    assert message_line.endswith(remedy)
    assert {path: path.read_bytes() for path in other.rglob("*") if path.is_file()} == before


def test_all_ranks_train_with_the_config_of_rank_0(settings: Mapped, tmp_path: Path) -> None:
    """With seeds of their own, each would have its own order of the data."""
    short = {"data": {"valid": None}, "train": {"max_steps": 1}}
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        command_of(merged(settings, short | {"run": {"seed": rank}}), tmp_path / str(rank) / "run")
    command = ["train", "-c", "run.yaml", "--run-dir", str(tmp_path / "run"), "--device", "cpu"]
    done = run_ranks(tmp_path, command)
    assert [one.code for one in done] == [0, 0], done[0].err + done[1].err
    assert load_config(str(tmp_path / "run" / "config.yaml")).config.run.seed == 0


@pytest.mark.slow
def test_fresh_can_start_from_the_weights_of_the_same_run(
    settings: Mapped, copied_run: Path, tmp_path: Path
) -> None:
    """Both ranks have read them before rank 0 renames the folder."""
    model = {"model": {"attention_bias": True, "activation": "relu"}}  # as there
    mapping = merged(
        merged(settings, model),
        {"data": {"valid": None}, "train": {"init_from": str(copied_run), "max_steps": 1}},
    )
    done = run_ranks(tmp_path, [*command_of(mapping, copied_run)[1:], "--fresh"])
    assert [one.code for one in done] == [0, 0], done[0].err + done[1].err
    assert "pieces kept, 0 new, 0 dropped" in log_of(copied_run)
    assert [path.name for path in tmp_path.glob("run.old*")] == ["run.old-1"]


def with_little_memory(function: str) -> None:
    """Run mt; rank 1 has no memory left for this function."""
    with MonkeyPatch.context() as patch:
        if os.environ["RANK"] == "1":
            patch.setattr(function, raising(torch.OutOfMemoryError))
        main()


def test_too_little_memory_of_one_rank_is_reported_once(settings: Mapped, tmp_path: Path) -> None:
    for function, message in [
        ("batch_loss", "batch.tokens_per_batch: a batch of "),
        ("Updater.skip_step", "the memory of CPU in fp32, 1 thread is too small: "),
    ]:
        mapping = merged(settings, {"data": {"valid": None}, "batch": {"tokens_per_batch": 100}})
        run = partial(with_little_memory, f"mt.training.update.{function}")
        first, second = run_ranks(tmp_path, command_of(mapping, tmp_path / function)[1:], run)
        assert (first.code, second.code, second.err) == (2, 2, "")
        (message_line,) = [line for line in first.err.splitlines() if line.startswith("mt: ")]
        assert message_line.startswith(f"mt: rank 1: {message}")


def test_a_failed_rendezvous(monkeypatch: MonkeyPatch) -> None:
    """A restart would not help, so this is no RankLostError."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", port)
        parts = "rank 0: ", f"2 processes at 127.0.0.1:{port}", "MASTER_PORT"
        with raises_saying(ConfigError, *parts), process_group(World(0, 2), on_gpu=False):
            pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_rank_that_waits_for_rank_0(number: signal.Signals) -> None:
    """torch waits 15 minutes for a port on which nothing listens, and lets no handler run."""
    child = os.fork()
    if not child:
        signal.signal(number, lambda *_: None)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        with suppress(BaseException), process_group(World(1, 2), on_gpu=False):
            pass
        os._exit(0)
    end = time.monotonic() + 30
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        time.sleep(0.1)
        os.kill(child, number if time.monotonic() < end else signal.SIGKILL)
    assert os.waitstatus_to_exitcode(ended[1]) == -number


def with_four_gpus() -> None:
    """Run mt; rank 1 is the fifth process on a machine with four GPUs."""
    with MonkeyPatch.context() as patch:
        if os.environ["RANK"] == "1":
            patch.setattr(torch.cuda, "is_available", lambda: True)
            patch.setattr(torch.cuda, "device_count", lambda: 4)
            patch.setenv("LOCAL_RANK", "4")
        main()


def test_a_process_without_a_gpu_is_named(settings: Mapped, tmp_path: Path) -> None:
    """Rank 0, whose device is fine, reports it."""
    run = tmp_path / "run"
    command = command_of(settings, run)[1:]
    command[command.index("--device") + 1] = "auto"
    first, second = run_ranks(tmp_path, command, with_four_gpus)
    assert (first.code, second.code, second.err) == (2, 2, "")
    assert says(first.err, "mt: rank 1: --device: cuda:4", "sees 4 CUDA devices", "torchrun")
    assert first.err.count("\n") == 1
    assert not run.exists()


@dataclass(frozen=True)
class FakeWorld(World):
    """The last of three ranks; `gpus` are the UUIDs that all_gather returns."""

    gpus: tuple[str | None, ...] = ()

    def all_gather(self, value: Any) -> list[Any]:
        return list(self.gpus)

    def all_or_raise(self, do: Callable[[], Any]) -> Any:
        return do()


def test_two_processes_on_one_gpu_are_refused(monkeypatch: MonkeyPatch) -> None:
    """If each rank sees one GPU only, its UUID shows whether it is the same."""
    monkeypatch.setattr(
        "mt.training.launch.gpu_uuid", lambda device: "a" if device.is_cuda else None
    )
    gpu, cpu = (Device(torch.device(name), "fp32") for name in ("cuda:0", "cpu"))
    assert agree_on_devices(gpu, FakeWorld(2, 3, 2, gpus=("c", "b", "a"))) is gpu
    assert agree_on_devices(cpu, FakeWorld(2, 3, 2, gpus=(None, None, None))) is cpu
    with raises_saying(
        ConfigError, "--device: cuda", "same GPU", "rank 1", "one process for each GPU"
    ):
        agree_on_devices(gpu, FakeWorld(2, 3, 2, gpus=("b", "a", "a")))
