"""The processor of this machine: its name, and how many cores this process may use."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def usable_cores() -> int:
    """Return the cores that the system lets this process run on; all where it does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_name() -> str:
    """Model name of the CPU; on Linux `platform.processor()` knows only the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
