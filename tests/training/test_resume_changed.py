"""Resuming after damage, with another config, from another directory, and starting over."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Mapped, MonkeyPatch, Mt, config_of, log_of, merged, metrics_of, refused
from faults import raising
from messages import raises_saying, says
from run_comparison import EVERY, STEPS, check_equal, checkpoint_of, kept_steps

from mt.config.load import load_config
from mt.errors import CheckpointError
from mt.model import checkpoint
from mt.runs import model_folder
from mt.runs.run_dir import check_same_run
from mt.training.launch import prepare_data, train


@pytest.fixture
def copied(undisturbed: Path, tmp_path: Path) -> Path:
    """A copy of the undisturbed run, to be changed."""
    return shutil.copytree(undisturbed, tmp_path / "run", symlinks=True)


def damage(folder: Path) -> None:
    path = folder / "state.pt"
    path.write_bytes(path.read_bytes()[:-100])


def test_after_a_damaged_checkpoint_the_one_before_is_used(
    copied: Path, interruptible: Mapped, undisturbed: Path
) -> None:
    newest, before = (checkpoint_of(copied, step) for step in (STEPS, 2 * EVERY))
    damage(newest)
    assert train(config_of(interruptible), copied, "cpu").exit_code == 0
    log = log_of(copied)
    assert f"{newest / 'state.pt'}: damaged, its checksum differs" in log
    assert f"resuming after update {2 * EVERY} from {before}" in log
    check_equal(copied, undisturbed)


def test_a_damaged_checkpoint_does_not_displace_others(copied: Path, interruptible: Mapped) -> None:
    """It is the newest by its name, but the one just saved must not be deleted for it."""
    damage(checkpoint_of(copied, STEPS))
    changed = config_of(interruptible, train={"keep_last": 1, "valid_every": 10, "max_steps": 10})
    assert train(changed, copied, "cpu").exit_code == 0
    assert 10 in kept_steps(copied)
    assert STEPS not in kept_steps(copied)
    assert (copied / "checkpoints" / "last").resolve().name == model_folder.step_name(10)


def test_if_all_are_damaged_nothing_is_deleted(copied: Path, interruptible: Mapped) -> None:
    folders = model_folder.checkpoints(copied)
    for folder in folders:
        damage(folder)
    with raises_saying(CheckpointError, copied, "all of its checkpoints", "damaged", "--fresh"):
        train(config_of(interruptible), copied, "cpu")
    assert model_folder.checkpoints(copied) == folders
    assert log_of(copied).count("damaged, its checksum differs") == len(folders)


def test_a_checkpoint_of_another_tokenizer_is_refused(
    copied: Path, interruptible: Mapped, tiny_run: Path
) -> None:
    """As when files of two runs were mixed."""
    (copied / "tokenizer.model").unlink()
    changed = merged(interruptible, {"run": {"seed": 9}, "tokenizer": {"sample_lines": 50}})
    shutil.rmtree(copied / "store")
    (copied / "config.yaml").unlink()
    newest = checkpoint_of(copied, STEPS)
    with raises_saying(CheckpointError, newest, "another tokenizer", copied, "--fresh"):
        train(config_of(changed), copied, "cpu")


def test_a_finished_run_resumes_for_more_steps(copied: Path, interruptible: Mapped) -> None:
    before = len(metrics_of(copied))
    more = {
        "train": {"max_steps": STEPS + 2, "ema": None},
        "model": {"dropout": 0.3},
        "optim": {"weight_decay": 0.1, "betas": [0.8, 0.9]},
    }
    outcome = train(config_of(interruptible, more), copied, "cpu")
    assert outcome.reason.startswith(f"all {STEPS + 2} updates are done; best model (BLEU ")
    log = log_of(copied)
    assert says(log, "config changed", "model.dropout: was 0.1, now 0.3")
    assert says(log, "config changed", f"train.max_steps: was {STEPS}, now {STEPS + 2}")
    added = [(line["kind"], line["step"]) for line in metrics_of(copied)[before:]]
    assert added == [("train", 14), ("valid", 14)]
    steps = [(line["kind"], line["step"]) for line in metrics_of(copied)]
    assert len(steps) == len(set(steps))
    state = checkpoint.load_state(copied / "checkpoints" / "last")
    _, matrices, vectors = state["optimizer"]["param_groups"]
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert matrices["betas"] == (0.8, 0.9)
    assert "weights" not in state


def test_a_finished_run_started_again_changes_nothing(
    copied: Path, interruptible: Mapped, undisturbed: Path
) -> None:
    assert train(config_of(interruptible), copied, "cpu").exit_code == 0
    check_equal(copied, undisturbed)


def test_a_config_that_no_update_uses_is_not_written(copied: Path, interruptible: Mapped) -> None:
    """By preparing other data, refused or not, and where no update is left."""
    files = [copied / "config.yaml", copied / "settled.json"]
    before = [path.read_bytes() for path in files]
    changes: dict[str, Any] = {"optim": {"peak_lr": 0.5}}
    prepare_data(config_of(interruptible, changes, data={"max_tokens": 20}), copied)
    with raises_saying(CheckpointError, "would now be held out"):
        prepare_data(config_of(interruptible, changes, data={"valid": [{"split": 2}]}), copied)
    assert train(config_of(interruptible, changes), copied, "cpu").exit_code == 0
    assert [path.read_bytes() for path in files] == before
    assert says(log_of(copied), "no update is left", "manifest.json and config.yaml stay")


def test_another_batch_size_starts_a_new_epoch(copied: Path, interruptible: Mapped) -> None:
    changed = {"train": {"max_steps": STEPS + 2}, "batch": {"tokens_per_update": 425}}
    train(config_of(interruptible, **changed), copied, "cpu")
    log = log_of(copied)
    assert says(log, "config changed", "batch.tokens_per_update: was 675, now 425")
    assert says(log, "have changed: continuing with a new epoch of the new plan")
    after = checkpoint.load_state(copied / "checkpoints" / "last")["train"]
    assert (after["epoch"], after["update"]) == (2, 2)
    assert after["plan"] != checkpoint.load_state(checkpoint_of(copied, STEPS))["train"]["plan"]


def test_a_resume_that_is_refused_leaves_the_config(copied: Path, interruptible: Mapped) -> None:
    """Also where that shows only once the directory is claimed, as a damaged checkpoint does."""
    before = (copied / "config.yaml").read_bytes()
    changed = config_of(interruptible, train={"max_steps": STEPS + 2, "log_every": 1})
    states = [folder / "state.pt" for folder in model_folder.checkpoints(copied)]
    kept = {path: path.read_bytes() for path in states}
    for path in kept:
        damage(path.parent)
    with pytest.raises(CheckpointError):
        train(changed, copied, "cpu")
    assert (copied / "config.yaml").read_bytes() == before
    for path, state in kept.items():
        path.write_bytes(state)
    assert train(changed, copied, "cpu").exit_code == 0
    assert load_config(str(copied / "config.yaml")).config == changed


def test_a_run_of_other_languages_is_not_resumed(copied: Path, interruptible: Mapped) -> None:
    """Such as that of another config with the same file name."""
    turned = config_of(interruptible, data={"src_lang": "en", "tgt_lang": "de"})
    parts = "or language", "was de, now en", "--fresh", "--run-dir", "init_from"
    with raises_saying(CheckpointError, *parts):
        train(turned, copied, "cpu")
    austrian = config_of(interruptible, data={"src_lang": "de-AT"})
    assert check_same_run(copied, austrian) == ["data.src_lang: was de, now de-AT"]


def test_a_tokenizer_of_an_interrupted_start_is_not_used_for_another_config(
    interruptible: Mapped, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """Stopped while the store is built, when the tokenizer exists already."""
    monkeypatch.setattr("mt.training.prepare.token_store.open_or_build", raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        train(config_of(interruptible), tmp_path, "cpu")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"\(tokenizer\.vocab_size: was 320, now 300\)"):
        train(config_of(interruptible, tokenizer={"vocab_size": 300}), tmp_path, "cpu")


def test_fresh_sets_the_run_aside_and_starts_over(
    copied: Path, interruptible: Mapped, undisturbed: Path, tmp_path: Path, mt: Mt
) -> None:
    config = tmp_path / "tiny.yaml"
    changed = merged(interruptible, {"model": {"d_ff": 32}})
    config.write_text(yaml.safe_dump(changed), encoding="utf-8")
    command = ["train", "-c", config, "--run-dir", copied, "--device", "cpu"]
    command += ["--set", "train.max_steps=2"]
    assert "model.d_ff: was 64, now 32" in refused(mt(*command))
    ended = mt(*command, "--fresh")
    assert ended.code == 0
    assert f"mt: {copied} is now {copied.with_name('run.old-1')}\n" in ended.err
    check_equal(copied.with_name("run.old-1"), undisturbed)
    assert kept_steps(copied) == [2]


def test_fresh_holds_for_every_command_of_a_slurm_allocation_and_once_for_a_requeued_job(
    interruptible: Mapped, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    run = tmp_path / "run"
    config = config_of(interruptible, train={"max_steps": 1}, data={"valid": None, "test": []})
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    for _ in range(3):
        train(config, run, "cpu", fresh=True)
        assert "resuming" not in log_of(run)
    aside = sorted(path.name for path in tmp_path.glob("run.old-*"))
    assert aside == ["run.old-1", "run.old-2"]
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    train(config, run, "cpu", fresh=True)
    assert "resuming after update 1 " in log_of(run)
    assert sorted(path.name for path in tmp_path.glob("run.old-*")) == aside
