"""Whole updates with each way of attention, launched and replayed, timed in one process."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import cycle, islice

import torch
from torch import Tensor

from gpu_sections.attention_ways import WAYS, attending, require
from gpu_sections.decision import (
    AGAIN,
    DECISIVE,
    LAUNCHED,
    RECOMPILATIONS,
    REPLAYED,
    TODAY,
    WAITS,
    decide,
    table_of,
)  # fmt: skip
from gpu_sections.replay import captured
from gpu_sections.report import NotJudgedError, Report, read_items
from gpu_sections.setting import Setting, n_compiled_graphs
from gpu_sections.training import no_waiting, profile_updates
from mt.data.tokens.batches import Update
from mt.data.tokens.plan import Plan
from mt.runtime.devices import can_compile
from mt.training.update import Updater, build_optimizer

UPDATES = 8  # of a window, repeated until its time is over
WINDOWS = 3
SECONDS = 0.7  # of a window
COMPILING = 150.0  # seconds after which a process that compiles is ended
TRAINED = 300  # updates whose loss is compared
COMPARED = 50  # of these, the last ones


def run(report: Report, setting: Setting) -> None:
    """Compile, time, decide; then train with the winner beside today's way, and profile it."""
    names = [TODAY]
    for name in WAYS:
        if name != TODAY:
            report.attempt(name, partial(require_and_add, names, name, setting))
    compile_side_by_side(report, setting, names)
    updaters: dict[str, Updater] = {}
    for name in names:
        report.attempt(name, partial(prepare, report, setting, name, updaters))
    if TODAY not in updaters:
        return
    updaters[AGAIN] = updaters[TODAY]
    initial = {name: weight.clone() for name, weight in updaters[TODAY].model.state_dict().items()}
    recompiled = dict.fromkeys(updaters, 0)
    sizes = setting.batch_tokens if setting.tiny else (*DECISIVE, 8_192, 100_000)
    for size in sizes:
        report.attempt(
            f"{size:,} tokens", partial(in_turns, report, setting, size, updaters, recompiled)
        )
    for name, count in recompiled.items():
        report.add(name + RECOMPILATIONS, value=count)
    for name, updater in updaters.items():  # after the timing, because an error ends compiling
        report.check(name + WAITS, partial(waits_for_nothing, setting, name, updater))
    best = decide(*table_of(read_items(report.path))).attention
    for name in dict.fromkeys((TODAY, best)):
        for size in sizes[:2]:
            about = f"{name}{REPLAYED}: {size:,}"
            report.attempt(about, partial(replayed, report, setting, size, name, updaters[name]))
    for name in dict.fromkeys((TODAY, best)):
        learn = partial(losses, report, setting, name, updaters[name], initial)
        report.attempt(f"{name}: {TRAINED} updates", learn)
    report.attempt(f"{best}: profile", partial(profiled, report, setting, best, updaters[best]))


def require_and_add(names: list[str], name: str, setting: Setting) -> None:
    """Add the name of a way that can be computed here."""
    require(name, setting)
    names.append(name)


def attending_as(name: str) -> AbstractContextManager[None]:
    """Inside, the model attends in the way that has this name."""
    return attending(TODAY if name == AGAIN else name)


def made_updater(setting: Setting, name: str) -> Updater:
    """A model that is compiled with a way of attention, if the device can compile."""
    compiled = can_compile(setting.choose())
    updater = setting.updater(setting.config(max(setting.batch_tokens), compiled))
    with attending_as(name):
        updater.choose_forward(setting.pairs.store)
    return updater


def compile_here(device: str, tiny: bool, name: str) -> None:
    """Compile in a process of its own, for the cache that all share."""
    made_updater(Setting(device, tiny), name)


def compile_side_by_side(report: Report, setting: Setting, names: list[str]) -> None:
    """Fill the cache of the compiler with all ways at once."""
    if not can_compile(setting.choose()):
        report.add("compiling side by side", "skipped", note="this device has no compiler")
        return
    start = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    given = [(setting.device, setting.tiny, name) for name in names]
    processes = [context.Process(target=compile_here, args=each) for each in given]
    for process in processes:
        process.start()
    for process in processes:
        process.join(max(0.0, start + COMPILING - time.perf_counter()))
        if process.is_alive():
            process.kill()
    report.add("compiling side by side", value=time.perf_counter() - start, unit="s")


def prepare(report: Report, setting: Setting, name: str, updaters: dict[str, Updater]) -> None:
    """Compile from the cache."""
    start = time.perf_counter()
    updaters[name] = made_updater(setting, name)
    setting.synchronize()
    report.add(f"{name}: ready after", value=time.perf_counter() - start, unit="s")


