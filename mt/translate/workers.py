"""A pool of processes, one for each GPU, that decode batches side by side.

They are spawned: a process that has used a GPU cannot be forked.

`multiprocessing.Pool` waits for ever for the result of a worker that was killed;
`ProcessPoolExecutor` does not say which one died, or why, and waits at exit for batches that nobody
needs after Ctrl-C. Workers of both outlive a parent that was killed; here their pipe ends, too.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any, NoReturn

import torch

from mt.errors import MtError
from mt.runtime.devices import prepare_cpu
from mt.terminal import print_messages, prints_messages

Result = Any
Function = Callable[..., Result]


@dataclass
class _Worker:
    number: int  # from 1
    process: BaseProcess
    connection: Connection
    jobs: deque[int] = field(default_factory=deque)  # indices of those it was sent, in order


class Pool:
    """Processes that each call a function on one job after the other, until this process ends."""

    def __init__(self, functions: Sequence[Function]) -> None:
        """Start a process for each function. Raises MtError if the system refuses one."""
        self.workers: list[_Worker] = []
        context: Any = multiprocessing.get_context("spawn")
        try:
            for number, function in enumerate(functions, start=1):
                ours, theirs = context.Pipe()
                arguments = (function, theirs, prints_messages())
                process = context.Process(target=_serve, args=arguments, daemon=True)
                process.start()
                theirs.close()
                self.workers.append(_Worker(number, process, ours))
        except OSError as error:
            self.close()
            problem = f"{len(functions)} processes cannot be started ({error.strerror})"
            raise MtError(f"--workers: {problem}; ask for fewer") from error

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        for worker in self.workers:
            worker.process.kill()  # a worker has nothing to tidy up
        for worker in self.workers:
            worker.process.join()
            worker.connection.close()
        self.workers = []

    def imap_unordered(self, jobs: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Result]]:
        """Yield (index of the job, `function(*job)`) as results arrive; jobs start in order.

        A worker has its next job before it is done with one; but the last jobs go to workers that
        have nothing else to do. If a worker fails, dies (MtError), or the caller stops early, the
        pool is closed: results left over would be taken for those of the next call.
        """
        if not self.workers:
            raise MtError("the worker processes have ended; load the model again")
        try:
            yield from self._results(jobs)
        except BaseException:
            self.close()
            raise

    def _results(self, jobs: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Result]]:
        waiting = deque(range(len(jobs)))

        def send_job(worker: _Worker) -> None:
            if waiting and (not worker.jobs or len(waiting) > len(self.workers)):
                worker.jobs.append(waiting.popleft())
                try:
                    worker.connection.send(jobs[worker.jobs[-1]])
                except OSError:
                    self._raise_worker_died(worker)

        for worker in self.workers * 2:
            send_job(worker)
        while busy := {worker.connection: worker for worker in self.workers if worker.jobs}:
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                try:
                    result, error = worker.connection.recv()
                except (EOFError, OSError):
                    self._raise_worker_died(worker)
                if error is not None:
                    raise error[0] from RuntimeError(error[1])  # the traceback there
                done = worker.jobs.popleft()
                send_job(worker)
                yield done, result

    def _raise_worker_died(self, worker: _Worker) -> NoReturn:
        worker.process.join(5)
        code = worker.process.exitcode or 0
        killed = f"was killed by {signal.Signals(-code).name}" if code < 0 else ""
        how = killed or f"exited with code {code}"
        hint = "; the system does that when memory runs out" if code == -signal.SIGKILL else ""
        raise MtError(
            f"worker {worker.number} of {len(self.workers)} (process {worker.process.pid}) "
            f"{how}{hint}. Run again with fewer --workers or a smaller --batch-tokens"
        )


def _serve(function: Function, connection: Connection, prints: bool) -> None:
    """Run a worker: receive jobs and send results until the pipe ends."""
    # Ctrl-C reaches all processes; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if prints:
        print_messages()
    prepare_cpu()
    torch.set_num_threads(1)
    # Jobs and answers larger than a pipe are on their way while the function runs.
    jobs: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    answers: SimpleQueue[tuple[Result, tuple[Exception, str] | None]] = SimpleQueue()
    for pass_on in (lambda: jobs.put(connection.recv()), lambda: connection.send(answers.get())):
        threading.Thread(target=_repeat, args=(pass_on,), daemon=True).start()
    while True:
        job = jobs.get()
        try:
            answers.put((function(*job), None))
        except Exception as error:  # raised again by the parent
            try:
                pickle.loads(pickle.dumps(error))
            except Exception:
                error = RuntimeError(repr(error))
            answers.put((None, (error, traceback.format_exc())))


def _repeat(pass_on: Callable[[], None]) -> NoReturn:
    """Use the pipe until it ends, and this process with it."""
    try:
        while True:
            pass_on()
    except (EOFError, OSError):
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
