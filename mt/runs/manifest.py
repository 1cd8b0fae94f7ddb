"""`manifest.json` of a run directory: what was run, on which data, software and hardware."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mt import __version__
from mt.files import write_whole
from mt.runtime.machine import processor_name

MANIFEST = "manifest.json"
PACKAGES = (
    "torch", "sentencepiece", "datasets", "sacrebleu", "safetensors", "numpy", "pydantic",
)  # fmt: skip


def write_manifest(run_dir: Path, details: Mapping[str, Any]) -> None:
    """Write the manifest: command, job, versions, machine, and `details` of data and model."""
    manifest = {
        "command": sys.argv,
        "jobs": _jobs(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "packages": _package_versions(),
        **details,
    }
    write_whole(run_dir / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


def read_manifest(run_dir: Path) -> dict[str, Any]:
    """Read the manifest. Raises OSError or ValueError if it is missing or damaged."""
    manifest = json.loads((run_dir / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(manifest, dict):
        raise ValueError("it is no JSON object")
    return manifest


def is_of_this_job(run_dir: Path) -> bool:
    """Whether an earlier start of this job, by torchrun or out of a queue, made the run."""
    try:
        manifest = read_manifest(run_dir)
    except (OSError, ValueError):
        return False
    return not set(manifest.get("jobs", [])).isdisjoint(_restarted_jobs())


def _jobs() -> list[str]:
    """Names of the torchrun and Slurm jobs that this process belongs to."""
    slurm = os.environ.get("SLURM_JOB_ID")
    return [*_torchrun_job(), *([f"slurm {slurm}"] if slurm else [])]


def _restarted_jobs() -> list[str]:
    """Those of `_jobs` that may have started this training before.

    All commands of a Slurm allocation share its id, so a Slurm job counts only once requeued.
    """
    requeued = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
    return _jobs() if requeued else _torchrun_job()


def _torchrun_job() -> list[str]:
    """torchrun's agent is the parent of its processes, and starts them again only on a restart."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return []
    return [f"torchrun {socket.gethostname()} {os.getppid()}"]


def _package_versions() -> dict[str, str]:
    versions = {"mt": __version__}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
