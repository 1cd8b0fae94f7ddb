"""torch.compile in training: one graph for all shapes, and one decision before the first update.

The backend is `aot_eager`: it captures forward and backward as on a GPU, and runs the graph as is.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import BLIND, MonkeyPatch, QuickConfig, TrainerOf, log_of, weights_of
from messages import says
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.testing import CompileCounterWithBackend

from mt.config.schema import Config
from mt.data.tokens.batches import Batch, Update, collate
from mt.errors import ConfigError, DeviceFailedError, TooLittleMemoryError
from mt.runtime.distributed import World
from mt.training import compilation, loss, update
from mt.training.launch import train

# Rows, source tokens, target tokens; the first ones are what torch.compile makes constants of.
SHAPES = [
    (1, 7, 7), (1, 5, 9), (2, 2, 2), (1, 2, 2), (6, 8, 8), (3, 16, 8), (8, 8, 16), (5, 13, 11),
    (2, 3, 2), (2, 2, 3), (9, 4, 5), (4, 31, 33), (32, 3, 4), (7, 16, 16), (16, 16, 7),
    (3, 3, 3), (10, 24, 25), (1, 32, 31), (2, 9, 2), (64, 2, 3),
]  # fmt: skip


def batch_of(rows: int, src: int, tgt: int) -> Batch:
    """A batch of these dimensions, without padding."""
    return collate([(np.full(src - 1, 5), np.full(tgt - 1, 6))] * rows)


@pytest.fixture
def graphs(monkeypatch: MonkeyPatch) -> Iterator[CompileCounterWithBackend]:
    """Compiles on the CPU, and counts the graphs: one for the model and one for the loss."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr("mt.model.gpu_ops.BACKEND", counter)
    monkeypatch.setattr(update, "can_compile", lambda _: True)
    yield counter
    torch._dynamo.reset()


def run(config: Config, folder: Path) -> str:
    """Train, and return the log."""
    assert train(config, folder, "cpu").exit_code == 0
    return log_of(folder)


@pytest.mark.slow
def test_all_shapes_are_one_graph(trainer_of: TrainerOf, graphs: CompileCounterWithBackend) -> None:
    """And the compiled model computes what the plain one does."""
    changes = {"train": {"compile": "auto"}, "model": {"dropout": 0.0}}
    trainer = trainer_of(BLIND, changes)
    updater = trainer.updater
    assert len(set(SHAPES)) == len(SHAPES) == 20
    for shape in SHAPES:
        updater.dry_run_step(batch_of(*shape))
        assert graphs.frame_count == 2
    batch = batch_of(3, 7, 8)  # computed with one more column
    compiled, plain = (
        loss.batch_loss(forward, updater.model.output, batch, 0.1)
        for forward in (updater.forward, updater.model)
    )
    torch.testing.assert_close(compiled.smoothed, plain.smoothed)
    assert updater.forward is not updater.model


@pytest.mark.slow
def test_a_run_compiles_once_before_it_measures_batches(
    quick_config: QuickConfig, tmp_path: Path, graphs: CompileCounterWithBackend
) -> None:
    """`auto` and the preflight use the same graph as the updates, whose dropout is torch's own."""
    config = quick_config(
        BLIND,
        train={"compile": "auto", "max_steps": 12},
        batch={"tokens_per_update": 300, "tokens_per_batch": "auto"},
        model={"attention_dropout": 0.1},
    )
    log = run(config, tmp_path / "run")
    assert graphs.frame_count == 2
    assert re.search(r"compiling the model .*\n.*the model is compiled: \d+ s\n.*tokens_per_b", log)
    assert "again" not in log


@pytest.mark.slow
def test_too_many_graphs_end_compiling_with_a_message(
    trainer_of: TrainerOf, graphs: CompileCounterWithBackend, monkeypatch: MonkeyPatch
) -> None:
    """torch by itself would run each further batch uncompiled, and say nothing."""
    monkeypatch.setattr(compilation, "MOST_GRAPHS", 1)
    updater = trainer_of(BLIND, train={"compile": "auto"}).updater
    said: list[str] = []
    monkeypatch.setattr(updater, "say", said.append)
    batch = batch_of(3, 7, 6)
    for step in range(3):
        updater.train_step(Update(0, 0, 1, [batch], batch.n_tgt), step)
        assert (updater.forward is updater.model) == (step >= 1)
        updater.model.encoder_norm.eps *= 1.5  # a graph has it as a constant
    (end,) = said
    assert says(end, "the model cannot be compiled, so it runs slower", "recompile_limit")


class BrokenBackwardError(TorchDynamoException):
    """What a compiler raises."""


def broken_backward(module: Any, example: Any) -> Callable[..., Any]:
    """A backend whose graph of the model works forwards only."""
    if not any(getattr(x, "requires_grad", False) for x in example):
        return module  # type: ignore[no-any-return] # the loss

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> torch.Tensor:
            src = inputs[0]
            return torch.zeros(*src, requires_grad=True)

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            raise BrokenBackwardError("no kernel for the backward pass\nand a long trace")

    def graph(*inputs: Any) -> tuple[torch.Tensor]:
        ids = [x for x in inputs if isinstance(x, torch.Tensor) and x.dtype == torch.int64]
        weight = next(x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad)
        return (Fails.apply((*ids[-1].shape, 32), weight),)

    return graph


