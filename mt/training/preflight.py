"""What fails late in a training is tried first: the largest batches, and a translation.

Running out of memory then shows at once, not after hours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from mt.data.tokens.batches import collate
from mt.data.tokens.loader import Update
from mt.errors import NonFiniteError
from mt.runtime.memory import (
    explain_out_of_memory,
    peak_memory_mb,
    release_freed_memory,
    reset_peak_memory,
)
from mt.training.validation import translate

if TYPE_CHECKING:
    from mt.data.tokens.batches import Plan
    from mt.training.prepare import Prepared
    from mt.training.update import Updater

# Sentences of the validation set that are translated, the longest ones; on a GPU several batches.
N_TRANSLATED = {"cpu": 16, "cuda": 1024}
# Updates that `time_updates` measures.
N_TIMED = 3


@dataclass(frozen=True)
class PreflightResult:
    """The largest batch, and what training with it takes."""

    rows: int  # sentences in the largest batch
    longest: int  # tokens of its longest sentence, with eos
    memory_mb: float  # most that any rank uses
    seconds_per_token: float  # of forward and backward, by padded tokens of both sides

    def __str__(self) -> str:
        return f"{self.rows:,} sentences of up to {self.longest:,} tokens: {self.memory_mb:,.0f} MB"


def run_preflight(prepared: Prepared, epoch: int, say: Callable[[str], None]) -> PreflightResult:
    """Run forward and backward on the largest batches of `epoch`, and translate; nothing changes.

    `say` gets a message before each step, as one may take a minute. The memory that the optimiser
    will need is held meanwhile. Raises ConfigError if the device has too little memory, in all
    ranks alike.
    """
    updater = prepared.updater

    def on_this_rank() -> PreflightResult:
        with explain_out_of_memory(updater.device):
            return _run_on_this_rank(prepared, epoch, say)

    own = updater.world.all_or_raise(on_this_rank)
    return replace(
        own,
        memory_mb=max(updater.world.all_gather(own.memory_mb)),
        seconds_per_token=max(updater.world.all_gather(own.seconds_per_token)),
    )


def _run_on_this_rank(
    prepared: Prepared, epoch: int, say: Callable[[str], None]
) -> PreflightResult:
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
    for indices in (largest, with_longest):  # the second is timed, when everything is loaded
        n_tokens = int(lengths[indices].max())
        say(f"preflight: a batch of {len(indices):,} sentences of up to {n_tokens:,} tokens")
        batch = collate([store.pair(i) for i in indices])
        _wait_for_device(updater)
        start = time.perf_counter()
        updater.dry_run_step(batch)
        _wait_for_device(updater)
        seconds_per_token = (time.perf_counter() - start) / batch.n_padded
    _translate_longest(prepared, say)
    del moments
    longest = int(lengths[largest].max())
    return PreflightResult(len(largest), longest, peak_memory_mb(device), seconds_per_token)


def _translate_longest(prepared: Prepared, say: Callable[[str], None]) -> None:
    """Translate the longest sentences of the validation set, if there is one."""
    if prepared.validation is None:
        return
    device = prepared.updater.device
    lines = sorted(prepared.validation.src, key=len)[-N_TRANSLATED[device.device.type] :]
    say(f"preflight: translating {len(lines):,} sentences")
    with suppress(NonFiniteError):  # training has its own way with it
        translate(prepared.config, prepared.updater.eval_model, prepared.tokenizer, device, lines)


def estimate_update_seconds(preflight: PreflightResult, plan: Plan, epoch: int, size: int) -> float:
    """Seconds of an average update of `epoch` on `size` ranks, from what the preflight measured."""
    updates = plan.updates(epoch)
    src = plan.store.src_lengths + 1
    tgt = plan.store.tgt_lengths + 1
    n_padded = sum(
        len(batch) * int(src[batch].max() + tgt[batch].max())
        for update in updates
        for batch in update
    )
    return preflight.seconds_per_token * n_padded / len(updates) / size


def time_updates(updater: Updater, plan: Plan, epoch: int) -> float:
    """Seconds of an average update of `epoch`: the median of a few, without the optimiser's step.

    Nothing is trained. All ranks must call this.
    """
    updates = plan.updates(epoch)
    world = updater.world
    seconds = []
    for number, update in enumerate(updates[:N_TIMED]):
        batches, n_tgt = plan.shard(update, world.rank, world.size)
        start = time.perf_counter()
        updater.accumulate_gradients(Update(epoch, number, len(updates), batches, n_tgt))
        _wait_for_device(updater)
        seconds.append((time.perf_counter() - start) / n_tgt)
        updater.optimizer.zero_grad(set_to_none=True)
    order = np.concatenate([batch for update in updates for batch in update])
    n_tgt_mean = float((plan.store.tgt_lengths[order] + 1).sum()) / len(updates)
    return float(np.median(seconds)) * n_tgt_mean


def _wait_for_device(updater: Updater) -> None:
    if updater.device.is_cuda:
        torch.cuda.synchronize()
