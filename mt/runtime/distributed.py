"""Training in several processes with torch.distributed: this process's rank, and collectives.

torchrun starts the processes, or anything else that sets its environment: RANK, WORLD_SIZE,
LOCAL_RANK, MASTER_ADDR and MASTER_PORT. With one process every collective returns at once.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from mt import errors
from mt.errors import ConfigError, DataError, MtError, OtherRankFailedError
from mt.runtime.machine import signals_to, usable_cores

T = TypeVar("T")
NOT_SHARED = (
    "All processes must see what rank 0 writes: put the run directory, and train.init_from, on a "
    "file system that all machines share, where nothing else writes"
)
# How long a rank waits for the others within an update,
TIMEOUT = timedelta(minutes=15)
# and while rank 0 trains a tokenizer or stores the corpus, or one rank validates longer.
PATIENT_TIMEOUT = timedelta(days=7)


@dataclass(frozen=True)
class World:
    """This process among the `size` processes of one training."""

    rank: int = 0
    size: int = 1
    local_rank: int | None = None  # on this machine; None if there is only one process
    local_size: int = 1  # processes on this machine
    patient_group: Any = None  # a gloo process group with PATIENT_TIMEOUT; None if not connected
    # (size, weights): a row for the gradients of each rank, in memory that all of them see
    rows: Tensor | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the main process, which alone logs and writes files."""
        return self.rank == 0

    def on_main(self, call: Callable[[], T]) -> T:
        """Call `call` in the main process only; its result, or an error, is that of every rank."""
        if self.size == 1:
            return call()
        results = [self.all_or_raise(lambda: call() if self.is_main else None)]
        dist.broadcast_object_list(results, src=0, group=self.patient_group)
        return cast("T", results[0])

    def all_or_raise(self, call: Callable[[], T]) -> T:
        """Call `call` in every rank, and return this rank's result if no rank raised an MtError.

        Otherwise the main process raises the error of the lowest rank that failed, with its rank,
        and all others raise OtherRankFailedError. A collective inside `call` must be reached by all
        ranks or by none.
        """
        if self.size == 1:
            return call()
        result, own_error = None, None
        try:
            result = call()
        except MtError as error:
            own_error = error
        for rank, failure in enumerate(self.all_gather(own_error)):
            if failure is not None and not self.is_main:
                raise OtherRankFailedError(failure.exit_code)
            if failure is not None:
                raise own_error or type(failure)(f"rank {rank}: {failure}")
        return cast("T", result)

    def main_first(self, create: Callable[[], T], load: Callable[[], T]) -> T:
        """Call `create` in the main process, then `load` in the others; if one fails, all do."""
        created = self.all_or_raise(lambda: create() if self.is_main else None)

        def created_or_loaded() -> T:
            try:
                return cast("T", created) if self.is_main else load()
            except MtError as error:
                raise type(error)(f"{error} {NOT_SHARED}") from error

        return self.all_or_raise(created_or_loaded)

    def require_same(self, run_dir: Path, **values: object) -> None:
        """Raise DataError if another rank has read other `values` from `run_dir` than rank 0."""
        ours = {name.replace("_", " "): repr(value) for name, value in values.items()}
        expected = self.all_gather(ours)[0]

        def compare() -> None:
            if differing := [name for name in ours if ours[name] != expected[name]]:
                others = " and another ".join(differing)
                problem = f"holds another {others} than rank 0 sees. {NOT_SHARED}"
                raise DataError(f"run directory {run_dir}: {problem}")

        self.all_or_raise(compare)

    def all_gather(self, value: T) -> list[T]:
        """The values of all ranks, in rank order; any picklable object."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.patient_group)
        return values

    def all_reduce_max(self, number: int) -> int:
        """The maximum over all ranks, on the CPU: it waits for no device."""
        if self.size == 1:
            return number
        dist.all_reduce(tensor := torch.tensor(number), dist.ReduceOp.MAX)
        return int(tensor)

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The elementwise sum over all ranks, on the CPU."""
        values = values.cpu()
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def share_weights(self, weights: Iterable[Tensor]) -> None:
        """Copy the weights of rank 0 to all; NCCL takes its memory then, before it is measured."""
        if self.patient_group is not None:
            for weight in weights:
                dist.broadcast(weight.detach(), src=0)

    def with_shared_memory(self, weights: Iterable[Tensor]) -> World:
        """This world, with `rows` where its ranks share a machine, and the weights are on its CPU.

        To gloo another process is another machine: a sum goes through the layers of the network.
        An update of 2,048 tokens of two ranks by small.yaml takes 473 ms instead of 504 (means, Zen
        4; 8 for the sum, 12 for the slower rank), one of 1,024 in each of two runs 446.
        """
        trained = [weight for weight in weights if weight.requires_grad]
        here = self.size == self.local_size and all(weight.is_cpu for weight in trained)
        if self.patient_group is None or not here or not hasattr(os, "memfd_create"):
            return self
        file, name = -1, f"mt-{uuid.uuid4().hex}"
        with suppress(OSError):  # a sandbox may forbid it
            # Such a file goes with its processes; those in /dev/shm may be limited to 64 MB.
            file = os.memfd_create(name) if self.is_main else -1
        path, name = self.on_main(lambda: (f"/proc/{os.getpid()}/fd/{file}", name))
        rows = None
        with suppress(OSError, RuntimeError):
            # A rank in a container of its own finds other processes under the same numbers.
            if os.readlink(path).startswith(f"/memfd:{name} "):
                size = self.size * sum(weight.numel() for weight in trained)
                rows = torch.from_file(path, shared=True, size=size).view(self.size, -1)
        seen_by_all = all(self.all_gather(rows is not None))
        if file >= 0:
            os.close(file)
        return replace(self, rows=rows if seen_by_all else None)

    def sum_gradients(self, weights: Iterable[Tensor]) -> None:
        """Replace new gradients of `weights` by their sum over all ranks, a missing one being 0."""
        # DistributedDataParallel sums the first gradients while the backward pass computes others.
        # One all-reduce after the pass does not, but compiled graphs stay whole, ranks may have
        # different numbers of batches, and a rank that fails within the pass can still take part.
        # Its cost is an estimate that nobody has measured on several GPUs: 240 MB (60 million
        # weights) take 1 to 2 ms over NVLink, 12 to 19 over PCIe, in updates of 50 to 90 ms.
        if self.rows is not None:
            flatten_gradients(weights, self.rows[self.rank])
            dist.barrier()
            # Each rank sums its part of all rows, (size, weights / size), and leaves the sum there.
            total, *others = self.rows.tensor_split(self.size, dim=1)[self.rank]
            for other in others:
                total += other
            for other in others:
                other.copy_(total)
            dist.barrier()
        elif self.patient_group is not None:
            dist.all_reduce(flatten_gradients(weights))


