"""How many cores of the processor this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return the cores that the system lets this process run on; all where it does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
