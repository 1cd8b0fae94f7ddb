"""`batch.tokens_per_batch: auto` is the largest batch that fits, and stays what it was."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import BLIND, MonkeyPatch, QuickConfig, TrainerOf, log_of
from faults import raising
from messages import says

from mt.config.load import load_config
from mt.config.schema import BatchConfig
from mt.config.settled import Settled
from mt.data.tokens.batches import Batch
from mt.errors import ConfigError, TooLittleMemoryError
from mt.runs import model_folder
from mt.runtime.devices import Device
from mt.training import settle, update
from mt.training.launch import train
from mt.training.runlog import RunLog
from mt.training.settle import settle_batch_size
from mt.training.update import Updater

full = raising(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"))


@pytest.fixture
def memory(monkeypatch: MonkeyPatch) -> dict[str, float]:
    """A device with `memory["room"]` MB, where a batch takes 100 MB and 0.1 MB a token.

    `memory["kept"]` of them are there before. Each sentence takes `memory["row"]` more.
    """
    state = {"room": 300.0, "peak": 0.0, "largest": 0.0, "kept": 0.0, "row": 0.0}

    def run_preflight(_: Updater, batch: Batch) -> None:
        taken = 100 + 0.1 * batch.tgt_in.numel() + state["row"] * len(batch.tgt_in)
        state["peak"] = max(state["kept"], taken)
        state["largest"] = max(state["largest"], state["peak"])
        if state["peak"] > state["room"]:
            raise TooLittleMemoryError("out of memory")

    monkeypatch.setattr(Updater, "dry_run_step", run_preflight)
    monkeypatch.setattr(settle.memory, "available_memory_mb", lambda _: state["room"])
    monkeypatch.setattr(settle.memory, "peak_memory_mb", lambda _: state["peak"])
    return state


AUTO: dict[str, Any] = {"tokens_per_update": 100_000, "tokens_per_batch": "auto"}


def auto_is(run: Path, where: str = "here") -> int:
    """What the log says last."""
    said = re.findall(rf"batch\.tokens_per_batch: auto is ([\d,]+) {where}\n", log_of(run))
    return int(said[-1].replace(",", ""))


def test_auto_takes_what_leaves_a_margin(trainer_of: TrainerOf, memory: dict[str, float]) -> None:
    """At 0.1 MB a token, in whole sentences."""
    for room, per_update, least, most in [
        (3000.0, 100_000, 24_000, 24_500),  # 0.85 x 3000 MB less the moments and 100 MB
        (1e6, 5000, 9900, 10_000),  # no more than an update needs, with padding
        (280.0, 100_000, 1084, 1380),  # less than the larger probe of about 1,800 tokens
        (180.0, 100_000, 404, 530),  # less than both
    ]:
        memory["room"] = room
        trainer = trainer_of(BLIND, batch={**AUTO, "tokens_per_update": per_update})
        assert least <= trainer.config.batch.budget <= most


def test_batches_that_seem_to_take_no_memory_are_no_reason_for_a_leap(
    trainer_of: TrainerOf, memory: dict[str, float]
) -> None:
    """Memory that the process has freed and kept hides what the small batches take."""
    memory.update(room=3000.0, kept=600.0)
    trainer = trainer_of(BLIND, batch=AUTO)
    assert memory["largest"] < 4 * memory["room"]
    assert 20_000 <= trainer.config.batch.budget <= 24_500


def test_without_padding_many_short_sentences_fit_as_well(
    trainer_of: TrainerOf, memory: dict[str, float], monkeypatch: MonkeyPatch
) -> None:
    """Each sentence takes 5 MB besides its tokens, as the buffer of a GPU's attention grows."""
    memory.update(room=1000.0, row=5.0)
    monkeypatch.setattr(update, "can_pack", lambda *_: True)
    plan = trainer_of(BLIND, batch=AUTO).plan
    batches = [batch for update in plan.updates(0) for batch in update]
    assert len(batches) > 2
    assert max(100 + 0.1 * plan.n_tokens(batch)[1] + 5 * len(batch) for batch in batches) < 850


