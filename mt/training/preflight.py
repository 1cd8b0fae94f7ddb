"""What fails late in a training is tried first: the largest batches, and a translation.

Running out of memory then shows at once, not after hours.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from mt.data.batches import collate
from mt.data.loader import Update
from mt.errors import NonFiniteError
from mt.runtime.memory import (
    explain_out_of_memory,
    peak_memory_mb,
    release_freed_memory,
    reset_peak_memory,
)
from mt.training.validation import translate

if TYPE_CHECKING:
    from mt.data.batches import Plan
    from mt.training.prepare import Prepared
    from mt.training.update import Updater

# Sentences of the validation set that are translated, the longest ones; on a GPU several batches.
N_TRANSLATED = {"cpu": 16, "cuda": 1024}
# An update that takes less than so many seconds is timed so often, as a whole.
QUICK_SECONDS = 5.0
N_TIMED = 3


@dataclass(frozen=True)
class PreflightResult:
    """The largest batch, and what training with it takes."""

    rows: int  # sentences in the largest batch
    longest: int  # tokens of its longest sentence, with eos
    memory_mb: float  # most that any rank uses

    def __str__(self) -> str:
        return f"{self.rows:,} sentences of up to {self.longest:,} tokens: {self.memory_mb:,.0f} MB"


def run_preflight(prepared: Prepared, epoch: int) -> PreflightResult:
    """Run forward and backward on the largest batches of `epoch`, and translate; nothing changes.

    The memory that the optimiser will need is held meanwhile. Raises ConfigError if the device has
    too little memory, in all ranks alike.
    """
    updater = prepared.updater

    def on_this_rank() -> PreflightResult:
        with explain_out_of_memory(updater.device):
            return _run_on_this_rank(prepared, epoch)

    own = updater.world.all_or_raise(on_this_rank)
    return replace(own, memory_mb=max(updater.world.all_gather(own.memory_mb)))


def _run_on_this_rank(prepared: Prepared, epoch: int) -> PreflightResult:
    """The preflight without any communication between ranks."""
    store = prepared.store
    updater = prepared.updater
    device = updater.device.device
    release_freed_memory()
    reset_peak_memory(device)
    moments = None
    if not updater.optimizer.state:  # before the first update
        moments = torch.ones(updater.optimizer_bytes, dtype=torch.uint8, device=device)
    lengths = np.maximum(store.src_lengths, store.tgt_lengths) + 1
    batches = [batch for update in prepared.plan.updates(epoch) for batch in update]
    largest = max(batches, key=lambda batch: int(lengths[batch].max()) * len(batch))
    with_longest = max(batches, key=lambda batch: int(lengths[batch].max()))
    for batch in (largest, with_longest):
        updater.dry_run_step(collate([store.pair(i) for i in batch]))
    _translate_longest(prepared)
    del moments
    return PreflightResult(len(largest), int(lengths[largest].max()), peak_memory_mb(device))


def _translate_longest(prepared: Prepared) -> None:
    """Translate the longest sentences of the validation set, if there is one."""
    if prepared.validation is None:
        return
    device = prepared.updater.device
    lines = sorted(prepared.validation.src, key=len)[-N_TRANSLATED[device.device.type] :]
    with suppress(NonFiniteError):  # training has its own way with it
        translate(prepared.config, prepared.updater.eval_model, prepared.tokenizer, device, lines)


def seconds_per_update(updater: Updater, plan: Plan, epoch: int) -> float:
    """Estimate how long an update takes, by timing as little as that needs.

    One micro-batch tells enough where updates are slow; quick ones are timed as a whole. Nothing
    is trained; the optimiser's own step is not counted. All ranks must call this.
    """
    updates = plan.updates(epoch)
    world = updater.world
    n_tgt_mean = float(np.mean([_n_tgt(plan, update) for update in updates]))
    batches, n_tgt = plan.shard(updates[0], world.rank, world.size)
    start = time.perf_counter()
    updater.dry_run_step(batches[0])
    _wait_for_device(updater)
    first = time.perf_counter() - start
    estimate = first * sum(b.n_padded for b in batches) / batches[0].n_padded
    estimate *= n_tgt_mean / n_tgt
    if world.on_main(lambda: estimate) > QUICK_SECONDS:
        return estimate
    per_token = []
    for number, update in enumerate(updates[:N_TIMED]):
        batches, n_tgt = plan.shard(update, world.rank, world.size)
        start = time.perf_counter()
        updater.accumulate_gradients(Update(epoch, number, len(updates), batches, n_tgt))
        _wait_for_device(updater)
        per_token.append((time.perf_counter() - start) / n_tgt)
        updater.optimizer.zero_grad(set_to_none=True)
    return float(np.median(per_token)) * n_tgt_mean


def _n_tgt(plan: Plan, update: list[np.ndarray]) -> int:
    """Target tokens of an update, eos counted."""
    return int((plan.store.tgt_lengths[np.concatenate(update)] + 1).sum())


def _wait_for_device(updater: Updater) -> None:
    if updater.device.is_cuda:
        torch.cuda.synchronize()
