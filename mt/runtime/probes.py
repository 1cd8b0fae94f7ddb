"""What `mt doctor` asks PyTorch, in another process: what it sees, and timed matrix products.

A driver that hangs, or a library that was built for another processor and ends the process, then
costs one line of the report. `python -m mt.runtime.probes NAME...` prints JSON.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import benchmark

from mt.runtime.devices import choose_device, cpu_has, missing_for_compile
from mt.runtime.doctor import UNITS
from mt.runtime.memory import available_memory_mb

# Rows, inputs and outputs of a product. A CPU gets a feed-forward layer of base.yaml, (256, 512)
# times (512, 2048); a GPU needs more to be busy.
Shape = tuple[int, int, int]
CPU_SHAPE = (256, 512, 2048)
GPU_SHAPE = (4096, 4096, 4096)
# Seconds that the repetitions of one product take, at least.
SECONDS = 0.1


def probe_torch() -> dict[str, Any]:
    """PyTorch's build, the CPU and the GPUs that it sees, and what `auto` stands for here."""
    device = choose_device()
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "instructions": [name for name in UNITS if cpu_has(name)],
        "threads": torch.get_num_threads(),
        "memory_mb": available_memory_mb(torch.device("cpu")),
        "gpus": [
            {
                "name": gpu.name,
                "capability": f"{gpu.major}.{gpu.minor}",
                "memory_mb": gpu.total_memory / 1e6,
                "free_mb": available_memory_mb(torch.device("cuda", index)),
            }
            for index in range(torch.cuda.device_count())
            for gpu in [torch.cuda.get_device_properties(index)]
        ],
        "auto": {"device": str(device), "precision": device.precision},
        "compile": not (missing := missing_for_compile(device)),
        "missing_for_compile": missing,
        "triton": importlib.util.find_spec("triton") is not None,
    }


def probe_update() -> dict[str, Any]:
    """One update of a small layer on the device and in the precision that training would take."""
    device = choose_device()
    layer = nn.Linear(64, 64).to(device.device)
    optimizer = torch.optim.AdamW(layer.parameters())
    x = torch.randn(32, 64, device=device.device)
    with torch.autocast(device.device.type, device.dtype, enabled=device.precision != "fp32"):
        loss = layer(x).float().square().mean()
    loss.backward()
    optimizer.step()
    if not torch.isfinite(loss):
        raise ArithmeticError(f"the loss is {float(loss)}")
    return {"device": str(device)}


def probe_cpu() -> dict[str, Any]:
    """GFLOP/s of products on this CPU in each precision, with one thread and with all."""
    cpu = choose_device("cpu").device
    products = {
        "fp32": float_product(torch.float32, CPU_SHAPE, cpu),
        "bf16": float_product(torch.bfloat16, CPU_SHAPE, cpu),
    }
    rows = []
    for n in sorted({1, torch.get_num_threads()}):
        speeds = {key: gflops(each, CPU_SHAPE, n) for key, each in products.items()}
        rows.append({"threads": n, "gflops": speeds})
    return {"products": rows}


def probe_gpu() -> dict[str, Any]:
    """GFLOP/s of products on the GPU of `--device auto`; None where it has no such unit."""
    gpu = choose_device("cuda").device
    is_new = torch.cuda.get_device_capability(gpu) >= (8, 0)
    speeds: dict[str, float | None] = dict.fromkeys(("fp32", "tf32", "bf16", "fp16"))
    for name in speeds:
        if is_new or name not in ("tf32", "bf16"):
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)
            speeds[name] = gflops(float_product(dtype, GPU_SHAPE, gpu), GPU_SHAPE)
    return {"products": speeds}


def float_product(dtype: torch.dtype, shape: Shape, device: torch.device) -> Callable[[], object]:
    """A product of random matrices in a floating-point type, to be called repeatedly."""
    rows, n_in, n_out = shape
    x, weight = (torch.randn(n, n_in, dtype=dtype, device=device) for n in (rows, n_out))
    return lambda: nn.functional.linear(x, weight)


def gflops(product: Callable[[], object], shape: Shape, threads: int = 1) -> float:
    """Billions of multiplications and additions per second, of the fastest repetitions."""
    timer = benchmark.Timer("product()", globals={"product": product}, num_threads=threads)
    seconds = min(timer.blocked_autorange(min_run_time=SECONDS).times)  # waits for a GPU
    return 2e-9 * math.prod(shape) / seconds


PROBES = {"torch": probe_torch, "update": probe_update, "cpu": probe_cpu, "gpu": probe_gpu}


def main(names: list[str]) -> None:
    """Print one line for each of the named probes, as soon as it is known: a JSON object."""
    for name in names:
        try:
            section = PROBES[name]()
        except Exception as error:  # whatever it is, it is what the report is about
            section = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({name: section}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
