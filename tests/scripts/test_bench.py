"""The benchmarks: what their figures rest on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import bench_train
import pytest
import torch

from mt.config.load import config_from_mapping
from mt.runtime.devices import Device
from mt.training import update


def test_marian_gets_padded_batches_where_mt_packs_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take a packed row for one sentence."""
    monkeypatch.setattr(bench_train, "N_SYNTHETIC", 200)
    monkeypatch.setattr(bench_train, "marian_step", lambda *_: None)
    monkeypatch.setattr(update, "can_pack", lambda *_: True)
    bench_train.write_synthetic(tmp_path, "de", "en")
    command = "bench_train.py --data synthetic --marian --device cpu --precision fp32"
    monkeypatch.setattr(sys, "argv", [*command.split(), "--vocab-size", "400"])
    models = bench_train.contenders(bench_train.parse_arguments(), "small", tmp_path)
    is_packed = {}
    for model in models:
        with model.feed as feed:
            is_packed[model.name] = [batch.packed is not None for batch in next(iter(feed)).batches]
    assert is_packed["mt"] == [True]
    assert set(is_packed["Marian"]) == {False}


@pytest.mark.parametrize(
    ("on_gpu", "vocab_size", "tokens"), [(True, 32_000, 25_000), (False, 8000, 2048)]
)
def test_a_gpu_is_measured_with_a_usual_vocabulary_and_large_batches(
    on_gpu: bool, vocab_size: int, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(torch.device("cuda", 0) if on_gpu else torch.device("cpu"), "bf16")
    monkeypatch.setattr(bench_train, "choose_device", lambda *_: device)
    monkeypatch.setattr(sys, "argv", ["bench_train.py", "--data", "synthetic"])
    args = bench_train.parse_arguments()
    config = bench_train.bench_config(args, "base", "bf16", tmp_path)
    assert config.tokenizer.vocab_size == vocab_size
    assert config.batch.tokens_per_update == tokens


def test_the_share_of_the_machines_own_rate_is_measured_at_the_shapes_of_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every product takes a second here: the rate is that of the operations of a forward pass."""
    calls: list[tuple[int, ...]] = []

    def second(call: Any, _: Device) -> float:
        calls.append(tuple(call().shape))
        return 1.0

    monkeypatch.setattr(bench_train, "median_seconds", second)
    config = config_from_mapping({"model": bench_train.SHAPES["small"]}, "bench")
    rate = bench_train.linear_tflops(config, 8000, 4, Device(torch.device("cpu"), "fp32"))
    n_products = sum(count for *_, count in bench_train.products(config, 8000))
    forward = bench_train.matrix_flops(config, 8000, 4, 4) / 3
    assert rate == pytest.approx(forward / n_products / 1e12)
    assert (4, 8000) in calls
