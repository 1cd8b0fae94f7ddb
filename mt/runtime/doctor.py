"""`mt doctor`: what this machine has for `mt`, and why training could not start.

Imports no PyTorch, which may be what is broken: `python -m mt.runtime.doctor` asks it and prints a
JSON object. A driver that hangs, or a library for another processor, then costs that section only.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from itertools import product
from textwrap import wrap
from typing import Any

from mt.package import DISTRIBUTION, VERSION
from mt.runtime import machine

# Environment variables that change what `mt` does.
VARIABLES = (
    "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "CUDA_VISIBLE_DEVICES", "CC",
    "SLURM_JOB_ID", "HF_HUB_OFFLINE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
)  # fmt: skip
TIMEOUT = 120.0  # seconds after which the process that asks PyTorch is ended
# Rows, inputs and outputs of a timed product: on a CPU a feed-forward layer of base.yaml.
SHAPES = {"cpu": (256, 512, 2048), "cuda": (4096, 4096, 4096)}


def examine() -> dict[str, Any]:
    """Return the sections of the report, `problems` (training cannot start), and `notes`."""
    from packaging.requirements import Requirement  # comes with datasets

    packages: dict[str, str | None] = {"mt": VERSION}
    problems, notes = list[str](), list[str]()
    try:
        needed = [Requirement(text) for text in requires(DISTRIBUTION) or ()]
    except PackageNotFoundError:
        needed = []
        notes.append("mt runs from its source: which versions it needs is not known")
    for package in needed:
        if package.marker and not package.marker.evaluate({"extra": ""}):
            continue
        packages[package.name] = installed = None
        with suppress(PackageNotFoundError):
            packages[package.name] = installed = version(package.name)
        if installed is None:
            problems.append(f"{package.name} is not installed: pip install '{package}'")
        elif not package.specifier.contains(installed, prereleases=True):
            notes.append(f"{package.name} {installed} is installed, tested is {package}")
    if others := sorted({*packages_distributions().get("mt", ())} - {DISTRIBUTION}):
        names = " and ".join(others)
        problems.append(
            f"{names} of the package index installs a module named mt too, over this one's files: "
            f"pip uninstall {' '.join(others)}, then install {DISTRIBUTION} again"
        )
    torch = ask_torch()
    if error := torch.get("error"):
        remedy = "if a GPU is the reason, --device cpu helps"
        problems.append(f"PyTorch does not work: {error}; {remedy}")
    if torch.get("driver") and not torch["gpus"]:
        notes.append(
            f"there is an NVIDIA driver ({torch['driver']}) and PyTorch sees no GPU: this PyTorch "
            f"was built for CUDA {torch['cuda']} (https://pytorch.org/get-started), "
            f"CUDA_VISIBLE_DEVICES is {os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}"
        )
    if torch.get("gpus") and (missing := torch["missing_for_compile"]):
        notes.append(f"torch.compile needs {' and '.join(missing)}: training is slower without it")
    system = {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processor": machine.processor_name(),
        "usable_cores": machine.usable_cores(),
        "free_mb": round(shutil.disk_usage(".").free / 1e6),
    }
    environment = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    report = {"packages": packages, "system": system, "environment": environment, "torch": torch}
    return report | {"problems": problems, "notes": notes}


def ask_torch() -> dict[str, Any]:
    """Return what `describe_torch` finds in another process; what ends that is its `error`."""
    command = [sys.executable, "-m", "mt.runtime.doctor"]
    env = machine.with_own_imports()
    try:
        ended = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False, env=env)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {TIMEOUT:.0f} s"}
    if ended.returncode == 0:
        return dict(json.loads(ended.stdout))
    lines = filter(str.strip, reversed(ended.stderr.decode(errors="replace").split("\n")))
    return {"error": next(lines, f"the process ended with code {ended.returncode}")}


def format_report(report: Mapping[str, Any]) -> str:
    """Format the report: a paragraph for each section, with its name in front."""
    lines = []
    for name, section in report.items():
        pairs = section.items() if isinstance(section, dict) else [("-", text) for text in section]
        text = "; ".join(f"{key} {value}" for key, value in pairs)
        lines += [f"{'' if n else name:<13}{line}" for n, line in enumerate(wrap(text, 88))]
    return "\n".join(lines)


def describe_torch() -> dict[str, Any]:
    """Return PyTorch's build, the devices that it sees, and GFLOP/s of a product on each."""
    import torch
    from torch.utils import benchmark, collect_env

    from mt.errors import ConfigError
    from mt.runtime.devices import DTYPES, choose_device, missing_for_compile

    auto, n_threads = choose_device(), torch.get_num_threads()
    gpus = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    speeds: dict[str, int] = {}
    for name, precision in product(["cpu", "cuda"] if gpus else ["cpu"], DTYPES):
        try:
            device = choose_device(name, precision)
        except ConfigError:  # which the device has not
            continue
        like: dict[str, Any] = {"dtype": device.dtype, "device": device.device}
        rows, n_in, n_out = SHAPES[name]
        x, weight = (torch.randn(n, n_in, requires_grad=True, **like) for n in (rows, n_out))
        linear = torch.nn.functional.linear
        linear(x, weight).sum().backward()  # as in training
        names = {"linear": linear, "x": x, "weight": weight}
        timer = benchmark.Timer("linear(x, weight)", globals=names, num_threads=n_threads)
        seconds = min(timer.blocked_autorange(min_run_time=0.1).times)
        speeds[f"{name} {precision}"] = round(2e-9 * rows * n_in * n_out / seconds)
    return {
        "device": str(auto),
        "threads": n_threads,
        "cuda": torch.version.cuda,
        "driver": collect_env.get_nvidia_driver_version(collect_env.run),
        "gpus": [f"{gpu.name}, {gpu.total_memory / 1e9:.1f} GB" for gpu in gpus],
        "missing_for_compile": missing_for_compile(auto),
        "gflops": speeds,
    }


if __name__ == "__main__":
    print(json.dumps(describe_torch()))
