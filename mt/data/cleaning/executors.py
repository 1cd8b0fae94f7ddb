"""Run the stages of a cleaning: in this process, or in several on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from mt.data.cleaning.plan import CleaningPlan
from mt.data.cleaning.stages import Stage, apply, decide_all, find_duplicates, read, score
from mt.errors import MtError

# Gets the name of a stage, and how many of its tasks are done, of how many.
Progress: TypeAlias = Callable[[str, int, int], None]

STAGES: dict[str, Stage] = {
    "reading": read,
    "scoring": score,
    "deciding": decide_all,
    "finding duplicates": find_duplicates,
    "writing": apply,
}


def tasks(plan: CleaningPlan, stage: str) -> int:
    """Into how many tasks a stage can be divided: parts, buckets or shards."""
    match stage:
        case "reading":
            return len(plan.parts)
        case "finding duplicates":
            return plan.buckets(plan.shards()) if plan.finds_duplicates else 0
        case _:
            return len(plan.shards())


def run_here(plan: CleaningPlan, workers: int, progress: Progress) -> None:
    """Run all stages in up to so many processes. Raises what a stage raises.

    After Ctrl-C, or once a task has failed, the others are ended at once.
    """
    with ExitStack() as stack:
        pool: ProcessPoolExecutor | None = None
        for name in STAGES:
            world = tasks(plan, name)
            progress(name, 0, world)
            if min(workers, world) <= 1:
                for rank in range(world):
                    STAGES[name](plan, rank, world)
                    progress(name, rank + 1, world)
                continue
            pool = pool or stack.enter_context(process_pool(workers, _start_worker, plan))
            _run_in(pool, name, world, progress)


def _run_in(pool: ProcessPoolExecutor, name: str, world: int, progress: Progress) -> None:
    futures: list[Future[None]] = [
        pool.submit(_run_task, name, rank, world) for rank in range(world)
    ]
    try:
        for done, future in enumerate(as_completed(futures), start=1):
            future.result()
            progress(name, done, world)
    except BrokenProcessPool:
        raise MtError(
            "a process of the cleaning was killed, perhaps for want of memory. The same command "
            "continues; with fewer --workers it takes less memory"
        ) from None


@contextmanager
def process_pool(
    workers: int, start: Callable[[Any], None], value: Any
) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes, each of which calls `start` with a value first.

    After an error they are ended within a task.
    """
    before = set(multiprocessing.active_children())
    # Not by fork: the process may have threads, of torch for example.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, _start, (start, value))
    try:
        yield pool
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start(start: Callable[[Any], None], value: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the main process, which ends this
    # A main process that is killed ends nothing: the pool would wait for tasks for ever.
    threading.Thread(target=_end_with_main_process, daemon=True).start()
    start(value)


def _end_with_main_process() -> None:
    if (main := multiprocessing.parent_process()) is not None:
        main.join()
        os._exit(1)


_plan_of_worker: CleaningPlan | None = None


def _start_worker(plan: CleaningPlan) -> None:
    global _plan_of_worker
    _plan_of_worker = plan


def _run_task(name: str, rank: int, world: int) -> None:
    assert _plan_of_worker is not None
    STAGES[name](_plan_of_worker, rank, world)
