"""`mt doctor`: what it finds, that a broken PyTorch is a line, and when training cannot start."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import MonkeyPatch, Mt, write_lines
from faults import raising
from messages import says

from mt.package import DISTRIBUTION
from mt.runtime import doctor, machine
from mt.runtime.devices import choose_device
from mt.runtime.doctor import VARIABLES, ask_torch, describe_torch

# As the metadata of a package has them.
REQUIREMENTS = [
    "datasets>=3.0", "torch<2.14,>=2.9", "ctranslate2>=4.5; sys_platform == 'linux'",
    "nothing>=1; sys_platform == 'nowhere'", "unbabel-comet>=2.2.7; extra == 'comet'",
]  # fmt: skip


def test_the_report_as_text_and_as_json(mt: Mt, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ask_torch", describe_torch)
    monkeypatch.setattr(doctor, "SHAPES", {"cpu": (16, 32, 32)})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    ended = mt("doctor")
    assert (ended.code, ended.err) == (0, "")
    assert says(ended.out.decode(), "packages", "torch", "system", "device CPU", "gflops")
    report = json.loads(mt("doctor", "--json").out)
    assert report["problems"] == []
    assert report["packages"]["torch"] == torch.__version__
    assert report["torch"]["device"] == str(choose_device("cpu"))
    assert report["torch"]["gflops"].keys() == {"cpu fp32", "cpu bf16"}


def test_training_needs_its_packages_and_a_working_torch(mt: Mt, monkeypatch: MonkeyPatch) -> None:
    died = "OSError: libcudart.so.12: cannot open shared object file"
    monkeypatch.setattr(doctor, "ask_torch", lambda: {"error": died})
    monkeypatch.setattr(doctor, "requires", lambda _: [*REQUIREMENTS, "sentencepieces>=0.2"])
    ended = mt("doctor")
    assert ended.code == 2
    missing, broken, _ = ended.err.split("\n")
    assert says(missing, "training cannot start", "sentencepieces", "pip install", ">=0.2")
    assert says(broken, "training cannot start", "PyTorch", died)


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("kill -ILL $$", "ended with code -4"),
        ("echo 'OSError: no driver' >&2; exit 1", "OSError: no driver"),
        ("exec sleep 9", "no answer within"),
    ],
)
def test_what_ends_the_process_that_asks_torch_is_the_finding(
    program: str, error: str, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(doctor, "TIMEOUT", 1.0)
    assert error in ask_torch()["error"]


def test_a_gpu_that_torch_cannot_use_is_explained(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "requires", lambda _: REQUIREMENTS)
    monkeypatch.setattr(doctor, "version", lambda _: "2.1.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    torch: dict[str, Any] = {"gpus": [], "cuda": None, "driver": "550.54"}
    monkeypatch.setattr(doctor, "ask_torch", lambda: torch)
    report = doctor.examine()
    assert list(report["packages"]) == ["mt", "datasets", "torch", "ctranslate2"]
    *_, gpu = report["notes"]
    assert "torch 2.1.0 is installed, tested is torch<2.14,>=2.9" in report["notes"]
    assert says(gpu, "driver (550.54)", "PyTorch sees no GPU", "CUDA None", "DEVICES is 0")
    torch |= {"gpus": ["H200"], "missing_for_compile": ["Python.h (python3-dev)"]}
    assert any("torch.compile needs Python.h" in note for note in doctor.examine()["notes"])
    monkeypatch.setattr(doctor, "requires", raising(PackageNotFoundError))
    assert says(doctor.examine()["notes"][0], "mt runs from its source", "not known")


def test_another_package_with_module_mt_is_named(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ask_torch", lambda: {})
    ours, other = (tmp_path / f"{name}.dist-info" for name in ("mt_transformer-9", "mt-0.0.1"))
    for folder, name in ((ours, DISTRIBUTION), (other, "mt")):
        folder.mkdir()
        write_lines(folder / "METADATA", [f"Name: {name}", "Version: 9"])
        write_lines(folder / "top_level.txt", ["mt"])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    problems = doctor.examine()["problems"]
    assert [says(text, "mt", "pip uninstall mt", DISTRIBUTION) for text in problems] == [True]


@pytest.mark.slow
def test_torch_answers_in_a_process_of_its_own() -> None:
    assert ask_torch()["device"] == str(choose_device())


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
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES} | given
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == spin_count
    assert {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} <= set(VARIABLES)
