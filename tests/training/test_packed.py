"""Training without padding: the gradients and updates of padded batches, in fewer batches.

`varlen_attn` runs on a GPU only (test_gpu.py); here each sentence of a row goes to torch's own
attention alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import BLIND, MonkeyPatch, QuickConfig, TrainerOf, metrics_of
from messages import says
from packed_rows import DATA, SMALL, attend_each
from token_stores import store_of_lengths

from mt.config.load import config_from_mapping
from mt.config.schema import BatchConfig
from mt.data.tokens.batches import Prefetcher, collate
from mt.data.tokens.plan import Plan, packed_batches, shard_batches
from mt.model import gpu_ops
from mt.model.transformer import Transformer
from mt.runtime.devices import Device
from mt.training import update
from mt.training.launch import train


@pytest.fixture
def packing(monkeypatch: MonkeyPatch) -> Callable[[bool], None]:
    """`packing(True)`: trainers made from here on compute nothing for padding."""
    monkeypatch.setattr(gpu_ops, "varlen_attn", attend_each)
    return lambda wanted: monkeypatch.setattr(update, "can_pack", lambda *_: wanted)


@pytest.mark.parametrize("changes", [{}, {"positions": "learned", "norm": "post"}])
def test_the_model_computes_the_same_as_with_padding(
    changes: dict[str, Any], packing: Callable[[bool], None]
) -> None:
    model = SMALL | {"dropout": 0.0} | changes
    config = config_from_mapping(DATA | {"model": model}, "test").model
    torch.manual_seed(1)
    transformer = Transformer(config, 100, 100, joint=True).double().train()
    draw = np.random.default_rng(1)
    lengths = ((5, 3), (1, 9), (12, 1), (2, 2))
    batch = collate([(draw.integers(4, 90, s), draw.integers(4, 90, t)) for s, t in lengths])
    found = []
    for each in (batch, batch.pack()):
        transformer.zero_grad()
        hidden = transformer(each.src, each.tgt_in, each.src_mask, each.packed).flatten(0, 1)
        hidden = hidden[each.tgt_positions]  # (N, D)
        hidden.square().sum().backward()
        grads = [weight.grad for weight in transformer.parameters() if weight.grad is not None]
        found.append([hidden, *grads])
    torch.testing.assert_close(*found)


def test_an_update_has_the_gradients_of_padded_batches(
    trainer_of: TrainerOf, packing: Callable[[bool], None]
) -> None:
    """Those of one batch where padded ones are several, which are cut by length."""
    changes = {"batch": {"tokens_per_update": 8192, "tokens_per_batch": 12_000}}
    gradients, sizes = [], []
    for wanted in (False, True):
        packing(wanted)
        trainer = trainer_of(BLIND, changes, model={"dropout": 0.0})
        updater, plan = trainer.updater, trainer.plan
        assert updater.packed == plan.packed == wanted
        with Prefetcher(plan, 0, 0) as feed:
            first = next(iter(feed))
        updater.accumulate_gradients(first, 0)
        gradients.append([weight.grad for weight in updater.model.parameters()])
        sizes.append((len(first.batches), sum(batch.n_padded for batch in first.batches)))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)
    (n_padded, with_padding), (n_packed, without) = sizes
    assert n_packed == 1 < n_padded
    assert without < with_padding


def test_what_to_lower_where_memory_ends_is_the_size_of_the_batch(
    trainer_of: TrainerOf, packing: Callable[[bool], None]
) -> None:
    """Its tokens, not its rows times its longest sentence."""
    packing(True)
    updater = trainer_of(BLIND, batch={"tokens_per_batch": None}).updater
    pairs = [(np.arange(5, 5 + n), np.arange(5, 5 + n)) for n in (40, 2, 2)]
    message = updater._out_of_memory_message(collate(pairs).pack())
    assert says(message, "batch.tokens_per_batch", "3 sentences", "below 47")


def test_a_training_counts_no_padding(
    quick_config: QuickConfig, packing: Callable[[bool], None], tmp_path: Path
) -> None:
    packing(True)
    config = quick_config(BLIND, train={"max_steps": 4, "log_every": 2})
    assert train(config, tmp_path / "run", "cpu").exit_code == 0
    assert [line["padding"] for line in metrics_of(tmp_path / "run", "train")] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("sizes", "budget", "batches"),
    [
        ([10, 10, 60, 60], 140, [[60, 60, 10, 10]]),  # all lengths in one batch
        ([10, 20, 30, 40], 60, [[40, 20], [30, 10]]),
        ([40] * 5, 100, [[40, 40], [40, 40], [40]]),  # two batches of 100 would cut a sentence
        ([100, 10, 10], 30, [[100], [10], [10]]),
    ],
)
def test_packed_batches_by_hand(sizes: list[int], budget: int, batches: list[list[int]]) -> None:
    found = packed_batches(np.array(sizes), budget)
    assert [[sizes[place] for place in part] for part in found] == batches


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 8])
def test_each_rank_gets_as_many_tokens_and_sentences(n_ranks: int) -> None:
    draw = np.random.default_rng(1)
    src, tgt = (draw.lognormal(3, 0.6, 4000).astype("<u2") + np.uint16(1) for _ in range(2))
    store = store_of_lengths(src, tgt)
    batch = BatchConfig(tokens_per_update=20_000, tokens_per_batch=7_000)
    plan = Plan(store, [1.0], batch, 1, packed=True)
    longest = np.maximum(src, tgt).astype(int) + 1
    padded = Plan(store, [1.0], batch, 1).updates(0)
    for batches, other in zip(plan.updates(0), padded, strict=True):
        assert sorted(np.concatenate(batches)) == sorted(np.concatenate(other))
        shards = shard_batches(src, tgt, batches, n_ranks, packed=True)
        dealt = [part for shard in shards for part in shard]
        assert sorted(np.concatenate(dealt)) == sorted(np.concatenate(batches))
        assert len({len(shard) for shard in shards}) == 1
        tokens = [int(longest[part].sum()) for part in dealt]
        assert max(tokens) <= 7_000
        assert max(tokens) - min(tokens) <= longest.max()
        assert np.ptp(list(map(len, dealt))) <= 1


def test_what_is_computed_for_a_batch_fits_no_type_of_a_store() -> None:
    """700 sentences of 201 tokens and eos are more than 65,535 tokens."""
    lengths = np.full(700, 201, "<u2")
    store = store_of_lengths(lengths, lengths)
    batch = BatchConfig(tokens_per_update=1, tokens_per_batch=1)
    for is_packed in (False, True):
        plan = Plan(store, [1.0], batch, 1, packed=is_packed)
        assert plan.n_tokens(np.arange(700)) == (700 * 202, 700 * 202)


class Gpu(Device):
    """A device that says that it is a GPU."""

    is_cuda = True


def test_a_gpu_needs_no_padding_where_its_kernel_can(monkeypatch: MonkeyPatch) -> None:
    for changes, precision, capability, expected in [
        ({}, "bf16", (9, 0), True),
        ({}, "fp16", (8, 0), True),
        ({}, "fp32", (9, 0), False),
        ({}, "bf16", (7, 5), False),
        ({"model": {"attention_dropout": 0.1}}, "bf16", (9, 0), False),
        ({"model": {"n_heads": 2}}, "bf16", (9, 0), False),  # heads of 256
    ]:
        monkeypatch.setitem(
            sys.modules, "torch.nn.attention.varlen", SimpleNamespace(varlen_attn=attend_each)
        )
        monkeypatch.setattr(gpu_ops, "varlen_attn", None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_, is_of=capability: is_of)
        monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
        config = config_from_mapping(DATA | changes, "test")
        assert gpu_ops.can_pack(config, Gpu(torch.device("cpu"), precision)) == expected
        monkeypatch.setattr(gpu_ops, "varlen_attn", None)
        monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
        assert not gpu_ops.can_pack(config, Gpu(torch.device("cpu"), precision))
