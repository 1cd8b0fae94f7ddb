"""Several processes train the model that one process trains; over gloo, on a CPU, by torchrun."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from conftest import Mapped, lines_of, log_of, merged, metrics_of, write_lines
from messages import raises_saying, says
from processes import (
    check_close,
    command_of,
    distributed_settings,
    ended,
    run_ranks,
    shortened,
    start,
    torchrun,
    trained,
)
from token_stores import store_of_lengths
from torch import nn

from mt.cli.main import main
from mt.config.plan import plan_data
from mt.config.schema import BatchConfig
from mt.data.tokens.batches import Prefetcher
from mt.data.tokens.plan import Plan, shard_batches
from mt.errors import ConfigError, NonFiniteError
from mt.model import checkpoint
from mt.runtime.devices import choose_device
from mt.runtime.distributed import World, process_group, world_from_environment
from mt.runtime.machine import free_port, usable_cores
from mt.training import validation as validation_module
from mt.training.outcome import Signals
from mt.training.runlog import RunLog
from mt.training.validation import Scoring, Validation

pytestmark = pytest.mark.usefixtures("no_process_left")


@pytest.fixture(scope="module")
def settings(tiny_mapping: Mapped) -> dict[str, Any]:
    """Each rank has several micro-batches before the all-reduce."""
    test = [{"src": "test.src", "tgt": "test.tgt"}]
    changes = {"batch": {"tokens_per_batch": 100}, "data": {"test": test}}
    return merged(distributed_settings(tiny_mapping), changes)


@pytest.fixture(scope="module")
def alone(settings: Mapped, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process."""
    return trained(settings, tmp_path_factory.mktemp("alone") / "run", 1)


