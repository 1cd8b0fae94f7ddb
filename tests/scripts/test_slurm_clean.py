"""`mt data clean --executor slurm` on a real Slurm with one node, which takes root."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from conftest import mt_command, write_lines

SLURM = ["--executor", "slurm", "--sbatch", "partition=all", "--sbatch", "mem-per-cpu=500M"]


@pytest.fixture
def environment(slurm_conf: str) -> Mapping[str, str]:
    """What commands need to see the Slurm of this machine."""
    return mt_command()[1] | {"SLURM_CONF": slurm_conf}


@pytest.mark.slurm
@pytest.mark.timeout(300)
def test_a_corpus_is_cleaned_to_the_same_bytes_with_a_rank_killed_in_between(
    environment: Mapping[str, str],
    run_mt: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    """Two files are two shards, so scoring has two ranks; one of them is killed as it works."""
    pytest.importorskip("datatrove")
    corpora: list[Path] = []
    for name in ("a", "b"):
        for side, text in (("de", "Satz {} von {}"), ("en", "sentence {} of {}")):
            corpora.append(tmp_path / f"{name}.{side}")
            write_lines(corpora[-1], [text.format(n % 59_000, name) for n in range(60_000)])
    arguments = ["data", "clean", *corpora, "--langs", "de-en", "--json"]
    alone = run_mt(*arguments, "-o", tmp_path / "one", "--rejected", tmp_path / "one.bad")
    assert alone.returncode == 0, alone.stderr
    work = tmp_path / "work"
    files = ["-o", "many", "--rejected", "many.bad", "--work", work]
    with subprocess.Popen(
        [*mt_command()[0], *map(str, (*arguments, *files, *SLURM))],
        env=environment, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as cleaning:  # fmt: skip
        end = time.monotonic() + 100
        victim: list[str] = []
        while not victim:
            assert time.monotonic() < end
            time.sleep(0.2)
            listed = subprocess.run(
                ["squeue", "--noheader", "--format=%i %j %t"],
                env=environment, capture_output=True, text=True, check=True,
            ).stdout.splitlines()  # fmt: skip
            scoring = [line.split()[0] for line in listed if line.endswith("-scoring R")]
            victim = [job for job in scoring if job.endswith("_1")]
        subprocess.run(["scancel", "--signal=KILL", victim[0]], env=environment, check=True)
        out, err = cleaning.communicate(timeout=200)
    assert cleaning.returncode == 0, err
    assert out == alone.stdout
    for ending in (".de", ".en", ".bad"):
        assert (tmp_path / f"many{ending}").read_bytes() == (tmp_path / f"one{ending}").read_bytes()
    jobs = {path.name.split("_")[0] for path in work.glob("jobs/*-scoring-2/slurm_logs/*.out")}
    assert len(jobs) == 2  # the second one for the rank that was killed
    # A result that was removed is made again, although datatrove takes its rank for done.
    shutil.rmtree(work / "scored" / "00000-00000")
    again = subprocess.run(
        [*mt_command()[0], *map(str, (*arguments, *files, *SLURM)), "--overwrite"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert (again.returncode, again.stdout) == (0, alone.stdout), again.stderr
