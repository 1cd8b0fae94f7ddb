"""Which build of PyTorch scripts/setup.sh takes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from conftest import ROOT


@pytest.mark.parametrize(
    ("system", "gpu", "asked", "build"),
    [("Linux", False, "", "cpu"), ("Linux", True, "", "default"), ("Darwin", False, "", "default"),
     ("Linux", True, "cpu", "cpu"), ("Linux", False, "default", "default")],
)  # fmt: skip
def test_the_build_of_torch_fits_the_machine(
    system: str, gpu: bool, asked: str, build: str, tmp_path: Path
) -> None:
    if Path("/proc/driver/nvidia").exists() and not gpu:
        pytest.skip("this machine has a GPU")
    for name, script in (("uname", f"echo {system}"), ("nvidia-smi", f"exit {int(not gpu)}")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    command = f"PATH={tmp_path}:$PATH TORCH={asked}; source scripts/setup.sh; torch_build"
    ended = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout == f"{build}\n"