def flatten_gradients(weights: Iterable[Tensor], out: Tensor | None = None) -> Tensor:
    """Copy the gradients into one buffer and make them views of it; a missing one counts as 0."""
    trained = [weight for weight in weights if weight.requires_grad]
    parts = [torch.zeros_like(w) if w.grad is None else w.grad for w in trained]
    total = torch.cat([part.flatten() for part in parts], out=out)
    for weight, part in zip(trained, total.split([w.numel() for w in trained]), strict=True):
        weight.grad = part.view_as(weight)
    return total


def world_from_environment() -> World:
    """This process as torchrun's environment variables describe it; ConfigError if they cannot."""
    if (world_size := _env_int("WORLD_SIZE", 1)) == 1:
        return World()
    required = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if missing := [name for name in required if name not in os.environ]:
        must = f"so {', '.join(missing)} must be set too; torchrun sets them all"
        raise ConfigError(f"WORLD_SIZE is {world_size}, {must}")
    _env_int("MASTER_PORT", most=(1 << 16) - 1)
    rank, local_rank = _env_int("RANK", most=world_size - 1), _env_int("LOCAL_RANK")
    return World(rank, world_size, local_rank, max(1, _env_int("LOCAL_WORLD_SIZE", 1)))


def _env_int(name: str, default: int = 0, most: int = 1 << 30) -> int:
    text = os.environ.get(name, str(default))
    if not text.isascii() or not text.isdigit() or int(text) > most:
        must = f"must be a whole number up to {most}, found {text!r}"
        raise ConfigError(f"{name}: {must}; torchrun sets it")
    return int(text)


