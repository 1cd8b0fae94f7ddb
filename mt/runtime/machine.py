"""This machine, as known without PyTorch: processor, cores, C compiler."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

# How often a thread of OpenMP (GNU's libgomp) looks for work before it sleeps; its default is
# 300,000. Beside one busy process on two cores that costs half of the time: scripts/README.md.
SPIN_COUNT = "1000"


def limit_spinning() -> None:
    """Set GOMP_SPINCOUNT, unless the user has said how threads wait; before torch is loaded."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def with_own_imports() -> dict[str, str]:
    """This environment, with which `python -m mt` imports what this process does.

    Otherwise `-m` looks into the current folder first, where a file of the user may be called as a
    module of Python is: tokenize.py. Python 3.10 does so all the same.
    """
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}


def usable_cores() -> int:
    """Return the cores that the system lets this process run on; all where it does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_name() -> str:
    """Model name of the CPU; on Linux `platform.processor()` knows only the architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        return text.split("\nmodel name", 1)[1].partition(":")[2].partition("\n")[0].strip()
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def c_compiler() -> str | None:
    names = filter(None, (os.environ.get("CC"), "cc", "gcc", "clang"))
    return next(filter(None, map(shutil.which, names)), None)


def python_header() -> str | None:
    """Path of Python.h, which Triton's C code includes; None where it is not installed."""
    path = Path(sysconfig.get_path("include"), "Python.h")
    return str(path) if path.is_file() else None
