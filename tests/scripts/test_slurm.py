"""The job scripts: their functions in plain bash, and the jobs on a real Slurm with one node.

The tests marked `slurm` start that node with `scripts/slurm/local-cluster.sh`, which needs root.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, lines_of, merged, metrics_of, mt_command, weights_of, write_lines

SCRIPTS = ROOT / "scripts" / "slurm"
TRAIN = SCRIPTS / "train.sbatch"
TRANSLATE = SCRIPTS / "translate.sbatch"
CLUSTER = SCRIPTS / "local-cluster.sh"
# The shortest time limit is a minute, and Slurm checks every 30 seconds whether to signal a job.
# So 5 seconds before the end means 25 to 55 seconds after the start. A longer run is stopped.
SECONDS_OF_TRAINING = 70
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}
ENDED |= {"NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"}

RunMt = Callable[..., subprocess.CompletedProcess[str]]


def bash(command: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Run a command that can use the functions of translate.sbatch."""
    source = f"source {shlex.quote(str(TRANSLATE))}; {command}"
    return subprocess.run(
        ["bash", "-c", source, "bash", *map(str, arguments)],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip


# --- without Slurm ----------------------------------------------------------------------------


@pytest.mark.parametrize("script", [TRAIN, TRANSLATE, CLUSTER], ids=lambda path: path.name)
def test_bash_can_read_the_scripts(script: Path) -> None:
    read = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.parametrize(
    ("lines", "shards"), [(0, 3), (1, 1), (2, 5), (10, 3), (101, 8), (4_000_000_001, 7)]
)
def test_shards_have_equal_sizes_and_each_line_is_in_one(lines: int, shards: int) -> None:
    command = 'for ((shard = 0; shard < $2; shard++)); do share "$1" "$shard" "$2"; done'
    found = bash(command, lines, shards).stdout.splitlines()
    shares = [tuple(map(int, line.split())) for line in found]
    assert len(shares) == shards
    end = 0
    for before, count in shares:
        assert before == end
        end += count
    assert end == lines
    counts = [count for _, count in shares]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("last", [b"the end\n", b"no line end", b"\n"])
def test_shards_hold_the_file_byte_for_byte(packed: bool, last: bytes, tmp_path: Path) -> None:
    """Form feed, U+2028, NUL and bytes that are not UTF-8 end neither a line nor the text."""
    odd = b"\nZeile\r\n\x0c\n" + "a\u2028b\u0085c\n".encode() + b"\xff\xfe\n\x00\n"
    text = odd + b"x" * 300_000 + b"\n" + last
    path = tmp_path / "text"
    path.write_bytes(gzip.compress(text) if packed else text)
    found = bash('text_of "$1" | count_lines', path)
    lines = len(text.removesuffix(b"\n").split(b"\n"))
    assert (found.returncode, found.stdout) == (0, b"%d\n" % lines)
    for shards in (1, 3, lines + 2):
        parts = [bash('shard_of "$@"', path, lines, shard, shards) for shard in range(shards)]
        assert [part.returncode for part in parts] == [0] * shards
        assert b"".join(part.stdout for part in parts) == text


def test_a_damaged_archive_is_an_error_and_no_short_shard(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"line\n" * 100_000)[:-20])
    assert bash('shard_of "$1" 100000 0 2', path).returncode != 0


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert bash('text_of "$1" | count_lines', tmp_path / "empty").stdout == b"0\n"


