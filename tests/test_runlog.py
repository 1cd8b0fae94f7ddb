"""The run directory: whose it is, what it says, and its figures after a crash."""

from __future__ import annotations

import errno
import io
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import config_of

from mt import files
from mt.errors import CheckpointError, ConfigError, DataError, TrainingDivergedError
from mt.files import whole_file, write_whole
from mt.runtime.distributed import World
from mt.training import launch as run_module
from mt.training import runlog
from mt.training.runlog import (
    RunLog,
    Window,
    check_same_run,
    claim,
    format_duration,
    is_of_this_job,
    set_aside,
    write_config,
    write_manifest,
)
from mt.training.update import Updater


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


# --- what it says -----------------------------------------------------------------------------


def test_lines_go_to_stderr_and_into_the_log(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLog(run, 10) as log:
        log.say("Übung macht den Meister")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(" Übung macht den Meister\n")
    with RunLog(run, 10) as log:
        log.say("second")
    assert [line[20:] for line in lines_of(run / "train.log")] == [
        "Übung macht den Meister",
        "second",
    ]
    assert capsys.readouterr().err.count("second") == 1


def test_the_reason_of_a_failure_is_in_the_log_too(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr it is the command line that prints it."""

    def fail() -> None:
        with RunLog(run, 10):
            raise TrainingDivergedError("gave up at update 7")

    with pytest.raises(TrainingDivergedError):
        fail()
    assert lines_of(run / "train.log")[0].endswith(" gave up at update 7")
    assert capsys.readouterr().err == ""


def test_a_terminal_sees_a_bar_and_others_do_not(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = {}
    for kind in (io.StringIO, Terminal):
        stderr = kind()
        monkeypatch.setattr(sys, "stderr", stderr)
        with RunLog(run, 100) as log:
            log.progress(40, {"nll": "3.210", "tok/s": "5,000"})
            log.say("a line beside the bar")
        shown[kind] = stderr.getvalue()
    assert "40/100" in shown[Terminal]
    assert "nll=3.210" in shown[Terminal]
    assert "a line beside the bar" in shown[Terminal]
    assert "100" not in shown[io.StringIO].replace("a line", "").split(" beside")[1]


def test_a_closed_terminal_or_a_full_disk_does_not_end_training(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    with RunLog(run, 10) as log:
        log.say("into the log")
        file = log._handlers[0]
        file.stream.close()
        file.stream = Gone()  # type: ignore[assignment]
        log.say("nowhere at all")
    assert len(lines_of(run / "train.log")) == 1


def test_time_left_is_told_as_a_clock_does() -> None:
    assert [format_duration(seconds) for seconds in (0, 59.6, 3599, 3600, 100_000)] == [
        "0:00:00", "0:01:00", "0:59:59", "1:00:00", "27:46:40",
    ]  # fmt: skip


# --- figures ----------------------------------------------------------------------------------


def test_each_record_is_a_line_of_json(run: Path) -> None:
    log = RunLog(run, 10)
    log.record("train", 5, nll=1.5, name="Straße")
    log.record("valid", 5, nll=math.nan, grad_norm=math.inf)
    text = (run / "metrics.jsonl").read_text(encoding="utf-8")
    assert "Straße" in text
    assert "NaN" not in text  # which only some readers of JSON take
    assert [json.loads(line) for line in text.splitlines()] == [
        {"kind": "train", "step": 5, "nll": 1.5, "name": "Straße"},
        {"kind": "valid", "step": 5, "nll": None, "grad_norm": None},
    ]


def test_figures_that_will_be_made_again_are_forgotten(run: Path) -> None:
    """Those of later updates, and a line that a crash cut short."""
    log = RunLog(run, 10)
    for kind, step in (("train", 2), ("train", 4), ("valid", 4), ("train", 5), ("valid", 6)):
        log.record(kind, step)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    log.forget_after(4)
    kept = [
        (line["kind"], line["step"]) for line in map(json.loads, lines_of(run / "metrics.jsonl"))
    ]
    assert kept == [("train", 2), ("train", 4), ("valid", 4)]
    log.forget_after(0)
    assert (run / "metrics.jsonl").read_text() == ""


def test_there_need_not_be_figures_to_forget(run: Path) -> None:
    RunLog(run, 10).forget_after(4)
    assert not (run / "metrics.jsonl").exists()


def update(n_src: int, n_tgt: int, n_padded: int) -> Any:
    batch = SimpleNamespace(n_src=n_src, n_tgt=n_tgt, n_padded=n_padded)
    return SimpleNamespace(batches=[batch], n_tgt=n_tgt)


def test_the_figures_of_a_window_by_hand() -> None:
    """Two updates of 10 and 30 target tokens: nll (10 x 2 + 30 x 4) / 40 = 3.5, padding 1 - 80 / 100."""
    window = Window(SimpleNamespace(waited=0.0), World())  # type: ignore[arg-type]
    window.add(update(10, 10, 30), torch.tensor(5.0), torch.tensor(2.0), torch.tensor(1.0))
    window.add(update(30, 30, 70), torch.tensor(5.0), torch.tensor(4.0), torch.tensor(2.0))
    figures = window.figures()
    assert (figures["loss"], figures["nll"]) == (5.0, 3.5)
    assert figures["perplexity"] == pytest.approx(math.exp(3.5))
    assert figures["grad_norm"] == 1.5
    assert figures["padding"] == pytest.approx(0.2)
    assert figures["skipped"] == 0


def test_a_skipped_update_spoils_no_figure() -> None:
    window = Window(SimpleNamespace(waited=0.0), World())  # type: ignore[arg-type]
    window.add(update(10, 10, 30), torch.tensor(5.0), torch.tensor(2.0), torch.tensor(1.0))
    window.add(
        update(30, 30, 70), torch.tensor(5.0), torch.tensor(math.nan), torch.tensor(math.inf)
    )
    figures = window.figures()
    assert (figures["nll"], figures["grad_norm"], figures["skipped"]) == (2.0, 1.0, 1)
    window.restart()
    window.add(update(30, 30, 70), torch.tensor(5.0), torch.tensor(1.0), torch.tensor(math.nan))
    figures = window.figures()
    assert math.isnan(figures["nll"])
    assert math.isnan(figures["perplexity"])
    assert figures["skipped"] == 1


def test_speed_and_waiting_are_shares_of_the_time_since_the_last_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, feed = [100.0], SimpleNamespace(waited=5.0)
    monkeypatch.setattr(runlog.time, "perf_counter", lambda: now[0])
    window = Window(feed, World())  # type: ignore[arg-type]
    now[0], feed.waited = 104.0, 6.0
    window.add(update(10, 200, 300), torch.tensor(5.0), torch.tensor(2.0), torch.tensor(1.0))
    figures = window.figures()
    assert (figures["tokens_per_second"], figures["waiting"]) == (50.0, 0.25)
    window.leave_out(2.0)  # a validation
    assert window.figures()["tokens_per_second"] == 100.0


# --- TensorBoard ------------------------------------------------------------------------------


def shown(run: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a run: (step, value) of each figure."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard")).Reload()
    return {
        tag: [(x.step, x.value) for x in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def test_tensorboard_shows_the_figures_of_a_run_and_of_its_resumption_once(
    tiny_mapping: Mapping[str, Any], tmp_path: Path
) -> None:
    """The run is broken off after update 6, with a checkpoint of 4; the figures of 5 and 6 are made again."""
    train = {"tensorboard": True, "max_steps": 8, "log_every": 1, "valid_every": 4}
    config = config_of(tiny_mapping, train=train, data={"test": []})
    calls = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        learn = Updater.update

        def broken_off(*arguments: Any) -> Any:
            if next(calls) == 6:
                raise KeyboardInterrupt
            return learn(*arguments)

        patch.setattr(Updater, "update", broken_off)
        with pytest.raises(KeyboardInterrupt):
            run_module.train(config, tmp_path, "cpu")
    run_module.train(config, tmp_path, "cpu")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    seen = shown(tmp_path)
    for key in ("loss", "nll", "perplexity", "lr", "grad_norm", "tokens_per_second", "padding", "waiting", "skipped",
                "memory_mb", "resident_mb", "epoch_position"):  # fmt: skip
        ours = [(line["step"], line[key]) for line in lines if line["kind"] == "train"]
        assert [step for step, _ in ours] == list(range(1, 9))
        assert seen[f"train/{key}"] == [
            (step, pytest.approx(value, rel=1e-5)) for step, value in ours
        ], key
    ours = [
        (line["step"], pytest.approx(line["bleu"], rel=1e-5))
        for line in lines
        if line["kind"] == "valid"
    ]
    assert seen["valid/bleu"] == ours


def test_without_tensorboard_the_setting_is_refused(
    tiny_mapping: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError) as error:
        run_module.train(config_of(tiny_mapping, train={"tensorboard": True}), tmp_path, "cpu")
    assert str(error.value) == (
        "train.tensorboard: true needs the package tensorboard, which is not installed; pip install tensorboard, or "
        "set it to false"
    )


# --- whose directory it is --------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_directory_that_cannot_be_made_is_refused(below: str, tmp_path: Path) -> None:
    """Below a regular file nobody can make one, not even root."""
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / below
    with pytest.raises(DataError) as error:
        claim(folder)
    message = str(error.value)
    assert message.startswith(f"run directory {folder}: must be a folder that can be written, but ")
    assert "Not a directory" in message or "File exists" in message
    assert message.endswith("give another one with --run-dir")


def test_a_read_only_directory_is_refused(run: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    run.chmod(0o555)
    with pytest.raises(
        DataError, match="must be a folder that can be written, but Permission denied"
    ):
        claim(run)


def test_a_full_disk_is_found_before_training(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "probe")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DataError, match="but No space left on device"):
        claim(run)


def test_one_process_at_a_time(run: Path) -> None:
    """The lock is the system's: it ends with the process, however that ends."""
    claim(run).close()
    hold = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); "
    command = [sys.executable, "-S", "-c", hold + "sys.stdin.read()", str(run / ".lock")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(DataError) as error:
            claim(run)
        other.kill()
    assert str(error.value) == (
        f"run directory {run}: another process is training in it; wait for it, or give another --run-dir"
    )
    with claim(run), pytest.raises(DataError, match="another process is training in it"):
        claim(run)
    assert sorted(os.listdir(run)) == [".lock", "checkpoints"]
    assert os.listdir(run / "checkpoints") == []


def test_a_file_system_without_locks_will_do(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    claim(run).close()


# --- starting over ----------------------------------------------------------------------------


def test_a_used_directory_is_set_aside_under_the_next_free_name(run: Path) -> None:
    for number in (1, 2):
        claim(run).close()
        (run / "mark").write_text(str(number))
        assert set_aside(run) == run.with_name(f"run.old-{number}")
        assert not run.exists()
    assert [(run.with_name(f"run.old-{n}") / "mark").read_text() for n in (1, 2)] == ["1", "2"]


def test_only_runs_are_set_aside(run: Path) -> None:
    """A folder of another kind, named by mistake, stays where it is."""
    (run / "thesis.tex").write_text("years of work")
    assert set_aside(run) is None
    assert set_aside(run / "nowhere") is None
    assert (run / "thesis.tex").exists()


def test_a_directory_in_use_is_not_set_aside(run: Path) -> None:
    with claim(run), pytest.raises(DataError, match="another process is training in it"):
        set_aside(run)
    assert run.exists()


def test_the_current_folder_can_be_set_aside(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(run).close()
    monkeypatch.chdir(run)
    assert set_aside(Path(".")) == run.with_name("run.old-1")


def test_a_directory_that_cannot_be_renamed_says_so(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(run).close()

    def denied(*_: Any) -> None:
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", denied)
    with pytest.raises(DataError) as error:
        set_aside(run)
    assert str(error.value) == (
        f"run directory {run}: cannot be renamed to run.old-1 (Permission denied); give another --run-dir"
    )


@pytest.mark.parametrize(
    ("ready", "now", "same"),
    [
        ({}, {}, False),
        (
            {"SLURM_JOB_ID": "7"},
            {"SLURM_JOB_ID": "7"},
            False,
        ),  # the second command of an allocation
        ({"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "0"}, False),
        ({"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}, True),
        ({"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": "1"}, False),
        ({"TORCHELASTIC_RUN_ID": "a"}, {"TORCHELASTIC_RUN_ID": "a"}, True),
        ({"TORCHELASTIC_RUN_ID": "a"}, {}, False),
        (
            {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "a"},
            {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "a", "torchrun": "the same"},
            True,
        ),
        (
            {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "a"},
            {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "b", "torchrun": "another"},
            False,
        ),
        (
            {"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "a"},
            {
                "SLURM_JOB_ID": "7",
                "TORCHELASTIC_RUN_ID": "b",
                "torchrun": "another",
                "SLURM_RESTART_COUNT": "1",
            },
            True,
        ),
    ],
)
def test_only_a_restart_is_of_the_job_that_made_the_run(
    ready: Mapping[str, str],
    now: Mapping[str, str],
    same: bool,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)

    def surrounded(by: Mapping[str, str]) -> None:
        for name, value in by.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(os, "getppid", lambda: 999 if by.get("torchrun") == "another" else 123)

    assert not is_of_this_job(run)
    surrounded(ready)
    write_manifest(run, {})
    for name in ready:
        monkeypatch.delenv(name)
    surrounded(now)
    assert is_of_this_job(run) == same


# --- the same run -----------------------------------------------------------------------------


@pytest.fixture
def started(run: Path, tiny_mapping: Mapping[str, Any]) -> Path:
    """A run directory with a tokenizer and a checkpoint."""
    write_config(run, config_of(tiny_mapping))
    (run / "tokenizer.model").write_bytes(b"")
    (run / "checkpoints" / "step-00000001").mkdir(parents=True)
    return run


def test_the_same_config_goes_on_silently(
    started: Path, tiny_mapping: Mapping[str, Any], run: Path
) -> None:
    assert check_same_run(started, config_of(tiny_mapping)) == []
    assert check_same_run(run / "new", config_of(tiny_mapping)) == []


def test_what_may_change_is_told(started: Path, tiny_mapping: Mapping[str, Any]) -> None:
    changed = config_of(tiny_mapping, train={"max_steps": 99}, batch={"tokens_per_update": 700})
    assert check_same_run(started, changed) == [
        "batch.tokens_per_update: was 500, now 700",
        "train.max_steps: was 8, now 99",
    ]


def test_dropouts_and_computed_positions_may_change(
    started: Path, tiny_mapping: Mapping[str, Any]
) -> None:
    """No weight has another shape or use by them; learned positions are weights."""
    dropouts = {
        "dropout": 0.3,
        "attention_dropout": 0.2,
        "activation_dropout": 0.0,
        "source_word_dropout": 0.1,
    }
    said = [
        "model.dropout: was 0.1, now 0.3",
        "model.attention_dropout: was 0.0, now 0.2",
        "model.activation_dropout: was None, now 0.0",
        "model.source_word_dropout: was 0.0, now 0.1",
    ]
    assert check_same_run(started, config_of(tiny_mapping, model=dropouts)) == said
    longer = config_of(tiny_mapping, model={"max_positions": 80})
    assert check_same_run(started, longer) == ["model.max_positions: was 64, now 80"]
    with pytest.raises(
        CheckpointError, match=r"\(model\.d_ff: was 64, now 128\)"
    ):  # the key that is at fault alone
        check_same_run(started, config_of(tiny_mapping, model={**dropouts, "d_ff": 128}))
    write_config(started, config_of(tiny_mapping, model={"positions": "learned"}))
    with pytest.raises(CheckpointError, match=r"\(model\.max_positions: was 64, now 80\)"):
        check_same_run(
            started, config_of(tiny_mapping, model={"positions": "learned", "max_positions": 80})
        )


def test_what_changes_neither_weights_nor_vocabulary_may_change(
    started: Path, tiny_mapping: Mapping[str, Any]
) -> None:
    changed = config_of(tiny_mapping, tokenizer={"sampling_alpha": 0.1})
    assert check_same_run(started, changed) == ["tokenizer.sampling_alpha: was None, now 0.1"]
    with pytest.raises(CheckpointError, match=r"\(tokenizer\.vocab_size: was 320, now 400\)"):
        check_same_run(
            started, config_of(tiny_mapping, tokenizer={"sampling_alpha": 0.1, "vocab_size": 400})
        )


def test_another_model_or_tokenizer_is_refused_with_every_key(
    started: Path, tiny_mapping: Mapping[str, Any]
) -> None:
    changed = config_of(
        tiny_mapping,
        model={"d_ff": 128, "norm": "post"},
        tokenizer={"vocab_size": 400},
        train={"max_steps": 9},
    )
    with pytest.raises(CheckpointError) as error:
        check_same_run(started, changed)
    assert str(error.value) == (
        f"run directory {started}: holds a run with another model or tokenizer, and weights cannot change their shape "
        "(tokenizer.vocab_size: was 320, now 400; model.d_ff: was 64, now 128; model.norm: was pre, now post); "
        "give another --run-dir, or --fresh to set that run aside"
    )


def test_what_was_not_made_yet_may_still_change(
    started: Path, tiny_mapping: Mapping[str, Any]
) -> None:
    """A run that was stopped before its first checkpoint, or before its tokenizer."""
    shutil.rmtree(started / "checkpoints" / "step-00000001")
    other_model = config_of(tiny_mapping, model={"d_ff": 128})
    assert check_same_run(started, other_model) == ["model.d_ff: was 64, now 128"]
    other_tokenizer = config_of(tiny_mapping, tokenizer={"vocab_size": 400})
    with pytest.raises(CheckpointError, match=r"tokenizer\.vocab_size: was 320, now 400"):
        check_same_run(started, other_tokenizer)
    (started / "tokenizer.model").unlink()
    assert check_same_run(started, other_tokenizer) == ["tokenizer.vocab_size: was 320, now 400"]


def test_the_manifest_tells_what_ran_where(run: Path) -> None:
    write_manifest(run, {"seed": 3, "data": {"a.de": {"lines": 5}}})
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["seed"] == 3
    assert manifest["data"] == {"a.de": {"lines": 5}}
    assert manifest["command"] == sys.argv
    assert manifest["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert manifest["packages"].keys() >= {"sentencepiece", "sacrebleu", "safetensors", "numpy"}
    assert manifest["processor"]
    assert manifest["cores"] == os.cpu_count()


# --- files that appear whole ------------------------------------------------------------------


def test_a_file_is_replaced_when_the_block_ends_well_and_only_then(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_whole(path, "früher")

    def fail() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text(encoding="utf-8") == "früher"
    assert os.listdir(tmp_path) == ["a"]
    with whole_file(path) as file:
        file.write(b"later")
        file.flush()
        assert path.read_text(encoding="utf-8") == "früher"
    assert path.read_bytes() == b"later"
    assert os.listdir(tmp_path) == ["a"]


def test_it_is_on_the_disk_before_it_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(files.os, "fsync", lambda _: done.append("flushed"))
    real = Path.replace
    monkeypatch.setattr(
        Path, "replace", lambda self, target: done.append("renamed") or real(self, target)
    )
    write_whole(tmp_path / "a", b"x")
    assert done == ["flushed", "renamed"]


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/a")
    write_whole(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "a").read_bytes() == b"x"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """As `-o >(gzip > out.gz)` and `-o /dev/null` need it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(fifo, b"through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert fifo.is_fifo()
    write_whole(Path(os.devnull), b"x")
    assert not Path(os.devnull).is_file()
