"""What the machine is, and how fast it copies and multiplies at best."""

from __future__ import annotations

import os
import platform
import sys
from functools import partial

import torch

from gpu_sections.report import Report
from gpu_sections.setting import Setting
from mt.runtime.devices import DTYPES, missing_for_compile
from mt.runtime.machine import c_compiler


def run(report: Report, setting: Setting) -> None:
    """Name hardware and versions; measure copies and products."""
    device = setting.torch_device
    report.add("torch", value=torch.__version__, note=f"Python {platform.python_version()}")
    report.add("system", value=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores")
    if setting.is_cuda:
        gpu = torch.cuda.get_device_properties(device)
        report.add(
            "GPU",
            value=gpu.name,
            note=f"compute capability {gpu.major}.{gpu.minor}, "
            f"{gpu.total_memory / 1e9:.0f} GB, {gpu.multi_processor_count} multiprocessors, "
            f"CUDA {torch.version.cuda}",
        )
        report.add("visible GPUs", value=torch.cuda.device_count())
    missing = missing_for_compile(setting.choose())
    report.add(
        "torch.compile",
        "ok" if not missing else "failed" if setting.is_cuda else "skipped",
        note=f"missing: {', '.join(missing)}" if missing else f"C compiler {c_compiler()}",
    )
    report.add("executable", value=os.path.basename(sys.executable))
    report.attempt("copy", lambda: _copy(report, setting))
    for name in ("bf16", "fp16", "fp32"):
        if name != "fp16" or setting.is_cuda:  # a CPU hardly has fp16
            product = partial(_product, report, setting, name, DTYPES[name])
            report.attempt(f"product {name}", product)


def _copy(report: Report, setting: Setting) -> None:
    source = torch.empty(
        1 << (18 if setting.tiny else 30), dtype=torch.uint8, device=setting.device
    )
    target = torch.empty_like(source)
    seconds = setting.seconds(lambda: target.copy_(source))
    report.add("copy", value=2 * source.numel() / seconds / 1e12, unit="TB/s")


def _product(report: Report, setting: Setting, name: str, dtype: torch.dtype) -> None:
    size = 128 if setting.tiny else 8192
    left = torch.randn(size, size, device=setting.device).to(dtype)
    right = torch.randn(size, size, device=setting.device).to(dtype)
    seconds = setting.seconds(lambda: left @ right)
    report.add(f"product {name}", value=2 * size**3 / seconds / 1e12, unit="TFLOP/s")
