"""What is tried before the long way begins, a dry run, and a batch as large as the memory."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import Mt, merged, refused

from mt.config.load import config_from_mapping, load_config
from mt.config.schema import Config
from mt.data.batches import Batch, collate
from mt.decoding.translate import Translator
from mt.errors import ConfigError
from mt.model import checkpoint
from mt.runtime import memory as process_memory
from mt.training import batch_size, launch, preflight, update
from mt.training.launch import train
from mt.training.trainer import Outcome, Trainer
from mt.training.update import Updater

Mapped = Mapping[str, Mapping[str, Any]]


def full(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


@pytest.fixture
def config_of(tiny_mapping: Mapped) -> Callable[..., Config]:
    def made(**sections: Any) -> Config:
        return config_from_mapping(
            merged(merged(tiny_mapping, {"data": {"test": []}}), sections), "test"
        )

    return made


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Batch]]:
    """What the model is given, and by whom: ("rehearse" or "learn", batch)."""
    seen: list[tuple[str, Batch]] = []
    real = update.batch_loss
    now = ["learn"]

    def watched(forward: Any, output: Any, batch: Batch, *arguments: Any) -> Any:
        seen.append((now[0], batch))
        return real(forward, output, batch, *arguments)

    def run_preflight(self: Updater, batch: Batch) -> None:
        now[0] = "rehearse"
        original(self, batch)
        now[0] = "learn"

    original = Updater.dry_run_step
    monkeypatch.setattr(update, "batch_loss", watched)
    monkeypatch.setattr(Updater, "dry_run_step", run_preflight)
    return seen


def test_the_largest_and_the_longest_batch_come_first(
    config_of: Callable[..., Config], batches: list[tuple[str, Batch]], tmp_path: Path
) -> None:
    """And one search, before the first update."""
    config = config_of(train={"max_steps": 12, "valid_every": 99})
    assert train(config, tmp_path, "cpu").exit_code == 0
    (first, largest), (second, longest), *rest = batches
    assert first == second == "rehearse"
    assert {who for who, _ in rest} == {"learn"}
    assert largest.src.shape[0] * max(largest.src.shape[1], largest.tgt_in.shape[1]) >= max(
        batch.src.shape[0] * max(batch.src.shape[1], batch.tgt_in.shape[1]) for _, batch in rest
    )
    assert max(longest.src.shape[1], longest.tgt_in.shape[1]) >= max(
        max(batch.src.shape[1], batch.tgt_in.shape[1]) for _, batch in rest
    )
    said = re.search(
        r"preflight passed: (\d+) sentences of up to (\d+) tokens: [\d,]+ MB\n",
        (tmp_path / "train.log").read_text(),
    )
    assert said
    assert int(said[1]) == largest.src.shape[0]


def test_a_rehearsal_changes_nothing(
    config_of: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without one the weights are the same, bit for bit."""
    config = config_of(train={"max_steps": 4})
    train(config, tmp_path / "with", "cpu")
    monkeypatch.setattr(launch, "run_preflight", lambda *_: None)
    train(config, tmp_path / "without", "cpu")
    one, other = (
        checkpoint.load_weights(tmp_path / name / "checkpoints" / "last")
        for name in ("with", "without")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_search_that_fails_is_found_before_the_first_update(
    config_of: Callable[..., Config],
    batches: list[tuple[str, Batch]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Translator, "translate", full)
    with pytest.raises(
        ConfigError,
        match=r"^decode: translating data.valid or data.test does not fit into the memory of CPU in fp32, 1 thread: "
        r"[\d,]+ MB were in use. Lower decode.beam_size or decode.max_len_factor, or choose a smaller model$",
    ):
        train(config_of(), tmp_path, "cpu")
    assert [who for who, _ in batches] == ["rehearse", "rehearse"]


def test_a_model_that_does_not_fit_is_told(
    config_of: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Updater, "__init__", full)
    with pytest.raises(
        ConfigError, match=r"the memory of CPU in fp32, 1 thread is too small: .* a smaller model$"
    ):
        train(config_of(), tmp_path, "cpu")


# --- a dry run --------------------------------------------------------------------------------


def test_a_dry_run_says_what_a_run_would_be(
    tiny_config: Path, tiny_corpus: Path, tmp_path: Path, mt: Mt
) -> None:
    run = tmp_path / "run"
    command = ["train", "-c", tiny_config, "--run-dir", run, "--device", "cpu"]
    ended = mt(*command, "--dry-run")
    assert ended.code == 0
    told = dict(re.split(r"  +", line, maxsplit=1) for line in ended.lines)
    words = sum(
        len(line.split())
        for line in (tiny_corpus / "train.tgt").read_text(encoding="utf-8").splitlines()
    )
    assert told["pairs"] == "2,000, 2,000 of them drawn for an epoch"
    tokens = re.fullmatch(r"[\d,]+ source, ([\d,]+) target", told["tokens per epoch"])
    assert tokens
    assert int(tokens[1].replace(",", "")) >= words + 2000  # each line has its eos
    updates = re.fullmatch(r"(\d+), of ([\d,]+) target tokens each", told["updates per epoch"])
    assert updates
    assert int(updates[1]) == round(int(tokens[1].replace(",", "")) / 500)
    assert told["updates to do"] == f"8, {8 / int(updates[1]):.1f} epochs"
    assert told["vocabulary"] == "320"
    assert re.fullmatch(
        r"\d+ sentences of up to \d+ tokens: [\d,]+ MB, on CPU in fp32, 1 thread",
        told["largest batch"],
    )
    assert re.fullmatch(r"0:00:0\d at \d\.\d\d s an update, validations not counted", told["time"])
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
    command = [
        "train",
        "-c",
        tiny_config,
        "--run-dir",
        run,
        "--device",
        "cpu",
        "--set",
        "data.test=null",
    ]
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
        ".lock", "checkpoints", "config.yaml", "manifest.json", "metrics.jsonl", "samples", "store",
        "tokenizer.model", "train.log",
    ]  # fmt: skip


def test_a_dry_run_is_refused_what_a_start_is(tiny_config: Path, tmp_path: Path, mt: Mt) -> None:
    """In the same words, about the same folder."""
    run = tmp_path / "run"
    command = [
        "train",
        "-c",
        tiny_config,
        "--run-dir",
        run,
        "--device",
        "cpu",
        "--set",
        "data.test=null",
    ]
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


def test_dry_runs_with_other_settings_are_in_nobodys_way(
    config_of: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `auto` is on the machine of a dry run says nothing about that of the run."""
    numbers = iter([400, 600])
    monkeypatch.setattr("mt.training.batch_size.fitting_batch", lambda *_: next(numbers))
    auto = {"tokens_per_update": 1000, "tokens_per_batch": "auto"}
    config = config_of(batch=auto, data={"valid": None}, train={"max_steps": 1})
    train(config, tmp_path / "run", "cpu", dry_run=True)
    train(config_of(tokenizer={"vocab_size": 300}), tmp_path / "run", "cpu", dry_run=True)
    assert list(tmp_path.iterdir()) == []
    train(config, tmp_path / "run", "cpu")
    assert auto_is(tmp_path / "run") == 600


# --- as much as fits --------------------------------------------------------------------------


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A device on which a batch takes 100 MB and 0.1 MB a token, and which has `memory["room"]` MB."""
    state = {"room": 300.0, "peak": 0.0, "largest": 0.0}

    def run_preflight(_: Updater, batch: Batch) -> None:
        state["peak"] = 100 + 0.1 * batch.tgt_in.numel()
        state["largest"] = max(state["largest"], state["peak"])
        if state["peak"] > state["room"]:
            raise ConfigError("out of memory")

    monkeypatch.setattr(Updater, "dry_run_step", run_preflight)
    monkeypatch.setattr(batch_size, "available_memory_mb", lambda _: state["room"])
    monkeypatch.setattr(batch_size, "peak_memory_mb", lambda _: state["peak"])
    return state


AUTO = {"tokens_per_update": 100_000, "tokens_per_batch": "auto"}


def auto_is(run: Path, where: str = "here") -> int:
    """What the log says last."""
    said = re.findall(
        rf"batch\.tokens_per_batch: auto is ([\d,]+) {where}\n", (run / "train.log").read_text()
    )
    return int(said[-1].replace(",", ""))


def test_auto_takes_what_leaves_a_margin(
    config_of: Callable[..., Config],
    memory: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """0.85 x 3000 MB less the moments of the model, less 100: so many tokens at 0.1 MB; whole sentences of them."""
    monkeypatch.setattr(Trainer, "train", lambda _: Outcome("", 0, None))
    memory["room"] = 3000.0
    train(config_of(batch=AUTO, data={"valid": None}), tmp_path, "cpu")
    tokens = auto_is(tmp_path)
    assert 0.98 * 24_400 < tokens <= 24_500


def test_auto_takes_no_more_than_an_update(
    config_of: Callable[..., Config],
    memory: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Trainer, "train", lambda _: Outcome("", 0, None))
    memory["room"] = 1e6
    train(
        config_of(batch={**AUTO, "tokens_per_update": 5000}, data={"valid": None}), tmp_path, "cpu"
    )
    tokens = auto_is(tmp_path)
    assert 4900 < tokens <= 5000


def test_a_resumed_run_keeps_what_auto_was(
    config_of: Callable[..., Config], tmp_path: Path
) -> None:
    """On a machine with another memory it would be another number, and the plan of the epoch another plan."""
    changes: dict[str, Any] = {
        "batch": {"tokens_per_update": 500, "tokens_per_batch": "auto"},
        "data": {"valid": None},
    }
    train(config_of(**changes, train={"max_steps": 3}), tmp_path, "cpu")
    tokens = auto_is(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "mt.training.batch_size.fitting_batch", lambda *_: pytest.fail("measured again")
        )
        train(config_of(**changes, train={"max_steps": 6}), tmp_path, "cpu")
    log = (tmp_path / "train.log").read_text()
    assert "new epoch" not in log
    assert "config changed since this run was started: train.max_steps: was 3, now 6\n" in log
    assert "tokens_per_batch: was" not in log
    assert auto_is(tmp_path, "since this run was started") == tokens
    assert load_config(str(tmp_path / "config.yaml")).config.batch.tokens_per_batch == "auto"
    assert (
        checkpoint.read_meta(tmp_path / "checkpoints" / "last", [])["config"]["batch"][
            "tokens_per_batch"
        ]
        == tokens
    )


def test_auto_replaces_a_number_that_was_given(
    config_of: Callable[..., Config], tmp_path: Path
) -> None:
    """In a run that has learned with it, and in one that it has let fail."""

    def start(run: str, steps: int, tokens: int | str) -> str:
        batch = {"tokens_per_update": 1000, "tokens_per_batch": tokens}
        train(
            config_of(batch=batch, data={"valid": None}, train={"max_steps": steps}),
            tmp_path / run,
            "cpu",
        )
        return (tmp_path / run / "train.log").read_text()

    start("learned", 2, 500)
    log = start("learned", 3, "auto")
    assert (
        "config changed since this run was started: batch.tokens_per_batch: was 500, now auto\n"
        in log
    )
    assert 900 < auto_is(tmp_path / "learned") <= 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update, "batch_loss", full)
        with pytest.raises(ConfigError, match=r"Lower it from 500 \(.*\), or set it to auto$"):
            start("failed", 2, 500)
    start("failed", 2, "auto")
    assert 900 < auto_is(tmp_path / "failed") <= 1000


def test_what_auto_was_is_kept_only_if_it_fitted(
    config_of: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was measured, and then the rehearsal failed: what to do is another thing, and a new start measures anew."""
    config = config_of(
        batch={**AUTO, "tokens_per_update": 1000}, data={"valid": None}, train={"max_steps": 1}
    )
    numbers = iter([800, 700])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mt.training.batch_size.fitting_batch", lambda *_: next(numbers))
        patch.setattr(update, "batch_loss", full)
        with pytest.raises(ConfigError) as error:
            train(config, tmp_path, "cpu")
        said = re.search(
            r"a batch of (\d+) sentences, (\d+) source and (\d+) target tokens long, does not fit .* were in use\. "
            r"Replace auto with a number below (\d+) \(tokens_per_update keeps the training the same\)$",
            str(error.value),
        )
        assert said
        rows, src, tgt, most = map(int, said.groups())
        assert most == rows * max(src, tgt) <= 800
        patch.undo()
        patch.setattr("mt.training.batch_size.fitting_batch", lambda *_: next(numbers))
        train(config, tmp_path, "cpu")
    assert auto_is(tmp_path) == 700


def test_auto_shrinks_below_its_first_probes(
    config_of: Callable[..., Config],
    memory: dict[str, float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 100 MB and 0.1 MB a token, with about 800 tokens, and 1,800, in what the device has."""
    monkeypatch.setattr(Trainer, "train", lambda _: Outcome("", 0, None))
    for room in (180.0, 280.0):
        memory["room"] = room
        monkeypatch.setattr(launch, "run_preflight", lambda *_: None)
        train(config_of(batch=AUTO, data={"valid": None}), tmp_path / str(room), "cpu")
        most = (0.85 * room - 100) / 0.1
        assert 0.8 * most - 20 <= auto_is(tmp_path / str(room)) <= most


@pytest.mark.parametrize("tokens", ["auto", 500])
def test_a_sentence_that_does_not_fit_is_no_matter_of_the_batch(
    tokens: str | int,
    config_of: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(update, "batch_loss", full)
    data = {"valid": None, "max_tokens": 32}
    if tokens == 500:  # batches of one
        monkeypatch.setattr(preflight, "collate", lambda pairs: collate(pairs[:1]))
    with pytest.raises(ConfigError) as error:
        train(config_of(batch={"tokens_per_batch": tokens}, data=data), tmp_path, "cpu")
    assert re.fullmatch(
        r"batch\.tokens_per_batch: one sentence, \d+ source and \d+ target tokens long, does not fit into the memory "
        r"of CPU in fp32, 1 thread: [\d,]+ MB were in use\. Lower data\.max_tokens, or choose a smaller model",
        str(error.value),
    )


def test_the_memory_of_a_real_batch_is_measured(
    config_of: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a room of so many MB more than the process has, the batch that is found stays inside."""
    monkeypatch.setattr(Trainer, "train", lambda _: Outcome("", 0, None))
    cpu = torch.device("cpu")
    asked: list[float] = []

    def available(_: torch.device) -> float:
        process_memory.reset_peak_memory(cpu)
        asked.append(process_memory.peak_memory_mb(cpu) + 400)
        return asked[-1] / (1 - batch_size.MARGIN)

    monkeypatch.setattr(batch_size, "available_memory_mb", available)
    train(
        config_of(batch={**AUTO, "tokens_per_update": 10**7}, data={"valid": None}), tmp_path, "cpu"
    )
    tokens = auto_is(tmp_path)
    assert 2000 < tokens < 10**6
    process_memory.reset_peak_memory(cpu)
    config = config_of(
        batch={"tokens_per_update": 10**7, "tokens_per_batch": tokens}, data={"valid": None}
    )
    train(config, tmp_path, "cpu")  # rehearses with its largest batch
    assert process_memory.peak_memory_mb(cpu) < asked[0] + 200


def test_what_tokens_per_batch_can_be_is_said(tiny_config: Path, tmp_path: Path, mt: Mt) -> None:
    for value in ("0", "true", "automatic"):
        command = [
            "train",
            "-c",
            tiny_config,
            "--run-dir",
            tmp_path,
            "--set",
            f"batch.tokens_per_batch={value}",
        ]
        assert "batch.tokens_per_batch: must be auto or a whole number from 1, found" in refused(
            mt(*command)
        )


def test_a_config_keeps_auto(tiny_mapping: Mapped, tmp_path: Path) -> None:
    path = tmp_path / "auto.yaml"
    path.write_text(
        yaml.safe_dump(merged(tiny_mapping, {"batch": {"tokens_per_batch": "auto"}})),
        encoding="utf-8",
    )
    config = load_config(str(path)).config
    assert config.batch.tokens_per_batch == "auto"
    again = tmp_path / "again.yaml"
    again.write_text(config.to_yaml(), encoding="utf-8")
    assert load_config(str(again)).config == config
    assert json.loads(config.model_dump_json())["batch"]["tokens_per_batch"] == "auto"