@contextmanager
def process_group(world: World, on_gpu: bool) -> Iterator[World]:
    """Inside, the ranks are connected: by NCCL for tensors on GPUs, by gloo for the rest."""
    if world.size == 1:
        yield world
        return
    n_compilers = max(1, min(32, usable_cores() // world.local_size))  # torch: 32 in each rank
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(n_compilers))
    # Ctrl-C and SIGTERM end the process: torch waits without running Python's handlers.
    handled = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    with signals_to(signal.SIG_DFL, handled):
        connected = _connect(world, on_gpu)
    try:
        yield connected
        # Rank 0 may still be writing, and batch systems end a job when one of its processes ends.
        dist.barrier(group=connected.patient_group)
        dist.destroy_process_group()  # here only: it would wait for a rank that was lost
    except OtherRankFailedError:
        # Wait for the message of rank 0: torchrun kills all ranks as soon as one exits.
        with suppress(RuntimeError):
            dist.barrier(group=connected.patient_group)
        raise
    except RuntimeError as error:
        if not _is_connection_error(error):
            raise
        raise errors.RankLostError(
            f"rank {world.rank}: lost the connection to another rank ({_reason(error)}). "
            "Everything saved earlier is intact: run the same command again, or let torchrun do it "
            "with --max-restarts"
        ) from error


def _connect(world: World, on_gpu: bool) -> World:
    try:
        backend, store = "cpu:gloo,cuda:nccl" if on_gpu else "gloo", _rendezvous_store(world)
        who: dict[str, Any] = {"rank": world.rank, "world_size": world.size}
        dist.init_process_group(backend, store=store, timeout=TIMEOUT, **who)
        patient_group = dist.new_group(backend="gloo", timeout=PATIENT_TIMEOUT)
    except RuntimeError as error:
        if not _is_connection_error(error):
            raise
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ConfigError(
            f"rank {world.rank}: the rendezvous of {world.size} processes at {address} failed "
            f"({_reason(error)}). MASTER_ADDR must be the machine of rank 0, and MASTER_PORT a "
            "free port there that all machines can reach; torchrun sets both (--standalone; on "
            "several machines --rdzv-endpoint)"
        ) from error
    return replace(world, patient_group=patient_group)


def _reason(error: RuntimeError) -> str:
    """The first line of an error of gloo or NCCL, without places in their sources, or signs."""
    return " ".join(re.sub(r"\[\S*/\S*:\d+\]|[^\x20-\x7e]", " ", errors.first_line(error)).split())


def _is_connection_error(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error)  # gloo has no error class


def report_once(error: MtError) -> NoReturn:
    """Raise an error in rank 0 alone, all connected: torchrun kills all when the first exits."""

    def fail() -> NoReturn:
        raise error

    with process_group(world_from_environment(), on_gpu=False) as world:
        world.all_or_raise(fail)
    raise AssertionError("all_or_raise returned although every rank failed")


def _rendezvous_store(world: World) -> Any:
    """The key-value store through which the ranks of this start, and of no earlier one, connect.

    torchrun's agent offers a store that outlives a restart (seen in torch 2.13) and still holds
    the addresses of dead processes. So rank 0 opens a new one, and only leaves its port there.
    """
    store, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=TIMEOUT))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return store
    tcp_store: Any = dist.TCPStore  # type: ignore[attr-defined] # not in torch's __all__
    settings = {"world_size": world.size, "timeout": TIMEOUT, "wait_for_workers": False}
    host, key = os.environ["MASTER_ADDR"], "mt/port"
    if world.is_main:
        opened = tcp_store(host, 0, is_master=True, **settings)
        store.set(key, str(opened.port))
        return opened
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while time.monotonic() < deadline:
        port = int(store.get(key))
        with suppress(OSError):
            socket.create_connection((host, port), timeout=5).close()
            break
        time.sleep(0.2)  # the port of an earlier start, until rank 0 has left its own
    return tcp_store(host, port, is_master=False, **settings)
