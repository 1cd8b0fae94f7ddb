"""`batch.tokens_per_batch: auto` is the largest batch that fits, and stays what it was."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from conftest import (
    BLIND,
    NO_TEST,
    Mt,
    log_of,
    merged,
    refused,
)

from mt.config.load import load_config
from mt.config.schema import BatchConfig, Config
from mt.data.tokens.batches import Batch, collate
from mt.errors import ConfigError, TooLittleMemoryError
from mt.model import checkpoint
from mt.runtime import memory as process_memory
from mt.runtime.devices import Device
from mt.training import batch_size, launch, preflight, update
from mt.training.batch_size import settle_batch_size
from mt.training.launch import train
from mt.training.runlog import RunLog
from mt.training.trainer import Outcome, Trainer
from mt.training.update import Updater

Mapped = Mapping[str, Mapping[str, Any]]


def full(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A device with `memory["room"]` MB, where a batch takes 100 MB and 0.1 MB a token."""
    state = {"room": 300.0, "peak": 0.0, "largest": 0.0}

    def run_preflight(_: Updater, batch: Batch) -> None:
        state["peak"] = 100 + 0.1 * batch.tgt_in.numel()
        state["largest"] = max(state["largest"], state["peak"])
        if state["peak"] > state["room"]:
            raise TooLittleMemoryError("out of memory")

    monkeypatch.setattr(Updater, "dry_run_step", run_preflight)
    monkeypatch.setattr(batch_size, "available_memory_mb", lambda _: state["room"])
    monkeypatch.setattr(batch_size, "peak_memory_mb", lambda _: state["peak"])
    return state


AUTO = {"tokens_per_update": 100_000, "tokens_per_batch": "auto"}


def auto_is(run: Path, where: str = "here") -> int:
    """What the log says last."""
    said = re.findall(
        rf"batch\.tokens_per_batch: auto is ([\d,]+) {where}\n", (run / "train.log").read_text()
    )
    return int(said[-1].replace(",", ""))


def test_auto_takes_what_leaves_a_margin(
    quick_config: Callable[..., Config],
    memory: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """0.85 x 3000 MB less the moments and 100 MB, at 0.1 MB a token, in whole sentences."""
    monkeypatch.setattr(Trainer, "train", lambda _: Outcome("", 0, None))
    memory["room"] = 3000.0
    train(quick_config(NO_TEST, batch=AUTO, data={"valid": None}), tmp_path, "cpu")
    tokens = auto_is(tmp_path)
    assert 0.98 * 24_400 < tokens <= 24_500


def test_auto_takes_no_more_than_what_an_update_needs(
    quick_config: Callable[..., Config],
    memory: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Trainer, "train", lambda _: Outcome("", 0, None))
    memory["room"] = 1e6
    train(
        quick_config(NO_TEST, batch={**AUTO, "tokens_per_update": 5000}, data={"valid": None}),
        tmp_path,
        "cpu",
    )
    tokens = auto_is(tmp_path)
    assert 9900 < tokens <= 10_000  # with padding, and where sources are longer than targets


def test_a_resumed_run_keeps_what_auto_was(
    quick_config: Callable[..., Config], tmp_path: Path
) -> None:
    """A machine with another memory would measure another number, and change the plan."""
    changes: dict[str, Any] = {
        "batch": {"tokens_per_update": 500, "tokens_per_batch": "auto"},
        "data": {"valid": None},
    }
    train(quick_config(NO_TEST, **changes, train={"max_steps": 3}), tmp_path, "cpu")
    tokens = auto_is(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "mt.training.batch_size.fitting_batch", lambda *_: pytest.fail("measured again")
        )
        train(quick_config(NO_TEST, **changes, train={"max_steps": 6}), tmp_path, "cpu")
    log = (tmp_path / "train.log").read_text()
    assert "new epoch" not in log
    assert "config changed since this run was started: train.max_steps: was 3, now 6\n" in log
    assert "tokens_per_batch: was" not in log
    assert auto_is(tmp_path, "since this run was started") == tokens
    assert load_config(str(tmp_path / "config.yaml")).config.batch.tokens_per_batch == "auto"
    assert (
        checkpoint.read_meta(tmp_path / "checkpoints" / "last", [])["config"]["batch"][
            "tokens_per_batch"
        ]
        == tokens
    )


def test_auto_replaces_a_number_that_was_given(
    quick_config: Callable[..., Config], tmp_path: Path
) -> None:
    """In a run that has learned with it, and in one that it has let fail."""

    def start(run: str, steps: int, tokens: int | str) -> str:
        batch = {"tokens_per_update": 1000, "tokens_per_batch": tokens}
        train(
            quick_config(NO_TEST, batch=batch, data={"valid": None}, train={"max_steps": steps}),
            tmp_path / run,
            "cpu",
        )
        return (tmp_path / run / "train.log").read_text()

    start("learned", 2, 500)
    log = start("learned", 3, "auto")
    assert (
        "config changed since this run was started: batch.tokens_per_batch: was 500, now auto\n"
        in log
    )
    assert 1900 < auto_is(tmp_path / "learned") <= 2000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update, "batch_loss", full)
        with pytest.raises(ConfigError, match=r"Lower it from 500 \(.*\), or set it to auto$"):
            start("failed", 2, 500)
    start("failed", 2, "auto")
    assert 1900 < auto_is(tmp_path / "failed") <= 2000


