"""Numbers that are `auto`: chosen by the number of pairs, kept by a run."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import BLIND, MonkeyPatch, Mt, QuickConfig, equal_weights, log_of
from messages import says

from mt import api
from mt.config import settled as auto
from mt.config.load import load_config
from mt.config.settled import sizes_for
from mt.data.reading import check
from mt.data.tokens.tokenizer import Tokenizer
from mt.model.checkpoint import average_run, load_weights
from mt.runs.model_folder import checkpoints, open_model
from mt.runs.run_dir import read_settled
from mt.training import launch, settle
from mt.training.launch import train

AUTO: dict[str, Any] = {"tokenizer": {"vocab_size": "auto"}, "model": {"dropout": "auto"}}
NORMS = {"optim": {"weight_decay": "auto", "fix_norm": "auto"}}
SIZES = {2e3: (300, 0.4, 0.2, False, 2.0), 1e9: (310, 0.25, 0.1, True, 3.0)}


@pytest.mark.parametrize(
    ("n_pairs", "sizes"),
    [
        (0, (4_000, 0.3, 1.0, True, 60)),
        (5_000, (4_000, 0.3, 0.5, False, 60)),
        (10_000, (4_000, 0.3, 0.3, False, 38)),
        (19_999, (4_000, 0.3, 0.3, False, 38)),
        (20_000, (8_000, 0.3, 0.1, False, 36)),
        (29_000, (8_000, 0.3, 0.1, False, 36)),
        (40_000, (8_000, 0.2, 0.0, False, 19)),
        (99_999, (8_000, 0.2, 0.0, False, 19)),
        (161_323, (8_000, 0.1, 0.0, False, 10)),
        (200_000, (16_000, 0.1, 0.0, False, 10)),
        (4_500_000, (32_000, 0.1, 0.0, False, 5)),
    ],
)
def test_sizes_by_the_number_of_pairs(n_pairs: int, sizes: tuple[float, ...]) -> None:
    assert sizes_for(n_pairs) == sizes


@pytest.fixture(autouse=True)
def sizes_of_the_tiny_corpus(request: pytest.FixtureRequest, monkeypatch: MonkeyPatch) -> None:
    """It has 2,000 pairs."""
    if "n_pairs" not in request.fixturenames:
        monkeypatch.setattr(auto, "SIZES", SIZES)


def test_a_run_chooses_once_says_so_and_records_numbers(
    quick_config: QuickConfig, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """It is the run of those numbers, and resumes as it began, whatever the table says now."""
    given: dict[str, Any] = {"tokenizer": {"vocab_size": 310}, "model": {"dropout": 0.25}}
    given["optim"] = {"weight_decay": 0.1, "fix_norm": True}
    for name, values, epochs in (("auto", AUTO | NORMS, "auto"), ("given", given, 3)):
        length = {"max_steps": 1, "max_epochs": epochs}
        train(quick_config(BLIND, values, train=length), tmp_path / name, "cpu")
    one, other = tmp_path / "auto", tmp_path / "given"
    sizes = "vocab_size: auto is 310, model.dropout: auto is 0.25, optim.weight_decay: auto is 0.1"
    sizes += ", optim.fix_norm: auto is true, train.max_epochs: auto is 3, for 2,000 pairs\n"
    assert sizes in log_of(one)
    assert load_config(str(one / "config.yaml")).config.tokenizer.vocab_size == "auto"
    assert open_model(one).config == open_model(other).config
    average_run(one, 1, tmp_path / "mean")
    assert open_model(tmp_path / "mean").config == open_model(other).config
    settled = json.loads((one / "settled.json").read_text(encoding="utf-8"))
    by_key = [settled[name]["model.dropout"] for name in ("values", "reasons")]
    assert [*by_key, settled["updates"]] == [0.25, "for 2,000 pairs", 1]
    last = "checkpoints/step-00000001"
    assert equal_weights(load_weights(one / last), load_weights(other / last))

    monkeypatch.setattr(auto, "SIZES", {math.inf: (300, 0.4, 0.3, False, 9.0)})
    del settled["values"]["optim.weight_decay"]  # an earlier version had it in the config
    (one / "settled.json").write_text(json.dumps(settled), encoding="utf-8")
    assert vars(read_settled(one))["values"]["optim.weight_decay"] == 0.0
    config = (one / "config.yaml").read_text(encoding="utf-8")
    (one / "config.yaml").write_text(config.replace("weight_decay: auto", "weight_decay: 0.2"))
    length = {"max_steps": 2, "max_epochs": "auto"}
    train(quick_config(BLIND, AUTO | NORMS, train=length), one, "cpu")
    resumed = log_of(one).split("resuming")[0].rsplit("updates are done", 1)[1]
    assert says(resumed, "auto is 310", "auto is 0.25", "decay: auto is 0.2", "norm: auto is true")
    assert says(resumed, "auto is 3, since this run was started")
    assert not re.search("(dropout|decay|norm|epochs): was", log_of(one))


@pytest.mark.parametrize("stages", [None, [{"until": {"share": 0.2}, "both_directions": True}, {}]])
def test_a_training_takes_the_time_that_is_given(
    quick_config: QuickConfig, tmp_path: Path, monkeypatch: MonkeyPatch, stages: list[Any] | None
) -> None:
    """Nine tenths of the time have updates; a run that was started keeps its epochs."""
    monkeypatch.setattr(settle, "typical_update", lambda updater, plan, epoch: 100.0)
    wanted = 40
    values = {
        "data": {"stages": stages},
        "train": {"max_minutes": wanted * 100 / 60 / 0.9, "max_epochs": "auto", "max_steps": 99},
    }
    outcome = train(quick_config(BLIND, values), tmp_path, "cpu", dry_run=True)
    (updates,) = map(int, re.findall(r"updates to do +(\d+)", outcome.reason))
    assert wanted - 4 <= updates <= wanted  # of the first epoch's length; preparation takes some

    train(quick_config(BLIND, values), tmp_path, "cpu")
    told = log_of(tmp_path)
    ((epochs, minutes),) = re.findall(r"max_minutes: (\S+) epochs fit into (\S+) minutes", told)
    assert minutes == f"{wanted * 100 / 54:g}"
    assert says(told, "time: about 100.00 s an update")
    assert told.count("timing typical updates") == 1
    # Now more would fit. What was asked for is what a student takes over.
    monkeypatch.setattr(settle, "typical_update", lambda updater, plan, epoch: 1.0)
    train(quick_config(BLIND, values), tmp_path, "cpu")
    told = log_of(tmp_path).removeprefix(told)
    assert says(told, f"the run keeps {epochs} epochs", f"max_epochs: {epochs} epochs of", "done")
    assert open_model(tmp_path).config.train.epochs == 3
    assert vars(read_settled(tmp_path))["epochs"] == float(epochs)
    values["train"] |= {"max_epochs": 0.5}
    train(quick_config(BLIND, values), tmp_path, "cpu")
    assert says(log_of(tmp_path), "the run keeps max_epochs", "max_epochs: 0.5 epochs of")


def test_a_run_that_was_started_without_a_time_takes_what_is_given_later(
    quick_config: QuickConfig, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """The updates that are done count as well; then the run keeps its length."""
    monkeypatch.setattr(settle, "typical_update", lambda updater, plan, epoch: 100.0)
    length: dict[str, Any] = {"max_epochs": 9, "max_steps": 12}
    train(quick_config(BLIND, train=length), tmp_path, "cpu")
    length = {"max_epochs": 9, "max_steps": 999, "max_minutes": 10 * 100 / 60 / 0.9}
    train(quick_config(BLIND, train=length), tmp_path, "cpu")
    assert checkpoints(tmp_path)[-1].name in ("step-00000021", "step-00000022")
    again = train(quick_config(BLIND, train=length | {"max_minutes": 9e9}), tmp_path, "cpu")
    assert again.reason.startswith("all 2")
    assert says(log_of(tmp_path), "fit into", "the run keeps", "no update is left to do")
    shutil.rmtree(tmp_path / "checkpoints")  # as in a run that was killed before the first one
    train(quick_config(BLIND, train=length), tmp_path, "cpu")
    assert log_of(tmp_path).count("fit into") == 2
    shutil.rmtree(tmp_path / "checkpoints")
    other = {"train": {"src": "test.src", "tgt": "test.tgt"}}
    train(quick_config(BLIND, train=length, data=other), tmp_path, "cpu")
    assert says(log_of(tmp_path), "data.train: was", "the tokenizer stays", "--fresh")


def test_time_that_is_too_short_or_longer_than_needed(
    mt: Mt, tiny_config: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """Nothing makes a training longer than its config says. Reading the data is a part of it."""
    command = ["train", "-c", tiny_config, "--run-dir", tmp_path / "run", "--dry-run"]
    for option, value, fragments in (
        ("--time", "90m", ("--time", "train.max_minutes")),
        ("--set", "train.max_minutes=1e-4", ("train.max_minutes", "no time", "0.0001", "raise it")),
    ):
        ended = mt(*command, option, value)
        assert ended.code == 2
        assert says(ended.err, *fragments)
    clock, passed = time.perf_counter, [0]

    def slow(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            passed[0] += 600
            return call(*arguments)

        return called

    # Loading torch comes after the first of them.
    for owner, name in ((launch, "check_data"), (api, "load_for_training")):
        with monkeypatch.context() as patch:
            passed[0] = 0
            patch.setattr(time, "perf_counter", lambda: clock() + passed[0])
            patch.setattr(owner, name, slow(getattr(owner, name)))
            ended = mt(*command, "--set", "train.max_minutes=11")
        assert ended.code == 2
        assert says(ended.err, "no time", "found 11", "the data took 10.", "minutes to prepare")
    # Epochs would move the ends of stages, where it is the updates that end the training.
    ended = mt(*command, "--set", "train.max_minutes=6000", "--set", "train.max_steps=9")
    assert ended.code == 0
    assert "epochs fit" not in ended.err
    ended = mt(*command, "--set", "train.max_minutes=6000", "--set", "train.max_epochs=0.5")
    assert "epochs fit" not in ended.err
    assert "0.5 epochs of" in ended.err


def test_a_vocabulary_that_is_kept_has_its_size(
    quick_config: QuickConfig, tiny_run: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """No sample is drawn of the text then, and all of it is counted all the same."""
    monkeypatch.setattr(check, "MAX_PAIRS_BEFORE_TRAINING", 500)
    start = {"init_from": str(tiny_run), "max_steps": 1}
    train(quick_config(BLIND, AUTO | NORMS, train=start), tmp_path, "cpu")
    recorded = open_model(tmp_path).config
    assert (recorded.tokenizer.vocab_size, recorded.model.dropout) == (320, 0.25)
    assert recorded.optim.weight_decay == recorded.optim.fix_norm == 0  # not of learnt weights
    off = "decay: auto is 0, optim.fix_norm: auto is false, with train.init_from\n"
    same, by_pairs = f"auto is 320, as in {tiny_run}\n", "is 0.25, for 2,000 pairs\n"
    assert says(log_of(tmp_path), same, by_pairs, off)


def test_commands_without_training(mt: Mt, tiny_config: Path, tmp_path: Path) -> None:
    """mt tokenizer train counts what it reads; mt inspect reads no data, and says what it takes."""
    sets = ["--set", "tokenizer.vocab_size=auto", "--set", "model.dropout=auto"]
    command = ["tokenizer", "train", "-c", tiny_config, *sets, "--set", "data.clean={}"]
    ended = mt(*command, "-o", tmp_path / "a.model")
    assert says(ended.err, "data.clean: not applied", "auto is 310", "2,000 pairs", "310 tokens")
    command += ["--set", "data.language_tokens=true"]
    given = mt(*command, "--set", "tokenizer.vocab_size=400", "-o", tmp_path / "c.model")
    assert "2,000 pairs" not in given.err
    assert "<2en>" in Tokenizer((tmp_path / "c.model").read_bytes()).src.all_pieces()
    files = [tiny_config.parent / f"lines.{side}" for side in ("de", "en")]
    for file in files:
        file.write_text("eins zwei drei vier\n" * 1_500, encoding="utf-8")
    ended = mt(*command, *files, "-o", tmp_path / "b.model")
    assert says(ended.err, "auto is 300", "1,500 pairs")
    assert "data.clean" not in ended.err
    ended = mt("inspect", "model", "-c", tiny_config, *sets)
    assert says(ended.err, "auto is 310", "auto is 0.25", "100,000 pairs", "mt train counts")
    assert "V 310," in ended.lines[0]
