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
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import product
from textwrap import wrap
from typing import Any

from mt import __version__
from mt.runtime import machine

# Environment variables that change what `mt` does.
VARIABLES = (
    "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "CUDA_VISIBLE_DEVICES", "CC",
    "SLURM_JOB_ID", "HF_HUB_OFFLINE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
)  # fmt: skip
TIMEOUT = 120.0  # seconds after which the process that asks PyTorch is ended
# Free space below which a run soon fills the disk: three checkpoints of base.yaml.
LITTLE_DISK_MB = 3000.0
# Rows, inputs and outputs of a timed product: on a CPU a feed-forward layer of base.yaml.
SHAPES = {"cpu": (256, 512, 2048), "cuda": (4096, 4096, 4096)}


def examine() -> dict[str, Any]:
    """Return the sections of the report, `problems` (training cannot start), and `notes`."""
    needed = requirements()
    report: dict[str, Any] = {
        "packages": {"mt": __version__, **{name: installed_version(name) for name in needed}},
        "system": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "processor": machine.processor_name(),
            "usable_cores": machine.usable_cores(),
            "free_mb": round(shutil.disk_usage(".").free / 1e6),
        },
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "torch": ask_torch(),
    }
    report["problems"] = [*find_problems(report, needed)]
    return report | {"notes": [*find_notes(report, needed)]}


def requirements() -> dict[str, Any]:
    """Return what the installed `mt` requires here, by package; {} where it is not installed."""
    from packaging.requirements import Requirement  # comes with datasets

    with suppress(PackageNotFoundError):
        packages = [Requirement(text) for text in requires("mt") or ()]
        here = (each for each in packages if not each.marker or each.marker.evaluate({"extra": ""}))
        return {package.name: package for package in here}
    return {}


def installed_version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


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


def find_problems(report: Mapping[str, Any], needed: Mapping[str, Any]) -> Iterator[str]:
    """Yield why training cannot start; nothing if it can."""
    for name, package in needed.items():
        if report["packages"][name] is None:
            yield f"{name} is not installed: pip install '{package}'"
    if error := report["torch"].get("error"):
        yield f"PyTorch does not work: {error}; if a GPU is the reason, --device cpu helps"


def find_notes(report: Mapping[str, Any], needed: Mapping[str, Any]) -> Iterator[str]:
    """Yield what may be better, or explains a figure."""
    if not needed:
        yield "mt runs from its source and is not installed: which versions it needs is not known"
    for name, package in needed.items():
        installed = report["packages"][name]
        if installed and not package.specifier.contains(installed, prereleases=True):
            yield f"{name} {installed} is installed, tested is {package}"
    torch, variables = report["torch"], report["environment"]
    if torch.get("driver") and not torch["gpus"]:
        yield (
            f"there is an NVIDIA driver ({torch['driver']}) and PyTorch sees no GPU: this PyTorch "
            f"was built for CUDA {torch['cuda']} (https://pytorch.org/get-started), "
            f"CUDA_VISIBLE_DEVICES is {variables.get('CUDA_VISIBLE_DEVICES', 'not set')}"
        )
    if torch.get("gpus") and torch["missing_for_compile"]:
        missing = " and ".join(torch["missing_for_compile"])
        yield f"torch.compile needs {missing}, which was not found: training is slower without it"
    if torch.get("gpus") == [] and torch["threads"] < report["system"]["usable_cores"]:
        value = variables.get("OMP_NUM_THREADS", "not set")
        yield f"only {torch['threads']} cores are used, because OMP_NUM_THREADS is {value}"
    if (free := report["system"]["free_mb"]) < LITTLE_DISK_MB:
        yield f"{free:,.0f} MB of disk are little: checkpoints need space"


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
