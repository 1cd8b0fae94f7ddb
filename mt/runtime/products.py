"""Timed matrix products: how fast a device is in each precision."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mt.runtime.devices import Device, has_int8

# Rows, inputs and outputs of a product. A CPU gets a feed-forward layer of base.yaml, (256, 512)
# times (512, 2048); a GPU needs more to be busy.
CPU_SHAPE = (256, 512, 2048)
GPU_SHAPE = (4096, 4096, 4096)
# Seconds that the repetitions of one product take, at least.
SECONDS = 0.1


def time_cpu_products() -> list[dict[str, Any]]:
    """GFLOP/s of products in fp32, bf16 and int8 on this CPU, with one thread and with all.

    None where torch or the CPU cannot compute it. `choose_device` has prepared the CPU.
    """
    n_threads = torch.get_num_threads()
    results: list[dict[str, Any]] = []
    try:
        for threads in sorted({1, n_threads}):
            torch.set_num_threads(threads)
            speeds = {
                "fp32": gflops(float_product(torch.float32), CPU_SHAPE),
                "bf16": gflops(float_product(torch.bfloat16), CPU_SHAPE),
                "int8": gflops(int8_product(), CPU_SHAPE) if has_int8() else None,
            }
            results.append({"threads": threads, "gflops": speeds})
    finally:
        torch.set_num_threads(n_threads)
    return results


def time_gpu_products(device: Device) -> dict[str, float | None]:
    """GFLOP/s of products in fp32, tf32, bf16 and fp16 on a GPU; None where it has no such unit."""
    gpu = device.device
    capability = torch.cuda.get_device_capability(gpu)
    speeds: dict[str, float | None] = {}
    for name in ("fp32", "tf32", "bf16", "fp16"):
        if name in ("tf32", "bf16") and capability < (8, 0):
            speeds[name] = None
            continue
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)
        with _tf32(name == "tf32"):
            product = float_product(dtype, GPU_SHAPE, gpu)
            speeds[name] = gflops(product, GPU_SHAPE, lambda: torch.cuda.synchronize(gpu))
    return speeds


def float_product(
    dtype: torch.dtype,
    shape: tuple[int, int, int] = CPU_SHAPE,
    device: torch.device | str = "cpu",
) -> Callable[[], object]:
    """A product of random matrices in a floating-point type, to be called repeatedly."""
    rows, n_in, n_out = shape
    x = torch.randn(rows, n_in, dtype=dtype, device=device)
    weight = torch.randn(n_out, n_in, dtype=dtype, device=device)
    return lambda: torch.nn.functional.linear(x, weight)


def int8_product(shape: tuple[int, int, int] = CPU_SHAPE) -> Callable[[], object]:
    """The product of `--precision int8` on a CPU, without the conversion of its inputs."""
    rows, n_in, n_out = shape
    x = torch.randint(0, 256, (rows, n_in), dtype=torch.uint8)
    weight = torch.randint(-127, 128, (n_out, n_in), dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(weight, [rows, n_in])
    scale = torch.ones(n_out)
    zero_points = torch.zeros(n_out, dtype=torch.int32)
    return lambda: torch.ops.onednn.qlinear_pointwise(
        x, 1.0, 128, packed, scale, zero_points, None, 1.0, 0, torch.float32, "none", [], ""
    )


def gflops(
    product: Callable[[], object],
    shape: tuple[int, int, int],
    wait: Callable[[], object] = lambda: None,
) -> float:
    """Billions of multiplications and additions per second, of the fastest repetitions.

    `wait` waits until a device has computed what it was told.
    """
    product()  # loads and compiles kernels
    n_repeats = 1
    fastest = float("inf")
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or fastest == float("inf"):
        wait()
        start = time.perf_counter()
        for _ in range(n_repeats):
            product()
        wait()
        seconds = time.perf_counter() - start
        fastest = min(fastest, seconds / n_repeats)
        if seconds < SECONDS / 20:  # one product is too short for the clock
            n_repeats *= 2
    rows, n_in, n_out = shape
    return 2e-9 * rows * n_in * n_out / fastest


@contextmanager
def _tf32(wanted: bool) -> Iterator[None]:
    """Let float32 products of a GPU use TF32 inside, or not."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = wanted
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
