"""The processes of one training, its ranks: who they are, and how they agree. One alone needs no agreement.

They are started by torchrun, or by anything else that sets its environment: RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from mt.errors import ConfigError, DataError, MtError, OtherRankFailedError, RankLostError

T = TypeVar("T")
# The remedy where one process does not see what the first one has written.
SHARED = (
    "All processes must see what the first one writes: put the run directory, and train.init_from, on a file system "
    "that all machines share, where nothing else writes"
)
# How long the others wait while the first learns the tokens and stores the corpus, or while another one has the longer
# share of a validation; and how long anybody waits for the rest within an update.
PREPARATION, TRAINING = timedelta(days=7), timedelta(minutes=15)


@dataclass(frozen=True)
class World:
    """This process among those that train together."""

    rank: int = 0
    size: int = 1
    local_rank: int | None = None  # among those on this machine; None where there is but one in all
    local_size: int = 1  # how many there are on this machine
    patient_group: Any = None  # the group of processes that waits long

    @property
    def is_main(self) -> bool:
        """Whether this is the process that speaks and writes."""
        return self.rank == 0

    def on_main(self, decide: Callable[[], T]) -> T:
        """What `decide` returns in the first rank, which alone calls it, in all of them.

        Raises OtherRankFailedError in the others where it fails.
        """
        if self.size == 1:
            return decide()
        told: list[Any] = [0, None]  # exit code, value
        if self.is_main:
            try:
                told[1] = decide()
            except MtError as error:
                dist.broadcast_object_list([error.exit_code, None], src=0, group=self.patient_group)
                raise
        dist.broadcast_object_list(told, src=0, group=self.patient_group)
        if told[0]:
            raise OtherRankFailedError(told[0])
        return cast("T", told[1])

    def all_or_raise(self, do: Callable[[], T]) -> T:
        """What `do` returns in this rank, where it fails in none of them.

        Else the first rank raises the fault of the lowest one that has any, and the others OtherRankFailedError. What
        `do` asks of the other ranks must fail in all or in none.
        """
        if self.size == 1:
            return do()
        done, fault = list[T](), None
        try:
            done.append(do())
        except MtError as error:
            fault = error
        for rank, other in enumerate(self.all_gather(fault)):
            if other is not None and not self.is_main:
                raise OtherRankFailedError(other.exit_code)
            if other is not None:
                raise fault or type(other)(f"rank {rank}: {other}")
        return done[0]

    def main_first(self, make: Callable[[], T], find: Callable[[], T]) -> T:
        """What the first rank makes, in files; when they are there the others find them, and write nothing.

        Fails in all ranks where it fails in one, as `all_or_raise` does.
        """
        made = list[T]()
        self.on_main(lambda: made.append(make()))  # what it returns stays here

        def found() -> T:
            try:
                return find()
            except MtError as error:
                raise type(error)(f"{error} {SHARED}") from error

        return self.all_or_raise(lambda: made[0] if self.is_main else found())

    def require_same(self, folder: Path, **seen: object) -> None:
        """Raises DataError in the first rank where another one sees something else in `folder` than it does.

        The others end with OtherRankFailedError.
        """
        first, *others = self.all_gather(
            {name.replace("_", " "): repr(value) for name, value in seen.items()}
        )
        for rank, other in enumerate(others, start=1):
            if differing := [name for name in first if other[name] != first[name]]:
                fault = f"rank {rank}: run directory {folder}: has another {' and another '.join(differing)} there"
                raise (
                    DataError(f"{fault}. {SHARED}")
                    if self.is_main
                    else OtherRankFailedError(DataError.exit_code)
                )

    def all_gather(self, value: T) -> list[T]:
        """The values of all ranks, in their order, in all of them."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.patient_group)
        return values

    def all_reduce_max(self, number: int) -> int:
        """The largest of the numbers that the ranks give. Asked once an update: it waits for no device."""
        if self.size == 1:
            return number
        asked = torch.tensor(number)
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        return int(asked)

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The sum of a tensor over the ranks, on the CPU."""
        values = values.cpu()
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as one of as many equal ones as there are ranks: gradients become the mean over all of them."""
        if self.size == 1:
            return model
        # The only buffers are tables of sinusoids, which never change. torch 2.13 calls this setting otherwise.
        known = signature(DistributedDataParallel).parameters
        buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        settings: dict[str, Any] = {"gradient_as_bucket_view": True, buffers: False}
        return DistributedDataParallel(model, **settings)

    def no_sync(self, replica: nn.Module) -> AbstractContextManager[None]:
        """Inside, gradients stay where they are: more will be added before they are exchanged."""
        if self.size == 1:
            return nullcontext()
        return cast(
            "AbstractContextManager[None]", cast("DistributedDataParallel", replica).no_sync()
        )