@pytest.mark.parametrize("wanted", ["auto", pytest.param(True, marks=pytest.mark.slow)])
def test_a_failing_backward_decides_for_the_plain_model(
    quick_config: QuickConfig, tmp_path: Path, graphs: CompileCounterWithBackend,
    monkeypatch: MonkeyPatch, wanted: bool | str,
) -> None:  # fmt: skip
    """With `true` it is an error; with `auto` the run equals one without compilation."""
    monkeypatch.setattr("mt.model.gpu_ops.BACKEND", broken_backward)
    monkeypatch.setattr("mt.training.launch.check_compile", lambda *_: None)
    config = quick_config(BLIND, train={"compile": wanted})
    if wanted is True:
        with pytest.raises(
            ConfigError,
            match=r"^train\.compile: true, but the model cannot be compiled \(no kernel for the "
            r"backward pass\); auto trains it uncompiled then$",
        ):
            train(config, tmp_path / "run", "cpu")
        return
    log = run(config, tmp_path / "run")
    assert "the model cannot be compiled, so it runs slower (no kernel for the backward p" in log
    assert "long trace" not in log
    run(quick_config(BLIND), tmp_path / "plain")
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "plain")


@pytest.mark.parametrize(
    ("wanted", "in_backward", "rank"), [("auto", True, 0), (True, False, 0), ("auto", False, 1)]
)
def test_a_compilation_that_fails_later_decides_for_the_plain_model(
    trainer_of: TrainerOf, monkeypatch: MonkeyPatch, wanted: bool | str, in_backward: bool,
    rank: int,
) -> None:  # fmt: skip
    """In the second batch of the second update: that update is computed again, uncompiled.

    Its gradients are those of a run that was never compiled. Each rank says so: only rank 0 logs.
    """
    updater = trainer_of(BLIND, train={"compile": "auto"}).updater
    updater.world = World(rank)
    updater.config = updater.config.with_values({"train.compile": wanted})
    updater.forward = fails_after(3, updater.model, in_backward)
    said: list[str] = []
    monkeypatch.setattr(update if rank else updater, "say", said.append)
    batches = [batch_of(3, 7, 6), batch_of(4, 5, 9)]
    both = Update(0, 0, 1, batches, sum(batch.n_tgt for batch in batches))
    updater.train_step(both, 0)
    if wanted is True:
        with pytest.raises(ConfigError, match=r"^train\.compile: true, but .* \(no kernel for th"):
            updater.train_step(both, 1)
        return
    updater.train_step(both, 1)
    slower = "the model cannot be compiled, so it runs slower (no kernel for this shape)"
    assert said == [f"rank 1: {slower}" if rank else slower]
    assert updater.forward is updater.model
    plain = trainer_of(BLIND).updater
    plain.world = updater.world
    for step in range(2):
        plain.train_step(both, step)
    for ours, theirs in zip(updater.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    # An error that the plain model has too has nothing to do with torch.compile.
    failing = fails_after(0, plain.model.forward, in_backward)
    monkeypatch.setattr(plain.model, "forward", failing)
    with pytest.raises(BrokenBackwardError):
        plain.train_step(both, 2)


@pytest.mark.parametrize("at_start", [True, False])
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA error: an illegal memory access was encountered", DeviceFailedError),
        ("CUDA error: invalid configuration argument", DeviceFailedError),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", TooLittleMemoryError),
        ("CUDA error: out of memory", TooLittleMemoryError),
        ("size mismatch", RuntimeError),
    ],
)
def test_no_other_failure_is_taken_for_the_compilers(
    trainer_of: TrainerOf, monkeypatch: MonkeyPatch, message: str, expected: type, at_start: bool
) -> None:
    """Neither at first nor later: no second try, and the model stays compiled."""
    updater = (trainer := trainer_of(BLIND, train={"compile": "auto"})).updater
    said: list[str] = []
    monkeypatch.setattr(updater, "say", said.append)
    failing = fails_after(0, updater.model, True, RuntimeError(f"{message}\nFor debugging"))
    batch = batch_of(3, 7, 6)
    if at_start:
        monkeypatch.setattr(update, "can_compile", lambda _: True)
        monkeypatch.setattr(update, "compile_for_all_shapes", lambda _: failing)
        monkeypatch.setattr(update, "compile_rows", lambda function: function)
        if expected is RuntimeError:  # the probe has no other cause than compilation
            updater.choose_forward(trainer.plan.pairs.store)
            assert said[-1].endswith("it runs slower (size mismatch)")
            return
        with pytest.raises(expected):
            updater.choose_forward(trainer.plan.pairs.store)
        return
    updater.forward = failing
    with pytest.raises(expected) as caught:
        updater.train_step(Update(0, 0, 1, [batch], batch.n_tgt), 0)
    assert type(caught.value) is expected
    assert updater.forward is failing
    assert said == []


def fails_after(
    n_calls: int, model: Callable[..., torch.Tensor], in_backward: bool,
    error: Exception | None = None,
) -> Callable[..., torch.Tensor]:  # fmt: skip
    """A model that stands for a compiled one, and fails from a later call on."""
    calls = itertools.count(1)

    def fail(*_: Any) -> None:
        raise error or BrokenBackwardError("no kernel for this shape\nand a long trace")

    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        out = model(*inputs)
        if next(calls) > n_calls:
            out.register_hook(fail) if in_backward else fail()
        return out

    return forward
