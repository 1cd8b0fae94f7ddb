"""The numbers that a training measures: its length, the time of an update, the largest batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mt.config.plan import DataPlan, StageEnd
from mt.config.schema import TrainConfig
from mt.config.settled import Settled
from mt.data.tokens.batches import gather_batch, shard_of
from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.plan import MOST_ROWS, N_STRATA, Plan
from mt.errors import ConfigError, TooLittleMemoryError
from mt.runtime import memory
from mt.training.checkpoints import TrainState
from mt.training.compilation import made_up_batch
from mt.training.update import Updater

if TYPE_CHECKING:
    from mt.training.runlog import RunLog  # needs tqdm, which `scripts/gpu_check.py` does without

# Share of `train.max_minutes` for preparation and updates; the rest is for validations and tests.
UPDATES_SHARE = 0.9
FITTED = "so many fit into train.max_minutes"
# Updates that are timed, unless their batches take longer than so many seconds together.
N_TIMED = 8
SECONDS_OF_TIMING = 5.0
# Updates whose padding is counted: their order is random, and an epoch may have 100,000.
N_COUNTED = 1000


@dataclass(frozen=True)
class Epochs:
    """How many updates the epochs of a training have."""

    data: DataPlan
    plans: Sequence[Plan]  # of each stage
    train: TrainConfig
    done: int = 0  # updates, of a run that is resumed
    over: Sequence[StageEnd] = ()  # ends of stages that are over, which a longer training keeps

    @cached_property
    def lengths(self) -> list[int]:
        """The updates of the first epoch of each stage; its others count as many."""
        return [len(plan.for_epoch(0, Event()).updates(0)) for plan in self.plans]

    def updates(self, epochs: float) -> float:
        """The updates of so many epochs."""
        parts = self.by_stage(TrainState(), self._ends(epochs), math.inf, epochs)
        return sum(updates for _, updates in parts)

    def ends(self, epochs: float | None) -> list[StageEnd]:
        """Where each stage ends in a training of so many epochs, unless `max_steps` ends it."""
        if epochs is not None and self.updates(epochs) > self.train.max_steps:
            epochs = self.within(self.train.max_steps)
        return self._ends(epochs)

    def _ends(self, epochs: float | None) -> list[StageEnd]:
        over, stages = self.over[: len(self.data.stages) - 1], self.data.stages
        return [*over, *(each.end(self.train.max_steps, epochs) for each in stages[len(over) :])]

    def by_stage(
        self, had: TrainState, ends: Sequence[StageEnd], updates: float, epochs: float = math.inf
    ) -> Iterator[tuple[int, float]]:
        """The updates of each stage, by its number, of so many updates or epochs after others."""
        for number, end in enumerate(ends[had.stage :], had.stage):
            in_stage = updates
            if end.updates is not None:
                in_stage = min(in_stage, end.updates - had.stage_updates)
            elif end.epochs is not None:
                in_stage = min(in_stage, (end.epochs - had.stage_epochs) * self.lengths[number])
            if epochs < math.inf:
                in_stage = min(in_stage, epochs * self.lengths[number])
                epochs -= in_stage / self.lengths[number]
            yield number, max(0, in_stage)
            updates, had = updates - max(0, in_stage), TrainState()

    def within(self, updates: float) -> float:
        """The epochs that have about so many updates, by bisection."""
        # Where stages end at shares, which are whole epochs, the updates grow in steps.
        low, high = 0.0, updates / min(self.lengths)
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.updates(middle) <= updates else (low, middle)
        return low


def settle_length(
    settled: Settled, epochs: Epochs, updater: Updater, warmup: int, log: RunLog
) -> tuple[Settled, float | None]:
    """Settle epochs and updates of a training; also the seconds of an update, if it was timed.

    `warmup`: the updates of a cosine's warm-up, 0 without one. A run with a checkpoint keeps epochs
    that were fitted once. Raises ConfigError if no time or no update after the warm-up is left.
    """
    train, n_epochs, seconds = epochs.train, epochs.train.epochs, None
    if train.max_minutes is None:
        settled = settled.because("train.max_epochs", epochs=None)
    elif epochs.done and settled.reasons.get("epochs") == FITTED:
        n_epochs = min(filter(None, (settled.epochs, n_epochs)), default=None)
        said = "max_epochs" if n_epochs == train.epochs else f"{n_epochs:g} epochs, as started"
        log.say(f"train.max_minutes: the run keeps {said}; without it train.max_epochs decides")
    else:
        log.say("train.max_minutes: timing typical updates")
        seconds = typical_update(updater, epochs.plans[0].for_epoch(0, Event()), 0)
        gone = time.perf_counter() - log.started
        n_epochs = updater.world.on_main(lambda: _fitting(epochs, gone, seconds or 0.0, log))
        settled = settled.because(FITTED, epochs=n_epochs)
    if n_epochs is None:
        return settled.because("train.max_steps", updates=train.max_steps), seconds
    wanted = max(1, round(min(epochs.updates(n_epochs), 1e15)))  # 1e308 epochs are infinitely many
    of = ", then ".join(f"{length:,}" for length in epochs.lengths)
    said = f"{n_epochs:g} epoch{'s' * (n_epochs != 1)} of {of} updates are {wanted:,} updates"
    capped = f"; train.max_steps ends training after {train.max_steps:,}"
    log.say(f"train.max_epochs: {said}{capped * (train.max_steps < wanted)}")
    updates = min(train.max_steps, wanted)
    if warmup >= updates:
        fault = f"must be below the {updates:,} updates of train.max_epochs with schedule cosine"
        remedy = "lower it, or raise train.max_epochs or train.max_minutes"
        raise ConfigError(f"optim.warmup_steps: {fault}, found {warmup:,}; {remedy}")
    return settled.because(said, updates=updates), seconds


def _fitting(epochs: Epochs, gone: float, per_update: float, log: RunLog) -> float | None:
    """The epochs of the config, or those that fit where `gone` seconds have passed, if fewer."""
    minutes = epochs.train.max_minutes or 0.0
    left = UPDATES_SHARE * 60 * minutes - gone
    if left < per_update:
        raise ConfigError(
            f"train.max_minutes: leaves no time to train, found {minutes:g}: the data took "
            f"{gone / 60:.1f} minutes to prepare, an update takes {per_update:.1f} s; raise it"
        )
    n_epochs = epochs.train.epochs
    updates = epochs.done + left / per_update
    if updates >= epochs.train.max_steps:
        return n_epochs
    fitting = epochs.within(updates)
    if n_epochs is not None and fitting >= n_epochs:
        return n_epochs
    fitting = float(f"{fitting:.3g}")
    pace = f"{per_update:.2f} s an update"
    log.say(f"train.max_minutes: {fitting:g} epochs fit into {minutes:g} minutes, with {pace}")
    return fitting


# --- the time of an update ------------------------------------------------------------------


def typical_update(updater: Updater, plan: Plan, epoch: int) -> float:
    """Seconds that a mean update of `epoch` takes the slowest rank; all of them take part."""
    timed = memory.explain_failures(updater.device)(seconds_of_update)
    seconds = updater.world.all_or_raise(lambda: timed(updater, plan, epoch))
    seconds += seconds_of(updater, updater.world.sum_gradients, updater.model.parameters())
    updater.optimizer.zero_grad(set_to_none=True)
    return max(updater.world.all_gather(seconds))


def seconds_of_update(updater: Updater, plan: Plan, epoch: int) -> float:
    """Seconds that a mean update of `epoch` takes this rank, without waiting for the others.

    Time of forward and backward passes is proportional to the padded tokens of an update. The
    median of at most `N_TIMED` updates counts, as the machine may do something else for a moment.
    """
    world = updater.world
    updates = plan.updates(epoch)
    updater.skip_step()  # the optimiser allocates its moments
    updater.dry_run_step(gather_batch(plan.pairs, updates[0][0]))  # loads what is loaded once
    per_token: list[float] = []
    left = SECONDS_OF_TIMING
    for update in islice(updates, N_TIMED):
        seconds = n_padded = 0.0
        for batch in shard_of(plan, update, world.rank, world.size)[0]:
            if seconds < left:
                seconds += seconds_of(updater, updater.dry_run_step, batch)
                n_padded += batch.n_padded
        if n_padded:
            per_token.append(seconds / n_padded)
        left -= seconds
    counted = [batch for update in islice(updates, N_COUNTED) for batch in update]
    n_padded = sum(sum(plan.n_tokens(batch)) for batch in counted)
    tokens_per_update = n_padded / min(len(updates), N_COUNTED) / world.size
    step = seconds_of(updater, updater.skip_step)  # without Adam's own arithmetic, about 2 %
    median = float(np.median(per_token)) if per_token else 0.0  # this rank may have no sentence
    return median * tokens_per_update + step


def seconds_of(updater: Updater, call: Callable[..., None], *arguments: Any) -> float:
    """Seconds that `call` takes on the device."""
    wait: Callable[[], None] = torch.cuda.synchronize if updater.device.is_cuda else lambda: None
    wait()
    start = time.perf_counter()
    call(*arguments)
    wait()
    return time.perf_counter() - start


# Share of the memory that is left free: for other programs, and for what fragmentation wastes.
MARGIN = 0.15
# What null means on a CPU, where larger batches are no faster.
TOKENS_ON_CPU = 8192
# No batch is larger than the target tokens of so many updates, so there is no need to measure more.
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
    shortest = np.searchsorted(up_to, up_to[-1] * np.arange(N_STRATA) / N_STRATA, side="right")
    return [longest, max(2, int(N_STRATA / (1 / shortest).sum()))]


def settle_batch_size(settled: Settled, updater: Updater, lengths: list[int]) -> Settled:
    """Settle `batch.tokens_per_batch`, where it is `auto` or null. `lengths`: see `lengths_to_try`.

    A run keeps the number from its first checkpoint on, whatever device it resumes on. Of several
    processes all use the smallest number that any of them measures.
    """
    config, world = updater.config, updater.world
    given = config.batch.tokens_per_batch
    if isinstance(given, int):
        return settled.because("as asked", tokens_per_batch=None)
    tokens, reason = settled.tokens_per_batch, "since this run was started"
    if tokens is None and given is None and not updater.device.is_cuda:
        tokens = max(TOKENS_ON_CPU, config.data.max_tokens + 1)  # the longest pair is a batch
        reason = "on a CPU"
    elif tokens is None:
        fitting = world.all_or_raise(lambda: fitting_batch(updater, lengths))
        tokens, reason = min(world.all_gather(fitting)), "here"
    updater.say(f"batch.tokens_per_batch: {given or 'null'} is {tokens:,} {reason}")
    return settled.because(f"{given or 'null'} is so many {reason}", tokens_per_batch=tokens)


def fitting_batch(updater: Updater, lengths: list[int]) -> int:
    """Measure the padded tokens of the longer side of the largest batch that leaves `MARGIN` free.

    Raises TooLittleMemoryError if not even one sentence fits.
    """
    device = updater.device.device
    # On a CPU the processes of a machine share its memory.
    n_sharing = 1 if updater.device.is_cuda else updater.world.local_size
    room = memory.available_memory_mb(device) / n_sharing * (1 - MARGIN)
    room -= 8 * updater.n_parameters / 1e6  # two moments of each weight, in float32
    vocab_size = updater.model.output.out_features

    def memory_mb(length: int, rows: int) -> float:
        memory.release_freed_memory()
        memory.reset_peak_memory(device)
        updater.dry_run_step(made_up_batch(rows, length - 1, length - 1, vocab_size))
        return memory.peak_memory_mb(device)

    memory_mb(lengths[0], 1)  # loads the libraries that are loaded once
    tokens = MOST_UPDATES * updater.config.batch.tokens_per_update
    for length in lengths:
        rows = _fitting_rows(partial(memory_mb, length), length, tokens // length, room)
        if rows < MOST_ROWS:  # else it is that which limits the batch
            tokens = rows * length
    return tokens


def _fitting_rows(measure: Callable[[int], float], length: int, most: int, room: float) -> int:
    """The most sentences of `length` tokens, at most `most`, whose memory is within `room` MB.

    Memory grows linearly with the sentences of a batch, so two small batches give an estimate, and
    larger ones a better one until it is near. That is tried, and lowered until it fits.
    """

    def memory_of(rows: int) -> float:
        try:
            return measure(rows)
        except TooLittleMemoryError:
            return math.inf

    most = min(most, MOST_ROWS)
    few, more = max(1, SMALL_PROBE // length), max(2, LARGE_PROBE // length)
    memory_of_few = memory_of(few)
    while (memory_of_more := memory_of(more)) < math.inf:
        per_row = max(1e-3, (memory_of_more - memory_of_few) / (more - few))
        rows = min(most, few + int((room - memory_of_few) / per_row))
        if memory_of_more > room or rows <= LEAP * more:
            break
        more *= LEAP
    else:
        rows = more
    rows = max(1, min(most, rows))
    while rows > 1 and memory_of(rows) > room:
        rows = rows * 9 // 10
    return rows
