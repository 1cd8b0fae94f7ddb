"""Memory of a GPU or of this process: how much is used, how much is available, and freeing it.

psutil knows neither a container's limit nor how to reset the peak, so /proc is read here anyway.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

CGROUPS = Path("/sys/fs/cgroup")


def release_freed_memory() -> None:
    """Return freed memory to the operating system, if the C library can (glibc).

    Tensors of many sizes fragment the heap: training on batches of 4,096 tokens, d_model 256, grows
    to 2.1 GB within 60 updates, of which 1 GB is in use. One call takes 0.1 s.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


def keep_freed_memory() -> None:
    """Keep freed memory in this process for reuse, if the C library can (glibc).

    Otherwise each large tensor gets new pages, and touching them first costs more than computing on
    them: a decoding step does little with its 10 MB of logits. Translating 5,000 lines is 1 to 9 %
    faster.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        trim_threshold, mmap_threshold = -1, -3
        # Older versions accept at most 32 MB. Setting one threshold stops glibc from adapting the
        # other, so set both or none.
        if mallopt(mmap_threshold, 1 << 30) or mallopt(mmap_threshold, 32 << 20):
            mallopt(trim_threshold, 1 << 30)


def peak_memory_mb(device: torch.device) -> float:
    """Peak memory in MB: of tensors on the GPU, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if (peak := _from_proc("/proc/self/status", "VmHWM")) is not None:
        return peak
    import resource

    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_rss / (1e6 if sys.platform == "darwin" else 1e3)  # macOS counts in bytes, not kB


def resident_memory_mb() -> float | None:
    """Resident memory of this process in MB; None where there is no /proc."""
    return _from_proc("/proc/self/status", "VmRSS")


def reset_peak_memory(device: torch.device) -> None:
    """Reset what `peak_memory_mb` returns; possible on GPUs and on Linux."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def release_cached_memory(device: torch.device) -> None:
    """Return what torch keeps for reuse to the GPU, or to the operating system."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        release_freed_memory()


def available_memory_mb(device: torch.device) -> float:
    """Memory in MB that this process has or could get, of the GPU or of the machine."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return (free + torch.cuda.memory_reserved(device)) / 1e6
    resident = resident_memory_mb() or 0.0
    free_mb = _from_proc("/proc/meminfo", "MemAvailable")
    if free_mb is None:  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2e6
    return resident + max(0.0, min([free_mb, *_free_in_groups_mb()]))


def _free_in_groups_mb() -> Iterator[float]:
    """Yield MB that control groups leave to this process: limits of a container, or of a job.

    Each group above its own counts as well.
    """
    groups = []
    with suppress(OSError):
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            root, limit, used = CGROUPS, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root, limit, used = CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")  # in a container, that of the machine, which is not there
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):
                stat = (folder / "memory.stat").read_text()
                counts = dict(row.split() for row in stat.splitlines())
                # Of files that were read, and given back when memory is wanted.
                cached = int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
                free = int((folder / limit).read_text()) - int((folder / used).read_text())
                yield (free + cached) / 1e6


def unused_memory_mb(gpu: torch.device) -> float:
    """Memory of a GPU in MB that no tensor holds: free, or kept by torch for reuse."""
    return available_memory_mb(gpu) - torch.cuda.memory_allocated(gpu) / 1e6


def _from_proc(path: str, name: str) -> float | None:
    """The value of `name` in a file of /proc, converted from KiB to MB; None without it."""
    with suppress(OSError, IndexError):
        kib = f"\n{Path(path).read_text(encoding='utf-8')}".split(f"\n{name}:")[1].split()[0]
        return int(kib) * 1.024 / 1e3
    return None
