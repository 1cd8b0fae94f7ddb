"""Every fact about the hardware: device, arithmetic, threads, and the seeds of random numbers."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mt.errors import ConfigError

# Of what is not multiplied in whole numbers in the case of int8, which only decodes, on a CPU.
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.float32,
}


@dataclass(frozen=True)
class Device:
    """Where tensors live and in which arithmetic the model runs there."""

    device: torch.device
    precision: str  # one of DTYPES

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.precision]

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def __str__(self) -> str:
        name = torch.cuda.get_device_name(self.device) if self.is_cuda else "CPU"
        threads = "" if self.is_cuda else f", {torch.get_num_threads()} threads"
        return f"{name} in {self.precision}{threads}"


def choose_device(
    name: str = "auto",
    precision: str = "auto",
    say: Callable[[str], None] = lambda _: None,
    local_rank: int | None = None,
) -> Device:
    """The device called `name` (auto, cpu, cuda, cuda:1) made ready to compute in `precision`.

    Of several processes on a machine each says its `local_rank`, and gets the GPU of that number.
    int8 becomes fp32 on a CPU that would gain nothing by it; that is said.
    Raises ConfigError where there is no such device or it cannot compute in that precision.
    """
    device = _find_device(name, local_rank)
    if device.type == "cpu":
        _prepare_cpu()
    else:
        if local_rank is not None:
            torch.cuda.set_device(device)
        # cuDNN's attention plans anew for each shape, about a second each, and batches come in many shapes.
        torch.backends.cuda.enable_cudnn_sdp(False)
    found = _find_precision(precision, device)
    if precision == "int8" != found:
        say(
            f"this CPU and torch {torch.__version__} have no fast int8 products (VNNI): in {found} instead"
        )
    return Device(device, found)


def _find_device(name: str, local_rank: int | None) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if local_rank is not None and name.startswith("cuda"):
        if name != "cuda":
            raise ConfigError(
                f"--device: must be auto, cpu or cuda where several processes train, found {name}"
            )
        # A queue may show each process one GPU alone.
        name = f"cuda:{local_rank if torch.cuda.device_count() > 1 else 0}"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device: must be auto, cpu, cuda or cuda:N, found {name!r}")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        here = f"{count} CUDA device{'s' * (count != 1)}" if count else "no CUDA device"
        fewer = (
            "start one process for each GPU (torchrun --nproc-per-node=gpu), or "
            if local_rank and count
            else ""
        )
        raise ConfigError(
            f"--device: {name} is not there: torch {torch.__version__} sees {here}; {fewer}use cpu"
        )
    return device


def gpu_id(device: Device) -> str | None:
    """What tells a GPU from all others, whatever number it has in a process; None for a CPU."""
    return str(torch.cuda.get_device_properties(device.device).uuid) if device.is_cuda else None


def _find_precision(name: str, device: torch.device) -> str:
    if name not in ("auto", *DTYPES):
        raise ConfigError(f"precision: must be auto, {', '.join(DTYPES)}, found {name!r}")
    if device.type == "cuda":
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        if name == "auto":
            return "bf16" if bf16 else "fp16"
        if name == "int8":
            raise ConfigError(
                "precision: int8 is for decoding on a CPU; a GPU takes bf16, fp16 or fp32"
            )
        if name == "bf16" and not bf16:
            raise ConfigError("precision: this GPU has no bf16 arithmetic; use fp16 or fp32")
        return name
    if name == "fp16":
        raise ConfigError(
            "precision: fp16 needs a GPU, a CPU is slow at it and overflows; use bf16 or fp32"
        )
    if name == "auto":
        fast = any(
            getattr(torch.cpu, f"_is_{unit}_supported", bool)()
            for unit in ("avx512_bf16", "amx_tile")
        )
        return "bf16" if fast else "fp32"
    if name == "int8" and not _has_int8():
        return "fp32"
    return name


def _has_int8() -> bool:
    """Whether torch and this CPU multiply whole numbers of 8 bits fast, and without loss in the sums (VNNI, AMX)."""
    vnni = any(getattr(torch.cpu, f"_is_{unit}_supported", bool)() for unit in ("vnni", "amx_tile"))
    return (
        vnni
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.onednn, "qlinear_pointwise")
    )


def _prepare_cpu() -> None:
    """Threads, denormals, and the faster of torch's two ways to multiply float32 matrices."""
    # oneDNN and torch keep compiled products for later use, 1,024 each, 0.5 MB apiece; but batches rarely have the
    # shape of an earlier one. Training on batches of 4,096 tokens, d_model 256: 1.3 GB instead of 2.0, as fast.
    for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(variable, "64")
    torch.set_flush_denormal(True)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if matmul is None or not hasattr(matmul, "fp32_precision"):
        return
    # "bf16" only permits lower precision; what it does on a CPU without tiles for it is to hand float32
    # products to oneDNN, which is 2.4 times faster than MKL on AMD and as exact. Where it really rounds
    # (AMX), the error of a product tells, and the permission is taken back.
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 512, generator=generator), torch.randn(512, 512, generator=generator))
    exact = a.double() @ b.double()
    if float(((a @ b).double() - exact).norm() / exact.norm()) > 1e-5:
        matmul.fp32_precision = before


