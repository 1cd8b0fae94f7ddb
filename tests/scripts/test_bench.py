"""The benchmarks: what their figures rest on."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import bench_train
import numpy as np
import pytest
import synthetic_lengths
import torch

from mt.config.load import config_from_mapping
from mt.runtime.devices import Device
from mt.training import update


def test_made_up_lengths_spread_as_those_of_wmt_do() -> None:
    random = np.random.default_rng(1)
    src, tgt = synthetic_lengths.synthetic_lengths(random, 50_000, bench_train.MEAN_LOG_WORDS)
    assert min(src.min(), tgt.min()) >= 1
    assert max(src.max(), tgt.max()) == synthetic_lengths.LONGEST
    # Short and cut lines are left out: whole numbers of words, and the limit, distort their ratio.
    usual = (src >= 15) & (src <= 60)
    ratio = tgt[usual] / src[usual]
    assert ratio.std() == pytest.approx(0.22, abs=0.02)
    assert np.median(ratio) == pytest.approx(1, abs=0.02)


def test_the_products_of_a_forward_pass_are_a_third_of_an_update() -> None:
    for shape in bench_train.SHAPES.values():
        config = config_from_mapping({"model": shape}, "bench")
        flops = 0
        for n_in, n_out, count in bench_train.products(config, 8000):
            flops += 2 * n_in * n_out * count
        # Every weight is used by each source or each target token.
        src = bench_train.matrix_flops(config, 8000, 1, 0)
        tgt = bench_train.matrix_flops(config, 8000, 0, 1)
        assert 3 * flops == src + tgt


def test_made_up_pairs_are_aligned_and_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_train, "N_SYNTHETIC", 200)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        bench_train.write_synthetic(tmp_path / name, "de", "en")
    for language in ("de", "en"):
        first, second = (
            gzip.decompress((tmp_path / name / f"train.{language}.gz").read_bytes())
            for name in ("one", "two")
        )
        assert first == second
        assert first.count(b"\n") == 200


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
    device = Device(torch.device("cpu"), "fp32")
    rate = bench_train.linear_tflops(config, 8000, 4, device)
    n_products = sum(count for *_, count in bench_train.products(config, 8000))
    forward = bench_train.matrix_flops(config, 8000, 4, 4) / 3
    assert rate == pytest.approx(forward / n_products / 1e12)
    assert (4, 8000) in calls
