"""Training figures between two log lines: loss, gradient norm, speed, padding, waiting."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from mt.data.tokens.loader import Prefetcher, Update
    from mt.runtime.distributed import World


class Meter:
    """Running sums since the last log line, over all ranks.

    Sums stay on the device until `figures` reads them, so that `add` waits for nothing.
    """

    def __init__(self, prefetcher: Prefetcher, world: World) -> None:
        self._prefetcher = prefetcher
        self._world = world
        self.reset()

    def reset(self) -> None:
        """Start a new interval."""
        self._start = time.perf_counter()
        self._waited_before = self._prefetcher.waited
        self._n_updates = 0
        self._n_tgt = 0
        self._n_real = 0
        self._n_padded = 0
        # smoothed loss, nll, gradient norm, target tokens, updates: those of finite updates only
        self._sums = torch.zeros(5)

    def exclude(self, seconds: float) -> None:
        """Take time that was not spent on training, such as a validation, out of the interval."""
        self._start += seconds

    def add(self, update: Update, smoothed: Tensor, nll: Tensor, norm: Tensor) -> None:
        """Add an update: this rank's part of the loss and nll per target token, gradient norm."""
        self._n_updates += 1
        self._n_tgt += update.n_tgt
        self._n_real += sum(batch.n_src + batch.n_tgt for batch in update.batches)
        self._n_padded += sum(batch.n_padded for batch in update.batches)
        one = torch.ones_like(norm)
        sums = torch.stack(
            [smoothed * update.n_tgt, nll * update.n_tgt, norm, one * update.n_tgt, one]
        )
        sums = torch.where(torch.isfinite(norm), sums, 0.0)
        self._sums = self._sums.to(sums.device) + sums

    def own_nll(self) -> float:
        """The nll so far in the interval, of this rank's sentences; waits for the device only."""
        _, nll, _, n_tgt, _ = self._sums.tolist()
        return self._world.size * nll / n_tgt if n_tgt else math.nan

    def figures(self) -> dict[str, Any]:
        """Means over the interval, by their names in `metrics.jsonl`.

        Waits for the device and for the other ranks.
        """
        seconds = time.perf_counter() - self._start
        world_size = self._world.size
        waited = self._prefetcher.waited - self._waited_before
        host = torch.tensor([self._n_real, self._n_padded, waited], dtype=torch.float64)
        totals = self._world.all_reduce_sum(torch.cat([self._sums.cpu().double(), host])).tolist()
        smoothed, nll, norm, n_tgt, n_updates, n_real, n_padded, waited = totals
        if n_updates:
            # Norm, tokens and updates are the same in every rank; the losses are parts of a sum.
            smoothed *= world_size / n_tgt
            nll *= world_size / n_tgt
            norm /= n_updates
            n_updates /= world_size
        else:
            smoothed = nll = norm = math.nan
        return {
            "loss": smoothed,
            "nll": nll,
            "perplexity": perplexity(nll),
            "grad_norm": norm,
            "skipped": self._n_updates - round(n_updates),
            "tokens_per_second": self._n_tgt / seconds,
            "padding": 1 - n_real / n_padded,
            "waiting": waited / world_size / seconds,
        }


def perplexity(nll: float) -> float:
    """exp(nll), cut off where a float would overflow."""
    return math.exp(min(nll, 700.0))
