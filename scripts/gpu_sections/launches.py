"""What a launch costs the host: an operator, a compiled function, and a kernel of a CUDA graph.

Measured by one process, and by four side by side, as several workers share a GPU.
"""

from __future__ import annotations

import multiprocessing
import statistics
from functools import partial

import torch

from gpu_sections.report import Report
from gpu_sections.setting import Setting
from mt.runtime.devices import can_compile

LAUNCHES = 2000
PROCESSES = 4


def run(report: Report, setting: Setting) -> None:
    """Measure alone, then in several processes at the same time; the median process counts."""
    for count in (1, 2 if setting.tiny else PROCESSES):
        name = f"{count} process{'es' * (count > 1)}"
        report.attempt(name, partial(side_by_side, report, setting, name, count))


def side_by_side(report: Report, setting: Setting, name: str, count: int) -> None:
    """Measure in `count` processes at once; this one takes no part, as its context would count."""
    given = [(setting.device, setting.tiny)] * count
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        costs = pool.starmap(microseconds, given, chunksize=1)
    for kind in ("operator", "compiled function", "replayed kernel"):
        values = [cost[kind] for cost in costs if kind in cost]
        label = f"{name}: a launch of {kind}"
        if values:
            report.add(label, value=statistics.median(values), unit="µs")
        else:
            report.add(label, "skipped", note="needs a GPU, and a compiler")


def microseconds(device: str, tiny: bool) -> dict[str, float]:
    """Microseconds of a launch of each kind, many in a row."""
    setting = Setting(device, tiny)
    count = 20 if tiny else LAUNCHES
    x = torch.zeros(1024, device=setting.torch_device)

    def operators() -> None:
        for _ in range(count):
            x.add_(1.0)

    costs = {"operator": setting.seconds(operators, 5)}
    if can_compile(setting.choose()):
        compiled = torch.compile(lambda x: x * 2 + 1)

        def calls() -> None:
            for _ in range(count):
                compiled(x)

        costs["compiled function"] = setting.seconds(calls, 5)
    if setting.is_cuda:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            operators()
        costs["replayed kernel"] = setting.seconds(graph.replay, 5)
    return {kind: 1e6 * seconds / count for kind, seconds in costs.items()}
