"""Memory of the system and of this process, and what errors of torch mean."""

from __future__ import annotations

import ctypes
import mmap
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from corpora import write
from messages import says
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._inductor.exc import InductorError

from mt.errors import DeviceFailedError, TooLittleMemoryError
from mt.runtime import memory
from mt.runtime.devices import Device
from mt.runtime.memory import (
    available_memory_mb,
    explain_failures,
    failure_kind,
    peak_memory_mb,
    release_freed_memory,
    reset_peak_memory,
    resident_memory_mb,
)

CPU = torch.device("cpu")
ON_CPU = Device(CPU, "fp32")
has_proc = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the system does not tell"
)


def resident_mb() -> float:
    return resident_memory_mb() or pytest.fail("the system does not tell")


def fresh_pages(size: int) -> mmap.mmap:
    """Memory outside the heap, which is new to the process; every page is touched."""
    held = mmap.mmap(-1, size)
    for start in range(0, size, mmap.PAGESIZE):
        held[start] = 1
    return held


@has_proc
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library cannot")
def test_freed_memory_is_returned_to_the_system() -> None:
    """Of many small tensors one in a hundred stays in use: the memory between them is returned."""
    release_freed_memory()
    before = resident_mb()
    made = [torch.ones(10_000) for _ in range(2500)]  # 40 kB each, 100 MB
    used = resident_mb()
    kept = made[::100]
    del made
    release_freed_memory()
    assert used - before > 80
    assert resident_mb() - before < 20
    assert len(kept) == 25


@has_proc
def test_peak_memory_is_the_figure_of_the_system_and_can_be_reset() -> None:
    held = fresh_pages(300_000_000)
    reset_peak_memory(CPU)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.split("\n") if line.startswith("VmHWM"))
    with_it = peak_memory_mb(CPU)
    assert len(held) / 1e6 < with_it == pytest.approx(int(line.split()[1]) * 1024 / 1e6, rel=0.05)
    held.close()
    assert peak_memory_mb(CPU) > with_it - 5  # the system counts in strides
    reset_peak_memory(CPU)
    assert with_it - 350 < peak_memory_mb(CPU) < with_it - 250


@has_proc
def test_available_memory_includes_what_the_process_has() -> None:
    before = resident_mb()
    held = fresh_pages(200_000_000)
    now = resident_mb()
    assert now - before > 150
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e6
    assert now < available_memory_mb(CPU) < machine + len(held) / 1e6


@pytest.mark.parametrize("folder", ["a/b", "a", "."])  # a container sees its own as the root
def test_control_groups_count(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    write(tmp_path / folder / "memory.max", "900000000\n")
    write(tmp_path / folder / "memory.current", "200000000\n")
    write(tmp_path / folder / "memory.stat", "anon 3\ninactive_file 50000000\n")
    read_text = Path.read_text

    def read(path: Path, **options: Any) -> str:
        is_list = path == Path("/proc/self/cgroup")
        return "2:cpu:/x\n0::/a/b\n" if is_list else read_text(path, **options)

    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    monkeypatch.setattr(Path, "read_text", read)
    assert [*memory._free_in_groups_mb()] == [750]


def test_memory_that_tensors_hold_is_available_but_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a training holds is no room for the batches of its validation."""
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (20_000_000, 100_000_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 70_000_000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 60_000_000)
    assert available_memory_mb(gpu) == 90
    assert memory.unused_memory_mb(gpu) == 30


# --- errors of torch ---

DEBUG = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
MEMORY: list[Exception] = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total"),
    RuntimeError(f"CUDA error: out of memory{DEBUG}"),
    torch.AcceleratorError(f"CUDA error: out of memory{DEBUG}"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried to"),
    InductorError(torch.OutOfMemoryError("CUDA out of memory."), None),
]
DEVICE: list[Exception] = [
    torch.AcceleratorError(f"CUDA error: an illegal memory access was encountered{DEBUG}"),
    RuntimeError(f"CUDA error: device-side assert triggered{DEBUG}"),
    RuntimeError(f"CUDA error: invalid configuration argument{DEBUG}"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("CUDA error: unspecified launch failure"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
    InductorError(RuntimeError("Triton Error [CUDA]: misaligned address"), None),
]


def of_triton(name: str, text: str) -> Exception:
    """An error as Triton defines it, which is not installed here."""
    kind: Callable[[str], Exception] = type(
        name, (Exception,), {"__module__": "triton.runtime.errors"}
    )
    return kind(text)


COMPILER: list[Exception] = [
    InductorError(AssertionError("unexpected stride"), None),
    InductorError(FileNotFoundError("Python.h"), None),
    FailOnRecompileLimitHit("Hard failure due to fail_on_recompile_limit_hit"),
    of_triton("OutOfResources", "out of resource: shared memory, Required: 262144"),
    RuntimeError("Triton Error [CUDA]: device kernel image is invalid"),
]
OTHER: list[Exception] = [KeyError("a"), ValueError("CUDA error"), RuntimeError("size mismatch")]


@pytest.mark.parametrize(
    ("errors", "kind"),
    [(MEMORY, "memory"), (DEVICE, "device"), (COMPILER, "compiler"), (OTHER, "other")],
)
def test_each_message_is_of_its_kind(errors: list[Exception], kind: str) -> None:
    assert {str(error)[:60]: failure_kind(error) for error in errors} == {
        str(error)[:60]: kind for error in errors
    }


def test_an_assertion_of_generated_code_is_the_compilers() -> None:
    """It is a plain AssertionError; the module is the one that Inductor gives to its code."""
    module: Any = types.ModuleType("torch._inductor.runtime.compile_tasks.abc")
    exec("def call():\n    assert 7 == 8, 'expected size 7==8'", module.__dict__)
    with pytest.raises(AssertionError) as caught:
        module.call()
    assert failure_kind(caught.value) == "compiler"
    assert failure_kind(AssertionError("expected size 7==8")) == "other"


def test_a_training_is_told_what_to_do() -> None:
    for error in MEMORY[:-1]:
        remedy = r"Lower batch\.tokens_per_batch"
        with pytest.raises(TooLittleMemoryError, match=remedy), explain_failures(ON_CPU):
            raise error
    for error in DEVICE:
        with pytest.raises(DeviceFailedError) as caught, explain_failures(ON_CPU):
            raise error
        assert caught.value.exit_code == 75
        first = str(error).partition("\n")[0]
        assert says(str(caught.value), first, "run the same command again", "ECC", "--device")
        assert "compile" not in str(caught.value).replace(first, "")
    for error in [RuntimeError("size mismatch"), COMPILER[0]]:
        with pytest.raises(type(error)) as other, explain_failures(ON_CPU):
            raise error
        assert other.value is error
