"""What is known of this machine without PyTorch: processor, cores, C compiler, GPU driver, disk."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

# Seconds that another program has to describe itself.
TIMEOUT = 20
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
    """Path of the C compiler that torch.compile takes; None without one."""
    names = filter(None, (os.environ.get("CC"), "cc", "gcc", "clang"))
    return next(filter(None, map(shutil.which, names)), None)


def python_header() -> str | None:
    """Path of Python.h, which Triton's C code includes; None where it is not installed."""
    path = Path(sysconfig.get_path("include"), "Python.h")
    return str(path) if path.is_file() else None


# --- sections of the report of mt doctor ------------------------------------------------------


def describe_system() -> dict[str, Any]:
    """Operating system, Python, processor, and load where the system tells."""
    section: dict[str, Any] = {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
    }
    with suppress(OSError):
        section["load"] = os.getloadavg()[0]
    return section


def describe_compiler() -> dict[str, Any]:
    """The C compiler, which `train.compile` needs."""
    path = c_compiler()
    return {"path": path, "version": path and _run([path, "--version"]).stdout.split("\n")[0]}


def describe_driver() -> dict[str, Any]:
    """The NVIDIA driver and the GPUs that it knows, whether PyTorch can use them or not."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"version": None, "gpus": []}
    ended = _run([program, "--query-gpu=driver_version,name", "--format=csv,noheader"])
    rows = [line.split(", ", 1) for line in ended.stdout.splitlines() if ", " in line]
    if ended.returncode or not rows:
        raise OSError(f"nvidia-smi: {(ended.stderr or ended.stdout).strip() or 'found no GPU'}")
    return {"version": rows[0][0], "gpus": [name for _, name in rows]}


def describe_disk() -> dict[str, Any]:
    """Free space in MB of the current folder and of that for temporary files."""
    here = Path.cwd()
    return {
        "current_folder": str(here),
        "free_mb": shutil.disk_usage(here).free / 1e6,
        "writable": os.access(here, os.W_OK),
        "temporary_mb": shutil.disk_usage(tempfile.gettempdir()).free / 1e6,
    }


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
