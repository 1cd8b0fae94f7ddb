"""Searches with a random model that is made to stop at the length of the source."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_sections.report import Report
from gpu_sections.setting import Setting
from mt.data.tokens.plan import batch_ends
from mt.runtime.devices import can_compile
from mt.search.candidates import best_candidates, compile_for, log_normaliser
from mt.search.engine import TorchEngine
from mt.search.engine_contract import LEAST_SIZE
from mt.search.inference import Inference
from mt.search.search import Stepper

SENTENCES = 20_000


class TimedStepper:
    """A stepper that counts the seconds inside the model; it waits for the device to do so."""

    def __init__(self, stepper: Stepper, setting: Setting, times: dict[str, float]) -> None:
        self.stepper = stepper
        self.setting = setting
        self.times = times

    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Time one step; keep the largest shape of the logits."""
        self.setting.synchronize()
        start = time.perf_counter()
        logits = self.stepper.step(tokens, parents)
        self.setting.synchronize()
        self.times["model"] += time.perf_counter() - start
        self.times["steps"] += 1
        self.times["rows"] = max(self.times["rows"], len(logits))
        return logits

    def keep(self, rows: Tensor) -> None:
        """Drop all sentences but these."""
        self.stepper.keep(rows)


def run(report: Report, setting: Setting) -> None:
    """Decode greedily and with a beam of 4."""
    updater = setting.updater(setting.config(1024, compiled=False))
    inference = Inference(updater.model, setting.choose())
    store = setting.store
    count = 20 if setting.tiny else SENTENCES
    sources = [store.pair(number)[0].tolist() for number in range(count)]
    sources.sort(key=len, reverse=True)
    for beam_size in (4, 1):
        name = f"beam {beam_size}" if beam_size > 1 else "greedy"
        report.attempt(name, partial(decode, report, setting, inference, sources, name, beam_size))


def decode(
    report: Report,
    setting: Setting,
    inference: Inference,
    sources: list[list[int]],
    name: str,
    beam_size: int,
) -> None:
    """Measure whole batches, then one batch in its parts."""
    given = {"beam_size": beam_size, "max_len_factor": 1.0, "max_len_extra": 1}
    config = setting.config(1024, compiled=False, decode=given).decode
    engine = TorchEngine(inference, config)
    if can_compile(setting.choose()):  # as `mt translate` does with a large text
        start = time.perf_counter()
        said: list[str] = []
        fused = compile_for(engine.device, beam_size, setting.vocab_size, said.append)
        engine = replace(engine, fused=fused)
        status = "failed" if said else "ok"
        seconds = time.perf_counter() - start
        compiled = f"{name}: compiling the choice of tokens"
        report.add(compiled, status, seconds, "s", "".join(said))
    budget = engine.batch_tokens // engine.hypotheses_per_source
    sizes = np.array([max(len(source) + 1, LEAST_SIZE) for source in sources])
    cuts = [0, *batch_ends(sizes, budget)]
    batches = [sources[a:b] for a, b in pairwise(cuts)]
    middle = batches[len(batches) // 2]
    engine.search(middle)  # the first batch of a size allocates its memory
    setting.synchronize()
    n_tokens = 0
    start = time.perf_counter()
    for batch in batches:
        n_tokens += int((engine.search(batch).lengths + 1).sum())
        if report.left() < 10:
            break
    elapsed = time.perf_counter() - start
    note = f"{len(batches)} batches of up to {budget:,} x {beam_size} tokens"
    report.add(f"{name}: decoding", value=n_tokens / elapsed, unit="tokens/s", note=note)
    report.add(f"{name}: halved batches", value=len(engine.halved))
    parts(report, setting, engine, middle, name)


def parts(
    report: Report, setting: Setting, engine: TorchEngine, batch: list[list[int]], name: str
) -> None:
    """Split the time of one batch. The parts are measured one by one, so they add up to more."""
    times: dict[str, float] = {"model": 0.0, "steps": 0, "rows": 0}
    model: Any = engine.model
    real = model.start
    model.start = lambda *given: TimedStepper(real(*given), setting, times)
    try:
        start = time.perf_counter()
        engine.search(batch)
        whole = time.perf_counter() - start
    finally:
        del model.start
    beam_size = engine.decode.beam_size
    shape = (int(times["rows"]), beam_size, setting.vocab_size)  # (B, N, V)
    logits = torch.randn(shape, device=setting.device)
    offsets = torch.zeros(shape[:2], device=setting.device)
    count = 1 if beam_size == 1 else 2 * beam_size
    steps = int(times["steps"])
    normaliser = steps * setting.seconds(lambda: log_normaliser(logits))
    candidates = steps * setting.seconds(lambda: best_candidates(logits, offsets, count))
    choice = {"normaliser, at most": normaliser, "candidates, at most": candidates}
    if (fused := engine.fused) is not None:
        full = torch.zeros(shape[0], dtype=torch.bool, device=setting.device)
        seconds = setting.seconds(lambda: fused(logits, offsets, full, count))
        choice = {"normaliser and candidates, at most": steps * seconds}
        report.add(f"{name}: the same uncompiled", value=normaliser + candidates, unit="s")
    rest = whole - times["model"] - sum(choice.values())
    shares = {"model": times["model"], **choice, "bookkeeping and host, at least": max(0.0, rest)}
    for part, seconds in shares.items():
        note = f"{seconds / whole:.0%} of {steps} steps with {shape[0]} sentences"
        report.add(f"{name}: {part}", value=seconds, unit="s", note=note)
