"""The run directory: one process at a time, starting over, and which config keys may change."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from conftest import Mapped, MonkeyPatch, Mt, config_of, refused
from faults import raising
from messages import raises_saying, says

from mt.config.load import load_config
from mt.errors import CheckpointError, DataError
from mt.files import write_whole
from mt.package import VERSION
from mt.runs.run_dir import CONFIG, check_same_run, claim, read_settled, set_aside
from mt.training import launch


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


# --- claiming it --------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_directory_that_cannot_be_created_is_refused(below: str, tmp_path: Path) -> None:
    """Nobody can create a folder below a regular file, not even root."""
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / below
    with pytest.raises(DataError) as error:
        claim(folder)
    assert says(str(error.value), folder, "a folder that can be written", "--run-dir")
    assert re.search("Not a directory|File exists", str(error.value))


def test_only_one_process_at_a_time_may_claim_it(run_dir: Path) -> None:
    """The operating system releases the lock when the process ends, however it ends."""
    claim(run_dir).close()
    hold = (
        "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); "
        "print('held', flush=True); "
    )
    command = [sys.executable, "-S", "-c", hold + "sys.stdin.read()", str(run_dir / ".lock")]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        parts = run_dir, "another process is training", "wait", "--run-dir"
        with raises_saying(DataError, *parts):
            claim(run_dir)
        other.kill()
    with claim(run_dir), pytest.raises(DataError, match="another process is training in it"):
        claim(run_dir)
    assert sorted(os.listdir(run_dir)) == [".lock", "checkpoints"]
    assert os.listdir(run_dir / "checkpoints") == []


def test_a_file_system_without_locks_is_accepted(run_dir: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", raising(OSError(errno.ENOLCK, "No locks available")))
    claim(run_dir).close()


# --- starting over ----------------------------------------------------------------------------


def test_a_used_directory_is_set_aside_under_the_next_free_name(
    run_dir: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.chdir(run_dir.parent)
    for number in (1, 2):
        claim(run_dir).close()
        (run_dir / "mark").write_text(str(number))
        aside = set_aside(Path(run_dir.name) if number == 2 else run_dir)
        assert aside == run_dir.with_name(f"run.old-{number}")
        assert not run_dir.exists()
    assert [(run_dir.with_name(f"run.old-{n}") / "mark").read_text() for n in (1, 2)] == ["1", "2"]


def test_the_current_folder_is_not_set_aside(run_dir: Path, monkeypatch: MonkeyPatch) -> None:
    """Under its new name it would still be the current one, and the old run go on."""
    claim(run_dir).close()
    for folder, name in ((run_dir, "."), (run_dir / "checkpoints", "..")):
        monkeypatch.chdir(folder)
        with raises_saying(DataError, f"run directory {name}: ", "--fresh", "another folder"):
            set_aside(Path(name))
    assert [path.name for path in run_dir.parent.iterdir()] == [run_dir.name]


def test_a_folder_that_holds_no_run_is_not_set_aside(run_dir: Path) -> None:
    (run_dir / "thesis.tex").write_text("years of work")
    assert set_aside(run_dir) is set_aside(run_dir / "nowhere") is None
    assert (run_dir / "thesis.tex").exists()


def test_a_directory_in_use_is_not_set_aside(run_dir: Path) -> None:
    with claim(run_dir), pytest.raises(DataError, match="another process is training in it"):
        set_aside(run_dir)
    assert run_dir.exists()


def test_a_directory_in_use_is_told_before_reading(run_dir: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "check_data", pytest.fail)
    config = config_of({"data": {"train": [{"src": "none.de", "tgt": "none.en"}]}})
    with claim(run_dir), pytest.raises(DataError, match="another process is training in it"):
        launch.train(config, run_dir, "cpu")


def test_a_directory_that_cannot_be_moved_says_so(run_dir: Path, monkeypatch: MonkeyPatch) -> None:
    claim(run_dir).close()
    monkeypatch.setattr(Path, "rename", raising(OSError(13, "Permission denied")))
    with raises_saying(DataError, run_dir, "run.old-1", "Permission denied", "--run-dir"):
        set_aside(run_dir)


# --- the same run -----------------------------------------------------------------------------


@pytest.fixture
def started(run_dir: Path, tiny_mapping: Mapped) -> Path:
    """A run directory with a tokenizer and a checkpoint."""
    write_whole(run_dir / CONFIG, config_of(tiny_mapping).to_yaml())
    (run_dir / "tokenizer.model").write_bytes(b"")
    (run_dir / "checkpoints" / "step-00000001").mkdir(parents=True)
    return run_dir


DROPOUTS = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.0}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        (
            {"train": {"max_steps": 99}, "batch": {"tokens_per_update": 700}},
            ["batch.tokens_per_update: was 500, now 700", "train.max_steps: was 8, now 99"],
        ),
        # Neither dropouts nor computed positions change the shape of a weight.
        (
            {"model": DROPOUTS | {"max_positions": 80}},
            [
                "model.max_positions: was 64, now 80",
                "model.dropout: was 0.1, now 0.3",
                "model.attention_dropout: was 0.0, now 0.2",
                "model.activation_dropout: was None, now 0.0",
            ],
        ),
    ],
)
def test_changed_keys_are_reported(
    changes: Mapped, said: list[str], started: Path, tiny_mapping: Mapped
) -> None:
    assert sorted(check_same_run(started, config_of(tiny_mapping, changes))) == sorted(said)
    assert check_same_run(started / "new", config_of(tiny_mapping, changes)) == []


def test_a_run_of_an_earlier_version_is_refused_but_set_aside(
    copied_run: Path, tiny_config: Path, mt: Mt
) -> None:
    manifest = copied_run / "manifest.json"
    version = f'"mt": "{VERSION}"'
    manifest.write_text(manifest.read_text().replace(version, '"mt": "0.2.0"'))
    command = ["train", "--config", tiny_config, "--run-dir", copied_run, "--device", "cpu"]
    assert says(refused(mt(*command)), copied_run, "made by mt 0.2.0", VERSION, "train anew")
    ended = mt(*command, "--fresh", "--dry-run")
    assert ended.code == 0, ended.err


def test_only_the_key_at_fault_is_named_and_learned_positions_are_weights(
    started: Path, tiny_mapping: Mapped
) -> None:
    with pytest.raises(CheckpointError, match=r"\(model\.d_ff: was 64, now 128\)"):
        check_same_run(started, config_of(tiny_mapping, model={**DROPOUTS, "d_ff": 128}))
    learned = {"positions": "learned"}
    write_whole(started / CONFIG, config_of(tiny_mapping, model=learned).to_yaml())
    with pytest.raises(CheckpointError, match=r"\(model\.max_positions: was 64, now 80\)"):
        check_same_run(started, config_of(tiny_mapping, model={**learned, "max_positions": 80}))


def test_another_model_is_refused_with_every_key(started: Path, tiny_mapping: Mapped) -> None:
    changed = config_of(
        tiny_mapping,
        model={"d_ff": 128, "norm": "post"},
        tokenizer={"vocab_size": 400},
        train={"max_steps": 9},
    )
    with pytest.raises(CheckpointError) as error:
        check_same_run(started, changed)
    keys = ["tokenizer.vocab_size: was 320, now 400"]
    keys += ["model.d_ff: was 64, now 128", "model.norm: was pre, now post"]
    said = str(error.value)
    assert says(said, started, "another model, tokenizer", *keys, "--fresh", "another --run-dir")
    assert "max_steps" not in said


def test_model_and_tokenizer_may_change_at_first(started: Path, tiny_mapping: Mapped) -> None:
    """A run that was stopped before its first checkpoint, or before its tokenizer."""
    shutil.rmtree(started / "checkpoints" / "step-00000001")
    other_model = config_of(tiny_mapping, model={"d_ff": 128})
    assert check_same_run(started, other_model) == ["model.d_ff: was 64, now 128"]
    other_tokenizer = config_of(tiny_mapping, tokenizer={"vocab_size": 400})
    with pytest.raises(CheckpointError, match=r"tokenizer\.vocab_size: was 320, now 400"):
        check_same_run(started, other_tokenizer)
    (started / "tokenizer.model").unlink()
    assert check_same_run(started, other_tokenizer) == ["tokenizer.vocab_size: was 320, now 400"]


def test_settled_numbers_are_found_in_checkpoints_and_those_of_mt_0_3_in_its_config(
    copied_run: Path,
) -> None:
    before = read_settled(copied_run)
    (copied_run / "settled.json").write_text("{", encoding="utf-8")
    assert read_settled(copied_run) == before
    (copied_run / "settled.json").unlink()
    assert read_settled(copied_run) == before
    for folder in (copied_run / "checkpoints").glob("step-*"):
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        del meta["settled"]
        meta |= {"measured_tokens_per_batch": 77, "epochs_in_time": 2.5}
        (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    settled = read_settled(copied_run)
    assert settled is not None
    assert settled.values["tokenizer.vocab_size"] == 320
    assert (settled.tokens_per_batch, settled.epochs) == (77, 2.5)
    saved = load_config(str(copied_run / "config.yaml")).config
    config = saved.with_values({"tokenizer.vocab_size": "auto"})
    assert check_same_run(copied_run, config) == []
    assert settled.of_training(config).batch.tokens_per_batch == 77
    with (copied_run / "config.yaml").open("a", encoding="utf-8") as file:
        file.write("recipes: 1\n")
    with raises_saying(CheckpointError, "recipes", copied_run, "config.yaml", "--fresh"):
        check_same_run(copied_run, config)
