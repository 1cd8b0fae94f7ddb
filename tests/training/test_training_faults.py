"""Faults before and during training: missing data, folders, too little memory, full disks."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from conftest import BLIND, MonkeyPatch, Mt, QuickConfig, log_of, metrics_of, refused, write_lines
from faults import raising
from messages import raises_saying, says

from mt.errors import CheckpointError, DataError, TooLittleMemoryError
from mt.runs import model_folder
from mt.training import checkpoints as checkpoints_module
from mt.training import launch
from mt.training.launch import train
from mt.training.runlog import RunLog


@pytest.fixture
def untrained(monkeypatch: MonkeyPatch) -> None:
    """Fail the test if training starts."""
    monkeypatch.setattr(launch, "Trainer", raising(AssertionError("training has started")))


@pytest.mark.usefixtures("untrained")
def test_missing_data_is_found_before_a_run_directory_is_made(
    quick_config: QuickConfig, tmp_path: Path, mt: Mt
) -> None:
    names = ["no.src", "no.tgt", "nor.src"]
    valid, test = {"src": names[0], "tgt": names[1]}, {"src": names[2], "tgt": "test.tgt"}
    gone = quick_config(data={"valid": valid, "test": [test]})
    with pytest.raises(DataError) as error:
        train(gone, tmp_path / "run", "cpu")
    assert [name for name in names if name in str(error.value)] == names
    command = ["train", "-c", "tiny.yaml", "--set", "data.train=[]"]
    said = refused(mt(*command, "--run-dir", tmp_path / "run"))
    assert says(said, "data.train", "at least one text", "found none")
    assert not (tmp_path / "run").exists()


def test_too_little_memory_is_said_in_the_log(
    quick_config: QuickConfig, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "Trainer", raising(MemoryError))
    with pytest.raises(TooLittleMemoryError) as error:
        train(quick_config(BLIND), tmp_path, "cpu")
    assert str(error.value) in log_of(tmp_path)


@pytest.fixture
def full_after(monkeypatch: MonkeyPatch) -> Callable[[str, int], None]:
    """After so many calls, a function of the checkpoint or the log finds the disk full."""

    def set_up(attribute: str, calls: int) -> None:
        owners = {"record": RunLog, "set_link": checkpoints_module, "save_file": safetensors.torch}
        owner: Any = owners[attribute]
        real, left = getattr(owner, attribute), [calls]

        def failing(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **options)

        monkeypatch.setattr(owner, attribute, failing)

    return set_up


@pytest.mark.parametrize(("what", "calls"), [("save_file", 1), ("record", 3), ("set_link", 1)])
def test_a_disk_that_fills_up_ends_the_run_with_a_message_and_the_last_checkpoint(
    what: str, calls: int, full_after: Callable[[str, int], None], quick_config: QuickConfig,
    tmp_path: Path, monkeypatch: MonkeyPatch,
) -> None:  # fmt: skip
    """At the second checkpoint: its weights, a metrics line, or a link. With room it resumes."""
    settings = {"max_steps": 8, "valid_every": 4, "log_every": 2}
    full_after(what, calls)
    with pytest.raises((CheckpointError, DataError)) as error:
        train(quick_config(BLIND, train=settings), tmp_path, "cpu")
    monkeypatch.undo()
    assert error.value.exit_code == 2
    message = str(error.value)
    assert says(message, "No space left on device", "intact", "free some space", "same command")
    assert message in log_of(tmp_path)
    last = tmp_path / "checkpoints" / "last"
    assert model_folder.read_meta(last, ["model.safetensors", "state.pt"])["step"] == 4
    assert train(quick_config(BLIND, train=settings), tmp_path, "cpu").exit_code == 0
    assert [line["step"] for line in metrics_of(tmp_path, "train")] == [2, 4, 6, 8]


@pytest.mark.slow
def test_a_disk_that_is_really_full(
    tiny_config: Path, run_mt: Callable[..., Any], small_disk: Callable[[int], Path], tmp_path: Path
) -> None:
    """On a file system with room for a few checkpoints: one message, whatever finds it full."""
    settings = ["max_steps=400", "valid_every=2", "keep_last=400"]
    sets = [word for setting in settings for word in ("--set", f"train.{setting}")]
    sets += ["--set", "data.valid=null", "--set", "data.test=null"]
    run = small_disk(3_000) / "run"
    ended = run_mt("train", "-c", tiny_config, "--run-dir", run, "--device", "cpu", *sets)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("mt: ")
    assert "Everything saved earlier is intact: free some space" in ended.stderr
    newest = model_folder.checkpoints(run)[-1]
    found = checkpoints_module.latest_good(run, lambda line: pytest.fail(line))
    assert found is not None
    assert found[0] == newest
    assert int(newest.name[5:]) >= 4
    moved = tmp_path / "run"
    shutil.copytree(run, moved, symlinks=True)
    sets += ["--set", f"train.max_steps={int(newest.name[5:]) + 2}"]
    again = run_mt("train", "-c", tiny_config, "--run-dir", moved, "--device", "cpu", *sets)
    assert again.returncode == 0


def test_a_validation_text_without_a_line_that_fits(
    quick_config: QuickConfig, tmp_path: Path
) -> None:
    files = {side: str(tmp_path / side) for side in ("src", "tgt")}
    for path in files.values():
        write_lines(Path(path), ["wort " * 3000])
    config = quick_config({"data": {"valid": [files], "test": []}})
    with raises_saying(DataError, "data.valid[0]", "no pair is left", "model.max_positions"):
        train(config, tmp_path / "run", "cpu")
