"""The log of a run: lines, bar, metrics; and what of them survives a crash."""

from __future__ import annotations

import io
import json
import math
import re
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import NO_TEST, QUICK, Mapped, MonkeyPatch, config_of, lines_of, log_of, metrics_of

from mt import terminal
from mt.runs.records import valid_output_steps, valid_path, write_sentences
from mt.runtime.distributed import World
from mt.training import runlog
from mt.training.launch import train
from mt.training.runlog import Meter, RunLog, format_duration
from mt.training.trainer import Trainer


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


# --- lines and bar ----------------------------------------------------------------------------


def test_lines_go_to_stderr_and_the_log(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLog(run_dir, 10) as log:
        log.say("Übung macht den Meister")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(" Übung macht den Meister\n")
    with RunLog(run_dir, 10) as log:
        log.say("second")
    said = [line[20:] for line in lines_of(run_dir / "train.log")]
    assert said == ["Übung macht den Meister", "second"]
    assert capsys.readouterr().err.count("second") == 1


def test_each_line_of_a_message_has_the_time_and_no_escape_sequence(run_dir: Path) -> None:
    with RunLog(run_dir, 1) as log:
        log.say("no \x1b[31mfile\nremedy")
    lines = log_of(run_dir).splitlines()
    said = [re.sub(r"^2\d{3}-\d\d-\d\d [\d:]{8} ", "", line) for line in lines]
    assert said == ["no ␛[31mfile", "remedy"]


def test_only_a_terminal_shows_a_bar(run_dir: Path, monkeypatch: MonkeyPatch) -> None:
    shown = {}
    for kind in (io.StringIO, Terminal):
        stderr = kind()
        monkeypatch.setattr(sys, "stderr", stderr)
        with RunLog(run_dir, 100) as log:
            log.progress(40, nll="3.210")
            log.say("a line beside the bar")
        shown[kind] = stderr.getvalue()
    assert "40/100" in shown[Terminal]
    assert "nll=3.210" in shown[Terminal]
    assert "a line beside the bar" in shown[Terminal]
    assert "100" not in shown[io.StringIO].replace("a line", "").split(" beside")[1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_shows_loss_bleu_and_the_time_left_of_the_log(
    tiny_mapping: Mapped, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """One update takes a second by this estimate: 4 are left after 4, 0 after 8."""
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    # Drawn at every update, however fast they are.
    monkeypatch.setattr(runlog, "tqdm", partial(runlog.tqdm, mininterval=0, miniters=1))
    monkeypatch.setattr(
        Trainer, "_seconds_left", lambda self: self.config.train.max_steps - self.state.step
    )
    train(config_of(tiny_mapping, QUICK, NO_TEST), tmp_path, "cpu")
    shown = stderr.getvalue()
    bleu = [f"{line['bleu']:.2f}" for line in metrics_of(tmp_path, "valid")]
    assert f"left=0:00:04, nll={metrics_of(tmp_path, 'train')[0]['nll']:.3f}, tok/s=" in shown
    assert re.search(rf"5/8 \[.*left=0:00:04.*BLEU={bleu[0]}", shown)
    assert " | 0:00:04 left\n" in log_of(tmp_path)


def test_reading_is_shown_by_a_bar_or_by_lines(run_dir: Path, monkeypatch: MonkeyPatch) -> None:
    """Without a terminal a line a minute; a message stands above the bar."""
    monkeypatch.setattr(terminal, "SECONDS_BETWEEN_LINES", 0.0)
    with RunLog(run_dir, 10) as log:
        assert list(log.watch(range(2500), "reading data.train")) == list(range(2500))
        assert list(log.watch("abc", "encoding", total=3)) == ["a", "b", "c"]
    lines = [line[20:] for line in lines_of(run_dir / "train.log")]
    assert [line.split(" pairs, ")[0] for line in lines] == [
        "reading data.train: 0", "reading data.train: 1,000", "reading data.train: 2,000",
        "encoding: 0 of 3",
    ]  # fmt: skip
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr("tqdm.tqdm", partial(runlog.tqdm, mininterval=0))
    with RunLog(run_dir, 10) as log:
        for number in log.watch(range(3), "encoding data.train", 3):
            time.sleep(1.1 if number == 0 else 0)
            log.say(f"line {number}")
        log.progress(1)
    shown = stderr.getvalue()
    assert "encoding data.train:  67%" in shown
    assert shown.count("line 1\n") == 1
    assert "1/10" in shown


def test_a_gone_terminal_or_full_disk_is_survived(run_dir: Path, monkeypatch: MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    with RunLog(run_dir, 10) as log:
        log.say("only the file takes it")
    assert len(lines_of(run_dir / "train.log")) == 1
    (run_dir / "train.log").unlink()
    (run_dir / "train.log").symlink_to("/dev/full")
    with RunLog(run_dir, 10) as log:
        log.say("nothing takes it")


# --- metrics.jsonl ----------------------------------------------------------------------------


def test_each_record_is_a_line_of_json(run_dir: Path) -> None:
    log = RunLog(run_dir, 10)
    log.record("train", 5, nll=1.5, name="Straße")
    log.record("valid", 5, nll=math.nan, grad_norm=math.inf)
    text = (run_dir / "metrics.jsonl").read_text(encoding="utf-8")
    assert "Straße" in text
    assert "NaN" not in text  # which only some readers of JSON take
    assert [json.loads(line) for line in text.splitlines()] == [
        {"kind": "train", "step": 5, "nll": 1.5, "name": "Straße"},
        {"kind": "valid", "step": 5, "nll": None, "grad_norm": None},
    ]


def test_metrics_that_will_be_recorded_again_are_dropped(run_dir: Path) -> None:
    """Those of later updates, with outputs, and a line that a crash cut short."""
    log = RunLog(run_dir, 10)
    log.drop_after(4)  # no file yet
    for kind, step in (("train", 2), ("train", 4), ("valid", 4), ("train", 5), ("valid", 6)):
        log.record(kind, step)
        write_sentences(valid_path(run_dir, step), [])
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    log.drop_after(4)
    kept = [(line["kind"], line["step"]) for line in metrics_of(run_dir)]
    assert kept == [("train", 2), ("train", 4), ("valid", 4)]
    assert valid_output_steps(run_dir) == [2, 4]
    log.drop_after(0)
    assert (run_dir / "metrics.jsonl").read_text() == ""


# --- figures ----------------------------------------------------------------------------------


def update(n_src: int, n_tgt: int, n_padded: int) -> Any:
    batch = SimpleNamespace(n_src=n_src, n_tgt=n_tgt, n_padded=n_padded)
    return SimpleNamespace(batches=[batch], n_tgt=n_tgt)


def test_means_over_two_updates() -> None:
    """10 and 30 target tokens: nll (10 x 2 + 30 x 4) / 40 = 3.5, padding 1 - 80 / 100."""
    meter = Meter(SimpleNamespace(waited=0.0), World())  # type: ignore[arg-type]
    meter.add(update(10, 10, 30), torch.tensor(5.0), torch.tensor(2.0), torch.tensor(1.0))
    meter.add(update(30, 30, 70), torch.tensor(5.0), torch.tensor(4.0), torch.tensor(2.0))
    figures = meter.figures()
    assert (figures["loss"], figures["nll"]) == (5.0, 3.5)
    assert figures["perplexity"] == pytest.approx(math.exp(3.5))
    assert figures["grad_norm"] == 1.5
    assert figures["padding"] == pytest.approx(0.2)
    assert figures["skipped"] == 0


def test_an_update_with_a_non_finite_gradient_counts_as_skipped_only() -> None:
    meter = Meter(SimpleNamespace(waited=0.0), World())  # type: ignore[arg-type]
    meter.add(update(10, 10, 30), torch.tensor(5.0), torch.tensor(2.0), torch.tensor(1.0))
    meter.add(update(30, 30, 70), torch.tensor(5.0), torch.tensor(math.nan), torch.tensor(math.inf))
    figures = meter.figures()
    assert (figures["nll"], figures["grad_norm"], figures["skipped"]) == (2.0, 1.0, 1)
    meter.reset()
    meter.add(update(30, 30, 70), torch.tensor(5.0), torch.tensor(1.0), torch.tensor(math.nan))
    figures = meter.figures()
    assert math.isnan(figures["nll"])
    assert math.isnan(figures["perplexity"])
    assert figures["skipped"] == 1


def test_speed_and_waiting_are_relative_to_the_interval(monkeypatch: MonkeyPatch) -> None:
    now = [100.0]
    prefetcher = SimpleNamespace(waited=5.0)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    meter = Meter(prefetcher, World())  # type: ignore[arg-type]
    now[0] = 104.0
    prefetcher.waited = 6.0
    meter.add(update(10, 200, 300), torch.tensor(5.0), torch.tensor(2.0), torch.tensor(1.0))
    figures = meter.figures()
    assert (figures["tokens_per_second"], figures["waiting"]) == (50.0, 0.25)
    meter.exclude(2.0)  # a validation
    assert meter.figures()["tokens_per_second"] == 100.0


def test_a_long_duration_is_told_in_days() -> None:
    durations = [format_duration(seconds) for seconds in (3_725, 2 * 86_400, 10 * 86_400)]
    assert durations == ["1:02:05", "48:00:00", "10 days"]
