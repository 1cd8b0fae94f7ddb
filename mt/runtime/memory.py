"""How much memory is used and how much there is, on a GPU and on the machine; and what becomes of freed memory."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import torch

from mt.errors import ConfigError
from mt.runtime.devices import Device


def release_freed_memory() -> None:
    """Give what was freed back to the system, where the C library can (glibc).

    Tensors of ever new sizes leave holes in the heap: training on batches of 4,096 tokens, d_model 256, grows to
    2.1 GB within 60 updates, of which 1 GB is in use. One call takes 0.1 s.
    """
    trim = getattr(_c_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_freed_memory() -> None:
    """Let what was freed be used again by this process, where the C library can (glibc), not given back at once.

    Large tensors are otherwise new pages each time, and a first touch of each costs more than what is computed there:
    a step of decoding does little with its 10 MB of logits. Translating 5,000 lines is 1 to 9 % faster.
    """
    mallopt = getattr(_c_library(), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3
        # Older ones take 32 MB at most. Both or none: to set one stops the C library from adapting the other.
        if mallopt(mmap_threshold, 1 << 30) or mallopt(mmap_threshold, 32 << 20):
            mallopt(trim_threshold, 1 << 30)


@cache
def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # TypeError: Windows wants a name
        return None


def peak_memory_mb(device: torch.device) -> float:
    """Most memory used so far, in MB: of the GPU, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if (peak := _from_proc("/proc/self/status", "VmHWM")) is not None:
        return peak
    import resource

    # In kB, but on macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1e6 if sys.platform == "darwin" else 1e3
    )


def resident_memory_mb() -> float | None:
    """Memory of this process now, in MB; None where the system does not tell."""
    return _from_proc("/proc/self/status", "VmRSS")


def reset_peak_memory(device: torch.device) -> None:
    """Let `peak_memory_mb` begin anew, where that can be done: on GPUs and on Linux."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


@contextmanager
def explain_out_of_memory(device: Device) -> Iterator[None]:
    """What does not fit into the memory of a GPU while training becomes a ConfigError."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the memory of {device} is too small: {peak_memory_mb(device.device):,.0f} MB were in use. Lower "
            "batch.tokens_per_batch (tokens_per_update keeps the training the same), or choose a smaller model"
        ) from error


def available_memory_mb(device: torch.device) -> float:
    """Memory that this process has or could get, in MB: of the GPU, or of the machine."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return (free + torch.cuda.memory_reserved(device)) / 1e6
    own = resident_memory_mb() or 0.0
    free_mb = _from_proc("/proc/meminfo", "MemAvailable")
    if free_mb is None:  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2e6
    # A container may be allowed less than the machine has.
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with suppress(OSError, ValueError):
            group = Path("/sys/fs/cgroup")
            free_mb = min(
                free_mb, (int((group / limit).read_text()) - int((group / used).read_text())) / 1e6
            )
    return own + max(0.0, free_mb)


def _from_proc(path: str, name: str) -> float | None:
    """A figure of Linux's, in MB."""
    with suppress(OSError, StopIteration):
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        return (
            int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])
            / 1e3
            * 1.024
        )
    return None
