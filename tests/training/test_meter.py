"""Training figures between two log lines, worked out by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mt.runtime.distributed import World
from mt.training import meter as meter_module
from mt.training.meter import Meter


def update(n_src: int, n_tgt: int, n_padded: int) -> Any:
    batch = SimpleNamespace(n_src=n_src, n_tgt=n_tgt, n_padded=n_padded)
    return SimpleNamespace(batches=[batch], n_tgt=n_tgt)


def test_means_over_two_updates() -> None:
    """10 and 30 target tokens: nll (10 x 2 + 30 x 4) / 40 = 3.5, padding 1 - 80 / 100."""
    meter = Meter(SimpleNamespace(waited=0.0), World())  # type: ignore[arg-type]
    meter.add(update(10, 10, 30), torch.tensor(5.0), torch.tensor(2.0), torch.tensor(1.0))
    meter.add(update(30, 30, 70), torch.tensor(5.0), torch.tensor(4.0), torch.tensor(2.0))
    figures = meter.figures()
    assert (figures["loss"], figures["nll"]) == (5.0, 3.5)
    assert figures["perplexity"] == pytest.approx(math.exp(3.5))
    assert figures["grad_norm"] == 1.5
    assert figures["padding"] == pytest.approx(0.2)
    assert figures["skipped"] == 0


def test_an_update_with_a_non_finite_gradient_counts_as_skipped_only() -> None:
    meter = Meter(SimpleNamespace(waited=0.0), World())  # type: ignore[arg-type]
    meter.add(update(10, 10, 30), torch.tensor(5.0), torch.tensor(2.0), torch.tensor(1.0))
    meter.add(update(30, 30, 70), torch.tensor(5.0), torch.tensor(math.nan), torch.tensor(math.inf))
    figures = meter.figures()
    assert (figures["nll"], figures["grad_norm"], figures["skipped"]) == (2.0, 1.0, 1)
    meter.reset()
    meter.add(update(30, 30, 70), torch.tensor(5.0), torch.tensor(1.0), torch.tensor(math.nan))
    figures = meter.figures()
    assert math.isnan(figures["nll"])
    assert math.isnan(figures["perplexity"])
    assert figures["skipped"] == 1


def test_speed_and_waiting_are_relative_to_the_time_of_the_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    prefetcher = SimpleNamespace(waited=5.0)
    monkeypatch.setattr(meter_module.time, "perf_counter", lambda: now[0])
    meter = Meter(prefetcher, World())  # type: ignore[arg-type]
    now[0] = 104.0
    prefetcher.waited = 6.0
    meter.add(update(10, 200, 300), torch.tensor(5.0), torch.tensor(2.0), torch.tensor(1.0))
    figures = meter.figures()
    assert (figures["tokens_per_second"], figures["waiting"]) == (50.0, 0.25)
    meter.exclude(2.0)  # a validation
    assert meter.figures()["tokens_per_second"] == 100.0