def test_translation_refuses_what_cannot_be_sharded(tmp_path: Path) -> None:
    for name in ("in", "in.srt"):
        write_lines(tmp_path / name, ["eins"])
    for arguments, task, message in [
        ("", "0", "usage: sbatch [options] translate.sbatch IN OUT --model FOLDER "
         "[options of mt translate]"),
        ("nowhere out", "0", "nowhere: must be a file"),
        ("in out", "7", "4 shards are numbered 0 to 3, found 7; correct --array or SHARDS"),
        ("in out --prefix begin", "0",
         "--prefix: its lines are not split into shards; run mt translate itself"),
        ("in out --n-best 5", "0",
         "--n-best: one output line per line of IN is required; leave it out"),
        ("in .", "0", ".: is a folder; name a file"),
        ("in ./in", "0", "./in: is the same file as IN, which would be lost; name another file"),
        ("in out.gz", "0",
         "out.gz: would be plain text under the name of a compressed file; name it out"),
        ("in.srt out --model m", "0", "in.srt: is a document, which is not cut into shards; run mt "
         "translate itself, or give --format text to translate its lines"),
        ("in out", "3 of 3", "--array: must be 0-N, each number once, found 3 tasks up to 3; "
         "correct it, or give SHARDS, the number of all shards"),
    ]:  # fmt: skip
        number, _, count = task.partition(" of ")
        array = {"SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": number, "SLURM_JOB_ID": "1"}
        array |= {"SLURM_ARRAY_TASK_COUNT": count or "4", "SLURM_ARRAY_TASK_MAX": "3"}
        ended = subprocess.run(
            ["bash", TRANSLATE, *arguments.split()], env=os.environ | array, cwd=tmp_path,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (ended.returncode, ended.stderr) == (2, f"translate.sbatch: {message}\n")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "in.srt"]


def test_shards_of_another_input_are_not_mixed(tmp_path: Path) -> None:
    command = "input=$1 folder=$2; mkdir -p $folder; SLURM_JOB_ID=5 check_same_settings --model m"
    source, folder = tmp_path / "in", tmp_path / "out.shards"
    write_lines(source, ["eins"])
    assert [bash(command, source, folder).returncode for _ in range(2)] == [0, 0]
    write_lines(source, ["eins", "zwei"])
    again = bash(command, source, folder)
    assert again.returncode == 2
    assert again.stderr.decode() == (
        f"translate.sbatch: {folder} was made with another input or other options; "
        "give the same ones, or remove it to start again\n"
    )
    assert [path.name for path in folder.iterdir()] == ["made-with"]


def test_training_refuses_more_gpus_than_tasks() -> None:
    allocation = {"SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_ID": "1"}
    ended = subprocess.run(
        ["bash", TRAIN], env=os.environ | allocation, capture_output=True, text=True, check=False
    )
    said = (
        "4 GPUs per node require as many tasks per node, found 1; give sbatch --ntasks-per-node=4"
    )
    assert (ended.returncode, ended.stderr) == (2, f"train.sbatch: {said}\n")


# --- on a real Slurm --------------------------------------------------------------------------


# The first line of a stand-in for mt that succeeds at once when Slurm has requeued its job.
STARTED_ONCE = '[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0'
# Runs mt in windows of 5 lines. At its first start, the middle task waits after one to be stopped.
HOLD = """
import os, runpy, sys, time
from mt.search import engine
from mt.translate import resume, translator
finished = resume.ResumableOutput.finished
def hold(*of):
    finished(*of)
    if os.environ["SLURM_ARRAY_TASK_ID"] == "1" and "SLURM_RESTART_COUNT" not in os.environ:
        print("holding", file=sys.stderr, flush=True)
        time.sleep(100)
engine.WINDOW = translator.FIRST_WINDOW = 5
resume.SECONDS_BETWEEN_RECORDS, resume.ResumableOutput.finished = 0.0, hold
runpy.run_module("mt", run_name="__main__")
"""
two_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two tasks need two cores")


