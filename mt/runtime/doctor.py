"""What `mt doctor` finds: versions, devices, precisions, compiler, memory, disk, extras.

It imports no PyTorch, which may be what is broken: `mt.runtime.probes` asks it in another process.
Each finding is got by itself, so that one that fails is a line of the report.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mt.runtime.cores import processor_name, usable_cores

# What `mt` needs, and what it can do without (CTranslate2 where it has no wheels): pyproject.toml.
REQUIRED = (
    "torch>=2.9,<2.14", "datasets>=3.0", "jinja2>=3.1", "matplotlib>=3.8", "numpy>=1.26",
    "pydantic>=2.9", "pyyaml>=6.0.1", "sacrebleu>=2.4", "safetensors>=0.4.3",
    "sentencepiece>=0.2.0", "tqdm>=4.66", "typer>=0.12.5", "typing-extensions>=4.12",
)  # fmt: skip


@dataclass(frozen=True)
class Extra:
    """A package that is not required, and what it adds."""

    requirement: str
    module: str  # by whose presence it is recognised
    adds: str


EXTRAS = {
    "ctranslate2": Extra(
        "ctranslate2>=4.5",
        "ctranslate2",
        "faster translation on a CPU, mt export ctranslate2 / argos",
    ),
    "huggingface": Extra("transformers>=5", "transformers", "mt export huggingface"),
    "tensorboard": Extra("tensorboard>=2.17", "tensorboard", "train.tensorboard: true"),
    "comet": Extra(
        "unbabel-comet>=2.2.7", "comet", "the metric comet of mt evaluate and train.metric"
    ),
    "ja": Extra("sacrebleu[ja]", "MeCab", "BLEU's tokenizer for Japanese"),
    "ko": Extra("sacrebleu[ko]", "mecab_ko", "BLEU's tokenizer for Korean"),
}
# Environment variables that change what `mt` does.
VARIABLES = (
    "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CC", "SLURM_JOB_ID", "HF_HUB_OFFLINE",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
)  # fmt: skip
# Seconds after which a process of probes is ended.
TIMEOUT = 120.0
# Free space below which a run soon fills the disk: three checkpoints of base.yaml.
LITTLE_DISK_MB = 3000.0

Finding = dict[str, Any]


def examine() -> dict[str, Any]:
    """Find all that the report shows: findings by section, `notes`, and `problems`.

    `problems` are why training cannot start, `notes` what may be better. A finding that failed is
    {"error": TEXT}.
    """
    report: dict[str, Any] = {
        name: _finding(find)
        for name, find in {
            "system": find_system,
            "packages": find_packages,
            "driver": find_driver,
            "compiler": find_compiler,
            "disk": find_disk,
            "extras": find_extras,
            "environment": find_environment,
        }.items()
    }
    report |= run_probes(["torch", "update", "cpu"])
    if report["torch"].get("gpus"):
        report |= run_probes(["gpu"])
    report["problems"] = find_problems(report)
    report["notes"] = find_notes(report)
    return report


def _finding(find: Callable[[], Finding]) -> Finding:
    try:
        return find()
    except Exception as error:  # a broken probe is a line, whatever broke it
        return {"error": f"{type(error).__name__}: {error}"}


def find_system() -> Finding:
    """Operating system, Python, processor and load."""
    found: Finding = {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
    }
    with suppress(OSError):
        found["load"] = os.getloadavg()[0]
    return found


def find_packages() -> Finding:
    """The version of `mt` and of each required package; None where it is not installed."""
    return {name: _version(name) for name in ("mt", *map(name_of, REQUIRED))}


def name_of(requirement: str) -> str:
    """`torch` of `torch>=2.9,<2.14`."""
    return requirement.split(">")[0].split("[")[0]


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def find_driver() -> Finding:
    """The NVIDIA driver and the GPUs that it knows, whether PyTorch can use them or not."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"version": None, "gpus": []}
    query = [program, "--query-gpu=driver_version,name", "--format=csv,noheader"]
    ended = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    rows = [line.split(", ", 1) for line in ended.stdout.splitlines() if ", " in line]
    if ended.returncode or not rows:
        raise OSError(f"nvidia-smi: {(ended.stderr or ended.stdout).strip() or 'found no GPU'}")
    return {"version": rows[0][0], "gpus": [name for _, name in rows]}


def find_compiler() -> Finding:
    """The C compiler, which `train.compile` needs."""
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        if path := shutil.which(name):
            command = [path, "--version"]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
            return {"path": path, "version": ended.stdout.split("\n")[0].strip()}
    return {"path": None, "version": None}


def find_disk() -> Finding:
    """Free space in MB of the current folder and of that for temporary files."""
    here = Path.cwd()
    return {
        "current_folder": str(here),
        "free_mb": shutil.disk_usage(here).free / 1e6,
        "writable": os.access(here, os.W_OK),
        "temporary_mb": shutil.disk_usage(tempfile.gettempdir()).free / 1e6,
    }


