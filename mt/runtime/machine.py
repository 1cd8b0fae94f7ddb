"""This machine without PyTorch: processor, cores, compiler; several processes that train on it."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from mt.errors import ConfigError

# Signals that end a training after its update: SIGHUP of a terminal that is closed, SIGTERM and, if
# asked to give notice, SIGUSR1 of a batch system. One to this process is passed on to the others.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
received: list[int] = []  # signals raised as exceptions, which a library's import may swallow
# Seconds for the other processes to end by themselves once one has failed.
SHUTDOWN_SECONDS = 60.0
# How often a thread of OpenMP (GNU's libgomp) looks for work before it sleeps; its default is
# 300,000. Beside one busy process on two cores that costs half of the time: scripts/README.md.
SPIN_COUNT = "1000"


def limit_spinning() -> None:
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def with_own_imports() -> dict[str, str]:
    """This environment, with which `python -m mt` imports what this process does.

    Otherwise `-m` looks into the current folder first, where a file of the user may be called as a
    module of Python is: tokenize.py. Python 3.10 does so all the same.
    """
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}


def usable_cores() -> int:
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


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
    path = Path(sysconfig.get_path("include"), "Python.h")
    return str(path) if path.is_file() else None


@contextmanager
def signals_to(handler: Any, numbers: Iterable[int] = SIGNALS) -> Iterator[None]:
    """Inside, `handler` gets these signals; a hangup that is ignored, as under nohup, stays so.

    Python lets only the main thread handle signals. In another one, its program does.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        handled = [n for n in numbers if not (ignored and n == signal.SIGHUP)]
        before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


# --- processes that train together, without torchrun ---------------------------------------------


def run_processes(arguments: Sequence[str], count: int) -> int:
    """Run `mt` with these arguments in `count` processes that train together; return an exit code.

    The code is 0 if all processes end with 0, else that of the first one to fail. Without
    OMP_NUM_THREADS, each gets cores / `count` threads.
    """
    if (started := os.environ.get("WORLD_SIZE", "1")) != "1":
        problem = f"torchrun or the batch system has started {started} processes already"
        raise ConfigError(f"--processes: {problem}; leave it out")
    threads = {"OMP_NUM_THREADS": str(max(1, usable_cores() // count))}
    world = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment = {**threads, **with_own_imports(), **world, **place}
    command = [sys.executable, "-m", "mt", *arguments]
    processes: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    with signals_to(pass_on):
        for rank in range(count):
            variables = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            # A session of its own: Ctrl-C reaches this process alone, which passes it on once.
            processes.append(subprocess.Popen(command, env=variables, start_new_session=True))
        return _wait(processes)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait until all have ended; kill those that do not, some time after another has failed."""
    failed, deadline = 0, float("inf")
    while True:
        running = [process for process in processes if process.poll() is None]
        if not failed:
            failed = next((each.returncode for each in processes if each.returncode), 0)
            deadline = time.monotonic() + SHUTDOWN_SECONDS if failed else deadline
        if not running:
            return 128 - failed if failed < 0 else failed  # -9 becomes 137, as in a shell
        if time.monotonic() > deadline:
            for process in running:
                process.kill()
        with suppress(subprocess.TimeoutExpired):
            running[0].wait(0.1)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
