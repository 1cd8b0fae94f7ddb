"""`mt train --dry-run` says what a training would be, and changes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    NO_TEST,
    Mt,
    refused,
)
from test_batch_size import auto_is

from mt.config.schema import Config
from mt.training import dry_run
from mt.training.launch import train


def train_command(config: Path, run_dir: Path) -> list[object]:
    """Arguments of `mt` that train on the CPU."""
    return ["train", "-c", config, "--run-dir", run_dir, "--device", "cpu"]


def test_a_dry_run_says_what_a_run_would_be(
    tiny_config: Path, tiny_corpus: Path, tmp_path: Path, mt: Mt
) -> None:
    run = tmp_path / "run"
    command = train_command(tiny_config, run)
    ended = mt(*command, "--dry-run")
    assert ended.code == 0
    report = dict(re.split(r"  +", line, maxsplit=1) for line in ended.lines)
    words = sum(
        len(line.split())
        for line in (tiny_corpus / "train.tgt").read_text(encoding="utf-8").splitlines()
    )
    assert report["pairs"] == "2,000, 2,000 of them drawn for an epoch"
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
    assert re.fullmatch(
        r"0:00:0\d at \d\.\d\d s an update, validations not counted", report["time"]
    )
    assert list(tmp_path.iterdir()) == []
    assert mt(*command).code == 0
    assert mt(*command, "--dry-run").lines[5].endswith(" 0, 0.0 epochs")


def content(folder: Path) -> dict[Path, bytes | str]:
    """What every file holds and every link names."""
    return {
        path: os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        (["--set", "train.max_steps=9"], "1, "),
        # Other pairs, so another store and another plan; and a batch that is measured.
        (
            [
                "--set",
                "data.max_tokens=5",
                "--set",
                "batch.tokens_per_batch=auto",
                "--set",
                "optim.peak_lr=0.5",
            ],
            "0, ",
        ),
        (["--set", "tokenizer.vocab_size=300", "--set", "model.d_ff=32", "--fresh"], "8, "),
    ],
    ids=["more", "other-data", "fresh"],
)
def test_a_dry_run_leaves_a_run_as_it_is(
    settings: list[str], left: str, tiny_config: Path, tmp_path: Path, mt: Mt
) -> None:
    run = tmp_path / "run"
    command = [*train_command(tiny_config, run), "--set", "data.test=null"]
    assert mt(*command).code == 0
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 9, "nll": 1}\n')  # as a crash leaves it
    (run / "checkpoints" / ".step-00000009.partial").mkdir()
    (run / "checkpoints" / ".step-00000009.partial" / "state.pt").write_bytes(b"half")
    before = content(tmp_path)
    ended = mt(*command, *settings, "--dry-run")
    assert ended.code == 0
    assert re.search(rf"^updates to do +{left}", ended.out.decode(), re.MULTILINE)
    assert content(tmp_path) == before
    assert sorted(path.name for path in run.iterdir()) == [
        ".lock", "checkpoints", "config.yaml", "manifest.json", "metrics.jsonl", "outputs",
        "samples", "store", "tokenizer.model", "train.log",
    ]  # fmt: skip


def test_a_dry_run_fails_where_a_start_would(tiny_config: Path, tmp_path: Path, mt: Mt) -> None:
    """In the same words, about the same folder."""
    run = tmp_path / "run"
    command = [*train_command(tiny_config, run), "--set", "data.test=null"]
    assert mt(*command, "--set", "train.max_steps=1", "--set", "data.valid=null").code == 0
    other = [*command, "--set", "tokenizer.vocab_size=300"]
    before = content(tmp_path)
    said = refused(mt(*other, "--dry-run"))
    assert said.startswith(f"run directory {run}: holds a run with another model or tokenizer")
    assert said == refused(mt(*other))
    assert content(tmp_path) == before
    assert ".dry-run" not in " ".join(os.listdir(run))
    below = ["--run-dir", run / "config.yaml" / "x"]
    assert refused(mt(*other, *below, "--dry-run")).startswith(
        f"run directory {below[1]}: must be a folder that can be written, but Not a directory"
    )


def test_a_dry_run_does_not_affect_a_later_start(
    quick_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `auto` is on the machine of a dry run says nothing about that of the run."""
    numbers = iter([400, 600])
    monkeypatch.setattr("mt.training.batch_size.fitting_batch", lambda *_: next(numbers))
    auto = {"tokens_per_update": 1000, "tokens_per_batch": "auto"}
    config = quick_config(NO_TEST, batch=auto, data={"valid": None}, train={"max_steps": 1})
    train(config, tmp_path / "run", "cpu", dry_run=True)
    train(
        quick_config(NO_TEST, tokenizer={"vocab_size": 300}), tmp_path / "run", "cpu", dry_run=True
    )
    assert list(tmp_path.iterdir()) == []
    train(config, tmp_path / "run", "cpu")
    assert auto_is(tmp_path / "run") == 600


def test_a_dry_run_says_what_it_does_and_times_no_slow_update(
    tiny_config: Path, tmp_path: Path, mt: Mt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update counts as slow from 0 s on here; then the preflight's two batches are enough."""

    def timed(*_: Any) -> float:
        pytest.fail("a whole update is run")

    monkeypatch.setattr(dry_run, "QUICK_SECONDS", 0.0)
    monkeypatch.setattr(dry_run, "time_updates", timed)
    ended = mt("train", "-c", tiny_config, "--run-dir", tmp_path, "--device", "cpu", "--dry-run")
    assert ended.code == 0
    assert re.search(r"^time +0:00:\d\d at \d+\.\d\d s an update", ended.out.decode(), re.MULTILINE)
    steps = (
        "tokenizer: training 320 tokens",
        "encoding into the token store",
        "preflight: a batch",
    )
    places = [ended.err.index(step) for step in steps]
    assert places == sorted(places)
