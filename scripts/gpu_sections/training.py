"""Whole updates: speed, compilation, kernels, idle time and memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch.profiler import ProfilerActivity, profile

from gpu_sections.report import NotJudgedError, Report
from gpu_sections.setting import Setting, n_compiled_graphs
from mt.data.tokens.batches import Update
from mt.data.tokens.plan import Plan
from mt.runtime.devices import can_compile
from mt.runtime.memory import peak_memory_mb, reset_peak_memory
from mt.training.update import Updater

WARM_UP = 6
# Seconds for each size, and updates that are queued before the device is waited for.
SECONDS = 6.0
BETWEEN_WAITS = 20
PROFILED = 3
KERNELS = 25


def run(report: Report, setting: Setting) -> None:
    """Train with updates of several sizes, compiled first: those are the figures that count."""
    for compiled in (True, False):
        name = "compiled" if compiled else "eager"
        if compiled and not can_compile(setting.choose()):
            report.add(name, "skipped", note="this device has no compiler")
            continue
        report.attempt(name, partial(train, report, setting, name, compiled))


def train(report: Report, setting: Setting, name: str, compiled: bool) -> None:
    """Build a model, compile it once, and train it with updates of every size."""
    start = time.perf_counter()
    config = setting.config(max(setting.batch_tokens), compiled)
    updater = setting.updater(config)
    pairs = setting.pairs
    compiling = time.perf_counter()
    updater.choose_forward(pairs.store)
    if compiled:
        report.add(f"{name}: compiling", value=time.perf_counter() - compiling, unit="s")
    with setting.feed(Plan(pairs, [1.0], config.batch, 1, packed=updater.packed)) as feed:
        updates = iter(feed)
        updater.train_step(next(updates), 0)
        setting.synchronize()
        report.add(f"{name}: first update after", value=time.perf_counter() - start, unit="s")
        n_graphs = n_compiled_graphs()
        update = next(updates)
    for tokens in setting.batch_tokens:
        batch = setting.config(tokens, compiled).batch
        plan = Plan(pairs, [1.0], batch, 1, packed=updater.packed)
        size = f"{name}, {tokens:,} tokens"
        if compiled and updater.forward is updater.model:
            report.add(size, "failed", note="an error has ended compiling")
            continue
        report.attempt(size, partial(measure, report, setting, size, updater, plan))
    report.add(f"{name}: recompilations", value=n_compiled_graphs() - n_graphs)
    # At the end, because an error ends compiling.
    report.check(
        f"{name}: an update waits for nothing", partial(no_waiting, setting, updater, update)
    )


def no_waiting(setting: Setting, updater: Updater, update: Update) -> str:
    """An update queues its work on the GPU without waiting for any of it."""
    if not setting.is_cuda:
        raise NotJudgedError("a CPU never queues")
    with setting.without_waiting():
        updater.train_step(update, 1)
    return ""


def measure(report: Report, setting: Setting, name: str, updater: Updater, plan: Plan) -> None:
    """Measure updates, cut into batches as training cuts them."""
    reset_peak_memory(setting.torch_device)
    with setting.feed(plan) as feed:
        updates = iter(feed)
        step = repeat(setting, updater, updates, 1, WARM_UP)
        feed.waited = 0.0
        n_tgt = 0
        limit = 0.2 if setting.tiny else min(SECONDS, max(1.0, report.left()))
        start = time.perf_counter()
        while time.perf_counter() - start < limit:
            for _ in range(BETWEEN_WAITS):
                update = next(updates)
                updater.train_step(update, step)
                n_tgt += update.n_tgt
                step += 1
            setting.synchronize()
        elapsed = time.perf_counter() - start
        report.add(f"{name}: training", value=n_tgt / elapsed, unit="target tokens/s")
        report.add(f"{name}: waiting for data", value=100 * feed.waited / elapsed, unit="%")
        report.add(f"{name}: memory", value=peak_memory_mb(setting.torch_device), unit="MB")
        profile_updates(report, setting, name, updater, updates, step)


def repeat(
    setting: Setting, updater: Updater, updates: Iterator[Update], step: int, count: int
) -> int:
    """Do so many updates; return the number of the next step."""
    for _ in range(count):
        updater.train_step(next(updates), step)
        step += 1
    setting.synchronize()
    return step


def profile_updates(
    report: Report,
    setting: Setting,
    name: str,
    updater: Updater,
    updates: Iterator[Update],
    step: int,
) -> None:
    """Count the kernels of an update, the time between them, and which take longest."""
    if not setting.is_cuda:
        report.add(f"{name}: kernels", "skipped", note="only of a GPU")
        return
    todo = [next(updates) for _ in range(PROFILED)]
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        start = time.perf_counter()
        for update in todo:
            updater.train_step(update, step)
            step += 1
        setting.synchronize()
        elapsed = time.perf_counter() - start
    # Annotations are ranges around kernels: they would count these twice.
    kernels: list[Any] = [
        event
        for event in profiler.events() or []
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]
    busy = sum(event.time_range.elapsed_us() for event in kernels) / 1e6
    report.add(f"{name}: kernels of an update", value=len(kernels) // PROFILED)
    report.add(f"{name}: idle", value=100 * max(0.0, 1 - busy / elapsed), unit="% (profiled)")
    times: Counter[str] = Counter()
    for event in kernels:
        times[event.name] += event.time_range.elapsed_us()
    for kernel, microseconds in times.most_common(KERNELS):
        report.add(
            f"{name}: kernel",
            value=microseconds / 1e3 / PROFILED,
            unit="ms an update",
            note=f"{microseconds / 1e6 / busy:.1%}  {kernel[:100]}",
        )
