"""The time of an update, measured before training."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mt.data.tokens.batches import collate, shard_of
from mt.runtime.failures import explain_failures

if TYPE_CHECKING:
    from mt.data.tokens.plan import Plan
    from mt.training.update import Updater

# Updates that are timed, unless their batches take longer than so many seconds together.
N_TIMED = 8
SECONDS_OF_TIMING = 5.0
# Updates whose padding is counted: their order is random, and an epoch may have 100,000.
N_COUNTED = 1000


def typical_update(updater: Updater, plan: Plan, epoch: int) -> float:
    """Seconds that a mean update of `epoch` takes the slowest rank; all of them take part."""
    timed = explain_failures(updater.device)(seconds_of_update)
    seconds = updater.world.all_or_raise(lambda: timed(updater, plan, epoch))
    return max(updater.world.all_gather(seconds + seconds_of_exchange(updater)))


def seconds_of_update(updater: Updater, plan: Plan, epoch: int) -> float:
    """Seconds that a mean update of `epoch` takes this rank, without waiting for the others.

    Time of forward and backward passes is proportional to the padded tokens of an update. It is
    measured on at most `N_TIMED` updates, whose order is random, for about `SECONDS_OF_TIMING`. The
    median of the updates counts, so that what else the machine does for a moment does not.
    """
    world = updater.world
    updates = plan.updates(epoch)
    updater.skip_step()  # the optimiser allocates its moments
    updater.dry_run_step(collate(plan.pairs.pairs(updates[0][0])))  # loads what is loaded once
    per_token: list[float] = []
    left = SECONDS_OF_TIMING
    for update in islice(updates, N_TIMED):
        if left <= 0:
            break
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
    step = seconds_of(updater, updater.skip_step)
    median = float(np.median(per_token)) if per_token else 0.0  # this rank may have no sentence
    return median * tokens_per_update + step


def seconds_of_exchange(updater: Updater) -> float:
    """Seconds in which the ranks sum their gradients after each update; all of them take part."""
    seconds = seconds_of(updater, updater.world.sum_gradients, updater.model.parameters())
    updater.optimizer.zero_grad(set_to_none=True)
    return seconds


def seconds_of(updater: Updater, call: Callable[..., None], *arguments: Any) -> float:
    """Seconds that `call` takes on the device."""
    if updater.device.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    call(*arguments)
    if updater.device.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start
