"""The manifest of a run: what ran where, and whether this job made it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from mt import __version__
from mt.runs.manifest import is_of_this_job, write_manifest


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ({}, {}, False),
        (
            {"SLURM_JOB_ID": "7"},
            {"SLURM_JOB_ID": "7"},
            False,
        ),  # the second command of an allocation
        ({"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "0"}, False),
        ({"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}, True),
        ({"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": "1"}, False),
        ({"TORCHELASTIC_RUN_ID": "a"}, {"TORCHELASTIC_RUN_ID": "a"}, True),
        ({"TORCHELASTIC_RUN_ID": "a"}, {}, False),
        (
            {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "a"},
            {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "a", "torchrun": "the same"},
            True,
        ),
        (
            {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "a"},
            {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "b", "torchrun": "another"},
            False,
        ),
        (
            {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "a"},
            {
                "SLURM_JOB_ID": "7",
                "TORCHELASTIC_RUN_ID": "b",
                "torchrun": "another",
                "SLURM_RESTART_COUNT": "1",
            },
            True,
        ),
    ],
)
def test_only_a_restart_is_of_the_job_that_made_the_run(
    before: Mapping[str, str],
    now: Mapping[str, str],
    same: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)

    def set_environment(variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        agent = 999 if variables.get("torchrun") == "another" else 123
        monkeypatch.setattr(os, "getppid", lambda: agent)

    assert not is_of_this_job(tmp_path)
    set_environment(before)
    write_manifest(tmp_path, {})
    for name in before:
        monkeypatch.delenv(name)
    set_environment(now)
    assert is_of_this_job(tmp_path) == same


def test_the_manifest_names_command_data_versions_and_machine(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"seed": 3, "data": {"a.de": {"lines": 5}}})
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["seed"] == 3
    assert manifest["data"] == {"a.de": {"lines": 5}}
    assert manifest["command"] == sys.argv
    assert manifest["packages"]["mt"] == __version__
    assert manifest["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert manifest["packages"].keys() >= {"sentencepiece", "sacrebleu", "safetensors", "numpy"}
    assert manifest["processor"]
    assert manifest["cores"] == os.cpu_count()
