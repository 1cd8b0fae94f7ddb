"""Devices, precisions, compilation and random seeds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import BLIND, MonkeyPatch, TrainerOf
from messages import raises_saying

from mt.errors import ConfigError
from mt.runtime import devices, machine
from mt.runtime.devices import MATMUL, Device, can_compile, check_compile, choose_device

CPU = torch.device("cpu")
GPUS = [torch.device("cuda", 0), torch.device("cuda", 1)]


@pytest.fixture(autouse=True)
def restore_matmul_precision() -> Iterator[None]:
    """Restore the one setting of `choose_device` that later tests depend on."""
    before = MATMUL.fp32_precision
    yield
    MATMUL.fp32_precision = before


@pytest.fixture
def gpus(monkeypatch: MonkeyPatch) -> Iterator[list[torch.device]]:
    """Two pretended GPUs without bf16; yields the devices that `torch.cuda.set_device` gets."""
    selected: list[torch.device] = []

    def set_device(device: torch.device) -> None:
        torch.cuda._utils._get_device_index(device)  # as torch does: refuses one without an index
        selected.append(device)

    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    set_bf16(monkeypatch, lambda: False)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    yield selected
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.fixture
def no_gpu(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


def set_bf16(monkeypatch: MonkeyPatch, probe: Callable[[], bool]) -> None:
    """A GPU without bf16 still emulates it, which does not count."""
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation or probe()
    )


# --- devices and precisions -------------------------------------------------------------------


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_auto_is_the_cpu() -> None:
    device = choose_device("auto", "fp32")
    assert (device.device, device.dtype, device.is_cuda) == (CPU, torch.float32, False)
    assert str(device) == "CPU in fp32, 1 thread"
    assert choose_device("cpu", "bf16").dtype == torch.bfloat16
    assert Device(CPU, "fp16").dtype == torch.float16


def test_with_gpus_it_is_the_first_or_the_one_named(gpus: list[torch.device]) -> None:
    assert (choose_device("cpu", "fp32").device, gpus) == (CPU, [])
    assert choose_device().device == choose_device("cuda").device == GPUS[0]
    assert choose_device("cuda:1", "fp32").device == GPUS[1]
    assert gpus == [GPUS[0], GPUS[0], GPUS[1]]


def test_the_gpu_is_selected_before_its_precisions_are_probed(
    gpus: list[torch.device], monkeypatch: MonkeyPatch
) -> None:
    """The probe asks the current device, which would be GPU 0. With bf16, auto is bf16."""
    assert choose_device("cuda").precision == "fp16"
    gpus.clear()
    selected_at_probe: list[list[torch.device]] = []

    def probe() -> bool:
        selected_at_probe.append(list(gpus))
        return True

    set_bf16(monkeypatch, probe)
    assert choose_device("cuda:1").precision == "bf16"
    assert choose_device("cuda", local_rank=0).device == GPUS[0]
    assert selected_at_probe == [[GPUS[1]], [GPUS[1], GPUS[0]]]


@pytest.mark.parametrize(
    ("unit", "precision"),
    [("none", "fp32"), ("avx512_bf16", "bf16"), ("amx_tile", "bf16"), ("avx512_vnni", "fp32")],
)
def test_auto_on_a_cpu_is_bf16_if_fast(unit: str, precision: str, monkeypatch: MonkeyPatch) -> None:
    for name in ("avx512_bf16", "amx_tile", "avx512_vnni"):
        attribute = f"_is_{name}_supported"
        monkeypatch.setattr(torch.cpu, attribute, lambda name=name: name == unit, raising=False)
        if unit == "none":  # a torch that cannot tell
            monkeypatch.delattr(torch.cpu, attribute)
    assert choose_device("cpu").precision == precision


@pytest.mark.parametrize(
    ("fixture", "name", "precision", "parts"),
    [
        ("no_gpu", "gpu", "auto", ["--device", "auto, cpu, cuda or cuda:N", "'gpu'"]),
        ("no_gpu", "mps", "auto", ["--device", "auto, cpu, cuda or cuda:N", "'mps'"]),
        ("no_gpu", "cuda", "auto", ["--device", "cuda", torch.__version__, "no CUDA", "use cpu"]),
        ("gpus", "cuda:2", "auto", ["--device", "cuda:2", "sees 2 CUDA devices", "use cpu"]),
        ("gpus", "cuda", "bf16", ["precision", "no bf16", "use fp16 or fp32"]),
        ("gpus", "cpu", "fp16", ["precision", "fp16 needs a GPU", "bf16 or fp32"]),
        ("gpus", "cpu", "fp8", ["precision", "auto, fp32, bf16, fp16", "'fp8'"]),
    ],
)
def test_what_the_device_has_not_is_refused(
    fixture: str, name: str, precision: str, parts: list[str], request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(fixture)
    with raises_saying(ConfigError, *parts):
        choose_device(name, precision)


# --- float32 products -------------------------------------------------------------------------


def test_products_in_fp32_stay_exact() -> None:
    """The faster backend chosen for a CPU must not round to bf16 on the way."""
    choose_device("cpu", "fp32")
    torch.manual_seed(1)
    a, b = torch.randn(256, 300), torch.randn(300, 200)
    exact = a.double() @ b.double()
    assert float(((a @ b).double() - exact).norm() / exact.norm()) < 1e-6


def test_a_backend_that_rounds_is_not_kept(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cpu_has", lambda _: False)
    real = torch.Tensor.__matmul__

    def rounding(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype != torch.float32 or MATMUL.fp32_precision != "bf16":
            return real(a, b)
        return real(a.bfloat16(), b.bfloat16()).float()

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounding)
    devices.prepare_cpu()
    assert MATMUL.fp32_precision == "ieee"


def test_a_cpu_with_amx_computes_exactly(monkeypatch: MonkeyPatch) -> None:
    """Whatever a small product shows: oneDNN rounds larger ones."""
    monkeypatch.setattr(devices, "cpu_has", lambda unit: unit == "amx_tile")
    for before in ("none", "bf16"):
        MATMUL.fp32_precision = before
        devices.prepare_cpu()
        assert MATMUL.fp32_precision == "ieee"


@pytest.mark.parametrize(("d_model", "products"), [(64, "ieee"), (128, "bf16")])
def test_a_narrow_model_trains_with_mkl(trainer_of: TrainerOf, d_model: int, products: str) -> None:
    choose_device("cpu", "fp32")
    if MATMUL.fp32_precision != "bf16":
        pytest.skip("this CPU rounds the products of oneDNN")
    trainer_of(BLIND, model={"d_model": d_model})
    assert MATMUL.fp32_precision == products


def test_all_allowed_cores_are_used_unless_omp_num_threads_is_set(monkeypatch: MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    choose_device("cpu", "fp32")
    assert asked == []  # OMP_NUM_THREADS is set here
    monkeypatch.delenv("OMP_NUM_THREADS")
    choose_device("cpu", "fp32")
    assert asked == [3]


# --- compilation ------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["nothing", "a GPU", "Triton", "a C compiler", "Python.h"])
def test_what_compiling_needs(missing: str, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """Triton compiles C code that includes Python.h."""
    capability = (6, 1) if missing == "a GPU" else (7, 0)
    triton = None if missing == "Triton" else "found"
    compiler = None if missing == "a C compiler" else "found"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda _: triton)
    monkeypatch.setattr(machine.shutil, "which", lambda _: compiler)
    monkeypatch.setattr(machine.sysconfig, "get_path", lambda _: tmp_path)
    if missing != "Python.h":
        (tmp_path / "Python.h").touch()
    gpu = Device(torch.device("cuda"), "bf16")
    check_compile("auto", gpu)
    check_compile(False, gpu)
    assert can_compile(gpu) == (missing == "nothing")
    if missing != "nothing":
        with raises_saying(ConfigError, "train.compile: true needs", missing, "use auto"):
            check_compile(True, gpu)
    assert not can_compile(Device(CPU, "bf16"))


# --- seeds ------------------------------------------------------------------------------------


def drawn(seed: int, *path: int) -> tuple[float, ...]:
    devices.seed_everything(seed, *path)
    return tuple(torch.rand(2).tolist())


def test_equal_seeds_and_paths_and_no_others_give_the_same_numbers() -> None:
    """Those of neighbouring steps are uncorrelated."""
    assert drawn(1, 7) == drawn(1, 7)
    assert drawn(2**70 + 1, 7) == drawn(2**70 + 1, 7)
    paths = [(seed, step, rank) for seed in range(10) for step in range(20) for rank in range(5)]
    assert len({drawn(*path) for path in paths}) == len(paths)
    assert len({drawn(1), drawn(1, 0), drawn(1, 0, 0), drawn(0, 1)}) == 4
    first = np.array([drawn(1, step)[0] for step in range(1000)])
    assert abs(first.mean() - 0.5) < 0.05
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.1
