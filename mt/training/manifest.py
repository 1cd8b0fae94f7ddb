"""`manifest.json` of a run directory: what was run, on which data, software and hardware."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mt.files import write_whole
from mt.runtime.distributed import current_jobs, restarted_jobs

MANIFEST = "manifest.json"
PACKAGES = (
    "mt", "torch", "sentencepiece", "datasets", "sacrebleu", "safetensors", "numpy", "pydantic",
)  # fmt: skip


def write_manifest(run_dir: Path, facts: Mapping[str, Any]) -> None:
    """Write the manifest: command, job, versions and machine, plus `facts` about data and model."""
    manifest = {
        "command": sys.argv,
        "jobs": current_jobs(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "packages": _package_versions(),
        **facts,
    }
    write_whole(run_dir / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


def is_of_this_job(run_dir: Path) -> bool:
    """Whether an earlier start of this job, by torchrun or out of a queue, made the run."""
    try:
        manifest = json.loads((run_dir / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return not set(manifest.get("jobs", [])).isdisjoint(restarted_jobs())


def _processor() -> str:
    """Model name of the CPU; on Linux `platform.processor()` knows only the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor()


def _package_versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