def prepare_worker() -> None:
    """Make a fresh process on the CPU as `choose_device` has made the first one."""
    _prepare_cpu()


def can_compile(device: Device) -> bool:
    """Whether torch.compile has what it takes on this GPU: Triton, compute capability 7.0, a C compiler."""
    compilers = filter(None, (os.environ.get("CC"), "cc", "gcc", "clang"))
    return (
        device.is_cuda
        and torch.cuda.get_device_capability(device.device) >= (7, 0)
        and importlib.util.find_spec("triton") is not None
        and any(shutil.which(name) for name in compilers)
    )


def check_compile(wanted: bool | str, device: Device) -> None:
    """Raises ConfigError where `train.compile: true` insists on what is not possible here."""
    if wanted is True and not can_compile(device):
        raise ConfigError(
            "train.compile: true takes a GPU of compute capability 7.0 or newer, Triton and a C compiler, and not "
            "all of them are here; use auto, which compiles where that is possible"
        )


def compiled(
    model: nn.Module, wanted: bool | str, device: Device, say: Callable[[str], None]
) -> Callable[..., Any]:
    """`train.compile`: the model, compiled where that is wanted; `auto` means where it can work and pays.

    On a GPU the many small kernels between products are fused. What cannot be compiled after all is said, and the
    model runs as it is. Raises ConfigError where compiling is insisted on and not possible.
    """
    check_compile(wanted, device)
    if not wanted or not can_compile(device):
        return model
    from torch._dynamo.exc import TorchDynamoException  # a second to import

    fused: Callable[..., Any] = torch.compile(model, dynamic=True)

    def forward(*batch: Any) -> Any:
        nonlocal fused
        try:
            return fused(*batch)
        except TorchDynamoException as error:
            if wanted is True:
                raise
            say(f"the model cannot be compiled, so it runs slower ({str(error).splitlines()[0]})")
            fused = model
            return model(*batch)

    return forward


@contextmanager
def small_products() -> Iterator[None]:
    """Inside, float32 products on a CPU go to MKL even where `_prepare_cpu` chose oneDNN for the large ones."""
    matmul: Any = getattr(torch.backends.mkldnn, "matmul", None)
    before = getattr(matmul, "fp32_precision", None)
    if before != "bf16":
        yield
        return
    try:
        matmul.fp32_precision = "ieee"
        yield
    finally:
        matmul.fp32_precision = before


def seed_everything(seed: int, *path: int) -> None:
    """Seed torch from (seed, path...), such as (seed, step, rank): the same numbers wherever a run resumes."""
    mixed = seed % 2**63
    for part in path:
        # One round of splitmix64: neighbouring steps must not give neighbouring seeds.
        mixed = (mixed + 0x9E3779B97F4A7C15 * (part + 1)) % 2**64
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
        mixed ^= mixed >> 31
    torch.manual_seed(mixed % 2**63)
