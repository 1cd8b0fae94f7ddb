"""Searches with a random model whose sentences end at different steps."""

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
from mt.config.schema import DecodeConfig
from mt.data.tokens.batches import pad_rows
from mt.data.tokens.plan import MOST_ROWS, batch_ends
from mt.data.tokens.tokenizer import BOS, EOS, PAD
from mt.errors import first_line
from mt.model.transformer import Transformer
from mt.runtime.devices import Device, can_compile
from mt.search.candidates import (
    FusedCandidates,
    best_candidates,
    compile_for,
    fused_candidates,
    log_normaliser,
)
from mt.search.engine import TorchEngine
from mt.search.engine_contract import LEAST_SIZE
from mt.search.inference import Inference
from mt.search.search import Stepper

SENTENCES = 20_000
# How many of them are also decoded in fp32 on a CPU, and what share of the outputs may differ: the
# last bit of a sum decides between tokens that are equally good.
COMPARED = 200
MOST_DIFFERENT = 0.02
# In this share of steps the best token is the end of the sentence.
END_SHARE = 0.05


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
    biased = setting.config(1024, compiled=False, model={"output_bias": True})
    updater = setting.updater(biased)
    count = 20 if setting.tiny else SENTENCES
    sources = [setting.pairs.pair(number)[0].tolist() for number in range(count)]
    sources.sort(key=len, reverse=True)
    let_end(updater.model, setting, sources[:: len(sources) // 20])
    some = sources[:: max(1, count // COMPARED)]
    report.check("fp32 as on a CPU", partial(compare, updater.model, setting, some))
    inference = Inference(updater.model, setting.choose())
    for n_rows in (MOST_ROWS, MOST_ROWS + 1) if setting.is_cuda else (2,):
        report.check(f"{n_rows:,} rows", partial(search_rows, inference, n_rows))
    for beam_size in (4, 1):
        name = f"beam {beam_size}" if beam_size > 1 else "greedy"
        report.attempt(name, partial(decode, report, setting, inference, sources, name, beam_size))


def let_end(model: Transformer, setting: Setting, sources: list[list[int]]) -> None:
    """Give the eos a bias by which a sentence may end at any step."""
    src = torch.from_numpy(pad_rows([np.asarray(source) for source in sources], None, EOS))
    stepper = Inference(model, setting.choose("fp32")).start(src, src != PAD, 1)
    tokens = torch.full((len(src), 1), BOS, device=setting.torch_device)
    gaps = []
    for _ in range(8):
        logits = stepper.step(tokens, torch.zeros_like(tokens))  # (B, 1, V)
        gaps.append(logits.amax(-1) - logits[..., EOS])
        tokens = logits.argmax(-1)
    with torch.no_grad():
        model.output.bias[EOS] += torch.cat(gaps).flatten().quantile(END_SHARE)


def compare(model: Transformer, setting: Setting, sources: list[list[int]]) -> str:
    """Decode in fp32, with the choice of tokens in one pass and without: as on a CPU."""
    config = setting.config(1024, compiled=False, decode={"beam_size": 4}).decode
    here = TorchEngine(Inference(model, setting.choose("fp32")), config)
    cpu = replace(here, model=Inference(model, Device(torch.device("cpu"), "fp32")))
    expected = [best for best, *_ in cpu.search(sources)]
    if len({len(best.tokens) for best in expected}) < 3:
        raise ValueError("all sentences end at the same step: the check shows little")
    notes: list[str] = []
    ways: dict[str, FusedCandidates | None] = {"plain": None, "fused": fused_candidates}
    if can_compile(setting.choose("fp32")):
        ways["compiled"] = compile_for(here.device, 4, setting.vocab_size, notes.append)
        if notes:
            raise ValueError(notes[0])
    for name, fused in ways.items():
        found = replace(here, fused=fused).search(sources)
        pairs = [(best, other) for (best, *_), other in zip(found, expected, strict=True)]
        alike = [(one, other) for one, other in pairs if one.tokens == other.tokens]
        error = max((abs(one.score - other.score) for one, other in alike), default=0.0)
        n_others = len(pairs) - len(alike)
        note = f"{name}: {n_others} of {len(pairs)} outputs differ, scores by {error:.1e}"
        if len(alike) < (1 - MOST_DIFFERENT) * len(pairs) or error > 1e-3:
            raise ValueError(note)
        notes.append(note)
    return "; ".join(notes)


def search_rows(inference: Inference, n_rows: int) -> str:
    """Search for one word so many times, in one batch; more rows than `MOST_ROWS` may fail."""
    config = DecodeConfig(beam_size=1, max_len_factor=0, max_len_extra=1)
    try:
        TorchEngine(inference, config).search([[EOS + 1]] * n_rows)
    except RuntimeError as error:
        if n_rows <= MOST_ROWS:
            raise
        return f"not in one batch, so the cap is needed: {first_line(error)}"
    return "in one batch"


def decode(
    report: Report,
    setting: Setting,
    inference: Inference,
    sources: list[list[int]],
    name: str,
    beam_size: int,
) -> None:
    """Measure whole batches, then one batch in its parts."""
    given = {"beam_size": beam_size, "max_len_factor": 1.0, "max_len_extra": 10}
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
    n_tokens = n_halved = 0
    start = time.perf_counter()
    for batch in batches:
        found = engine.search(batch)
        n_tokens += int((found.lengths + 1).sum())
        n_halved += found.n_halved
        if report.left() < 10:
            break
    elapsed = time.perf_counter() - start
    note = f"{len(batches)} batches of up to {budget:,} x {beam_size} tokens"
    report.add(f"{name}: decoding", value=n_tokens / elapsed, unit="tokens/s", note=note)
    report.add(f"{name}: halved batches", value=n_halved)
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
