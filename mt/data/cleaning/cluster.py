"""The stages of a cleaning as job arrays of Slurm, started by datatrove (extra `cluster`)."""

from __future__ import annotations

import getpass
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt.data.cleaning.executors import STAGES, Progress, tasks
from mt.data.cleaning.plan import CleaningPlan
from mt.errors import ConfigError, MtError

# How often a stage is submitted again for ranks that have died; what they finished stays.
ATTEMPTS = 3
SECONDS_BETWEEN_LOOKS = 5.0


@dataclass(frozen=True)
class StageTask:
    """A stage as datatrove calls it; it is pickled for the jobs."""

    plan: CleaningPlan
    stage: str

    def __call__(self, _: object, rank: int, world_size: int) -> None:
        """Run the tasks of one rank."""
        STAGES[self.stage](self.plan, rank, world_size)


def run_on_slurm(
    plan: CleaningPlan, ranks: int, sbatch: Mapping[str, str], progress: Progress
) -> None:
    """Run each stage as a job array of up to so many ranks, and wait for it.

    `sbatch` are options of sbatch, such as partition and time; the work folder must be on a disk
    that all nodes see. Ranks that were killed are submitted again. Raises MtError where ranks still
    fail, ConfigError where datatrove is missing.
    """
    executor_class = _slurm_executor()
    plan = plan.for_other_processes()
    for name in STAGES:
        world = min(ranks, tasks(plan, name))
        progress(name, 0, world)
        if not world:
            continue
        # The number of ranks is in the name: datatrove remembers which ones are done.
        logs = plan.work / "jobs" / f"{plan.kept.name}-{name.replace(' ', '-')}-{world}"
        for _ in range(ATTEMPTS):
            job = executor_class(
                pipeline=[StageTask(plan, name)],
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
            job.launch_merge_stats = _no_statistics
            job.run()
            if _wait(job, name, world, progress):
                break
        else:
            raise MtError(
                f"{name}: some ranks failed {ATTEMPTS} times, see {logs}/slurm_logs. The same "
                "command continues with what is done."
            )


def _wait(job: Any, stage: str, world: int, progress: Progress) -> bool:
    """Wait until no job of the array is left; whether all ranks are done."""
    while True:
        is_running = job.job_id != -1 and _is_queued(str(job.job_id))
        done = world - len(job.get_incomplete_ranks())
        progress(stage, done, world)
        if done == world or not is_running:
            return done == world
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _is_queued(job: str) -> bool:
    command = ["squeue", "--noheader", "--user", getpass.getuser(), "--format", "%A %F"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.returncode != 0 or job in found.stdout.split()  # a busy controller: look again


def _slurm_executor() -> Any:
    """The class of datatrove that submits job arrays."""
    try:
        from datatrove.executor.slurm import SlurmPipelineExecutor
    except ImportError as error:
        raise ConfigError(
            f"--executor slurm: needs datatrove ({error}); install it by: pip install 'mt[cluster]'"
        ) from None
    return SlurmPipelineExecutor


def _no_statistics() -> None:
    """Start no job that adds up statistics: it would wait for ever for ranks that have died."""
