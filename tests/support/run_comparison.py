"""A small training to interrupt, what a run has saved, and two runs compared bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import metrics_of

from mt.config.schema import Config
from mt.model import checkpoint
from mt.runs import model_folder
from mt.training.launch import train
from mt.training.update import Updater

# Of the training in the fixture `interruptible`.
STEPS = 12
EVERY = 4
LOG_EVERY = 2
PLACE = {"kind", "step", "epoch", "lr"}
# What depends on the clock and the machine.
TIMES = {"seconds", "valid_seconds", "tokens_per_second", "waiting", "memory_mb", "resident_mb"}


def checkpoint_of(run: Path, step: int) -> Path:
    """The folder of the checkpoint after update `step`."""
    return run / "checkpoints" / model_folder.step_name(step)


def kept_steps(run: Path) -> list[int]:
    """The updates whose checkpoints a run has kept."""
    return [model_folder.step_of(folder.name) for folder in model_folder.checkpoints(run)]


def train_until_lost(config: Config, run: Path, updates: int) -> None:
    """Train for so many updates, and end as if killed: without another checkpoint."""
    learn, number = Updater.train_step, itertools.count()

    def interrupted(*arguments: Any) -> Any:
        if next(number) == updates:
            raise KeyboardInterrupt
        return learn(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updater, "train_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(config, run, "cpu")


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Tensors and plain values of a training state, by their path."""
    if isinstance(value, Mapping | list):
        for key, below in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from flat(below, f"{path}.{key}")
    else:
        yield path, value


def known_figures(run: Path, stopped: int) -> list[dict[str, Any]]:
    """The metrics without times; of the log line that a stop has divided, only its position."""
    lines = []
    for line in metrics_of(run):
        parted = line["kind"] == "train" and line["step"] - LOG_EVERY < stopped < line["step"]
        lines.append(
            {
                key: value
                for key, value in line.items()
                if key in PLACE or not (parted or key in TIMES)
            }
        )
    return lines


def check_equal_states(ours: Path, theirs: Path) -> None:
    """Compare the training states of two checkpoints, except times."""
    state, other = (dict(flat(checkpoint.load_state(folder))) for folder in (ours, theirs))
    for path in state.keys() | other.keys():
        if isinstance(state[path], torch.Tensor):
            assert torch.equal(state[path], other[path]), path
        elif path != ".train.seconds":
            assert state[path] == other[path], path


def check_equal(run: Path, undisturbed: Path, stopped: int = 0) -> None:
    """Compare all that is saved and recorded except times: checkpoints, metrics, samples."""
    folders = model_folder.checkpoints(undisturbed)
    assert kept_steps(run) == kept_steps(undisturbed)
    for theirs in folders:
        ours = run / "checkpoints" / theirs.name
        assert (ours / "model.safetensors").read_bytes() == (
            theirs / "model.safetensors"
        ).read_bytes()
        check_equal_states(ours, theirs)
    for link in ("last", "best"):
        assert (run / "checkpoints" / link).resolve().name == (
            undisturbed / "checkpoints" / link
        ).resolve().name
    assert not list((run / "checkpoints").glob(".*"))
    assert known_figures(run, stopped) == known_figures(undisturbed, stopped)
    samples = [
        {path.name: path.read_text() for path in (folder / "samples").iterdir()}
        for folder in (run, undisturbed)
    ]
    assert samples[0] == samples[1]
