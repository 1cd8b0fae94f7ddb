"""Memory: figures of the system, freed memory, and the message where it is too small."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from corpora import write

from mt.errors import ConfigError
from mt.runtime import memory
from mt.runtime.devices import Device
from mt.runtime.failures import explain_failures
from mt.runtime.memory import (
    available_memory_mb,
    peak_memory_mb,
    release_freed_memory,
    reset_peak_memory,
    resident_memory_mb,
)

CPU = torch.device("cpu")
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


@pytest.mark.parametrize(
    ("group", "folder", "limit", "used"),
    [
        ("0::/a/b", "a/b", "memory.max", "memory.current"),
        ("0::/a/b", "a", "memory.max", "memory.current"),  # of the group above
        ("0::/machine/a", ".", "memory.max", "memory.current"),  # in a container
        ("3:cpu,memory:/a", "memory/a", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)
def test_limits_of_control_groups_count(
    group: str, folder: str, limit: str, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    write(tmp_path / folder / limit, "900000000\n")
    write(tmp_path / folder / used, "200000000\n")
    write(tmp_path / folder / "memory.stat", "anon 3\ninactive_file 50000000\n")
    read_text = Path.read_text

    def read(path: Path, **options: Any) -> str:
        is_list = path == Path("/proc/self/cgroup")
        return f"2:cpu:/x\n{group}\n" if is_list else read_text(path, **options)

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


def test_a_cpu_without_enough_memory_is_one_message() -> None:
    """torch's allocator for CPUs raises a plain RuntimeError."""
    cpu = Device(CPU, "fp32")
    with (
        pytest.raises(ConfigError, match=r"^the memory of CPU in fp32.* is too small: "),
        explain_failures(cpu),
    ):
        torch.empty(2**60)
