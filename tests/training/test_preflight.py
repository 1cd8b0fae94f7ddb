"""What is tried and told before training, and `mt train --dry-run`, which ends there."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import BLIND, NO_TEST, Mt, QuickConfig, TrainerOf, lines_of, log_of, merged, refused
from messages import raises_saying, says
from test_batch_size import auto_is, full

from mt.config.plan import plan_data
from mt.config.settled import Settled
from mt.data.tokens.batches import Batch, shard_of
from mt.errors import ConfigError
from mt.model import checkpoint
from mt.runtime.distributed import World
from mt.training import launch, loss, preflight, settle, update
from mt.training.launch import train
from mt.training.outcome import Outcome
from mt.training.preflight import run_preflight
from mt.training.prepare import Prepared
from mt.training.settle import Epochs
from mt.training.trainer import Trainer
from mt.training.update import Updater
from mt.training.validation import Scoring
from mt.translate.translator import Translator


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Batch]]:
    """Every batch the model is given, with "preflight" or "update"."""
    seen: list[tuple[str, Batch]] = []
    real = loss.batch_loss
    now = ["update"]

    def watched(forward: Any, output: Any, batch: Batch, *arguments: Any) -> Any:
        seen.append((now[0], batch))
        return real(forward, output, batch, *arguments)

    def in_preflight(self: Updater, batch: Batch) -> None:
        now[0] = "preflight"
        original(self, batch)
        now[0] = "update"

    original = Updater.dry_run_step
    monkeypatch.setattr(update, "batch_loss", watched)
    monkeypatch.setattr(Updater, "dry_run_step", in_preflight)
    return seen


def test_the_longest_and_the_largest_batch_come_first(
    quick_config: QuickConfig, batches: list[tuple[str, Batch]], tmp_path: Path
) -> None:
    """And one search, and some typical updates, before the first update."""
    config = quick_config(NO_TEST, train={"max_steps": 12, "valid_every": 99})
    assert train(config, tmp_path, "cpu").exit_code == 0

    def area(batch: Batch) -> int:
        return batch.src.shape[0] * length(batch)

    def length(batch: Batch) -> int:
        return max(batch.src.shape[1], batch.tgt_in.shape[1])

    stages = [stage for stage, _ in batches]
    assert stages == sorted(stages)
    longest, largest, *rest = [batch for _, batch in batches]
    assert length(longest) >= max(map(length, rest))
    assert area(largest) >= max(map(area, rest))
    said = re.search(
        r"preflight passed: (\d+) sentences of up to (\d+) tokens: [\d,]+ MB\n", log_of(tmp_path)
    )
    assert said
    assert int(said[1]) == largest.src.shape[0]


def test_the_preflight_changes_nothing(
    quick_config: QuickConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without one the weights and moments are the same, bit for bit; after resuming too.

    In place of the second preflight stands one that does nothing.
    """
    nothing: Any = SimpleNamespace(seconds_per_update=0.0)
    for name in ("with", "without"):
        for steps in (2, 4):
            settings = {"max_steps": steps, "valid_every": 2}
            config = quick_config(BLIND, train=settings)
            train(config, tmp_path / name, "cpu")
        monkeypatch.setattr(launch, "run_preflight", lambda *_: nothing)
    one, other = (tmp_path / name / "checkpoints" / "last" for name in ("with", "without"))
    assert checkpoint.load_weights(one).keys() == checkpoint.load_weights(other).keys()
    for load in (checkpoint.load_weights, lambda path: checkpoint.load_state(path)["optimizer"]):
        torch.testing.assert_close(load(one), load(other), rtol=0, atol=0)