def find_extras() -> Finding:
    """Each extra: its version or None, what it adds, and the command that installs it."""
    return {
        name: {
            "installed": find_spec(extra.module) is not None,
            "version": _version(name_of(extra.requirement)) if name not in ("ja", "ko") else None,
            "adds": extra.adds,
            "install": f"pip install '{extra.requirement}'",
        }
        for name, extra in EXTRAS.items()
    }


def find_environment() -> Finding:
    """Environment variables that change what `mt` does, those that are set."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


# --- another process --------------------------------------------------------------------------


def run_probes(names: Iterable[str]) -> dict[str, Finding]:
    """Run probes of `mt.runtime.probes` in another process; what ends it is the finding.

    Probes that come after a fatal one get a new process.
    """
    found: dict[str, Finding] = {}
    left = list(names)
    while left:
        output, error = _probe_process(left)
        for line in output.splitlines():
            with suppress(ValueError):
                found |= json.loads(line)
        left = [name for name in left if name not in found]
        if left:
            found[left.pop(0)] = {"error": error}
    return found


def _probe_process(names: list[str]) -> tuple[str, str]:
    """Output of a process that runs probes, and why it ended before all were done."""
    folder = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "mt.runtime.probes", *names]
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT,
            check=False,
            env=os.environ | {"PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired as error:
        # Bytes, whatever the encoding; what the probes before the slow one have found.
        output: Any = error.stdout or b""
        return output.decode(errors="replace"), f"no answer within {TIMEOUT:.0f} s"
    said = [line for line in ended.stderr.splitlines() if line.strip()]
    reason = said[-1] if said else f"the process ended with code {ended.returncode}"
    return ended.stdout, reason


# --- what it means ----------------------------------------------------------------------------


def find_problems(report: Mapping[str, Any]) -> list[str]:
    """Why training cannot start; empty if it can."""
    packages = report["packages"]
    problems = [
        f"{name_of(requirement)} is not installed: pip install '{requirement}'"
        for requirement in REQUIRED
        if packages.get(name_of(requirement), "") is None
    ]
    if error := report["torch"].get("error"):
        problems.append(f"PyTorch does not work: {error}")
    elif error := report["update"].get("error"):
        where = report["torch"]["auto"]["device"]
        problems.append(f"an update on {where} fails: {error}; try --device cpu")
    return problems


def find_notes(report: Mapping[str, Any]) -> list[str]:
    """What may be better, or explains a figure."""
    notes = [*_unusual_versions(report["packages"])]
    torch, driver, disk, system = (report[key] for key in ("torch", "driver", "disk", "system"))
    if driver.get("gpus") and "error" not in torch and not torch["gpus"]:
        build = f"for CUDA {torch['cuda']}" if torch["cuda"] else "for CPUs only"
        notes.append(
            f"the driver knows {len(driver['gpus'])} GPU(s) and PyTorch sees none: this PyTorch "
            f"was built {build} (https://pytorch.org/get-started), the driver is "
            f"{driver['version']}, CUDA_VISIBLE_DEVICES is "
            f"{report['environment'].get('CUDA_VISIBLE_DEVICES', 'not set')}"
        )
    if torch.get("gpus") and not torch.get("compile"):
        notes.append("torch.compile needs Triton and a C compiler; without them training is slower")
    cores = system.get("usable_cores") or 1
    if not torch.get("gpus", True) and torch.get("threads", cores) < cores:
        notes.append(
            f"{torch['threads']} of {cores} cores are used, because OMP_NUM_THREADS is "
            f"{report['environment'].get('OMP_NUM_THREADS', 'not set')}"
        )
    if system.get("load", 0) > cores:
        notes.append(
            f"the machine is busy: {system['load']:.1f} processes want its {cores} cores, so the "
            "products are slower than they could be"
        )
    if disk.get("free_mb", LITTLE_DISK_MB) < LITTLE_DISK_MB:
        notes.append(f"{disk['free_mb']:,.0f} MB of disk are little: checkpoints need space")
    if not disk.get("writable", True):
        notes.append("the current folder cannot be written to: give mt train a --run-dir")
    return notes


def _unusual_versions(packages: Mapping[str, Any]) -> list[str]:
    """Packages whose version is not one that pyproject.toml allows."""
    try:
        from packaging.requirements import Requirement  # comes with datasets
    except ImportError:
        return []
    return [
        f"{name_of(text)} {packages[name_of(text)]} is installed, tested is {text}"
        for text in REQUIRED
        if packages.get(name_of(text))
        and not Requirement(text).specifier.contains(packages[name_of(text)], prereleases=True)
    ]
