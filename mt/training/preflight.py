"""What goes wrong late in a run, done first: the largest batches, and a search. And what a run is going to be."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
import torch

from mt.data.batches import Batch, collate
from mt.data.loader import Update
from mt.data.tokenizer import EOS
from mt.errors import CheckpointError, ConfigError, NonFiniteError
from mt.model import checkpoint
from mt.runtime.memory import (
    available_memory_mb,
    explain_out_of_memory,
    peak_memory_mb,
    release_freed_memory,
    reset_peak_memory,
)
from mt.training.runlog import format_duration
from mt.training.validation import translate

if TYPE_CHECKING:
    from mt.config.schema import Config
    from mt.data.store import Store
    from mt.training.trainer import Trainer
    from mt.training.update import Updater

# The share of memory that `batch.tokens_per_batch: auto` leaves free: for what else the device does, and for the
# pieces between tensors that are too small to be of use.
MARGIN = 0.15
# Bytes of an optimiser's moments, per weight.
MOMENTS = 8
# What a checkpoint's meta.json calls the number that `auto` has become.
MEASURED = "measured_tokens_per_batch"
# Sentences of the validation set that are translated, the longest ones; on a GPU more than one batch holds.
SENTENCES = {"cpu": 16, "cuda": 1024}
# Updates of which a dry run takes the time.
TIMED = 3


@dataclass(frozen=True)
class PreflightResult:
    """What it found."""

    rows: int  # of the largest batch
    longest: int  # tokens, with eos
    memory_mb: float

    def __str__(self) -> str:
        return f"{self.rows:,} sentences of up to {self.longest:,} tokens: {self.memory_mb:,.0f} MB"


def run_preflight(trainer: Trainer) -> PreflightResult:
    """One batch with the most tokens and one with the longest sentence, learned from without an update; one decoded.

    What the optimiser will keep is held meanwhile. Raises ConfigError where it does not fit into a device's memory.
    """

    def alone() -> PreflightResult:
        with explain_out_of_memory(trainer.device):
            return _run_preflight(trainer)

    mine = trainer.world.all_or_raise(alone)
    return replace(mine, memory_mb=max(trainer.world.all_gather(mine.memory_mb)))


def _run_preflight(trainer: Trainer) -> PreflightResult:
    """By this rank, which asks nothing of the others."""
    store, updater, device = trainer.store, trainer.updater, trainer.device.device
    release_freed_memory()
    reset_peak_memory(device)
    moments = (
        None
        if updater.optimizer.state
        else torch.ones(_moments(updater), dtype=torch.uint8, device=device)
    )
    longest = np.maximum(store.src_lengths, store.tgt_lengths) + 1
    batches = [batch for update in trainer.plan.updates(trainer.state.epoch) for batch in update]
    largest = max(batches, key=lambda batch: int(longest[batch].max()) * len(batch))
    for batch in (largest, max(batches, key=lambda batch: int(longest[batch].max()))):
        updater.dry_run_step(collate([store.pair(i) for i in batch]))
    if trainer.validation is not None:
        lines = sorted(trainer.validation.src, key=len)[-SENTENCES[device.type] :]
        with suppress(NonFiniteError):  # for training to find out
            translate(trainer.config, updater.eval_model, trainer.tokenizer, trainer.device, lines)
    del moments
    return PreflightResult(len(largest), int(longest[largest].max()), peak_memory_mb(device))


def fitting_batch(config: Config, updater: Updater, store: Store) -> int:
    """`batch.tokens_per_batch: auto`: the largest batch of the longest sentences that leaves a margin of memory.

    Two small batches are measured: what a batch takes grows in proportion to its rows. Then the result is tried, and
    lowered until it fits. Raises ConfigError where not even one sentence does.
    """
    device, longest = (
        updater.device.device,
        int(max(store.src_lengths.max(), store.tgt_lengths.max())) + 1,
    )
    if config.tokenizer.sampling_alpha:
        longest = config.data.max_tokens + 1
    # On a CPU the processes of a machine share its memory.
    shares = 1 if updater.device.is_cuda else updater.world.local_size
    room = available_memory_mb(device) / shares * (1 - MARGIN) - _moments(updater) / 1e6
    most = config.batch.tokens_per_update // longest

    def try_out(rows: int) -> float:
        release_freed_memory()
        reset_peak_memory(device)
        updater.dry_run_step(_worst(rows, longest, updater.model.output.out_features))
        return peak_memory_mb(device)

    def memory(rows: int) -> float:
        try:
            return try_out(rows)
        except ConfigError:  # out of memory
            return math.inf

    try_out(1)  # also loads what is loaded once
    few, more = max(1, 1024 // longest), max(2, 2048 // longest)
    base, measured = memory(few), memory(more)
    rows = more
    if max(base, measured) < math.inf:
        rows = few + int((room - base) / max(1e-3, (measured - base) / (more - few)))
    rows = max(1, min(most, rows))
    while rows > 1 and memory(rows) > room:
        rows = rows * 9 // 10
    return rows * longest


def measured_batch(run: Path) -> int | None:
    """What the newest checkpoint of a run says that `batch.tokens_per_batch: auto` has become; None where nothing."""
    for folder in reversed(checkpoint.checkpoints(run)):
        with suppress(CheckpointError):  # one that is damaged is told later
            return checkpoint.read_meta(folder, []).get(MEASURED)
    return None


def with_batch(config: Config, tokens: int) -> Config:
    """The config with another `batch.tokens_per_batch`."""
    return config.model_copy(
        update={"batch": config.batch.model_copy(update={"tokens_per_batch": tokens})}
    )


def _moments(updater: Updater) -> int:
    """Bytes that the optimiser will keep, at most."""
    return MOMENTS * sum(p.numel() for p in updater.model.parameters() if p.requires_grad)


def _worst(rows: int, longest: int, vocab_size: int) -> Batch:
    """So many pairs of the longest sentences."""
    ids = np.arange(longest - 1) % (vocab_size - EOS - 1) + EOS + 1
    return collate([(ids, ids)] * rows)


def forecast(trainer: Trainer, preflight: PreflightResult) -> str:
    """What a run is going to be: data, updates, memory, time; a few updates are timed for it, without learning."""
    config, state = trainer.config, trainer.state
    plan = trainer.plan.for_epoch(state.epoch, Event())
    store, updates = plan.store, plan.updates(state.epoch)
    order = np.concatenate([batch for update in updates for batch in update])
    n_src, n_tgt = (
        int((lengths[order] + 1).sum()) for lengths in (store.src_lengths, store.tgt_lengths)
    )
    seconds = []
    for number, update in enumerate(updates[:TIMED]):
        batches, n_update = plan.shard(update, trainer.world.rank, trainer.world.size)
        start = time.perf_counter()
        trainer.updater.gradients(Update(state.epoch, number, len(updates), batches, n_update))
        if trainer.device.is_cuda:
            torch.cuda.synchronize()
        seconds.append((time.perf_counter() - start) / n_update)
        trainer.updater.optimizer.zero_grad(set_to_none=True)
    left = max(0, config.train.max_steps - state.step)
    per_update = sorted(seconds)[len(seconds) // 2] * n_tgt / len(updates)
    sizes = f"{trainer.tokenizer.src_vocab_size:,}"
    if not trainer.tokenizer.joint:
        sizes += f" and {trainer.tokenizer.tgt_vocab_size:,}"
    parameters = sum(p.numel() for p in trainer.updater.model.parameters())
    rows = {
        "pairs": f"{len(store):,}, {len(order):,} of them drawn for an epoch",
        "tokens per epoch": f"{n_src:,} source, {n_tgt:,} target",
        "vocabulary": sizes,
        "parameters": f"{parameters:,}",
        "updates per epoch": f"{len(updates):,}, of {n_tgt / len(updates):,.0f} target tokens each",
        "updates to do": f"{left:,}, {left / len(updates):,.1f} epochs",
        "largest batch": f"{preflight}, on {trainer.device}",
        "time": f"{format_duration(left * per_update)} at {per_update:.2f} s an update, validations not counted",
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows.items())
