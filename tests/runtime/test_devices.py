"""Devices, precisions, compilation and random seeds."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mt.errors import ConfigError
from mt.runtime import devices, machine, memory
from mt.runtime.devices import Device, can_compile, check_compile, choose_device, seed_everything
from mt.runtime.memory import (
    available_memory_mb,
    peak_memory_mb,
    release_freed_memory,
    reset_peak_memory,
    resident_memory_mb,
)

MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined] # set when torch is imported


@pytest.fixture(autouse=True)
def restore_matmul_precision() -> Iterator[None]:
    """Restore the one setting of `choose_device` that later tests depend on."""
    matmul = MATMUL
    before = getattr(matmul, "fp32_precision", None)
    yield
    if before is not None:
        matmul.fp32_precision = before


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.device]]:
    """Two pretended GPUs without bf16; yields the devices that `torch.cuda.set_device` gets."""
    selected: list[torch.device] = []

    def set_device(device: torch.device) -> None:
        torch.cuda._utils._get_device_index(device)  # as torch does: refuses one without an index
        selected.append(device)

    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation
    )
    before = torch.backends.cuda.cudnn_sdp_enabled()
    yield selected
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


def message_of(name: str, precision: str = "auto") -> str:
    with pytest.raises(ConfigError) as error:
        choose_device(name, precision)
    return str(error.value)


# --- devices and precisions -------------------------------------------------------------------


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_auto_is_the_cpu() -> None:
    device = choose_device("auto", "fp32")
    assert (device.device, device.dtype, device.is_cuda) == (
        torch.device("cpu"),
        torch.float32,
        False,
    )
    assert str(device) == "CPU in fp32, 1 thread"
    assert choose_device("cpu", "bf16").dtype == torch.bfloat16


def test_with_gpus_it_is_the_first_or_the_one_named(gpus: list[torch.device]) -> None:
    assert choose_device("cpu", "fp32").device == torch.device("cpu")
    assert gpus == []
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    assert choose_device().device == choose_device("cuda").device == first
    assert choose_device("cuda:1", "fp32").device == second
    assert gpus == [first, first, second]


def test_the_gpu_is_selected_before_its_precisions_are_probed(
    gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe asks the current device, which would be GPU 0."""
    selected_at_probe: list[list[torch.device]] = []

    def probe(including_emulation: bool) -> bool:
        selected_at_probe.append(list(gpus))
        return not including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", probe)
    assert choose_device("cuda:1").precision == "bf16"
    assert choose_device("cuda", local_rank=0).device == torch.device("cuda", 0)
    first, second = torch.device("cuda", 1), torch.device("cuda", 0)
    assert selected_at_probe == [[first], [first, second]]


@pytest.mark.usefixtures("gpus")
def test_auto_on_a_gpu_is_bf16_if_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("cuda").precision == "fp16"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert choose_device("cuda").precision == "bf16"


