"""Subword regularisation in training: the same epochs in any process, in the plan and in a run."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import QUICK, ROOT, log_of, merged, metrics_of, weights_of
from run_comparison import train_until_lost
from subwords import STRONG, epochs, made_lines, sampling_of, store_of, trained

from mt.config.load import config_from_mapping
from mt.config.schema import BatchConfig, Config
from mt.data.tokens import subword_regularisation
from mt.data.tokens.batches import collate
from mt.data.tokens.loader import Prefetcher
from mt.data.tokens.plan import Plan
from mt.data.tokens.subword_regularisation import Segmenter
from mt.data.tokens.tokenizer import Tokenizer
from mt.model import checkpoint
from mt.runtime.devices import choose_device
from mt.runtime.distributed import World
from mt.training.launch import train
from mt.training.prepare import prepare
from mt.training.runlog import RunLog
from mt.training.signals import Signals
from mt.training.trainer import Trainer

Mapped = Mapping[str, Any]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(kind: str) -> Tokenizer:
    return trained(kind)


# --- a pure function ------------------------------------------------------------------------------


def test_an_epoch_is_the_same_in_another_process_and_without_those_before_it(kind: str) -> None:
    code = (
        "import sys; sys.path[:0] = ['tests', 'tests/support']; from subwords import epochs; "
        f"print(*epochs({kind!r}, [3, 0]))"
    )
    there = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=90,
    )
    here = epochs(kind, range(4))
    assert there.stdout.split() == [here[3], here[0]]
    assert len({*here, *epochs(kind, [0, 1], seed=2)}) == 6


# --- the plan and the prefetcher --------------------------------------------------------------


def plan_of(tokenizer: Tokenizer, kind: str, sampled: bool = True) -> Plan:
    store = store_of(tokenizer, [(line, line.upper()) for line in made_lines(600)])
    sampling = (
        sampling_of(store, tokenizer, kind, STRONG[kind], max_tokens=100) if sampled else None
    )
    return Plan(
        store, [1.0], BatchConfig(tokens_per_update=1500, tokens_per_batch=400), 1, sampling
    )


def test_budgets_hold_for_the_sampled_lengths(kind: str, tokenizer: Tokenizer) -> None:
    plan = plan_of(tokenizer, kind)
    sampled = plan.for_epoch(2, threading.Event())
    assert sampled.store.tgt_lengths.sum() > 1.1 * plan.store.tgt_lengths.sum()
    updates = sampled.updates(2)
    areas, sizes = [], []
    for update in updates:
        batches = [collate([sampled.store.pair(i) for i in batch]) for batch in update]
        areas += [max(batch.src.numel(), batch.tgt_in.numel()) for batch in batches]
        sizes.append(sum(batch.n_tgt for batch in batches))
    assert max(areas) <= 400
    assert np.mean(areas) > 240
    assert np.mean(sizes) == pytest.approx(1500, rel=0.1)
    assert sorted(np.concatenate(list(chain.from_iterable(updates)))) == list(range(600))


def test_the_prefetcher_goes_from_one_sampled_epoch_into_the_next(
    tokenizer: Tokenizer, kind: str
) -> None:
    plan, running = plan_of(tokenizer, kind), threading.Event()
    first, second = (plan.for_epoch(epoch, running) for epoch in (4, 5))
    n = len(first.updates(4))
    places = [(first, 4, number) for number in range(2, n)] + [(second, 5, 0), (second, 5, 1)]
    with Prefetcher(plan, 4, 2) as prefetcher:
        for (sampled, epoch, number), update in zip(places, prefetcher, strict=False):
            assert (update.epoch, update.number, update.last) == (
                epoch,
                number,
                epoch == 4 and number == n - 1,
            )
            batches = [
                collate([sampled.store.pair(i) for i in batch])
                for batch in sampled.updates(epoch)[number]
            ]
            assert all(
                torch.equal(a.src, b.src) for a, b in zip(update.batches, batches, strict=True)
            )
            assert all(
                torch.equal(a.tgt_in, b.tgt_in)
                for a, b in zip(update.batches, batches, strict=True)
            )


def test_without_alpha_the_plan_is_the_one_it_was(tokenizer: Tokenizer, kind: str) -> None:
    plan = plan_of(tokenizer, kind, sampled=False)
    assert plan.for_epoch(3, threading.Event()) is plan


def test_leaving_the_prefetcher_does_not_wait_for_the_epoch_that_is_being_sampled(
    tokenizer: Tokenizer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subword_regularisation, "LINES_PER_CHUNK", 1)
    plan, asked = plan_of(tokenizer, kind), threading.Event()
    real = Segmenter.sample

    def slow(*arguments: Any) -> Any:
        asked.set()
        time.sleep(0.1)  # a minute for the whole store
        return real(*arguments)

    monkeypatch.setattr(Segmenter, "sample", slow)
    with Prefetcher(plan, 0, 0) as prefetcher:
        assert asked.wait(10)
        thread, start = prefetcher._thread, time.perf_counter()
    assert not thread.is_alive()
    assert time.perf_counter() - start < 5


# --- a run ----------------------------------------------------------------------------------------


def config_of(mapping: Mapped, kind: str, alpha: float | None, **changes: Any) -> Config:
    tree = merged(
        mapping,
        {
            "tokenizer": {"type": kind, "sampling_alpha": alpha},
            "batch": {"tokens_per_update": 1000, "tokens_per_batch": 175},
            "train": {"max_steps": 12, "valid_every": 4, "log_every": 2},
        },
    )
    return config_from_mapping(merged(tree, changes), "test")


@pytest.fixture(scope="module")
def short_mapping(tiny_mapping: Mapped, short_corpus: dict[str, str]) -> Mapped:
    """The tiny config with a quarter of its corpus, and without a test set."""
    changes = {"data": {"train": [short_corpus], "test": []}}
    return merged(merged(tiny_mapping, QUICK), changes)


@pytest.fixture(scope="module")
def undisturbed(short_mapping: Mapped, kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("sampling") / "run"
    assert train(config_of(short_mapping, kind, STRONG[kind]), run, "cpu").exit_code == 0
    return run


@pytest.mark.parametrize(
    "updates", [6, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 11))]
)
def test_a_run_interrupted_ends_with_the_same_weights(
    updates: int, kind: str, undisturbed: Path, short_mapping: Mapped, tmp_path: Path
) -> None:
    """In the first epoch, between two checkpoints; before the first checkpoint, after the last."""
    config = config_of(short_mapping, kind, STRONG[kind])
    train_until_lost(config, tmp_path, updates)
    assert train(config, tmp_path, "cpu").exit_code == 0
    assert weights_of(tmp_path) == weights_of(undisturbed)
    last = [run / "checkpoints" / "last" for run in (tmp_path, undisturbed)]
    positions = [checkpoint.load_state(folder)["train"] for folder in last]
    assert [positions[0][key] for key in ("epoch", "update", "plan")] == [
        positions[1][key] for key in ("epoch", "update", "plan")
    ]
    assert positions[0]["epoch"] == 1
    assert [line["nll"] for line in metrics_of(tmp_path, "valid")] == [
        line["nll"] for line in metrics_of(undisturbed, "valid")
    ]


def test_validation_and_stores_are_not_sampled(
    kind: str, undisturbed: Path, short_mapping: Mapped, tmp_path: Path
) -> None:
    """A run without sampling, given the weights of one with it, finds the same loss and BLEU."""
    assert train(config_of(short_mapping, kind, None), tmp_path, "cpu").exit_code == 0
    for name in ("train", "valid"):
        for side in ("src", "tgt"):
            ours, theirs = (
                run / "store" / name / f"{side}.tokens" for run in (tmp_path, undisturbed)
            )
            assert ours.read_bytes() == theirs.read_bytes()
    assert weights_of(tmp_path) != weights_of(undisturbed)
    device = choose_device("cpu", "fp32")
    with RunLog(tmp_path, 1) as log:
        config = config_of(short_mapping, kind, None)
        trainer = Trainer(prepare(config, device, log), log)
        folder = undisturbed / "checkpoints" / "last"
        checkpoint.put_weights(trainer.updater.model, checkpoint.load_weights(folder), str(folder))
        assert trainer.validation is not None
        verdict = trainer.validation.evaluate(
            trainer.updater.model.eval(), device, World(), Signals()
        )
    recorded = metrics_of(undisturbed, "valid")[-1]
    assert (verdict.nll, verdict.scores["bleu"].value) == (recorded["nll"], recorded["bleu"])


def test_sampling_may_start_and_change_in_a_resumed_run(
    short_mapping: Mapped, kind: str, tmp_path: Path
) -> None:
    places = []
    for steps, alpha in ((4, None), (5, 0.3), (6, 0.5), (7, None), (8, None)):
        changes = {
            "batch": {"tokens_per_update": 250},
            "train": {"max_steps": steps, "valid_every": 100},
            "data": {"valid": None},
        }
        assert (
            train(config_of(short_mapping, kind, alpha, **changes), tmp_path, "cpu").exit_code == 0
        )
        state = checkpoint.load_state(tmp_path / "checkpoints" / "last")["train"]
        places.append((state["epoch"], state["update"]))
    assert places == [(0, 4), (1, 1), (2, 1), (3, 1), (3, 2)]
    log = log_of(tmp_path)
    assert (
        "config changed since this run was started: tokenizer.sampling_alpha: was 0.3, now 0.5"
        in log
    )
    assert log.count("data, have changed: continuing with a new epoch of the new plan") == 3