def world_from_environment() -> World:
    """This process as the environment describes it; alone where that speaks of no others.

    Raises ConfigError where it makes no sense.
    """
    defaults = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}
    rank, count, local = (_number(name, default) for name, default in defaults.items())
    if count == 1:
        return World()
    needed = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if missing := [name for name in needed if name not in os.environ]:
        raise ConfigError(
            f"WORLD_SIZE is {count}, so {', '.join(missing)} must be set too; torchrun sets them all"
        )
    if rank >= count:
        raise ConfigError(
            f"RANK: must be below WORLD_SIZE, which is {count}, found {rank}; torchrun sets both"
        )
    return World(rank, count, local, max(1, _number("LOCAL_WORLD_SIZE", 1)))


def current_jobs() -> list[str]:
    """The jobs that a restart of this process, by torchrun or by a queue, would belong to."""
    slurm = os.environ.get("SLURM_JOB_ID")
    return [*_of_torchrun(), *([f"slurm {slurm}"] if slurm else [])]


def restarted_jobs() -> list[str]:
    """Those of `current_jobs` that may have had a start before this one.

    Commands of one Slurm allocation have the same job; only a job that Slurm has put back into its queue is restarted.
    """
    requeued = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
    return current_jobs() if requeued else _of_torchrun()


def _of_torchrun() -> list[str]:
    """torchrun starts its processes once, but for restarts; its agent is their parent."""
    return (
        [f"torchrun {socket.gethostname()} {os.getppid()}"]
        if "TORCHELASTIC_RUN_ID" in os.environ
        else []
    )


@contextmanager
def process_group(world: World, on_gpu: bool) -> Iterator[World]:
    """The ranks able to speak to each other: over NCCL what lies on GPUs, over gloo the rest.

    Inside, a process that has gone is a RankLostError. Raises ConfigError where they do not find each other.
    """
    if world.size == 1:
        yield world
        return
    try:
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(
            backend,
            store=_rendezvous_store(world),
            rank=world.rank,
            world_size=world.size,
            timeout=TRAINING,
        )
        patient_group = dist.new_group(backend="gloo", timeout=PREPARATION)
    except RuntimeError as error:
        if not _is_of_network(error):
            raise
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ConfigError(
            f"rank {world.rank}: the {world.size} processes do not find each other at {place} "
            f"({str(error).splitlines()[0]}). MASTER_ADDR must be the machine of rank 0 and MASTER_PORT a free port "
            "there, which all can reach; torchrun sets them itself (--standalone; on several machines --rdzv-endpoint)"
        ) from error
    try:
        yield replace(world, patient_group=patient_group)
        # The first rank may still be writing, and batch systems end all processes of a job when one has ended.
        dist.barrier(group=patient_group)
        dist.destroy_process_group()  # only here: where another rank is lost it would be waited for
    except OtherRankFailedError:
        # Until the first rank, which tells why, has gone: torchrun ends all when it sees one end.
        with suppress(RuntimeError):
            dist.barrier(group=patient_group)
        raise
    except RuntimeError as error:
        if not _is_of_network(error):
            raise
        raise RankLostError(
            f"rank {world.rank} has lost contact with the others ({str(error).splitlines()[0]}). What was saved before "
            "is whole: run the same command again, or let torchrun do it with --max-restarts"
        ) from error


def _is_of_network(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error)  # gloo has no error of its own


def report_once(error: MtError) -> NoReturn:
    """Raise a fault that was found before the processes could speak; in all but the first, OtherRankFailedError.

    Each of them on its own would not do: torchrun ends all when it sees one end, also the one that is to tell.
    """

    def failed() -> NoReturn:
        raise error

    with process_group(world_from_environment(), on_gpu=False) as world:
        world.all_or_raise(failed)
    raise AssertionError  # together has raised


def _rendezvous_store(world: World) -> Any:
    """Where the processes of this start find each other, and no process of an earlier one.

    torchrun's agent offers a store of its own, but (seen in torch 2.13) it outlives a restart, and with it the
    addresses of processes that are gone. So the first process opens another one and only leaves its port there.
    """
    store, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=TRAINING))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return store
    make: Any = dist.TCPStore  # type: ignore[attr-defined] # torch does not say that it exports it
    host, key = os.environ["MASTER_ADDR"], "mt/port"
    if world.is_main:
        own = make(host, 0, world.size, is_master=True, timeout=TRAINING, wait_for_workers=False)
        store.set(key, str(own.port))
        return own
    end = time.monotonic() + TRAINING.total_seconds()
    while (
        not _answers(host, port := int(store.get(key))) and time.monotonic() < end
    ):  # it is of an earlier start
        time.sleep(0.2)
    return make(host, port, world.size, is_master=False, timeout=TRAINING, wait_for_workers=False)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def _number(name: str, default: int) -> int:
    found = os.environ.get(name, str(default))
    if not found.isascii() or not found.isdigit():
        raise ConfigError(f"{name}: must be a whole number, found {found!r}; torchrun sets it")
    return int(found)