def test_a_resumed_run_keeps_what_auto_was(quick_config: QuickConfig, tmp_path: Path) -> None:
    """A machine with another memory would measure another number, and change the plan."""
    batch = {"tokens_per_update": 500, "tokens_per_batch": "auto"}
    train(quick_config(BLIND, batch=batch, train={"max_steps": 3}), tmp_path, "cpu")
    tokens = auto_is(tmp_path)
    with MonkeyPatch.context() as patch:
        patch.setattr("mt.training.settle.fitting_batch", lambda *_: pytest.fail("measured again"))
        train(quick_config(BLIND, batch=batch, train={"max_steps": 6}), tmp_path, "cpu")
    log = log_of(tmp_path)
    assert "new epoch" not in log
    assert "config changed since this run was started: train.max_steps: was 3, now 6\n" in log
    assert "tokens_per_batch: was" not in log
    assert auto_is(tmp_path, "since this run was started") == tokens
    assert load_config(str(tmp_path / "config.yaml")).config.batch.tokens_per_batch == "auto"
    meta = model_folder.read_meta(tmp_path / "checkpoints" / "last", [])
    assert meta["settled"]["tokens_per_batch"] == tokens
    assert meta["config"]["batch"]["tokens_per_batch"] == "auto"  # other models measure their own


def test_auto_replaces_a_number_that_was_given(quick_config: QuickConfig, tmp_path: Path) -> None:
    """In a run that has learned with it, and in one that it has let fail."""

    def start(run: str, steps: int, tokens: int | str) -> str:
        batch = {"tokens_per_update": 1000, "tokens_per_batch": tokens}
        config = quick_config(BLIND, batch=batch, train={"max_steps": steps})
        train(config, tmp_path / run, "cpu")
        return log_of(tmp_path / run)

    start("learned", 2, 500)
    log = start("learned", 3, "auto")
    assert says(log, "config changed", "batch.tokens_per_batch: was 500, now auto\n")
    assert 1900 < auto_is(tmp_path / "learned") <= 2000
    with MonkeyPatch.context() as patch:
        patch.setattr(update, "batch_loss", full)
        with pytest.raises(ConfigError) as error:
            start("failed", 2, 500)
    said = str(error.value)
    assert says(said, "batch.tokens_per_batch: a batch of ", "CPU in fp32", "MB were in use")
    assert re.search(r"Lower it from 500 \(.*\), or set it to auto$", said)
    assert model_folder.checkpoints(tmp_path / "failed") == []
    start("failed", 2, "auto")
    assert 1900 < auto_is(tmp_path / "failed") <= 2000


def test_what_auto_was_is_kept_only_if_it_fitted(
    quick_config: QuickConfig, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """If the preflight fails with it, a new start measures again."""
    batch = {**AUTO, "tokens_per_update": 1000}
    config = quick_config(BLIND, batch=batch, train={"max_steps": 1})
    numbers = iter([800, 700])
    with MonkeyPatch.context() as patch:
        patch.setattr("mt.training.settle.fitting_batch", lambda *_: next(numbers))
        patch.setattr(update, "batch_loss", full)
        with pytest.raises(ConfigError) as error:
            train(config, tmp_path, "cpu")
        said = re.search(
            r"a batch of (\d+) sentences, up to (\d+) source and (\d+) target tokens long, does "
            r"not fit .* were in use\. Set it to a number below (\d+) "
            r"\(tokens_per_update keeps the training the same\)$",
            str(error.value),
        )
        assert said
        rows, src, tgt, most = map(int, said.groups())
        assert most == rows * max(src, tgt) <= 800
        patch.undo()
        patch.setattr("mt.training.settle.fitting_batch", lambda *_: next(numbers))
        train(config, tmp_path, "cpu")
    assert auto_is(tmp_path) == 700


@pytest.mark.parametrize("on_gpu", [False, True])
def test_by_default_a_gpu_takes_what_fits_and_a_cpu_8192(
    trainer_of: TrainerOf, tmp_path: Path, memory: dict[str, float], monkeypatch: MonkeyPatch,
    on_gpu: bool,
) -> None:  # fmt: skip
    trainer = trainer_of(BLIND)
    updater, pairs = trainer.updater, trainer.plan.pairs
    batch = BatchConfig(tokens_per_update=100_000)
    assert batch.tokens_per_batch is None
    config = updater.config.model_copy(update={"batch": batch})
    monkeypatch.setattr(Device, "is_cuda", on_gpu)
    with RunLog(tmp_path, 1) as log:
        updater.config, updater.say = config, log.say
        settled = settle_batch_size(Settled(), updater, [pairs.longest])
    found = settled.of_training(config).batch
    # 300 MB, of which 15 % stay free; 100 MB are taken, and each token takes 0.1
    assert found.tokens_per_batch == pytest.approx(1500 if on_gpu else 8192, abs=100 * on_gpu)
    where = "here" if on_gpu else "on a CPU"
    assert f"tokens_per_batch: null is {found.budget:,} {where}\n" in log_of(tmp_path)
    # A run that was started with the old default on a CPU has the same plan.
    if not on_gpu:
        assert repr(found) == "BatchConfig(tokens_per_update=100000, tokens_per_batch=8192)"