class Cluster:
    """Submits jobs to the Slurm of this machine, from a folder of the test."""

    def __init__(self, slurm_conf: str, folder: Path) -> None:
        self.folder = folder
        command, environment = mt_command()
        self.environment = environment | {"SLURM_CONF": slurm_conf}
        self.replace_mt(f'exec {shlex.join(command)} "$@"')

    def replace_mt(self, *lines: str) -> None:
        """Let the jobs submitted from now on run a bash script of these lines in place of mt."""
        mt = Path(tempfile.mkdtemp(dir=self.folder), "mt")
        self.environment["MT"] = str(mt)
        mt.write_text("\n".join(["#!/usr/bin/env bash", *lines, ""]), encoding="utf-8")
        mt.chmod(0o755)

    def run(self, *command: object) -> str:
        return subprocess.run(
            [str(part) for part in command], cwd=self.folder, env=self.environment,
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip

    def submit(self, *arguments: object) -> str:
        return self.run("sbatch", "--parsable", *arguments).strip()

    def jobs(self, job: str) -> list[dict[str, str]]:
        """The fields that Slurm reports for a job, or for each task of an array."""
        lines = self.run("scontrol", "show", "job", "--oneliner", job).splitlines()
        return [dict(re.findall(r"(\w+)=(\S+)", line)) for line in lines]

    def wait(
        self, job: str, seconds: float, until: Callable[[], bool] | None = None
    ) -> list[dict[str, str]]:
        """Wait until a job has ended, or until something else is true."""
        end = time.monotonic() + seconds
        while True:
            found = self.jobs(job)
            if until() if until else {one["JobState"] for one in found} <= ENDED:
                return found
            assert time.monotonic() < end, (found, self.log(job))
            time.sleep(0.5)

    def ended(self, job: str, state: str, code: str, restarts: int, seconds: float = 60) -> None:
        """Wait for the end of a job, which must be this one."""
        (end,) = self.wait(job, seconds)
        found = (end["JobState"], end["ExitCode"], end["Restarts"])
        assert found == (state, code, str(restarts)), self.log(job)

    def log(self, job: str) -> str:
        paths = sorted(self.folder.glob(f"slurm-{job}*.out"))
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)


