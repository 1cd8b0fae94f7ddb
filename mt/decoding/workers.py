"""Batches dealt to one process per core, each with one thread.

Products of a decoder's step are small, and two threads that share them wait for each other most of the time; two
processes do not. Where the system can fork, the weights are shared: they are pages that nobody writes to.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

import torch

from mt.errors import MtError
from mt.runtime.devices import prepare_worker

Answer = Any
Work = Callable[..., Answer]


@dataclass
class _Worker:
    number: int  # from 1
    process: BaseProcess
    connection: Connection
    job: int | None = None  # what it is working on


class _RemoteError(Exception):
    """The traceback of a worker, shown as the cause of the error that it sent."""


class Pool:
    """Processes that all do the same work, given to them one job after the other.

    A context manager: leaving it ends them. Ctrl-C and the end of this process end them too.
    """

    def __init__(self, work: Work, size: int) -> None:
        forks = sys.platform == "linux"
        context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self.workers: list[_Worker] = []
        try:
            self._start(context, work, size, forks)
        except OSError as error:
            self.close()
            raise MtError(
                f"--workers: {size} processes cannot be started ({error.strerror}); ask for fewer"
            ) from error

    def _start(self, context: Any, work: Work, size: int, forks: bool) -> None:
        for number in range(1, size + 1):
            ours, theirs = context.Pipe()
            # What a forked process inherits of the other pipes would keep them open after our end.
            inherited = [*(worker.connection for worker in self.workers), ours] if forks else []
            process = context.Process(
                target=_serve, args=(work, theirs, inherited, forks), daemon=True
            )
            process.start()
            theirs.close()
            self.workers.append(_Worker(number, process, ours))

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        for worker in self.workers:
            worker.process.terminate()
            worker.process.join()
            worker.connection.close()
        self.workers = []

    def run(self, jobs: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Answer]]:
        """(number of the job, what `work(*job)` gave), as they come in; the first jobs are begun first.

        Raises what a worker raised, and MtError if one has died. The pool is closed then, and also where the caller
        stops before the end: answers that nobody waits for would be taken for those of the next jobs.
        """
        if not self.workers:
            raise RuntimeError("the pool is closed")
        try:
            yield from self._run(jobs)
        except BaseException:
            self.close()
            raise

    def _run(self, jobs: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Answer]]:
        waiting = iter(range(len(jobs)))

        def next_job(worker: _Worker) -> None:
            worker.job = next(waiting, None)
            if worker.job is not None:
                try:
                    worker.connection.send(jobs[worker.job])
                except OSError:
                    self._raise_worker_died(worker)

        for worker in self.workers:
            next_job(worker)
        while busy := {
            worker.connection: worker for worker in self.workers if worker.job is not None
        }:
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                try:
                    answer, error = worker.connection.recv()
                except (EOFError, OSError):
                    self._raise_worker_died(worker)
                if error is not None:
                    raise error[0] from _RemoteError(error[1])
                assert worker.job is not None
                done = worker.job
                next_job(worker)
                yield done, answer

    def _raise_worker_died(self, worker: _Worker) -> NoReturn:
        worker.process.join(5)
        code = worker.process.exitcode or 0
        how = (
            f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        )
        hint = "; the system does that when memory runs out" if code == -signal.SIGKILL else ""
        raise MtError(
            f"worker {worker.number} of {len(self.workers)} (process {worker.process.pid}) {how}{hint}. Run again "
            "with fewer --workers or a smaller --batch-tokens"
        )


def _serve(
    work: Work, connection: Connection, inherited: Sequence[Connection], forked: bool
) -> None:
    """The life of a worker."""
    for other in inherited:
        other.close()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C goes to all; the first process decides what it means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not forked:
        prepare_worker()
    torch.set_num_threads(1)
    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            return
        answer: tuple[Answer, tuple[Exception, str] | None]
        try:
            answer = work(*job), None
        except Exception as error:  # it is raised again where the answer is waited for
            answer = None, (_portable(error), traceback.format_exc())
        try:
            connection.send(answer)
        except OSError:
            return


def _portable(error: Exception) -> Exception:
    """The error if it survives the way to another process, else its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(repr(error))
    return error
