"""`manifest.json` of a run directory: what was run, on which data, software and hardware."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mt import __version__
from mt.files import read_json, write_whole
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


def update_manifest(run_dir: Path, details: Mapping[str, Any]) -> None:
    with suppress(OSError, ValueError):
        manifest = {**read_manifest(run_dir), **details}
        write_whole(run_dir / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


def read_manifest(run_dir: Path) -> dict[str, Any]:
    """Read the manifest. Raises OSError or ValueError if it is missing or damaged."""
    manifest = read_json(run_dir / MANIFEST)
    if not isinstance(manifest, dict):
        raise ValueError("it is no JSON object")
    return manifest


def is_of_this_job(run_dir: Path) -> bool:
    """Whether an earlier start of this job, by torchrun or out of a queue, made the run."""
    try:
        manifest = read_manifest(run_dir)
    except (OSError, ValueError):
        return False
    return not set(manifest.get("jobs", [])).isdisjoint(_jobs(before=True))


def _jobs(before: bool = False) -> list[str]:
    """Names of the torchrun and Slurm jobs that this process belongs to.

    `before`: only those that may have started this training before. torchrun's agent is the parent
    of its processes, and starts them again only on a restart. All commands of a Slurm allocation
    share its id, so a Slurm job counts only once requeued.
    """
    jobs = []
    if "TORCHELASTIC_RUN_ID" in os.environ:
        jobs.append(f"torchrun {socket.gethostname()} {os.getppid()}")
    slurm = os.environ.get("SLURM_JOB_ID")
    if slurm and (not before or os.environ.get("SLURM_RESTART_COUNT", "0") != "0"):
        jobs.append(f"slurm {slurm}")
    return jobs


def _package_versions() -> dict[str, str]:
    versions = {"mt": __version__}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions
