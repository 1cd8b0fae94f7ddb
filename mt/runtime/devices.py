"""Choosing and preparing the hardware: device, precision, threads, compilation, random seeds."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from mt.errors import ConfigError
from mt.runtime.machine import c_compiler, python_header, usable_cores

# What computes float32 products on a CPU: oneDNN where `fp32_precision` is "bf16", which permits it
# to round, else MKL; see `prepare_cpu`.
MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined] # set by importing torch
# torch's type for each precision.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Device:
    """A torch device and the precision in which the model computes on it."""

    device: torch.device
    precision: str  # one of DTYPES

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.precision]

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def __str__(self) -> str:
        if self.is_cuda:
            return f"{torch.cuda.get_device_name(self.device)} in {self.precision}"
        threads = torch.get_num_threads()
        return f"CPU in {self.precision}, {threads} thread{'s' * (threads != 1)}"


def choose_device(
    name: str = "auto", precision: str = "auto", local_rank: int | None = None
) -> Device:
    """Choose the device `name` (auto, cpu, cuda, cuda:1) and prepare it to compute in `precision`.

    `cuda` is GPU 0, or with several processes on a machine the GPU number `local_rank`; the device
    of a GPU always has its index.
    """
    device = find_device(name, local_rank)
    if device.type == "cpu":
        prepare_cpu()
    else:
        # The bf16 probe, pinned memory and synchronisation address the current device.
        torch.cuda.set_device(device)
        # cuDNN's attention plans again for each shape, about a second each, and batches have many.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return Device(device, _find_precision(precision, device))


def find_device(name: str, local_rank: int | None = None) -> torch.device:
    """The device that `choose_device` would prepare; a GPU is not touched."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if local_rank is not None and name.startswith("cuda"):
        if name != "cuda":
            must = "must be auto, cpu or cuda where several processes train"
            raise ConfigError(f"--device: {must}, found {name}")
        # A batch system may make only one GPU visible to each process.
        name = f"cuda:{local_rank if torch.cuda.device_count() > 1 else 0}"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device: must be auto, cpu, cuda or cuda:N, found {name!r}")
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        visible = f"{count} CUDA device{'s' * (count != 1)}" if count else "no CUDA device"
        remedy = "use cpu"
        if local_rank and count:
            remedy = f"start one process for each GPU (torchrun --nproc-per-node=gpu), or {remedy}"
        raise ConfigError(
            f"--device: {name} does not exist: torch {torch.__version__} sees {visible}; {remedy}"
        )
    # `torch.cuda.set_device` refuses a device without an index.
    return torch.device("cuda", device.index or 0)


def gpu_uuid(device: Device) -> str | None:
    """The UUID of a GPU, the same in every process whatever its index there; None for a CPU."""
    return str(torch.cuda.get_device_properties(device.device).uuid) if device.is_cuda else None


def _find_precision(name: str, device: torch.device) -> str:
    if name not in ("auto", *DTYPES):
        raise ConfigError(
            f"precision: must be auto, {', '.join(DTYPES)}, found {name!r}; int8 is for CTranslate2"
        )
    if device.type == "cuda":
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        if name == "bf16" and not bf16:
            raise ConfigError("precision: this GPU has no bf16 arithmetic; use fp16 or fp32")
        fastest = "bf16" if bf16 else "fp16"
    else:
        if name == "fp16":
            raise ConfigError(
                "precision: fp16 needs a GPU, a CPU is slow at it and overflows; use bf16 or fp32"
            )
        fastest = "bf16" if cpu_has("avx512_bf16") or cpu_has("amx_tile") else "fp32"
    return fastest if name == "auto" else name


def cpu_has(unit: str) -> bool:
    return bool(getattr(torch.cpu, f"_is_{unit}_supported", bool)())


def prepare_cpu() -> None:
    """Set threads, denormals, and the faster of torch's two backends for float32 products."""
    # oneDNN and torch cache 1,024 compiled products each, 0.5 MB apiece, but batches rarely repeat
    # a shape. Training on batches of 4,096 tokens, d_model 256: 1.3 GB instead of 2.0, as fast.
    for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(variable, "64")
    torch.set_flush_denormal(True)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(usable_cores())
    # "bf16" only permits lower precision. A CPU without AMX then computes float32 products with
    # oneDNN, which is 2.4 times faster than MKL on AMD and as exact. With AMX it rounds large ones,
    # though with torch 2.11 not one as small as this. Another CPU that rounds shows it in the error
    # of a product, and gets exact ones back.
    if cpu_has("amx_tile"):
        MATMUL.fp32_precision = "ieee"
        return
    MATMUL.fp32_precision = "bf16"
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, 512, generator=generator) for n in (64, 512))
    exact = a.double() @ b.double()
    if float(((a @ b).double() - exact).norm() / exact.norm()) > 1e-5:
        MATMUL.fp32_precision = "ieee"


def suit_products_to(d_model: int) -> None:
    """Let MKL compute the float32 products of a narrow model on a CPU, until a device is chosen.

    oneDNN compiles each product anew for every shape, and batches have many. CPU time of training
    with MKL, of that with oneDNN (AMD EPYC Zen 4, one thread, 23 November 2026): d_model 64, 0.55
    at 500 tokens a batch, 0.7 at 4,000; d_model 128, 0.95 at 4,000; d_model 256, 1.2.
    """
    if d_model < 128 and MATMUL.fp32_precision == "bf16":
        MATMUL.fp32_precision = "ieee"


def missing_for_compile(device: Device) -> list[str]:
    """Everything that torch.compile needs and does not find; empty if it can work."""
    is_new = device.is_cuda and torch.cuda.get_device_capability(device.device) >= (7, 0)
    needed = {
        "a GPU of compute capability 7.0 or newer": is_new,
        "Triton": importlib.util.find_spec("triton") is not None,
        "a C compiler (gcc)": c_compiler() is not None,
        "Python.h (python3-dev)": python_header() is not None,
    }
    return [name for name, is_there in needed.items() if not is_there]


def can_compile(device: Device) -> bool:
    return not missing_for_compile(device)


def check_compile(wanted: bool | Literal["auto"], device: Device) -> None:
    """Raise ConfigError if `train.compile` is true and the device cannot compile."""
    if wanted is True and (missing := missing_for_compile(device)):
        remedy = "use auto, which compiles where it can"
        raise ConfigError(
            f"train.compile: true needs {' and '.join(missing)}, which was not found; {remedy}"
        )


@contextmanager
def small_products() -> Iterator[None]:
    """Inside, MKL computes float32 products on a CPU: it is faster than oneDNN at small ones."""
    if MATMUL.fp32_precision != "bf16":
        yield
        return
    try:
        MATMUL.fp32_precision = "ieee"
        yield
    finally:
        MATMUL.fp32_precision = "bf16"


def seed_everything(seed: int, *path: int) -> None:
    """Seed torch from (seed, path...), such as (seed, step, rank): no generator state to save."""
    sequence = np.random.SeedSequence(seed, spawn_key=path)
    torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
