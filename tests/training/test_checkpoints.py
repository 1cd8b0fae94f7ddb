"""The checkpoints of one training run: which one is last, best, intact, pruned or tidied away."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from messages import raises_saying, says
from model_files import content_of, drop, empty, flip, truncate

from mt.data.tokens.batches import Update
from mt.errors import CheckpointError
from mt.model.checkpoint import save_model_folder
from mt.runs.model_folder import checkpoints, read_meta, step_name
from mt.training.checkpoints import TrainState, latest_good, prune, set_link, tidy

Save = Callable[..., Path]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory without checkpoints."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    return tmp_path / "run"


@pytest.fixture
def save(run_dir: Path) -> Save:
    """`save(4)`: the checkpoint of update 4, of a model with one weight."""

    def saved(step: int, **meta: Any) -> Path:
        folder = run_dir / "checkpoints" / step_name(step)
        weights, state = {"w": torch.full((9,), float(step))}, {"moments": torch.arange(5.0)}
        every = {"step": step, "config": {}, "tokenizer": "", **meta}
        save_model_folder(folder, weights, every, state, replace=True)
        return folder

    return saved


def test_a_state_counts_updates_and_epochs() -> None:
    state = TrainState()
    for number, last in ((0, False), (1, True), (0, False)):
        chosen = Update(epoch=state.epoch, number=number, of=2, batches=[], n_tgt=7)
        assert chosen.last == last
        state.advance(chosen)
    assert (state.step, state.epoch, state.update) == (3, 1, 1)


@pytest.mark.parametrize(("done", "epoch", "epochs"), [(3, 1, 0.3), (10, 1, 1.0), (13, 2, 1.3)])
def test_what_another_plan_cuts_off_does_not_count(done: int, epoch: int, epochs: float) -> None:
    """Updates of epochs of 10, and then one of an epoch of 5."""
    state = TrainState()
    for number in range(done):
        state.advance(Update(number // 10, number % 10, 10, [], 50))
    state.begin_epoch()
    assert (state.epoch, state.update) == (epoch, 0)
    state.advance(Update(state.epoch, 0, 5, [], 50))
    assert state.stage_epochs == pytest.approx(epochs + 1 / 5)


def test_last_and_best_are_links_that_survive_moving_the_run(save: Save, run_dir: Path) -> None:
    for step in (1, 2, 3):
        set_link(run_dir, "last", save(step))
    set_link(run_dir, "best", run_dir / "checkpoints" / step_name(2))
    moved = run_dir.rename(run_dir.with_name("moved"))
    folder = (moved / "checkpoints").resolve()
    for name, step in (("last", 3), ("best", 2)):
        assert (folder / name).resolve() == folder / step_name(step)
    assert sorted(os.listdir(folder)) == ["best", "last", *map(step_name, (1, 2, 3))]


DAMAGES = [
    (damage, name)
    for damage in (truncate, flip, drop, empty)
    for name in ("model.safetensors", "state.pt", "meta.json")
    if (damage, name) != (flip, "meta.json")  # JSON with a bit flipped may still be valid
]


@pytest.mark.parametrize(("damage", "name"), DAMAGES)
def test_a_damaged_checkpoint_is_skipped_for_the_one_before_it(
    damage: Callable[[Path], None], name: str, save: Save, run_dir: Path
) -> None:
    first, second = save(1), save(2)
    damage(second / name)
    said: list[str] = []
    found = latest_good(run_dir, said.append)
    assert found is not None
    assert (found[0], found[1]["step"]) == (first, 1)
    (line,) = said
    assert says(line, second, "use another checkpoint", "Skipped")
    assert "damaged, its checksum differs" in line or "not a complete model folder (" in line


def test_a_newer_format_is_not_taken_for_damage(save: Save, run_dir: Path) -> None:
    """Skipping it for an older checkpoint would throw work away."""
    save(1)
    folder = save(2)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"format": 3}))
    with raises_saying(CheckpointError, folder, "newer mt", "format 3", "up to 2", "install"):
        latest_good(run_dir, lambda _: None)


def test_a_half_deleted_checkpoint_is_ignored(
    save: Save, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As left by a process killed while deleting."""
    save(1)
    save(2)

    def killed(folder: Path, **_: Any) -> None:
        for path in list(Path(folder).glob("*"))[:1]:
            path.unlink()

    monkeypatch.setattr(shutil, "rmtree", killed)
    prune(run_dir, {step_name(2)})
    monkeypatch.undo()
    assert [folder.name for folder in checkpoints(run_dir)] == [step_name(2)]
    tidy(run_dir)
    assert os.listdir(run_dir / "checkpoints") == [step_name(2)]


def test_tidy_cleans_up_after_a_killed_save(
    save: Save, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while writing: half a folder. Killed between two renames: the old one comes back."""
    folder = save(1)
    before = content_of(folder)
    half_written = folder.with_name(f".{step_name(2)}.partial")
    half_written.mkdir()
    (half_written / "model.safetensors").write_bytes(b"half")
    (run_dir / "checkpoints" / ".last.partial").symlink_to("nowhere")
    renames = 0

    def killed(self: Path, target: Path) -> Path:
        nonlocal renames
        renames += 1
        if renames == 2:
            raise KeyboardInterrupt
        os.rename(self, target)
        return target

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        save(1, note="after")
    monkeypatch.undo()
    assert not folder.exists()
    tidy(run_dir)
    assert os.listdir(run_dir / "checkpoints") == [folder.name]
    assert content_of(folder) == before


def test_tidy_keeps_the_new_folder_if_both_are_there(save: Save, run_dir: Path) -> None:
    folder = save(1, note="before")
    shutil.copytree(folder, run_dir / "copy")
    save(1, note="after")
    (run_dir / "copy").rename(run_dir / "checkpoints" / f".{folder.name}.before")
    tidy(run_dir)
    assert os.listdir(run_dir / "checkpoints") == [step_name(1)]
    assert read_meta(run_dir / "checkpoints" / step_name(1), [])["note"] == "after"
