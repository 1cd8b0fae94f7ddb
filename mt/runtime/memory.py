"""Memory of a GPU or of this process, and what torch's errors mean: memory, device, compiler.

psutil knows neither a container's limit nor how to reset the peak, so /proc is read here anyway.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar

import torch

from mt.errors import DeviceFailedError, TooLittleMemoryError, first_line
from mt.runtime.devices import Device

Failure = Literal["memory", "device", "compiler", "other"]
Item = TypeVar("Item")
Result = TypeVar("Result")

# In messages of CUDA, cuBLAS, cuDNN and torch's allocator for CPUs.
MEMORY_SIGNS = re.compile(
    "out of memory|_STATUS_ALLOC_FAILED|can't allocate memory|not enough memory|"
    "Storage size calculation overflowed"
)
# After most of these every further call to the GPU fails. Triton repeats CUDA's words.
DEVICE_SIGNS = re.compile(
    "CUDA (driver )?error|(CUBLAS|CUDNN)_STATUS|illegal (memory access|instruction)|"
    "misaligned address|device-side assert|launch failure|ECC error"
)
COMPILERS = ("torch._dynamo", "torch._inductor", "triton")
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
    them: translating 5,000 lines is 1 to 9 % faster.
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
    """Yield MB that control groups of version 2 leave to this process: its own, and those above."""
    path = ""
    with suppress(OSError):
        path = Path("/proc/self/cgroup").read_text(encoding="utf-8").rpartition("0::/")[2].strip()
    group = CGROUPS / path  # in a container, that of the machine, which is not there
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):
            stat = (folder / "memory.stat").read_text()
            counts = dict(row.split() for row in stat.splitlines())
            # Of files that were read, and given back when memory is wanted.
            cached = int(counts.get("inactive_file", 0))
            files = folder / "memory.max", folder / "memory.current"
            limit, used = (int(path.read_text()) for path in files)
            yield (limit - used + cached) / 1e6


def unused_memory_mb(gpu: torch.device) -> float:
    """Memory of a GPU in MB that no tensor holds: free, or kept by torch for reuse."""
    return available_memory_mb(gpu) - torch.cuda.memory_allocated(gpu) / 1e6


def _from_proc(path: str, name: str) -> float | None:
    """The value of `name` in a file of /proc, converted from KiB to MB; None without it."""
    with suppress(OSError, IndexError):
        kib = f"\n{Path(path).read_text(encoding='utf-8')}".split(f"\n{name}:")[1].split()[0]
        return int(kib) * 1.024 / 1e3
    return None


# --- errors of torch -------------------------------------------------------------------------


def failure_kind(error: BaseException) -> Failure:
    """Tell why torch failed: memory, the device, its compilers, or none of these."""
    # torch.compile wraps what happens while it compiles.
    if (inner := getattr(error, "inner_exception", None)) is not None:
        kind = failure_kind(inner)
        return "compiler" if kind == "other" else kind
    text = str(error) if isinstance(error, RuntimeError) else ""
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or MEMORY_SIGNS.search(text):
        return "memory"
    if DEVICE_SIGNS.search(text):
        return "device"
    # A compiler defines the error's type, or it or its generated code has raised the error.
    names = [kind.__module__ for kind in type(error).__mro__]
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names += [frame.f_globals.get("__name__") or "" for frame in frames[-1:]]
    is_of_compiler = any(name.startswith(COMPILERS) for name in names)
    return "compiler" if is_of_compiler or "Triton Error" in text else "other"


def raise_unless_out_of_memory(error: BaseException) -> None:
    """Raise the error again, one of the device as DeviceFailedError, if it is not of memory."""
    kind = failure_kind(error)
    if kind == "device":
        raise DeviceFailedError(
            f"the GPU has failed ({first_line(error)}), and this process cannot use it any more. "
            "What is saved is intact: run the same command again to continue. If it fails again, "
            "`nvidia-smi -q -d ECC` shows whether its memory is defective; --device cuda:1 takes "
            "another GPU, and CUDA_LAUNCH_BLOCKING=1 in front of the command finds the operation"
        ) from error
    if kind != "memory":
        raise error


def in_halves(
    work: Callable[[Sequence[Item]], Result], items: Sequence[Item], device: torch.device,
    too_large: Callable[[Item], Exception],
) -> list[Result]:  # fmt: skip
    """Work on a batch, or its halves and theirs if memory lacks; `too_large` of one is raised."""
    try:
        return [work(items)]
    except (MemoryError, RuntimeError) as error:  # torch's errors are RuntimeErrors
        raise_unless_out_of_memory(error)
        if len(items) == 1:
            raise too_large(items[0]) from error
    # Outside of `except`: the error holds on to the tensors of the failed work.
    release_cached_memory(device)
    half = len(items) // 2
    parts = (items[:half], items[half:])
    return [result for part in parts for result in in_halves(work, part, device, too_large)]


@contextmanager
def explain_failures(device: Device) -> Iterator[None]:
    """Turn errors while training into TooLittleMemoryError and DeviceFailedError, with a remedy."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's errors are RuntimeErrors
        raise_unless_out_of_memory(error)
        raise TooLittleMemoryError(
            f"the memory of {device} is too small: {peak_memory_mb(device.device):,.0f} MB were in "
            "use. Lower batch.tokens_per_batch (tokens_per_update keeps the training the same), or "
            "choose a smaller model"
        ) from error
