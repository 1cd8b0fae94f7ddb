"""`mt doctor`: what it finds, that a broken finding is a line, and when training cannot start."""

from __future__ import annotations

import io
import json
import re
import stat
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Mt

from mt.runtime import doctor, probes, products
from mt.runtime.devices import choose_device
from mt.runtime.doctor import EXTRAS, REQUIRED, examine, name_of, run_probes
from mt.runtime.doctor_report import format_report

ROOT = Path(__file__).parents[2]


def in_this_process(names: list[str]) -> tuple[str, str]:
    output = io.StringIO()
    with redirect_stdout(output):
        probes.main(names)
    return output.getvalue(), ""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process for the probes, and few repetitions of the products."""
    monkeypatch.setattr(doctor, "_probe_process", in_this_process)
    monkeypatch.setattr(products, "SECONDS", 0.001)
    monkeypatch.setattr(products, "CPU_SHAPE", (16, 32, 32))


def test_the_packages_are_those_of_pyproject() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert block
    required = re.findall(r'^ +"([^";]+)', block[1], re.MULTILINE)
    assert sorted(required) == sorted([*REQUIRED, EXTRAS["ctranslate2"].requirement])
    extras = re.search(r"^\[project.optional-dependencies\]\n(.*?)^dev", text, re.DOTALL | re.M)
    assert extras
    found = dict(re.findall(r'^([\w-]+) = \["([^"]+)"', extras[1], re.MULTILINE))
    own = {name: one.requirement for name, one in EXTRAS.items() if name in found}
    assert own == found
    assert found.keys() == EXTRAS.keys() - {"ctranslate2", "ja", "ko"}


@pytest.mark.usefixtures("quick")
def test_the_report_as_text_and_as_json(mt: Mt) -> None:
    ended = mt("doctor")
    assert (ended.code, ended.err) == (0, "")
    names = [line.split("  ")[0] for line in ended.lines if line[0] != " "]
    assert names[:9] == [
        "versions", "system", "processor", "GPU", "compiler", "memory", "disk", "precision",
        "CPU speed",
    ]  # fmt: skip
    assert "not known" not in ended.out.decode()
    assert f"torch {torch.__version__}" in ended.lines[0]
    assert ended.lines[-1] == f"training   can start, on {choose_device()}"
    ended = mt("doctor", "--json")
    assert ended.code == 0
    report = json.loads(ended.out)
    assert report["problems"] == []
    assert report["torch"]["auto"]["precision"] == choose_device().precision
    (one, *_) = report["cpu"]["products"]
    assert one["gflops"]["fp32"] > 0
    assert (one["gflops"]["int8"] is not None) == report["torch"]["int8"]


@pytest.mark.usefixtures("quick")
def test_a_broken_finding_is_a_line(mt: Mt, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("driver too old")

    monkeypatch.setattr(doctor.shutil, "disk_usage", broken)
    monkeypatch.setattr(doctor, "find_system", broken)
    monkeypatch.setattr(probes, "time_cpu_products", broken)
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
    monkeypatch.setattr(doctor, "REQUIRED", (*REQUIRED, "sentencepieces>=0.2"))
    ended = mt("doctor")
    assert ended.code == 2
    assert ended.lines[-1] == "training   cannot start (see below)"
    assert ended.err == (
        "mt: training cannot start: sentencepieces is not installed: pip install "
        "'sentencepieces>=0.2'\n"
        f"mt: training cannot start: PyTorch does not work: {died}\n"
    )


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


def test_a_gpu_that_torch_cannot_use_is_explained() -> None:
    report: dict[str, Any] = {
        "packages": {"torch": "2.1.0"},
        "torch": {"gpus": [], "cuda": None, "threads": 4, "compile": False},
        "driver": {"version": "550.54", "gpus": ["NVIDIA H200"]},
        "environment": {"CUDA_VISIBLE_DEVICES": "0"},
        "disk": {"free_mb": 200.0, "writable": False},
        "system": {"usable_cores": 16, "load": 0.5},
    }
    assert doctor.find_notes(report) == [
        "torch 2.1.0 is installed, tested is torch>=2.9,<2.14",
        "the driver knows 1 GPU(s) and PyTorch sees none: this PyTorch was built for CPUs only "
        "(https://pytorch.org/get-started), the driver is 550.54, CUDA_VISIBLE_DEVICES is 0",
        "4 of 16 cores are used, because OMP_NUM_THREADS is not set",
        "200 MB of disk are little: checkpoints need space",
        "the current folder cannot be written to: give mt train a --run-dir",
    ]


def test_the_gpu_lines() -> None:
    gpu = {"name": "NVIDIA H200", "capability": "9.0", "memory_mb": 140e3, "free_mb": 139e3}
    report: dict[str, Any] = {
        "torch": {"gpus": [gpu], "cuda": "12.8"},
        "driver": {"version": "570.1", "gpus": ["NVIDIA H200"]},
        "gpu": {"products": {"fp32": 50e3, "tf32": 400e3, "bf16": 700e3, "fp16": None}},
        "notes": [],
        "problems": ["none of this machine"],
    }
    text = format_report(report).splitlines()
    assert "GPU        NVIDIA H200, compute capability 9.0, 139.0 of 140.0 GB free" in text
    row = text.index("GPU speed  TFLOP/s        fp32    tf32    bf16    fp16")
    assert text[row + 1].split() == ["50", "400", "700", "-"]


def test_a_product_is_timed_in_operations_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that each product moves by 2 ms: 2 * 10 * 100 * 1000 operations."""
    now = [0.0]
    monkeypatch.setattr(products.time, "perf_counter", lambda: now[0])

    def product() -> None:
        now[0] += 0.002

    assert products.gflops(product, (10, 100, 1000)) == pytest.approx(1.0)


@pytest.mark.slow
def test_the_probes_in_a_process_of_their_own() -> None:
    report = examine()
    assert report["problems"] == []
    assert report["update"] == {"device": report["torch"]["auto"]["device"]}
    assert {name_of(text) for text in REQUIRED} < report["packages"].keys()