def updates_of(setting: Setting, size: int, updater: Updater, count: int) -> list[Update]:
    """The first updates of `size` target tokens, each in one batch where nothing is padded."""
    batch = setting.config(size, compiled=False).batch
    with setting.feed(Plan(setting.pairs, [1.0], batch, 1, packed=updater.packed)) as feed:
        return list(islice(feed, count))


def window(setting: Setting, step: Callable[[Update], object], updates: list[Update]) -> float:
    """Target tokens per second of `step` on these updates, again and again."""
    n_tgt = 0
    setting.synchronize()
    start = time.perf_counter()
    while True:
        for update in updates:
            step(update)
            n_tgt += update.n_tgt
        setting.synchronize()
        elapsed = time.perf_counter() - start
        if setting.tiny or elapsed >= SECONDS:
            return n_tgt / elapsed


def in_turns(
    report: Report,
    setting: Setting,
    size: int,
    updaters: dict[str, Updater],
    recompiled: dict[str, int],
) -> None:
    """Time updates of one size; the ways take turns, so that a slower minute meets all of them."""
    updates = updates_of(setting, size, updaters[TODAY], UPDATES)
    windows: dict[str, list[float]] = {name: [] for name in updaters}
    for number in range(WINDOWS + 1):  # the first one is warm-up
        for name, updater in updaters.items():
            n_graphs = n_compiled_graphs()
            with attending_as(name):
                speed = window(setting, partial(updater.train_step, step=number), updates)
            recompiled[name] += n_compiled_graphs() - n_graphs
            if number:
                windows[name].append(speed)
    for name, speeds in windows.items():
        add_windows(report, name, size, speeds)


def add_windows(report: Report, name: str, size: int, speeds: list[float]) -> None:
    """Add the windows of a way to do an update, for the decision."""
    note = f"median {statistics.median(speeds):,.0f}"
    report.add(f"{name}: {size:,} tokens", value=speeds, unit="target tokens/s", note=note)


def replayed(report: Report, setting: Setting, size: int, name: str, updater: Updater) -> None:
    """Time the replay of a CUDA graph of one update; the optimiser is launched after it.

    The batch is captured as it is: graphs for classes of lengths would compute some padding.
    """
    if not setting.is_cuda:
        raise NotJudgedError("CUDA graphs need a GPU")
    (update,) = updates_of(setting, size, updater, 1)
    with attending_as(name):
        replay, graph, grads = captured(setting, updater, update)

        def step(_: Update) -> None:
            for parameter, grad in grads:
                parameter.grad = grad
            replay()
            updater._optimize(1)

        steps: dict[str, Callable[[Update], object]] = {
            REPLAYED: step,
            LAUNCHED: partial(updater.train_step, step=1),
        }
        windows: dict[str, list[float]] = {kind: [] for kind in steps}
        for number in range(WINDOWS + 1):  # the first one is warm-up
            for kind, call in steps.items():
                speed = window(setting, call, [update] * UPDATES)
                if number:
                    windows[kind].append(speed)
    graph.reset()
    for kind, speeds in windows.items():
        add_windows(report, name + kind, size, speeds)


def waits_for_nothing(setting: Setting, name: str, updater: Updater) -> str:
    """An update queues its work without waiting for any of it."""
    (update,) = updates_of(setting, setting.batch_tokens[0], updater, 1)
    with attending_as(name):
        return no_waiting(setting, updater, update)


def losses(
    report: Report, setting: Setting, name: str, updater: Updater, initial: dict[str, Tensor]
) -> None:
    """Train from the same weights on the same updates; the mean nll of the last ones."""
    updater.model.load_state_dict(initial)
    updater.optimizer = build_optimizer(updater.model, updater.config.optim)
    count = 4 if setting.tiny else TRAINED
    updates = updates_of(setting, setting.batch_tokens[0], updater, count)
    with attending_as(name):
        nlls = [updater.train_step(update, step)[1] for step, update in enumerate(updates)]
    mean = float(torch.stack(nlls[-COMPARED:]).mean())
    report.add(f"{name}: nll after {count} updates", value=mean, unit="nats")


def profiled(report: Report, setting: Setting, name: str, updater: Updater) -> None:
    """Kernels and idle time of updates of the decisive size."""
    size = setting.batch_tokens[-2]
    updates: Iterator[Update] = cycle(updates_of(setting, size, updater, UPDATES))
    with attending_as(name):
        profile_updates(report, setting, f"{name}, profiled", updater, updates, 1)