@pytest.mark.parametrize(
    ("unit", "precision"),
    [("none", "fp32"), ("avx512_bf16", "bf16"), ("amx_tile", "bf16"), ("avx512_vnni", "fp32")],
)
def test_auto_on_a_cpu_is_bf16_if_fast(
    unit: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("avx512_bf16", "amx_tile", "avx512_vnni"):
        monkeypatch.setattr(
            torch.cpu, f"_is_{name}_supported", lambda name=name: name == unit, raising=False
        )
    assert choose_device("cpu").precision == precision


def test_auto_on_a_cpu_that_torch_cannot_describe_is_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("avx512_bf16", "amx_tile"):
        monkeypatch.delattr(torch.cpu, f"_is_{name}_supported", raising=False)
    assert choose_device("cpu").precision == "fp32"


@pytest.mark.usefixtures("no_gpu")
def test_an_unknown_device_is_refused() -> None:
    assert message_of("gpu") == "--device: must be auto, cpu, cuda or cuda:N, found 'gpu'"
    assert message_of("mps") == "--device: must be auto, cpu, cuda or cuda:N, found 'mps'"
    expected = (
        f"--device: cuda does not exist: torch {torch.__version__} sees no CUDA device; use cpu"
    )
    assert message_of("cuda") == expected


@pytest.mark.usefixtures("gpus")
def test_a_gpu_that_does_not_exist_is_refused() -> None:
    expected = (
        f"--device: cuda:2 does not exist: torch {torch.__version__} sees 2 CUDA devices; use cpu"
    )
    assert message_of("cuda:2") == expected


@pytest.mark.usefixtures("gpus")
def test_an_unsupported_precision_is_refused() -> None:
    assert (
        message_of("cuda", "bf16") == "precision: this GPU has no bf16 arithmetic; use fp16 or fp32"
    )
    assert message_of("cpu", "fp16") == (
        "precision: fp16 needs a GPU, a CPU is slow at it and overflows; use bf16 or fp32"
    )
    assert (
        message_of("cpu", "fp8") == "precision: must be auto, fp32, bf16, fp16, int8, found 'fp8'"
    )


# --- float32 products -------------------------------------------------------------------------


def test_products_in_fp32_stay_exact() -> None:
    """The faster backend chosen for a CPU must not round to bf16 on the way."""
    choose_device("cpu", "fp32")
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(256, 300, generator=generator)
    b = torch.randn(300, 200, generator=generator)
    exact = a.double() @ b.double()
    assert float(((a @ b).double() - exact).norm() / exact.norm()) < 1e-6


def test_a_backend_that_rounds_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU with AMX."""
    matmul = MATMUL
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has one product only")
    matmul.fp32_precision = "ieee"
    real = torch.Tensor.__matmul__

    def rounding(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype != torch.float32 or matmul.fp32_precision != "bf16":
            return real(a, b)
        return real(a.bfloat16(), b.bfloat16()).float()

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounding)
    devices.prepare_cpu()
    assert matmul.fp32_precision == "ieee"


def test_all_allowed_cores_are_used_unless_omp_num_threads_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    choose_device("cpu", "fp32")
    assert asked == []  # OMP_NUM_THREADS is set here
    monkeypatch.delenv("OMP_NUM_THREADS")
    choose_device("cpu", "fp32")
    assert asked == [3]


def test_small_products_use_mkl_inside_the_block_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matmul = MATMUL
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has one product only")

    def fail() -> None:
        with devices.small_products():
            assert matmul.fp32_precision == "ieee"
            raise ZeroDivisionError

    matmul.fp32_precision = "bf16"
    with pytest.raises(ZeroDivisionError):
        fail()
    assert matmul.fp32_precision == "bf16"
    matmul.fp32_precision = "tf32"  # somebody else's choice is left alone
    with devices.small_products():
        assert matmul.fp32_precision == "tf32"


@pytest.mark.parametrize("missing", ["nothing", "a new GPU", "triton", "a compiler"])
def test_compiling_needs_a_gpu_triton_and_a_compiler(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    capability = (6, 1) if missing == "a new GPU" else (7, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(
        devices.importlib.util, "find_spec", lambda _: None if missing == "triton" else "found"
    )
    monkeypatch.setattr(
        machine.shutil, "which", lambda name: name if missing != "a compiler" else None
    )
    assert can_compile(Device(torch.device("cuda"), "bf16")) == (missing == "nothing")
    assert not can_compile(Device(torch.device("cpu"), "bf16"))


def test_compile_true_needs_a_device_that_can() -> None:
    cpu = Device(torch.device("cpu"), "fp32")
    for wanted in ("auto", False):
        check_compile(wanted, cpu)
    with pytest.raises(
        ConfigError, match=r"train\.compile: true takes a GPU .* use auto, which compiles where"
    ):
        check_compile(True, cpu)


# --- seeds ------------------------------------------------------------------------------------


def drawn(seed: int, *path: int) -> tuple[float, ...]:
    seed_everything(seed, *path)
    return tuple(torch.rand(2).tolist())


def test_the_same_seed_and_path_give_the_same_numbers() -> None:
    assert drawn(1, 7) == drawn(1, 7)
    assert drawn(2**70 + 1, 7) == drawn(2**70 + 1, 7)


def test_no_two_seeds_steps_or_ranks_share_their_numbers() -> None:
    paths = [(seed, step, rank) for seed in range(10) for step in range(20) for rank in range(5)]
    assert len({drawn(*path) for path in paths}) == len(paths)
    assert len({drawn(1), drawn(1, 0), drawn(1, 0, 0), drawn(0, 1)}) == 4


def test_numbers_of_neighbouring_steps_are_uncorrelated() -> None:
    first = np.array([drawn(1, step)[0] for step in range(1000)])
    assert abs(first.mean() - 0.5) < 0.05
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.1


def test_freed_memory_is_returned_to_the_system() -> None:
    """Of many small tensors one in a hundred stays in use: the memory between them is returned."""
    status = Path("/proc/self/status")
    if not status.exists() or not hasattr(memory._c_library(), "malloc_trim"):
        pytest.skip("this C library cannot")

    def megabytes() -> float:
        line = next(line for line in status.read_text().split("\n") if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024 / 1e6

    release_freed_memory()
    before = megabytes()
    made = [torch.ones(10_000) for _ in range(2500)]  # 40 kB each, 100 MB
    used = megabytes()
    kept = made[::100]
    del made
    release_freed_memory()
    assert used - before > 80
    assert megabytes() - before < 20
    assert len(kept) == 25


def test_peak_memory_is_the_figure_of_the_system() -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("no /proc here to compare with")
    held = np.ones(30_000_000, np.uint8)
    line = next(line for line in status.read_text().split("\n") if line.startswith("VmHWM"))
    megabytes = int(line.split()[1]) * 1024 / 1e6
    assert held.nbytes / 1e6 < megabytes
    # A process that was started by a larger one has inherited its peak.
    assert 0.95 * megabytes < peak_memory_mb(torch.device("cpu")) < 50 * megabytes


def fresh_pages(size: int) -> mmap.mmap:
    """Memory outside the heap, which is new to the process; every page is touched."""
    held = mmap.mmap(-1, size)
    for start in range(0, size, mmap.PAGESIZE):
        held[start] = 1
    return held


def test_the_peak_of_memory_can_be_reset() -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("no /proc here that could do it")
    cpu = torch.device("cpu")
    held = fresh_pages(300_000_000)
    reset_peak_memory(cpu)
    with_it = peak_memory_mb(cpu)
    held.close()
    assert peak_memory_mb(cpu) > with_it - 5  # the system counts in strides
    reset_peak_memory(cpu)
    assert with_it - 350 < peak_memory_mb(cpu) < with_it - 250


def test_available_memory_includes_what_the_process_has() -> None:
    before = resident_memory_mb()
    if before is None:
        pytest.skip("the system does not tell")
    held = fresh_pages(200_000_000)
    now = resident_memory_mb()
    assert now is not None
    assert now - before > 150
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e6
    assert now < available_memory_mb(torch.device("cpu")) < machine + len(held) / 1e6


def test_memory_that_tensors_hold_is_available_but_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a training holds is no room for the batches of its validation."""
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (20_000_000, 100_000_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 70_000_000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 60_000_000)
    assert available_memory_mb(gpu) == 90
    assert memory.unused_memory_mb(gpu) == 30


def test_a_device_names_its_dtype() -> None:
    assert [Device(torch.device("cpu"), name).dtype for name in ("fp32", "bf16", "fp16")] == [
        torch.float32, torch.bfloat16, torch.float16,
    ]  # fmt: skip


def test_int8_is_for_decoding_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    with pytest.raises(
        ConfigError,
        match="precision: int8 is for decoding on a CPU; a GPU takes bf16, fp16 or fp32",
    ):
        devices._find_precision("int8", torch.device("cuda"))


def test_a_cpu_without_int8_falls_back_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(devices, "has_int8", lambda: False)
    assert choose_device("cpu", "int8", said.append).precision == "fp32"
    assert said == [
        f"this CPU and torch {torch.__version__} have no fast int8 products (VNNI): "
        "computing in fp32 instead"
    ]
    monkeypatch.setattr(devices, "has_int8", lambda: True)
    chosen = choose_device("cpu", "int8", said.append)
    assert (chosen.precision, chosen.dtype, len(said)) == ("int8", torch.float32, 1)


def test_a_cpu_without_enough_memory_is_one_message() -> None:
    """torch's allocator for CPUs raises a plain RuntimeError."""
    cpu = Device(torch.device("cpu"), "fp32")
    with (
        pytest.raises(ConfigError, match=r"^the memory of CPU in fp32.* is too small: "),
        memory.explain_out_of_memory(cpu),
    ):
        torch.empty(2**60)
    with pytest.raises(RuntimeError, match="other"), memory.explain_out_of_memory(cpu):
        raise RuntimeError("other")