def test_what_auto_was_is_kept_only_if_it_fitted(
    quick_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the preflight fails with it, a new start measures again."""
    config = quick_config(
        NO_TEST,
        batch={**AUTO, "tokens_per_update": 1000},
        data={"valid": None},
        train={"max_steps": 1},
    )
    numbers = iter([800, 700])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mt.training.batch_size.fitting_batch", lambda *_: next(numbers))
        patch.setattr(update, "batch_loss", full)
        with pytest.raises(ConfigError) as error:
            train(config, tmp_path, "cpu")
        said = re.search(
            r"a batch of (\d+) sentences, (\d+) source and (\d+) target tokens long, does not fit "
            r".* were in use\. Set it to a number below (\d+) "
            r"\(tokens_per_update keeps the training the same\)$",
            str(error.value),
        )
        assert said
        rows, src, tgt, most = map(int, said.groups())
        assert most == rows * max(src, tgt) <= 800
        patch.undo()
        patch.setattr("mt.training.batch_size.fitting_batch", lambda *_: next(numbers))
        train(config, tmp_path, "cpu")
    assert auto_is(tmp_path) == 700


def test_another_error_is_not_taken_for_too_little_memory(
    trainer_of: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`train.compile: true` and a batch that cannot be compiled: training must not go on."""

    def not_compiled(_: Updater, batch: Batch) -> None:
        if len(batch.src) > 1:
            raise ConfigError("the model cannot be compiled")

    trainer = trainer_of(BLIND)
    monkeypatch.setattr(Updater, "dry_run_step", not_compiled)
    with pytest.raises(ConfigError, match="the model cannot be compiled"):
        batch_size.fitting_batch(trainer.config, trainer.updater, trainer.plan.store.longest)


def test_auto_shrinks_below_its_first_probes(
    quick_config: Callable[..., Config],
    memory: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 100 MB and 0.1 MB a token, with about 800 tokens, and 1,800, in what the device has."""
    monkeypatch.setattr(Trainer, "train", lambda _: Outcome("", 0, None))
    nothing: Any = SimpleNamespace(seconds_per_update=0.0)
    for room in (180.0, 280.0):
        memory["room"] = room
        monkeypatch.setattr(launch, "run_preflight", lambda *_: nothing)
        train(quick_config(NO_TEST, batch=AUTO, data={"valid": None}), tmp_path / str(room), "cpu")
        most = (0.85 * room - 100) / 0.1
        assert 0.8 * most - 20 <= auto_is(tmp_path / str(room)) <= most


@pytest.mark.parametrize("tokens", ["auto", 500])
def test_a_sentence_that_does_not_fit_has_another_remedy(
    tokens: str | int,
    quick_config: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(update, "batch_loss", full)
    data = {"valid": None, "max_tokens": 32}
    if tokens == 500:  # batches of one
        monkeypatch.setattr(preflight, "collate", lambda pairs: collate(pairs[:1]))
    with pytest.raises(ConfigError) as error:
        train(quick_config(NO_TEST, batch={"tokens_per_batch": tokens}, data=data), tmp_path, "cpu")
    assert re.fullmatch(
        r"batch\.tokens_per_batch: one sentence, \d+ source and \d+ target tokens long, does not "
        r"fit into the memory of CPU in fp32, 1 thread: [\d,]+ MB were in use\. Lower "
        r"data\.max_tokens, or choose a smaller model",
        str(error.value),
    )


def test_the_memory_of_a_real_batch_is_measured(
    quick_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a room of so many MB more than the process has, the batch that is found stays inside."""
    monkeypatch.setattr(Trainer, "train", lambda _: Outcome("", 0, None))
    cpu = torch.device("cpu")
    asked: list[float] = []

    def available(_: torch.device) -> float:
        process_memory.reset_peak_memory(cpu)
        asked.append(process_memory.peak_memory_mb(cpu) + 400)
        return asked[-1] / (1 - batch_size.MARGIN)

    monkeypatch.setattr(batch_size, "available_memory_mb", available)
    train(
        quick_config(NO_TEST, batch={**AUTO, "tokens_per_update": 10**7}, data={"valid": None}),
        tmp_path,
        "cpu",
    )
    tokens = auto_is(tmp_path)
    assert 2000 < tokens < 10**6
    process_memory.reset_peak_memory(cpu)
    config = quick_config(
        NO_TEST,
        batch={"tokens_per_update": 10**7, "tokens_per_batch": tokens},
        data={"valid": None},
    )
    train(config, tmp_path, "cpu")  # the preflight runs its largest batch
    assert process_memory.peak_memory_mb(cpu) < asked[0] + 200


def test_what_tokens_per_batch_can_be_is_said(tiny_config: Path, tmp_path: Path, mt: Mt) -> None:
    for value in ("0", "true", "automatic"):
        command = [
            "train",
            "-c",
            tiny_config,
            "--run-dir",
            tmp_path,
            "--set",
            f"batch.tokens_per_batch={value}",
        ]
        assert "batch.tokens_per_batch: must be auto or a whole number from 1, found" in refused(
            mt(*command)
        )


@pytest.mark.parametrize("on_gpu", [False, True])
def test_by_default_a_gpu_takes_what_fits_and_a_cpu_8192(
    trainer_of: Callable[..., Trainer],
    tmp_path: Path,
    memory: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
    on_gpu: bool,
) -> None:
    trainer = trainer_of(BLIND)
    updater, store = trainer.updater, trainer.plan.store
    batch = BatchConfig(tokens_per_update=100_000)
    assert batch.tokens_per_batch is None
    config = updater.config.model_copy(update={"batch": batch})
    monkeypatch.setattr(Device, "is_cuda", on_gpu)
    with RunLog(tmp_path, 1) as log:
        found = settle_batch_size(config, tmp_path, updater, store.longest, log).batch
    # 300 MB, of which 15 % stay free; 100 MB are taken, and each token takes 0.1
    assert found.tokens_per_batch == pytest.approx(1500 if on_gpu else 8192, abs=100 * on_gpu)
    where = "here" if on_gpu else "on a CPU"
    assert f"tokens_per_batch: null is {found.budget:,} {where}\n" in log_of(tmp_path)
    # A run that was started with the old default on a CPU has the same plan.
    if not on_gpu:
        assert repr(found) == "BatchConfig(tokens_per_update=100000, tokens_per_batch=8192)"


def test_a_config_keeps_auto(tiny_mapping: Mapped, tmp_path: Path) -> None:
    path = tmp_path / "auto.yaml"
    path.write_text(
        yaml.safe_dump(merged(tiny_mapping, {"batch": {"tokens_per_batch": "auto"}})),
        encoding="utf-8",
    )
    config = load_config(str(path)).config
    assert config.batch.tokens_per_batch == "auto"
    again = tmp_path / "again.yaml"
    again.write_text(config.to_yaml(), encoding="utf-8")
    assert load_config(str(again)).config == config
    assert json.loads(config.model_dump_json())["batch"]["tokens_per_batch"] == "auto"
