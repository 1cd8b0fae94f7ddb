"""What `mt doctor` asks PyTorch, in another process.

A driver that hangs, or a library that was built for another processor and ends the process, then
costs one line of the report. `python -m mt.runtime.probes NAME...` prints JSON.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mt.runtime.devices import can_compile, choose_device, has_int8
from mt.runtime.memory import available_memory_mb
from mt.runtime.products import time_cpu_products, time_gpu_products

INSTRUCTION_SETS = ("avx2", "avx512", "vnni", "avx512_bf16", "amx_tile")


def probe_torch() -> dict[str, Any]:
    """PyTorch's build, the CPU and the GPUs that it sees, and what `auto` stands for here."""
    device = choose_device()
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "instructions": [
            name for name in INSTRUCTION_SETS if getattr(torch.cpu, f"_is_{name}_supported", bool)()
        ],
        "threads": torch.get_num_threads(),
        "memory_mb": available_memory_mb(torch.device("cpu")),
        "gpus": [_describe_gpu(index) for index in range(torch.cuda.device_count())],
        "auto": {"device": str(device), "precision": device.precision},
        "int8": has_int8(),
        "compile": can_compile(device),
        "triton": importlib.util.find_spec("triton") is not None,
    }


def _describe_gpu(index: int) -> dict[str, Any]:
    gpu = torch.device("cuda", index)
    properties = torch.cuda.get_device_properties(gpu)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_mb": properties.total_memory / 1e6,
        "free_mb": available_memory_mb(gpu),
    }


def probe_cpu() -> dict[str, Any]:
    """How fast the CPU is in each precision."""
    choose_device("cpu")
    return {"products": time_cpu_products()}


def probe_gpu() -> dict[str, Any]:
    """How fast the GPU of `--device auto` is in each precision."""
    return {"products": time_gpu_products(choose_device("cuda"))}


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


PROBES: dict[str, Callable[[], dict[str, Any]]] = {
    "torch": probe_torch,
    "update": probe_update,
    "cpu": probe_cpu,
    "gpu": probe_gpu,
}


def main(names: list[str]) -> None:
    """Print one line for each of the named probes, as soon as it is known: a JSON object."""
    for name in names:
        try:
            found = PROBES[name]()
        except Exception as error:  # whatever it is, it is what the report is about
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({name: found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