@pytest.fixture(scope="module")
def together(settings: Mapped, tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run of two processes; rank 1 has other texts under the same names."""
    folder = tmp_path_factory.mktemp("together")
    shutil.copytree(tiny_corpus, folder / "0" / "corpus")
    shortened(tiny_corpus, folder / "1" / "corpus")
    run = folder / "run"
    mapping = merged(settings, {"data": {"root": "corpus"}})
    done = run_ranks(folder, command_of(mapping, run)[1:], counted)
    assert [one.code for one in done] == [0, 0], done[0].err + done[1].err
    return run


def counted() -> None:
    """Run mt, and list the collectives that this rank has made."""
    made: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        real = getattr(dist, name)

        def call(*given: Any, **named: Any) -> Any:
            made.append(name)
            return real(*given, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "all_gather_object", "broadcast_object_list", "barrier"):
            patch.setattr(dist, name, noted(name))
        try:
            main()
        finally:  # it exits
            write_lines(Path("collectives"), made)


# --- one optimisation -------------------------------------------------------------------------


def test_two_processes_train_the_model_of_one(alone: Path, together: Path) -> None:
    check_close(together, alone)
    ours, others = metrics_of(together), metrics_of(alone)
    places = [[(line["kind"], line["step"]) for line in lines] for lines in (ours, others)]
    assert places[0] == places[1]
    same = {
        "loss": 1e-5, "nll": 1e-5, "perplexity": 1e-4, "grad_norm": 1e-4, "lr": 0,
        "epoch_position": 0, "bleu": 0,
    }  # fmt: skip
    for our, other in zip(ours, others, strict=True):
        assert our.keys() == other.keys()
        for key in same.keys() & our.keys():
            assert our[key] == pytest.approx(other[key], rel=same[key], abs=0), key
        assert 0 <= our.get("padding", 0) < 0.2


def test_every_rank_makes_the_same_collectives(together: Path) -> None:
    """In the same order, from connecting to the end; one more or less would be a hang."""
    first, second = (lines_of(together.parent / str(rank) / "collectives") for rank in range(2))
    assert first == second
    assert len(first) > 50
    assert len(set(first)) == 4


def test_only_rank_0_writes(alone: Path, together: Path) -> None:
    """The same files, and each log line once; the first one says that there were two processes."""
    names = [
        sorted(str(path.relative_to(run)) for path in run.rglob("*")) for run in (alone, together)
    ]
    assert names[0] == names[1]
    logs = [log_of(run).splitlines() for run in (alone, together)]
    assert len(logs[0]) == len(logs[1])
    assert " on CPU in fp32, 1 thread, 2 processes" in logs[1][0]
    for name in ("samples/step-00000012.txt", "tokenizer.model", "store/train/pairs.tokens"):
        assert (alone / name).read_bytes() == (together / name).read_bytes()


def validate_sharded(run: Path) -> None:
    """Score the model of a run alone and with the other ranks; both must be equal."""
    loaded = checkpoint.load_model(run)
    device = choose_device("cpu", "fp32")
    with process_group(world_from_environment(), False) as world, RunLog(run, 1, False) as log:
        for tokens in (60, 5000):
            batch = loaded.config.batch.model_copy(update={"tokens_per_batch": tokens})
            config = loaded.config.model_copy(update={"batch": batch})
            scoring = Scoring(config, plan_data(config.data), "13a")
            tokenizer = loaded.tokenizer
            assert config.data.valid
            validation = Validation(tokenizer, log, world, scoring)
            results = (
                validation.evaluate(loaded, device, one, Signals()) for one in (World(), world)
            )
            whole, sharded = ((one.nll, one.scores, one.outputs) for one in results)
            assert whole == sharded, (world.rank, whole, sharded)
        # A rank whose output is non-finite: no text counts, and all ranks know why.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(validation, "log", told := Mock())
            if world.rank == 1:
                problem = Mock(side_effect=NonFiniteError("sentence 3"))
                patch.setattr(validation_module, "translate", problem)
            assert not any(validation.evaluate(loaded, device, world, Signals()).outputs)
            assert says(str(told.say.mock_calls), "not translated", "sentence 3")
        print(sharded[1]["bleu"].value)


def test_a_sharded_validation_is_the_same_to_the_last_digit(tiny_run: Path, tmp_path: Path) -> None:
    done = run_ranks(tmp_path, [], partial(validate_sharded, tiny_run), processes=3)
    assert [one.code for one in done] == [0, 0, 0], done[0].err + done[1].err + done[2].err
    (score,) = {one.out for one in done}
    assert float(score) > 10


def sum_both_ways() -> None:
    """Sum gradients in shared memory and by gloo; both must be the sum, in views of one buffer."""
    weights = [nn.Parameter(torch.zeros(size)) for size in (7, 30, 5)]
    weights[0].requires_grad_(False)
    with process_group(world_from_environment(), False) as world:
        shared = world.with_shared_memory(weights)
        assert world.rows is None
        assert shared.rows is not None
        for one in (world, shared, shared):
            for weight in weights[1 : 3 if world.rank else 2]:  # rank 0 lacks a gradient
                weight.grad = torch.full_like(weight, 10.0**world.rank)
            one.sum_gradients(weights)
            assert [set(w.grad.tolist()) for w in weights[1:]] == [{111.0}, {110.0}]
            nn.utils.clip_grad_norm_(weights, 1.0)  # of this rank's own gradients
            assert weights[1].grad.norm() < 1
            dist.barrier()
            for weight in weights:
                weight.grad = None
        # Rank 1 finds the file of another process; rank 0 may not make one.
        other, forbidden = Mock(return_value="/memfd:other"), Mock(side_effect=PermissionError)
        for rank, name, fault in ((1, "readlink", other), (0, "memfd_create", forbidden)):
            with pytest.MonkeyPatch.context() as patch:
                if world.rank == rank:
                    patch.setattr(os, name, fault)
                assert world.with_shared_memory(weights).rows is None


def test_ranks_of_one_machine_sum_gradients_in_shared_memory(tmp_path: Path) -> None:
    done = run_ranks(tmp_path, [], sum_both_ways, processes=3)
    assert [one.code for one in done] == [0, 0, 0], done[0].err + done[1].err + done[2].err


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(2, 1), (2, 3)])
def test_a_run_resumes_with_another_number_of_processes(
    first: int, second: int, settings: Mapped, alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    trained(merged(settings, {"train": {"max_steps": 6}}), run, first)
    trained(settings, run, second)
    check_close(run, alone)


@pytest.mark.slow
def test_two_torchrun_agents_as_two_machines(settings: Mapped, alone: Path, tmp_path: Path) -> None:
    run, port = tmp_path / "run", free_port()
    agents = [
        start(
            [
                sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}",
                "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}", "-m",
                *command_of(settings, run),
            ]
        )
        for node in range(2)
    ]  # fmt: skip
    for agent in agents:
        done = ended(agent)
        assert done.code == 0, done.err
    check_close(run, alone)


def test_only_rank_0_reads_the_corpus(together: Path) -> None:
    text = (together / "store" / "train" / "meta.json").read_text(encoding="utf-8")
    record = json.loads(text)["records"][str(Path("corpus", "train.src"))]
    read = together.parent / "0" / "corpus" / "train.src"
    assert record["mtime_ns"] == read.stat().st_mtime_ns


# --- the shard of a rank ----------------------------------------------------------------------


STORE = store_of_lengths(*np.random.default_rng(1).integers(1, 10, (2, 2000)))


@pytest.mark.parametrize("tokens", [40, 300, 2000])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_sentence_is_in_one_shard(tokens: int, count: int) -> None:
    """Each rank gets as many batches, none larger than the largest unsharded one."""
    plan = Plan(STORE, [1.0], BatchConfig(tokens_per_update=2000, tokens_per_batch=tokens), 1)
    longest = np.maximum(STORE.src_lengths, STORE.tgt_lengths) + 1

    def area(batch: Any) -> int:
        return int(longest[batch].max(initial=0)) * len(batch)

    for update in islice(plan.updates(0), 5):
        shares = shard_batches(STORE.src_lengths, STORE.tgt_lengths, update, count)
        assert len(shares) == count
        assert len({len(share) for share in shares}) == 1
        dealt = np.concatenate([batch for share in shares for batch in share])
        assert sorted(dealt) == sorted(np.concatenate(update))
        assert max(area(batch) for share in shares for batch in share) <= max(map(area, update))
        totals = [sum(map(area, share)) for share in shares]
        assert max(totals) <= 1.5 * sum(totals) / count + longest.max()


def test_a_rank_without_sentences_has_no_batch() -> None:
    """It knows the target tokens of the whole update all the same."""
    plan = Plan(STORE, [1.0], BatchConfig(tokens_per_update=10, tokens_per_batch=10), 1)
    updates = []
    for rank in range(3):
        with Prefetcher(plan, 0, 0, rank, 3) as feed:
            updates.append(next(iter(feed)))
    assert len({update.n_tgt for update in updates}) == 1
    assert sum(batch.n_tgt for update in updates for batch in update.batches) == updates[0].n_tgt
    assert [len(update.batches) for update in updates] == [1, 0, 0]


# --- environment variables --------------------------------------------------------------------


TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
TORCHRUN |= {"MASTER_ADDR": "here", "MASTER_PORT": "1"}


def world_of(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> World:
    """The world that an environment with these variables describes."""
    for name in (*TORCHRUN, "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return world_from_environment()


def test_the_world_as_torchrun_describes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    two_machines = TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}
    assert world_of(monkeypatch, {}) == world_of(monkeypatch, one) == World()
    assert world_of(monkeypatch, TORCHRUN) == World(5, 8, 1)
    assert world_of(monkeypatch, two_machines) == World(5, 8, 1, local_size=4)


def test_a_contradictory_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for variables, parts in [
        ({"WORLD_SIZE": "two"}, ["WORLD_SIZE: ", "whole number", "'two'"]),
        (TORCHRUN | {"RANK": "-1"}, ["RANK: ", "whole number", "'-1'"]),
        (TORCHRUN | {"WORLD_SIZE": "5"}, ["RANK: ", "up to 4", "found '5'"]),
        (
            {"WORLD_SIZE": "2", "RANK": "1"},
            ["WORLD_SIZE is 2", "LOCAL_RANK, MASTER_ADDR, MASTER_PORT must be set"],
        ),
        (TORCHRUN | {"MASTER_PORT": "99999"}, ["MASTER_PORT: ", "up to 65535", "found '99999'"]),
        (TORCHRUN | {"MASTER_PORT": "http"}, ["MASTER_PORT: ", "whole number", "'http'"]),
    ]:
        with raises_saying(ConfigError, *parts, "torchrun sets"):
            world_of(monkeypatch, variables)


COMPILED = r"""
import sys
from pathlib import Path
import torch
from mt.config.load import load_config
from mt.training import update
from mt.training.launch import train
update.can_compile = lambda _: True
train(load_config(sys.argv[1]).config, Path(sys.argv[2]), "cpu")
from torch._dynamo.utils import counters
from torch._inductor import config
# One write: torchrun's processes are unbuffered, and print writes the line's end by itself.
sys.stdout.write(f"{config.compile_threads} threads, {counters['stats']['unique_graphs']} graphs\n")
"""


@pytest.mark.slow
def test_two_processes_train_a_compiled_model(settings: Mapped, tmp_path: Path) -> None:
    """With Inductor's code for CPUs, which each process compiles with its share of the cores."""
    changes = {"data": {"valid": None}, "train": {"max_steps": 3, "compile": "auto"}}
    mapping = merged(settings, changes)
    run, script = tmp_path / "run", tmp_path / "compiled.py"
    script.write_text(COMPILED, encoding="utf-8")
    command = [*torchrun(2)[:-1], str(script), command_of(mapping, run)[3], str(run)]
    done = ended(start(command, TORCHINDUCTOR_CACHE_DIR=tmp_path / "cache"), 300)
    assert done.code == 0, done.err
    threads = max(1, min(32, usable_cores() // 2))
    assert done.out.decode().split("\n")[:2] == [f"{threads} threads, 2 graphs"] * 2
    assert "the model is compiled" in log_of(run)
    check_close(run, trained(mapping, tmp_path / "alone", 1))