@pytest.fixture
def cluster(slurm_conf: str, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(slurm_conf, tmp_path)
    yield cluster
    cluster.run("scancel", "--user=root")  # jobs of a failed test would delay the next one


def long_config(tiny_mapping: Mapping[str, Any], steps: int, folder: Path) -> Path:
    """A config of the tiny model with this many updates and one validation, at the end."""
    changes = {
        "data": {"test": []},
        "train": {"max_steps": steps, "valid_every": steps, "log_every": 50},
    }
    path = folder / "long.yaml"
    path.write_text(yaml.safe_dump(merged(tiny_mapping, changes)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def updates_per_second(
    tiny_mapping: Mapping[str, Any], run_mt: RunMt, tmp_path_factory: pytest.TempPathFactory
) -> float:
    folder = tmp_path_factory.mktemp("speed")
    config = long_config(tiny_mapping, 150, folder)
    run_dir = folder / "run"
    ended = run_mt("train", "--config", config, "--run-dir", run_dir, "--device", "cpu")
    assert ended.returncode == 0
    seconds = {line["step"]: line["seconds"] for line in metrics_of(run_dir, "train")}
    return float(100 / (seconds[150] - seconds[50]))


@pytest.mark.slurm
@pytest.mark.timeout(1200)
def test_a_job_stopped_by_its_time_limit_ends_with_the_weights_of_an_undisturbed_run(
    cluster: Cluster, tiny_mapping: Mapping[str, Any], updates_per_second: float, tmp_path: Path
) -> None:
    """Another job, a shell script, gets the signal too late: SIGTERM and KillWait remain."""
    steps = int(SECONDS_OF_TRAINING * updates_per_second)
    train = ["--config", long_config(tiny_mapping, steps, tmp_path), "--device", "cpu", "--run-dir"]
    job = cluster.submit("--time=1", "--signal=USR1@5", TRAIN, *train, tmp_path / "queued")
    cluster.replace_mt(
        STARTED_ONCE, "trap 'sleep 1; exit 143' TERM", "while true; do sleep 0.2; done"
    )
    late = cluster.submit("--time=1", "--signal=CONT@1", TRAIN)  # a signal that means nothing here
    command, environment = mt_command("train", *train, tmp_path / "undisturbed")
    with (tmp_path / "undisturbed.log").open("wb") as stderr:
        undisturbed = subprocess.Popen(command, env=environment, stderr=stderr)
    try:
        (ended,) = cluster.wait(job, 600)
        assert undisturbed.wait(300) == 0
    finally:
        undisturbed.kill()
        undisturbed.wait()
    log = cluster.log(job)
    print(log, ended)
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0")
    stopped = re.findall(r"stopped by SIGUSR1 after update ([\d,]+)", log)
    assert stopped
    assert f"all {steps:,} updates are done" in log
    # The signal can come as a finished process exits; the job is requeued then, with nothing to do.
    idle = log.count(f"all {steps:,} updates are done") - 1
    assert re.findall(r"resuming after update ([\d,]+)", log) == stopped + [f"{steps:,}"] * idle
    assert log.count("train.sbatch: requeued") == int(ended["Restarts"]) == len(stopped) + idle
    assert weights_of(tmp_path / "queued") == weights_of(tmp_path / "undisturbed")
    assert "resuming" not in (tmp_path / "undisturbed.log").read_text(encoding="utf-8")
    cluster.ended(late, "COMPLETED", "0:0", 1, seconds=200)
    assert "DUE TO TIME LIMIT" in cluster.log(late)


@pytest.mark.slurm
@pytest.mark.timeout(300)
def test_a_cancelled_job_stays_cancelled_and_has_its_checkpoint(
    cluster: Cluster, tiny_mapping: Mapping[str, Any], tmp_path: Path
) -> None:
    config = long_config(tiny_mapping, 1_000_000, tmp_path)
    job = cluster.submit(
        TRAIN, "--config", config, "--run-dir", tmp_path / "run", "--device", "cpu"
    )
    cluster.wait(job, 60, lambda: "| nll " in cluster.log(job))
    cluster.run("scancel", job)
    (ended,) = cluster.wait(job, 60)
    log = cluster.log(job)
    assert (ended["JobState"], ended["Restarts"]) == ("CANCELLED", "0"), log
    assert "stopped by SIGTERM after update" in log
    assert "train.sbatch: the job was cancelled, or requeued by Slurm itself: left as it is" in log
    assert (tmp_path / "run" / "checkpoints" / "last" / "model.safetensors").is_file()


@pytest.mark.slurm
@pytest.mark.timeout(120)
def test_a_job_is_not_requeued_after_an_error_nor_more_often_than_allowed(cluster: Cluster) -> None:
    faulty = cluster.submit(TRAIN, "--config", "nowhere.yaml")
    cluster.ended(faulty, "FAILED", "2:0", 0)
    assert "nowhere.yaml" in cluster.log(faulty)

    cluster.replace_mt("exit 138")
    cluster.environment["MAX_RESTARTS"] = "1"
    loop = cluster.submit(TRAIN)
    cluster.ended(loop, "FAILED", "138:0", 1)
    log = cluster.log(loop)
    assert "stopped after 1 restarts (MAX_RESTARTS); submit the job again to resume" in log


@pytest.mark.slurm
@pytest.mark.timeout(120)
@two_cores
def test_a_job_is_requeued_if_a_process_is_lost_and_none_has_failed(cluster: Cluster) -> None:
    cluster.replace_mt(STARTED_ONCE, "exit 75")
    cluster.ended(cluster.submit("--ntasks=2", TRAIN), "COMPLETED", "0:0", 1)

    # The process that fails ends after the one that has lost it.
    cluster.replace_mt("[ $RANK = 1 ] || exit 75", "sleep 2", "exit 3")
    faulty = cluster.submit("--ntasks=2", TRAIN)
    cluster.ended(faulty, "FAILED", "75:0", 0)
    assert "train.sbatch: a process has failed, see above: not requeued" in cluster.log(faulty)


@pytest.mark.slurm
@pytest.mark.timeout(120)
@two_cores
def test_tasks_get_the_address_to_meet_and_an_error_of_one_ends_all(cluster: Cluster) -> None:
    variables = "$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT"
    variables += " $OMP_NUM_THREADS"
    cluster.replace_mt(f'echo "$@ {variables}"')
    several = cluster.submit(
        "--ntasks-per-node=2", "--gpus-per-node=2", TRAIN, "--config", "two words"
    )
    cluster.wait(several, 60)
    node = cluster.run("hostname", "-s").strip()
    expected = [
        f"train --config two words {rank} 2 {rank} 2 {node}:{10000 + int(several)} 1"
        for rank in (0, 1)
    ]
    assert sorted(cluster.log(several).splitlines()) == expected

    # One diverges. srun ends the other and reports its 143.
    cluster.replace_mt(
        "[ $RANK = 0 ] || exit 3", "trap 'exit 143' TERM", "while true; do sleep 0.1; done"
    )
    faulty = cluster.submit("--ntasks=2", TRAIN)
    cluster.ended(faulty, "FAILED", "143:0", 0)
    assert "train.sbatch: a process has failed, see above: not requeued" in cluster.log(faulty)


@pytest.mark.slurm
@pytest.mark.timeout(300)
def test_joined_shards_equal_the_output_of_one_process(
    cluster: Cluster, tiny_run: Path, tiny_corpus: Path, run_mt: RunMt, tmp_path: Path
) -> None:
    """Three tasks for 41 lines, one of them empty; the middle task is stopped and requeued."""
    lines = lines_of(tiny_corpus / "test.src")
    text = "".join(f"{line}\n" for line in [*lines[:20], "", *lines[20:]]).encode()
    (tmp_path / "in").write_bytes(text)
    (tmp_path / "in.gz").write_bytes(gzip.compress(text))
    options = ["--model", tiny_run, "--engine", "torch", "--precision", "fp32", "--beam-size", "2"]
    assert run_mt("translate", *options, tmp_path / "in", "-o", tmp_path / "whole").returncode == 0

    (tmp_path / "hold.py").write_text(HOLD, encoding="utf-8")
    cluster.replace_mt(f'exec {shlex.join([sys.executable, str(tmp_path / "hold.py")])} "$@"')
    files = [tmp_path / "in.gz", tmp_path / "joined"]
    array = cluster.submit("--array=0-2", TRANSLATE, *files, *options)
    cluster.wait(array, 60, lambda: "holding" in cluster.log(array))
    cluster.run("scancel", "--signal=TERM", f"{array}_1")
    ended = cluster.wait(array, 200)
    log = cluster.log(array)
    assert {one["JobState"] for one in ended} == {"COMPLETED"}, log
    restarts = {one["ArrayTaskId"]: one["Restarts"] for one in ended}
    assert restarts == {"0": "0", "1": "1", "2": "0"}, log
    assert "translate.sbatch: requeued; it will resume where it stopped" in log
    assert "since --resume; 5 finished before" in log
    joined = (tmp_path / "joined").read_bytes()
    assert (joined.count(b"\n"), joined.split(b"\n")[20]) == (41, b"")
    assert joined == (tmp_path / "whole").read_bytes()
    assert not list(tmp_path.glob("joined?*"))  # neither shards nor temporary files


@pytest.mark.slurm
@pytest.mark.timeout(300)
def test_missing_shards_are_translated_later_and_a_lost_line_is_an_error(
    cluster: Cluster, tiny_run: Path, tmp_path: Path
) -> None:
    """Two lines for three tasks, so one task has none."""
    source, output, folder = tmp_path / "in", tmp_path / "out", tmp_path / "out.shards"
    write_lines(source, ["eins zwei", "drei"])
    translate = [TRANSLATE, source, output, "--model", tiny_run]
    first = cluster.submit("--array=0-1", "--export=ALL,SHARDS=3", *translate)
    assert {one["JobState"] for one in cluster.wait(first, 100)} == {"COMPLETED"}, cluster.log(
        first
    )
    assert not output.exists()

    lost = folder / "00001-of-00003.out"
    kept = lost.read_bytes()
    lost.write_bytes(b"")
    second = cluster.submit("--array=2", "--export=ALL,SHARDS=3", *translate)
    cluster.ended(second, "FAILED", "2:0", 0, seconds=100)
    message = (
        f"{source} has 2 lines, but the shards in {folder} do not add up to that; "
        f"{output} is not written"
    )
    assert f"translate.sbatch: {message}" in cluster.log(second)
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.shards"]

    lost.write_bytes(kept)
    third = cluster.submit("--array=2", "--export=ALL,SHARDS=3", *translate)
    cluster.ended(third, "COMPLETED", "0:0", 0, seconds=100)
    assert output.read_bytes().count(b"\n") == 2
    assert not folder.exists()