def test_what_does_not_fit_into_the_memory_is_named(
    quick_config: QuickConfig, batches: list[tuple[str, Batch]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A model, a batch's search before the first update, or what the optimiser keeps."""
    for owner, name, parts in [
        (Updater, "__init__", ["the memory of CPU in fp32", "too small", "a smaller model"]),
        (Updater, "train_step", ["the memory of CPU in fp32", "too small", "Lower batch.tokens_"]),
        (Translator, "translate", ["decode: ", "data.valid", "CPU in fp32", "MB", "decode.beam_s"]),
    ]:
        with monkeypatch.context() as patch, raises_saying(ConfigError, *parts):
            patch.setattr(owner, name, full)
            train(quick_config(NO_TEST), tmp_path, "cpu")
        assert {stage for stage, _ in batches} <= {"preflight"}


def test_the_preflight_of_several_ranks_copies_all_gradients_into_one_buffer(
    trainer_of: TrainerOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an update does; how much memory that takes is a matter of the allocator."""
    copied: list[int] = []
    monkeypatch.setattr(World, "all_gather", lambda _, value: [value])
    monkeypatch.setattr(preflight, "flatten_gradients", lambda all_: copied.append(len([*all_])))
    prepared = replace(prepared_of(trainer_of(BLIND)), seconds_per_update=1.0)
    for size in (1, 2):
        prepared.updater.world = World(size=size)
        run_preflight(prepared, 0, lambda _: None)
    assert copied == [len([*prepared.updater.model.parameters()])]


# --- time -----------------------------------------------------------------------------------------


class StandIn:
    """In place of an updater: a clock that goes on by what batches take.

    That is 1 ms a padded token, four times as much for the largest 2 % of the batches, as where
    they no longer fit into a cache, and 30 s more for the very first one, which loads libraries. A
    step of the optimiser takes 0.4 s, a third of a small update; the exchange of gradients 0.6 s.
    """

    def __init__(
        self, prepared: Prepared, monkeypatch: pytest.MonkeyPatch, slower: float = 1.0
    ) -> None:
        plan = prepared.plans[0].for_epoch(0, Event())
        updates = plan.updates(0)
        sizes = [batch.n_padded for update in updates for batch in shard_of(plan, update)[0]]
        self.cached = float(np.quantile(sizes, 0.98))
        monkeypatch.setattr(settle, "N_TIMED", 8)
        self.of_first_updates = sum(map(len, islice(updates, 8)))
        self.per_token = 0.001 * slower
        self.loading = 30.0
        self.n_batches = 0
        self.now = 0.0
        self.mean = sum(map(self.seconds_of, sizes)) / len(updates) + 0.4 + 0.6
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(Updater, "dry_run_step", lambda _, batch: self.run(batch))
        monkeypatch.setattr(Updater, "skip_step", lambda _: self.wait(0.4))
        monkeypatch.setattr(World, "sum_gradients", lambda _, weights: self.wait(0.6))

    def seconds_of(self, n_padded: int) -> float:
        return n_padded * self.per_token * (4 if n_padded > self.cached else 1)

    def run(self, batch: Batch) -> None:
        self.wait(self.loading + self.seconds_of(batch.n_padded))
        self.loading = 0.0
        self.n_batches += 1

    def wait(self, seconds: float) -> None:
        self.now += seconds


def prepared_of(trainer: Trainer) -> Prepared:
    """What the trainer was made of."""
    t = trainer
    data, store = plan_data(t.config.data), t.plan.pairs.store
    made_of = t.config, Settled(), t.config, data, Epochs(data, [t.plan], t.config.train), t.ends
    more = t.tokenizer, store, t.updater, [t.plan]
    return Prepared(*made_of, *more, Scoring(t.config, data, "13a"), t.validations, None)


@pytest.mark.parametrize(
    ("per_update", "per_batch", "augment"),
    [(500, 8192, None), (200, 200, None), (3000, 300, None), (500, 8192, {"typos": 0.5})],
    ids=["small updates", "small batches", "accumulation", "augmented"],
)
def test_the_time_told_is_that_of_the_plan(
    per_update: int, per_batch: int, augment: dict[str, float] | None, trainer_of: TrainerOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whatever the largest batch takes: within 20 % of the sum over all updates of an epoch.

    For this seed: some others put slow batches into the few updates that are timed.
    """
    batch = {"tokens_per_update": per_update, "tokens_per_batch": per_batch}
    changes = {"data": {"augment": augment}, "tokenizer": {"vocab_size": 400}} if augment else {}
    prepared = prepared_of(trainer_of(BLIND, changes, batch=batch, run={"seed": 2}))
    said: list[str] = []
    clock = StandIn(prepared, monkeypatch)
    told = run_preflight(prepared, 0, said.append)
    assert told.seconds_per_update == pytest.approx(clock.mean, rel=0.2)
    assert said[-1] == "preflight: timing typical updates"
    told = run_preflight(replace(prepared, seconds_per_update=7.0), 0, said.append)
    assert told.seconds_per_update == 7.0
    assert said.count("preflight: timing typical updates") == 1


def test_the_time_of_a_training_is_told(
    quick_config: QuickConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "train", lambda _: Outcome("", 0, None))
    for steps, time_left in ((10, r"0:00:\d\d"), (10**9, r"[\d,]+ days")):
        run_dir = tmp_path / str(steps)
        train(quick_config(BLIND, train={"max_steps": steps}), run_dir, "cpu")
        said = rf"time: about \d+\.\d\d s an update, {time_left} for {steps:,} updates\n"
        assert re.search(said, log_of(run_dir))


# --- a dry run ------------------------------------------------------------------------------------


def train_command(config: Path, run_dir: Path) -> list[object]:
    """Arguments of `mt` that train on the CPU."""
    return ["train", "-c", config, "--run-dir", run_dir, "--device", "cpu"]


def test_a_dry_run_says_what_a_run_would_be(
    tiny_config: Path, tiny_corpus: Path, tmp_path: Path, mt: Mt
) -> None:
    command = train_command(tiny_config, tmp_path / "run")
    ended = mt(*command, "--dry-run")
    assert ended.code == 0
    report = dict(re.split(r"  +", line, maxsplit=1) for line in ended.lines)
    words = sum(len(line.split()) for line in lines_of(tiny_corpus / "train.tgt"))
    assert report["pairs"] == "2,000, 2,000 sentences drawn for an epoch"
    tokens = re.fullmatch(r"[\d,]+ source, ([\d,]+) target", report["tokens per epoch"])
    assert tokens
    assert int(tokens[1].replace(",", "")) >= words + 2000  # each line has its eos
    updates = re.fullmatch(r"(\d+), of ([\d,]+) target tokens each", report["updates per epoch"])
    assert updates
    assert int(updates[1]) == round(int(tokens[1].replace(",", "")) / 500)
    assert report["updates to do"] == f"8, {8 / int(updates[1]):.1f} epochs"
    assert report["vocabulary"] == "320"
    assert re.fullmatch(
        r"\d+ sentences of up to \d+ tokens: [\d,]+ MB, on CPU in fp32, 1 thread",
        report["largest batch"],
    )
    assert re.fullmatch(r"0:00:0\d at \d\.\d\d s an update, plus validations", report["time"])
    assert says(ended.err, "training 320 tokens", "into the token store", "preflight: a batch")
    assert list(tmp_path.iterdir()) == []
    assert mt(*command).code == 0
    assert mt(*command, "--dry-run").lines[5].endswith(" 0, 0.0 epochs")


def test_a_dry_run_counts_all_stages(
    quick_config: QuickConfig, short_corpus: dict[str, str], tmp_path: Path
) -> None:
    """Half of the epochs are both ways round; longer trainings have more of the other half only."""
    stages = [{"until": {"share": 0.25}, "both_directions": True} for _ in range(2)]
    stages.append({})
    short = {"train": [short_corpus], "stages": stages}
    data = merged(BLIND, {"data": short, "batch": {"tokens_per_update": 1000}})
    for n_epochs, had in ((4, 0), (10, 4), (12, 10)):
        config = quick_config(data, train={"max_epochs": n_epochs, "max_steps": 10**9})
        report = train(config, tmp_path, "cpu", dry_run=True).reason
        rows = dict(re.split(r"  +", line, maxsplit=1) for line in report.splitlines())
        assert rows["pairs"].startswith(f"500, {500 if had else 1000:,} sentences drawn")
        both, _, one = map(int, re.findall(r"(\d+)(?=, then|, of)", rows["updates per epoch"])[:3])
        left = (n_epochs - had) * one if had else 2 * both + 2 * one
        assert rows["updates to do"] == f"{left}, {n_epochs - had}.0 epochs"
        train(config, tmp_path, "cpu")


def content(folder: Path) -> dict[Path, bytes | str]:
    """What every file holds and every link names."""
    return {
        path: os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


def test_a_dry_run_leaves_a_run_as_it_is(tiny_config: Path, tmp_path: Path, mt: Mt) -> None:
    run = tmp_path / "run"
    command = [*train_command(tiny_config, run), "--set", "data.test=null"]
    assert mt(*command).code == 0
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 9, "nll": 1}\n')  # as a crash leaves it
    (run / "checkpoints" / ".step-00000009.partial").mkdir()
    (run / "checkpoints" / ".step-00000009.partial" / "state.pt").write_bytes(b"half")
    before = content(tmp_path)
    # Other pairs make another store and another plan; and `auto` is measured.
    other_data = "data.max_tokens=5 batch.tokens_per_batch=auto optim.peak_lr=0.5"
    for settings, left in (
        ("train.max_steps=9 train.max_epochs=1e308", "1, "),
        (other_data, "0, "),
        ("tokenizer.vocab_size=300 model.d_ff=32", "8, "),
    ):
        options = [option for setting in settings.split() for option in ("--set", setting)]
        options += ["--fresh"] * ("vocab" in settings)
        ended = mt(*command, *options, "--dry-run")
        assert ended.code == 0
        assert re.search(rf"^updates to do +{left}", ended.out.decode(), re.MULTILINE)
        assert content(tmp_path) == before
    assert sorted(path.name for path in run.iterdir()) == [
        ".lock", "checkpoints", "config.yaml", "manifest.json", "metrics.jsonl", "outputs",
        "samples", "settled.json", "store", "tokenizer.model", "train.log", "writing.json",
    ]  # fmt: skip


def test_a_dry_run_fails_where_a_start_would(tiny_config: Path, tmp_path: Path, mt: Mt) -> None:
    """In the same words, about the same folder."""
    run = tmp_path / "run"
    command = [*train_command(tiny_config, run), "--set", "data.test=null"]
    assert mt(*command, "--set", "train.max_steps=1", "--set", "data.valid=null").code == 0
    other = [*command, "--set", "tokenizer.vocab_size=300"]
    before = content(tmp_path)
    said = refused(mt(*other, "--dry-run"))
    assert said.startswith(f"run directory {run}: holds a run with another model, tokenizer")
    assert said == refused(mt(*other))
    assert content(tmp_path) == before
    assert ".dry-run" not in " ".join(os.listdir(run))
    below = run / "config.yaml" / "x"
    said = refused(mt(*train_command(tiny_config, below), "--dry-run"))
    assert says(said, below, "written", "Not a directory")


def test_a_dry_run_does_not_affect_a_later_start(
    quick_config: QuickConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `auto` is on the machine of a dry run says nothing about that of the run."""
    numbers = iter([400, 600])
    monkeypatch.setattr("mt.training.settle.fitting_batch", lambda *_: next(numbers))
    auto = {"tokens_per_update": 1000, "tokens_per_batch": "auto"}
    config = quick_config(BLIND, batch=auto, train={"max_steps": 1})
    train(config, tmp_path / "run", "cpu", dry_run=True)
    train(quick_config(tokenizer={"vocab_size": 300}), tmp_path / "run", "cpu", dry_run=True)
    assert list(tmp_path.iterdir()) == []
    train(config, tmp_path / "run", "cpu")
    assert auto_is(tmp_path / "run") == 600
