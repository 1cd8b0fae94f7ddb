"""Run the stages of a cleaning: here, in several processes, or as job arrays of Slurm."""

from __future__ import annotations

import getpass
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from mt.cleaning.plan import CleaningPlan
from mt.cleaning.stages import STAGES
from mt.data.reading.corpus import local_files
from mt.errors import ConfigError, MtError
from mt.package import pip_install

T = TypeVar("T")

# Gets the name of a stage, and how many of its tasks are done, of how many if that is known.
Progress: TypeAlias = Callable[[str, int, int | None], None]
RANKS = 64  # of a stage on a cluster without --workers
# How often a stage is submitted again for ranks that have died; what they finished stays.
ATTEMPTS = 3
LEAST_BYTES = 4 << 20  # of files, also packed, that make a shard
SECONDS_BETWEEN_LOOKS = 5.0


def run_here(plan: CleaningPlan, workers: int, progress: Progress) -> None:
    """Run all stages in up to so many processes. When one fails, all end, with its error."""
    with ExitStack() as stack:
        pool: ProcessPoolExecutor | None = None
        for name, stage in STAGES.items():
            progress(name, 0, total := stage.n_tasks(plan))
            tasks = stage.tasks_left(plan)
            first = list(islice(tasks, 2))
            every = chain(first, tasks)
            results: Iterable[None]
            if min(workers, len(first)) < 2:
                results = (task.run(plan, stage.build) for task in every)
            else:
                to_send = replace(plan)  # without what it has loaded
                pool = pool or stack.enter_context(process_pool(workers, to_send))
                calls = ((task.run, stage.build) for task in every)
                results = results_of(pool, calls, workers)
            for done, _ in enumerate(results, start=1):
                progress(name, done, total)


def results_of(
    pool: ProcessPoolExecutor, calls: Iterable[tuple[Any, ...]], at_once: int
) -> Iterator[Any]:
    """Yield the results of calls of `with_shared` in order; so many wait in the pool at a time."""
    waiting: deque[Future[Any]] = deque()
    try:
        for call in calls:
            waiting.append(pool.submit(with_shared, *call))
            if len(waiting) > at_once:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise MtError(
            "one of the processes was killed, perhaps for want of memory. With fewer --workers the "
            "same command takes less memory"
        ) from None


@contextmanager
def process_pool(workers: int, value: Any) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that `with_shared` gives a value; an error ends them at once."""
    before = set(multiprocessing.active_children())
    # Not by fork: the process may have threads, of torch for example.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start, (value,))
    try:
        yield pool
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start(value: Any) -> None:
    global _shared
    _shared = value
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the main process, which ends this

    def end_with_main_process() -> None:
        if (main := multiprocessing.parent_process()) is not None:
            main.join()
            os._exit(1)

    # A main process that is killed ends nothing: the pool would wait for tasks for ever.
    threading.Thread(target=end_with_main_process, daemon=True).start()


_shared: Any = None  # in a process of a pool


def with_shared(task: Callable[..., T], *arguments: Any) -> T:
    """Call a task with the value of the pool, and with arguments of its own."""
    return task(_shared, *arguments)


def run_rank(plan: CleaningPlan, stage: str, start: str, _: object, rank: int, world: int) -> None:
    """Run a stage as datatrove calls it, in the folder in which the command was given."""
    with suppress(OSError):  # absolute paths need none
        os.chdir(start)  # places in reports are the same as without a cluster
    for task in STAGES[stage].tasks_left(plan):
        if task.number % world == rank:
            task.run(plan, STAGES[stage].build)


def run_on_slurm(
    plan: CleaningPlan, ranks: int, sbatch: Mapping[str, str], progress: Progress
) -> None:
    """Run each stage as a job array of up to so many ranks, and wait for it.

    `sbatch` are options of sbatch; all nodes must see the work folder. Ranks that were killed are
    submitted again. Raises MtError where ranks still fail, ConfigError without datatrove.
    """
    try:
        from datatrove.executor.slurm import SlurmPipelineExecutor
    except ImportError as error:
        raise ConfigError(
            f"--executor slurm: needs datatrove ({error}); install it by: {pip_install('cluster')}"
        ) from None
    # About as many as the files can hold; a data set may hold any number.
    files = [local_files(part.source, plan.root) for part in plan.parts]
    most = sum(1 + sum(map(os.path.getsize, own)) // LEAST_BYTES for own in files)
    for name, stage in STAGES.items():
        world = min(ranks, stage.n_tasks(plan) or (most if all(files) else ranks))
        progress(name, 0, world)
        if next(stage.tasks_left(plan), None) is None:
            continue
        jobs = f"{plan.writing_key[:16]}-{name.replace(' ', '-')}-{world}"
        logs = plan.work.absolute() / "jobs" / jobs
        # datatrove remembers which ranks are done, also where their results have been removed.
        shutil.rmtree(logs / "completions", ignore_errors=True)
        for _ in range(ATTEMPTS):
            job: Any = SlurmPipelineExecutor(
                pipeline=[partial(run_rank, replace(plan), name, os.getcwd())],
                tasks=world,
                logging_dir=str(logs),
                job_name=f"mt-clean-{name.replace(' ', '-')}",
                env_command=f'export PATH="{Path(sys.executable).parent}:$PATH"',
                time=sbatch.get("time", "24:00:00"),
                partition=sbatch["partition"],
                qos=sbatch.get("qos"),
                sbatch_args={key: value for key, value in sbatch.items() if key != "qos"},
                requeue=False,
                with_srun=False,
            )
            # Without the job that adds up statistics: it waits for ever for ranks that have died.
            job.launch_merge_stats = lambda: None
            try:
                job.run()
            except (FileNotFoundError, subprocess.CalledProcessError) as error:
                raise ConfigError(
                    f"--executor slurm: sbatch failed ({error}), and says why above, if it is "
                    "there; check --sbatch, and that this machine can submit jobs"
                ) from None
            if _wait(job, name, world, progress):
                break
        else:
            raise MtError(
                f"{name}: some ranks failed {ATTEMPTS} times, see {logs}/slurm_logs. The same "
                "command continues with what is done."
            )


def _wait(job: Any, stage: str, world: int, progress: Progress) -> bool:
    """Wait until no job of the array is left; whether all ranks are done."""
    command = ["squeue", "--noheader", "--user", getpass.getuser(), "--format", "%A %F"]
    while True:
        queue = subprocess.run(command, capture_output=True, text=True, check=False)
        # A busy controller says nothing: look again.
        is_queued = queue.returncode != 0 or str(job.job_id) in queue.stdout.split()
        done = world - len(job.get_incomplete_ranks())
        progress(stage, done, world)
        if done == world or job.job_id == -1 or not is_queued:
            return done == world
        time.sleep(SECONDS_BETWEEN_LOOKS)
