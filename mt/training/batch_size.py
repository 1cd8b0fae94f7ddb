"""`batch.tokens_per_batch`, where it is `auto` or null: the largest batch that fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from mt.data.tokens.plan import MOST_ROWS, SHARES
from mt.errors import TooLittleMemoryError
from mt.runtime.memory import (
    available_memory_mb,
    peak_memory_mb,
    release_freed_memory,
    reset_peak_memory,
)
from mt.training.compilation import made_up_batch

if TYPE_CHECKING:
    from mt.config.schema import Config
    from mt.config.settled import Settled
    from mt.data.tokens.directions import DirectedPairs
    from mt.training.runlog import RunLog
    from mt.training.update import Updater

# Share of the memory that is left free: for other programs, and for what fragmentation wastes.
MARGIN = 0.15
# What null means on a CPU, where larger batches are no faster.
TOKENS_ON_CPU = 8192
# Padded tokens of the longer side that an update can take as one batch, in updates: no batch is
# larger than that, so there is no need to measure more.
MOST_UPDATES = 2
# Target tokens of the two batches from which the memory per sentence is estimated.
SMALL_PROBE = 1024
LARGE_PROBE = 2048
# No batch is so many times larger than those whose memory is known. Small ones may find room in
# memory that the process has freed and kept, and seem to take none: a leap took 21 GB for 0.4.
LEAP = 4


def lengths_to_try(pairs: DirectedPairs, longest: int, packed: bool) -> list[int]:
    """The lengths of sentences, eos counted, of which a batch may take the most memory.

    A padded batch takes the most for the longest sentences. Without padding, a GPU's attention also
    keeps a buffer for each sentence, so an update of short ones may take more. An update has a
    share of each quarter of the tokens by length: at worst the shortest sentences of each.
    """
    if not packed:
        return [longest]
    counts = np.bincount(np.maximum(pairs.src_lengths, pairs.tgt_lengths).astype(np.int64) + 1)
    up_to = (counts * np.arange(len(counts))).cumsum()  # tokens in sentences up to this length
    shortest = np.searchsorted(up_to, up_to[-1] * np.arange(SHARES) / SHARES, side="right")
    return [longest, max(2, int(SHARES / (1 / shortest).sum()))]


def settle_batch_size(
    config: Config, settled: Settled, updater: Updater, lengths: list[int], log: RunLog
) -> Settled:
    """Settle `batch.tokens_per_batch`, where it is `auto` or null. `lengths`: see `lengths_to_try`.

    A run keeps the number from its first checkpoint on, whatever device it resumes on. Of several
    processes all use the smallest number that any of them measures.
    """
    given = config.batch.tokens_per_batch
    if isinstance(given, int):
        return settled.because("as asked", tokens_per_batch=None)
    measures = given == "auto" or updater.device.is_cuda
    tokens, reason = settled.tokens_per_batch, "since this run was started"
    if tokens is None and not measures:
        tokens = max(TOKENS_ON_CPU, config.data.max_tokens + 1)  # the longest pair is a batch
        reason = "on a CPU"
    elif tokens is None:
        world = updater.world
        fitting = world.all_or_raise(lambda: fitting_batch(config, updater, lengths))
        tokens = min(world.all_gather(fitting))
        reason = "here"
    log.say(f"batch.tokens_per_batch: {given or 'null'} is {tokens:,} {reason}")
    return settled.because(f"{given or 'null'} is so many {reason}", tokens_per_batch=tokens)


def fitting_batch(config: Config, updater: Updater, lengths: list[int]) -> int:
    """Measure the padded tokens of the longer side of the largest batch that leaves `MARGIN` free.

    Raises TooLittleMemoryError if not even one sentence fits.
    """
    device = updater.device.device
    # On a CPU the processes of a machine share its memory.
    n_sharing = 1 if updater.device.is_cuda else updater.world.local_size
    room = available_memory_mb(device) / n_sharing * (1 - MARGIN)
    room -= updater.optimizer_bytes / 1e6
    vocab_size = updater.model.output.out_features

    def try_out(rows: int, length: int) -> float:
        """MB that a batch of so many sentences takes."""
        release_freed_memory()
        reset_peak_memory(device)
        updater.dry_run_step(made_up_batch(rows, length - 1, length - 1, vocab_size))
        return peak_memory_mb(device)

    def memory(rows: int, length: int) -> float:
        """MB that such a batch takes, infinite if it does not fit."""
        try:
            return try_out(rows, length)
        except TooLittleMemoryError:
            return math.inf

    try_out(1, lengths[0])  # loads the libraries that are loaded once
    tokens = MOST_UPDATES * config.batch.tokens_per_update
    for length in lengths:
        rows = _fitting_rows(partial(memory, length=length), length, tokens // length, room)
        if rows < MOST_ROWS:  # else it is that which limits the batch
            tokens = rows * length
    return tokens


def _fitting_rows(memory: Callable[[int], float], length: int, most: int, room: float) -> int:
    """The most sentences of `length` tokens, at most `most`, whose `memory` is within `room` MB.

    Memory grows linearly with the sentences of a batch, so two small batches give an estimate, and
    larger ones a better one until it is near. That is tried, and lowered until it fits.
    """
    most = min(most, MOST_ROWS)
    few = max(1, SMALL_PROBE // length)
    more = max(2, LARGE_PROBE // length)
    memory_of_few = memory(few)
    while (memory_of_more := memory(more)) < math.inf:
        per_row = max(1e-3, (memory_of_more - memory_of_few) / (more - few))
        rows = min(most, few + int((room - memory_of_few) / per_row))
        if memory_of_more > room or rows <= LEAP * more:
            break
        more *= LEAP
    else:
        rows = more
    rows = max(1, min(most, rows))
    while rows > 1 and memory(rows) > room:
        rows = rows * 9 // 10
    return rows
