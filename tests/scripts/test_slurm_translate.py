"""Tasks of translate.sbatch that end or start at the same time; stand-ins replace Slurm and mt."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from conftest import ROOT, write_lines

TRANSLATE = ROOT / "scripts" / "slurm" / "translate.sbatch"
LATE = "translate.sbatch: out is complete: it was written after this task was submitted\n"
# Stand-ins, by name. srun drops its options, and scontrol knows one submit time.
STAND_INS = {
    "srun": 'while [[ $1 = --* ]]; do shift; done; exec "$@"',
    "scontrol": 'echo "JobId=1 SubmitTime=$SUBMITTED EligibleTime=now"',
    # mt translate IN -o OUT: as it does, list the folder of OUT after renaming the file to it.
    "mt": """cp "$2" "$4"
for ((i = 0; i < 600; i++)); do [ ! -e "wait-$SLURM_ARRAY_TASK_ID" ] || sleep 0.05; done
ls "$(dirname "$4")" >/dev/null""",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an input of two lines, and stand-ins in `bin`."""
    (tmp_path / "bin").mkdir()
    for name, script in STAND_INS.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/usr/bin/env bash\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
    write_lines(tmp_path / "in", ["eins", "zwei"])
    return tmp_path


def task(folder: Path, number: int, submitted: str, restarts: int = 0) -> subprocess.Popen[str]:
    """Start one task of an array of two."""
    variables = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "MT": "mt", "SLURM_ARRAY_JOB_ID": "1",
        "SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_TASK_MAX": "1",
        "SLURM_JOB_ID": str(1 + number), "SLURM_RESTART_COUNT": str(restarts),
        "SUBMITTED": submitted,
    }  # fmt: skip
    return subprocess.Popen(
        ["bash", TRANSLATE, "in", "out", "--model", "m"],
        cwd=folder, env=os.environ | variables, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, messages = process.communicate(timeout=60)
    return process.returncode, messages


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "bin")


def test_shards_are_joined_only_after_each_mt_has_ended(folder: Path) -> None:
    """The mt of task 0 has written its output, and still needs its folder."""
    (folder / "wait-0").touch()
    slow = task(folder, 0, "2020-01-01T00:00:00")
    end = time.monotonic() + 30
    while not list(folder.glob("out.shards/00000-of-00002.[no]*")):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert ended(task(folder, 1, "2020-01-01T00:00:00")) == (
        0, "translate.sbatch: shard 1 is done; others are still missing\n"
    )  # fmt: skip
    (folder / "wait-0").unlink()
    assert ended(slow) == (0, "translate.sbatch: out has all 2 lines\n")
    assert (folder / "out").read_text(encoding="utf-8") == "eins\nzwei\n"
    assert names(folder) == ["in", "out"]


@pytest.mark.parametrize(
    ("submitted", "restarts"), [("2020-01-01T00:00:00", 0), ("2100-01-01T00:00:00", 1)]
)
def test_a_task_that_starts_after_the_shards_were_joined_does_nothing(
    submitted: str, restarts: int, folder: Path
) -> None:
    """Its shard was translated by an earlier array, or Slurm has requeued it after it had ended."""
    (folder / "out").write_text("one\ntwo\n", encoding="utf-8")
    assert ended(task(folder, 1, submitted, restarts)) == (0, LATE)
    assert (folder / "out").read_text(encoding="utf-8") == "one\ntwo\n"
    assert names(folder) == ["in", "out"]


@pytest.mark.parametrize("restarts", [0, 1])
def test_an_older_output_is_translated_again(restarts: int, folder: Path) -> None:
    """A task that is requeued before the shards are joined finds their folder, and resumes."""
    (folder / "out").write_text("one\ntwo\n", encoding="utf-8")
    later = "2100-01-01T00:00:00"
    assert ended(task(folder, 0, later)) == (
        0, "translate.sbatch: shard 0 is done; others are still missing\n"
    )  # fmt: skip
    assert ended(task(folder, 1, later, restarts)) == (
        0, "translate.sbatch: out has all 2 lines\n"
    )  # fmt: skip
    assert (folder / "out").read_text(encoding="utf-8") == "eins\nzwei\n"
    assert names(folder) == ["in", "out"]
