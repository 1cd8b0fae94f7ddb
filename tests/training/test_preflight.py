"""The largest batches and a translation are tried before training starts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import (
    BLIND,
    NO_TEST,
    log_of,
)

from mt.config.schema import Config
from mt.data.tokens.batches import Batch, collate
from mt.errors import ConfigError
from mt.model import checkpoint
from mt.training import launch, loss, preflight, update
from mt.training.launch import train
from mt.training.trainer import Outcome, Trainer
from mt.training.update import Updater
from mt.translate.translator import Translator


def full(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Batch]]:
    """Every batch the model is given, with "preflight" or "update"."""
    seen: list[tuple[str, Batch]] = []
    real = loss.batch_loss
    now = ["update"]

    def watched(forward: Any, output: Any, batch: Batch, *arguments: Any) -> Any:
        seen.append((now[0], batch))
        return real(forward, output, batch, *arguments)

    def run_preflight(self: Updater, batch: Batch) -> None:
        now[0] = "preflight"
        original(self, batch)
        now[0] = "update"

    original = Updater.dry_run_step
    monkeypatch.setattr(update, "batch_loss", watched)
    monkeypatch.setattr(Updater, "dry_run_step", run_preflight)
    return seen


def test_the_largest_and_the_longest_batch_come_first(
    quick_config: Callable[..., Config], batches: list[tuple[str, Batch]], tmp_path: Path
) -> None:
    """And one search, before the first update."""
    config = quick_config(NO_TEST, train={"max_steps": 12, "valid_every": 99})
    assert train(config, tmp_path, "cpu").exit_code == 0
    (first, largest), (second, longest), *rest = batches
    assert first == second == "preflight"
    assert {who for who, _ in rest} == {"update"}
    assert largest.src.shape[0] * max(largest.src.shape[1], largest.tgt_in.shape[1]) >= max(
        batch.src.shape[0] * max(batch.src.shape[1], batch.tgt_in.shape[1]) for _, batch in rest
    )
    assert max(longest.src.shape[1], longest.tgt_in.shape[1]) >= max(
        max(batch.src.shape[1], batch.tgt_in.shape[1]) for _, batch in rest
    )
    said = re.search(
        r"preflight passed: (\d+) sentences of up to (\d+) tokens: [\d,]+ MB\n",
        (tmp_path / "train.log").read_text(),
    )
    assert said
    assert int(said[1]) == largest.src.shape[0]


def test_the_preflight_changes_nothing(
    quick_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without one the weights are the same, bit for bit."""
    config = quick_config(NO_TEST, train={"max_steps": 4})
    train(config, tmp_path / "with", "cpu")
    nothing = preflight.PreflightResult(0, 0, 0.0, 0.0)
    monkeypatch.setattr(launch, "run_preflight", lambda *_: nothing)
    train(config, tmp_path / "without", "cpu")
    one, other = (
        checkpoint.load_weights(tmp_path / name / "checkpoints" / "last")
        for name in ("with", "without")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_search_that_fails_is_found_before_the_first_update(
    quick_config: Callable[..., Config],
    batches: list[tuple[str, Batch]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Translator, "translate", full)
    with pytest.raises(
        ConfigError,
        match=r"^decode: translating data.valid or data.test does not fit into the memory of CPU "
        r"in fp32, 1 thread: [\d,]+ MB were in use. Lower decode.beam_size or "
        r"decode.max_len_factor, "
        r"or choose a smaller model$",
    ):
        train(quick_config(NO_TEST), tmp_path, "cpu")
    assert [who for who, _ in batches] == ["preflight", "preflight"]


def test_a_model_that_does_not_fit_is_reported(
    quick_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Updater, "__init__", full)
    with pytest.raises(
        ConfigError, match=r"the memory of CPU in fp32, 1 thread is too small: .* a smaller model$"
    ):
        train(quick_config(NO_TEST), tmp_path, "cpu")


def test_an_update_is_estimated_by_its_padded_tokens(trainer_of: Callable[..., Trainer]) -> None:
    """At 2 s a padded token on two ranks, against the tokens of the batches themselves."""
    plan = trainer_of(BLIND).plan
    measured = preflight.PreflightResult(1, 1, 0.0, seconds_per_token=2.0)
    updates = plan.updates(0)
    batches = [collate([plan.store.pair(i) for i in b]) for update in updates for b in update]
    expected = sum(batch.n_padded for batch in batches) / len(updates)
    assert preflight.estimate_update_seconds(measured, plan, 0, 2) == pytest.approx(expected)


def test_a_training_of_many_days_on_a_cpu_is_warned_about(
    quick_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "train", lambda _: Outcome("", 0, None))
    for steps, warned in ((10, False), (10**9, True)):
        run_dir = tmp_path / str(steps)
        train(quick_config(BLIND, train={"max_steps": steps}), run_dir, "cpu")
        log = log_of(run_dir)
        assert re.search(rf"time: about \d+\.\d\d s an update, .* for {steps:,} updates\n", log)
        assert bool(re.search(r"warning: [\d,]+ days is long.* on a CPU try", log)) == warned
