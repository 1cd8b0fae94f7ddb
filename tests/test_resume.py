"""A run that was killed or stopped ends with the weights of one that was not, bit for bit.

What is killed here runs in a process of its own, forked from a server that has torch imported already, and kills
itself at the very place that a test names.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from conftest import config_of, merged, metrics_of, mt_command

from mt.cli.main import main
from mt.config.load import config_from_mapping
from mt.data.batches import Plan
from mt.errors import CheckpointError, DataError
from mt.model import checkpoint
from mt.training import checkpoints as checkpoints_module
from mt.training import update, validation
from mt.training.launch import train
from mt.training.run_dir import claim
from mt.training.update import Updater

Mapped = Mapping[str, Any]
STEPS, EVERY, LOG_EVERY = 12, 4, 2
PLACE = {"kind", "step", "epoch", "lr"}
# What depends on the clock and the machine.
TIMES = {"seconds", "valid_seconds", "tokens_per_second", "waiting", "memory_mb", "resident_mb"}


@pytest.fixture(scope="module")
def settings(tiny_mapping: Mapped) -> Mapped:
    """Dropout, averaging, about 4 micro-batches an update, and an epoch of 9 that ends between two checkpoints."""
    changes = {
        "batch": {"tokens_per_update": 2700, "tokens_per_batch": 700},
        "train": {
            "max_steps": STEPS,
            "valid_every": EVERY,
            "log_every": LOG_EVERY,
            "ema": 0.9,
            "keep_last": 2,
        },
        "decode": {"beam_size": 1, "max_len_factor": 1.0, "max_len_extra": 1},
        "data": {"test": []},
    }
    return merged(tiny_mapping, changes)


@pytest.fixture(scope="module")
def undisturbed(settings: Mapped, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happens to."""
    run = tmp_path_factory.mktemp("resume") / "undisturbed"
    assert train(config_of(settings), run, "cpu").exit_code == 0
    position = checkpoint.load_state(run / "checkpoints" / "last")["train"]
    assert (position["epoch"], position["update"]) == (1, 3)
    return run


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Tensors and plain values of a training state, by their path."""
    if isinstance(value, Mapping | list):
        for key, below in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from flat(below, f"{path}.{key}")
    else:
        yield path, value


def known_figures(run: Path, stopped: int) -> list[dict[str, Any]]:
    """What was recorded, without times; and of the log line of the updates that a stop parted, only its place."""
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


def check_equal(run: Path, undisturbed: Path, stopped: int = 0) -> None:
    """All that was saved and recorded but times: weights, average, moments, position, figures, samples."""
    folders = checkpoint.checkpoints(undisturbed)
    assert [folder.name for folder in checkpoint.checkpoints(run)] == [
        folder.name for folder in folders
    ]
    for theirs in folders:
        ours = run / "checkpoints" / theirs.name
        assert (ours / "model.safetensors").read_bytes() == (
            theirs / "model.safetensors"
        ).read_bytes()
        states = [dict(flat(checkpoint.load_state(folder))) for folder in (ours, theirs)]
        assert states[0].keys() == states[1].keys()
        for path, value in states[0].items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, states[1][path]), path
            elif path != ".train.seconds":
                assert value == states[1][path], path
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


# --- killing at a place -----------------------------------------------------------------------


def at_call(
    owner: Any, name: str, number: int, act: Callable[[], None], *, after: bool = False
) -> None:
    """Before (or after) the n-th call of a function in this start, counted from 0."""
    real, seen = getattr(owner, name), [0]

    def watched(*arguments: Any, **options: Any) -> Any:
        due = seen[0] == number
        seen[0] += 1
        if due and not after:
            act()
        result = real(*arguments, **options)
        if due and after:
            act()
        return result

    setattr(owner, name, watched)


def place(where: str, act: Callable[[], None]) -> None:
    """Have `act` called at a place such as `learn 5` (update 5, from 0) or `save_file 1` (in the second save)."""
    name, number = where.split()
    if name == "micro-batch":
        at_call(update, "batch_loss", int(number), act)
    elif name == "learn":
        at_call(Updater, "train_step", int(number), act)
    elif name == "judge":
        at_call(validation.Validation, "losses", int(number), act, after=True)
    elif name == "renamed":  # partial -> its place: the link `last` is not set yet
        at_call(checkpoint, "sync_folder", int(number), act)
    elif name == "link":
        at_call(checkpoints_module, "set_link", int(number), act)
    else:
        at_call(checkpoint, name, int(number), act, after=name == "save_file")


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def child(mapping: Mapped, run: Path, where: str, number: int) -> None:
    """Train in this process and send it a signal at a place; its exit code is that of the command."""
    place(where, lambda: send(number))
    sys.exit(train(config_from_mapping(mapping, "test"), run, "cpu").exit_code)


@pytest.fixture(scope="module")
def server() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mt.training.launch", "test_resume"])
    return context


@pytest.fixture
def disturbed(server: Any, settings: Mapped, tmp_path: Path) -> Callable[..., Path]:
    """`disturbed("learn 5")`: a run that got SIGKILL, or the signal given, at that place."""

    def start(
        where: str,
        number: int = signal.SIGKILL,
        code: int = -signal.SIGKILL,
        run: Path | None = None,
    ) -> Path:
        run = run or tmp_path / "run"
        process = server.Process(target=child, args=(settings, run, where, number))
        process.start()
        process.join(120)
        assert process.exitcode == code
        return run

    return start


PLACES = [
    "micro-batch 27",  # in the middle of accumulating, of an epoch, and between two checkpoints
    "save_file 1",  # the second checkpoint is half written
    "renamed 1",  # it is whole, but nothing points to it yet
]
MORE_PLACES = [
    "learn 0",
    "learn 2",  # before there is any checkpoint
    "learn 4",  # right after a checkpoint
    "learn 9",  # at the beginning of an epoch
    "micro-batch 50",
    "judge 0",
    "judge 1",
    "judge 2",
    "save_file 0",
    "save_file 2",
    "link 2",
]


@pytest.mark.parametrize("where", PLACES)
def test_killed_and_started_again_is_undisturbed(
    where: str, disturbed: Callable[..., Path], settings: Mapped, undisturbed: Path
) -> None:
    run = disturbed(where)
    assert train(config_of(settings), run, "cpu").exit_code == 0
    check_equal(run, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("where", MORE_PLACES)
def test_killed_at_more_places(
    where: str, disturbed: Callable[..., Path], settings: Mapped, undisturbed: Path
) -> None:
    test_killed_and_started_again_is_undisturbed(where, disturbed, settings, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_killed_three_times_at_random(
    seed: int, disturbed: Callable[..., Path], settings: Mapped, undisturbed: Path, tmp_path: Path
) -> None:
    """Some kills come too late: the run is done by then."""
    draw = random.Random(seed)
    for _ in range(3):
        where = draw.choice(
            [
                f"micro-batch {draw.randrange(30)}",
                f"learn {draw.randrange(7)}",
                "save_file 0",
                "judge 0",
            ]
        )
        with contextlib.suppress(AssertionError):
            disturbed(where)
    assert train(config_of(settings), tmp_path / "run", "cpu").exit_code == 0
    check_equal(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_the_command_killed_at_random_moments(
    settings: Mapped, undisturbed: Path, tmp_path: Path
) -> None:
    """A real process, and the moment is the clock's: some time after its first log line, in training or saving."""
    config, run = tmp_path / "tiny.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    for seed in range(15):  # thirty kills
        draw = random.Random(seed)
        shutil.rmtree(run, ignore_errors=True)
        for _ in range(2):
            stop_command(config, run, signal.SIGKILL, r"step \d+ \|", draw.random())
        assert train(config_of(settings), run, "cpu").exit_code == 0
        check_equal(run, undisturbed)


# --- stopping -------------------------------------------------------------------------------------


def stop_command(
    config: Path, run: Path, number: int, after: str, wait: float = 0.0
) -> tuple[int, str]:
    """Start `mt train`, send it a signal (some seconds) after a line that matches; exit code and stderr."""
    command, environment = mt_command("train", "-c", config, "--run-dir", run, "--device", "cpu")
    said = []
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, encoding="utf-8"
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if re.search(after, line):
                break
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait)
        process.send_signal(number)
        said.append(process.stderr.read())
    return process.returncode, "".join(said)


def test_the_command_stops_on_sigterm_and_goes_on(
    settings: Mapped, undisturbed: Path, tmp_path: Path
) -> None:
    """What a queue sends before it takes the machine away: a checkpoint, code 143, and how to go on."""
    config, run = tmp_path / "tiny.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    code, said = stop_command(config, run, signal.SIGTERM, r"step 2 \|")
    assert code == 143
    last = said.splitlines()[-1]
    found = re.search(
        r"stopped by SIGTERM after update (\d+); run the same command again to resume$", last
    )
    assert found
    assert checkpoint.read_meta(run / "checkpoints" / "last", ["state.pt"])["step"] == int(found[1])
    assert "Traceback" not in said
    assert train(config_of(settings), run, "cpu").exit_code == 0
    assert f"resuming after update {found[1]} from " in (run / "train.log").read_text()
    # The checkpoint of the stop is one of the newest for a while; in the end it is gone.
    check_equal(run, undisturbed, int(found[1]))


def test_ctrl_c_in_the_middle_of_an_update_finishes_it(
    disturbed: Callable[..., Path], settings: Mapped, undisturbed: Path
) -> None:
    run = disturbed("micro-batch 27", signal.SIGINT, 130)
    (folder,) = (
        folder
        for folder in checkpoint.checkpoints(run)
        if folder.name > checkpoint.step_name(EVERY)
    )
    step = checkpoint.read_meta(folder, [])["step"]
    log = (run / "train.log").read_text()
    assert log.endswith(
        f" stopped by SIGINT after update {step}; run the same command again to resume\n"
    )
    assert train(config_of(settings), run, "cpu").exit_code == 0
    check_equal(run, undisturbed, step)


@pytest.mark.parametrize(
    ("where", "number", "code"),
    [
        ("learn 7", signal.SIGTERM, 143),
        ("judge 1", signal.SIGTERM, 143),
        ("judge 1", signal.SIGUSR1, 138),
    ],
)
def test_a_validation_that_a_signal_prevented_is_made_up_for(
    where: str,
    number: int,
    code: int,
    disturbed: Callable[..., Path],
    settings: Mapped,
    undisturbed: Path,
) -> None:
    """In the update before it, or in the validation itself: nobody waits for it, the checkpoint comes at once."""
    run = disturbed(where, number, code)
    newest = checkpoint.checkpoints(run)[-1]
    meta = checkpoint.read_meta(newest, [])
    assert (meta["step"], meta["score"]) == (2 * EVERY, None)
    assert [line["step"] for line in metrics_of(run) if line["kind"] == "valid"] == [EVERY]
    assert train(config_of(settings), run, "cpu").exit_code == 0
    check_equal(run, undisturbed)


def test_a_signal_does_not_wait_for_the_first_epoch_to_be_sampled(
    settings: Mapped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[int]()

    def for_epoch(self: Plan, epoch: int, stop: threading.Event) -> Plan:
        if not sent:
            sent.append(epoch)
            send(signal.SIGTERM)
            assert stop.wait(60)  # set when the feed is left, and looked at while sampling
        return self

    monkeypatch.setattr(Plan, "for_epoch", for_epoch)
    assert train(config_of(settings), tmp_path, "cpu").exit_code == 143
    assert checkpoint.checkpoints(tmp_path) == []


def test_a_closed_terminal_stops_a_run_but_not_under_nohup(
    settings: Mapped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sent = Updater.train_step, list[int]()

    def once(*arguments: Any) -> Any:
        if not sent:
            sent.append(signal.SIGHUP)
            send(signal.SIGHUP)
        return real(*arguments)

    monkeypatch.setattr(Updater, "train_step", once)
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert train(config_of(settings), tmp_path / "closed", "cpu").exit_code == 129
        sent.clear()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert train(config_of(settings), tmp_path / "nohup", "cpu").exit_code == 0
        assert sent
    finally:
        signal.signal(signal.SIGHUP, before)
    assert [
        checkpoint.step_of(folder.name) for folder in checkpoint.checkpoints(tmp_path / "closed")
    ] == [1]


def test_a_second_ctrl_c_ends_at_once(
    settings: Mapped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a checkpoint; and signals have the meaning back that they had."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def twice(*_: Any) -> None:
        send(signal.SIGINT)
        send(signal.SIGINT)

    monkeypatch.setattr(Updater, "train_step", twice)
    with pytest.raises(KeyboardInterrupt):
        train(config_of(settings), tmp_path, "cpu")
    assert checkpoint.checkpoints(tmp_path) == []
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def called(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int | str | None:
    """Exit code of a command in this process."""
    monkeypatch.setattr(sys, "argv", ["mt", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


# --- damage ---------------------------------------------------------------------------------------


@pytest.fixture
def copied(undisturbed: Path, tmp_path: Path) -> Path:
    """A copy of the undisturbed run, to be changed."""
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run, symlinks=True)
    return run


def damage(folder: Path) -> None:
    path = folder / "state.pt"
    path.write_bytes(path.read_bytes()[:-100])


def test_after_a_damaged_checkpoint_the_one_before_is_used(
    copied: Path, settings: Mapped, undisturbed: Path
) -> None:
    newest, before = (
        copied / "checkpoints" / checkpoint.step_name(step) for step in (STEPS, 2 * EVERY)
    )
    damage(newest)
    assert train(config_of(settings), copied, "cpu").exit_code == 0
    log = (copied / "train.log").read_text()
    assert f"{newest / 'state.pt'}: damaged, its checksum differs" in log
    assert f"resuming after update {2 * EVERY} from {before}" in log
    check_equal(copied, undisturbed)


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_good_one(
    copied: Path, settings: Mapped
) -> None:
    """It counts as the newest by its name; the one that has just been saved must not be pruned for it."""
    newest = copied / "checkpoints" / checkpoint.step_name(STEPS)
    damage(newest)
    changed = config_of(settings, train={"keep_last": 1, "valid_every": 10, "max_steps": 10})
    assert train(changed, copied, "cpu").exit_code == 0
    names = [folder.name for folder in checkpoint.checkpoints(copied)]
    assert checkpoint.step_name(10) in names
    assert newest.name not in names
    assert (copied / "checkpoints" / "last").resolve().name == checkpoint.step_name(10)


def test_where_all_checkpoints_are_damaged_nothing_is_thrown_away(
    copied: Path, settings: Mapped
) -> None:
    folders = checkpoint.checkpoints(copied)
    for folder in folders:
        damage(folder)
    with pytest.raises(CheckpointError) as error:
        train(config_of(settings), copied, "cpu")
    assert str(error.value) == (
        f"run directory {copied}: all of its checkpoints are damaged or hold non-finite weights; give "
        "--fresh to set it aside and start over"
    )
    assert checkpoint.checkpoints(copied) == folders
    assert (copied / "train.log").read_text().count("damaged, its checksum differs") == len(folders)


def test_a_checkpoint_of_another_tokenizer_is_refused(
    copied: Path, settings: Mapped, tiny_run: Path
) -> None:
    """As when files of two runs were mixed."""
    (copied / "tokenizer.model").unlink()
    changed = merged(settings, {"run": {"seed": 9}, "tokenizer": {"sample_lines": 50}})
    shutil.rmtree(copied / "store")
    (copied / "config.yaml").unlink()
    with pytest.raises(CheckpointError) as error:
        train(config_of(changed), copied, "cpu")
    newest = copied / "checkpoints" / checkpoint.step_name(STEPS)
    assert str(error.value) == (
        f"{newest}: was trained with another tokenizer than the one in {copied}; put the run's tokenizer back, or give "
        "--fresh to set the run aside and start over"
    )


# --- going on with other settings -----------------------------------------------------------------


def test_a_finished_run_goes_on_for_more_steps(copied: Path, settings: Mapped) -> None:
    before = len(metrics_of(copied))
    outcome = train(config_of(settings, train={"max_steps": STEPS + 2}), copied, "cpu")
    assert outcome.reason.startswith(f"all {STEPS + 2} updates are done; best model (BLEU ")
    log = (copied / "train.log").read_text()
    assert (
        f"config changed since this run was started: train.max_steps: was {STEPS}, now {STEPS + 2}"
        in log
    )
    assert [(line["kind"], line["step"]) for line in metrics_of(copied)[before:]] == [
        ("train", 14),
        ("valid", 14),
    ]
    steps = [(line["kind"], line["step"]) for line in metrics_of(copied)]
    assert len(steps) == len(set(steps))


def test_a_finished_run_started_again_learns_nothing(
    copied: Path, settings: Mapped, undisturbed: Path
) -> None:
    assert train(config_of(settings), copied, "cpu").exit_code == 0
    check_equal(copied, undisturbed)


def test_another_batch_size_begins_a_new_epoch_and_says_so(copied: Path, settings: Mapped) -> None:
    changed = {"train": {"max_steps": STEPS + 2}, "batch": {"tokens_per_update": 1700}}
    train(config_of(settings, **changed), copied, "cpu")
    log = (copied / "train.log").read_text()
    assert (
        "config changed since this run was started: batch.tokens_per_update: was 2700, now 1700"
        in log
    )
    assert (
        "data, batch sizes, sampling or seed have changed: continuing with a new epoch of the new plan"
        in log
    )
    after = checkpoint.load_state(copied / "checkpoints" / "last")["train"]
    assert (after["epoch"], after["update"]) == (2, 2)


def test_other_optimiser_settings_take_effect(copied: Path, settings: Mapped) -> None:
    changed: dict[str, Any] = {
        "train": {"max_steps": STEPS + 2, "ema": None},
        "optim": {"weight_decay": 0.1, "betas": [0.8, 0.9]},
    }
    assert train(config_of(settings, **changed), copied, "cpu").exit_code == 0
    state = checkpoint.load_state(copied / "checkpoints" / "last")
    matrices, vectors = state["optimizer"]["param_groups"]
    assert (matrices["weight_decay"], vectors["weight_decay"], matrices["betas"]) == (
        0.1,
        0.0,
        (0.8, 0.9),
    )
    assert "weights" not in state


def test_orthogonal_steps_are_resumed_too(settings: Mapped, tmp_path: Path) -> None:
    for run, parts in (("whole", [STEPS]), ("parts", [EVERY, STEPS])):
        for steps in parts:
            config = config_of(
                settings,
                optim={"optimizer": "muon"},
                train={"max_steps": steps},
                data={"valid": None},
            )
            assert train(config, tmp_path / run, "cpu").exit_code == 0
    whole, parted = (
        checkpoint.load_state(tmp_path / run / "checkpoints" / "last") for run in ("whole", "parts")
    )
    assert any("momentum" in state for state in whole["optimizer"]["state"].values())
    for part in ("optimizer", "weights"):
        torch.testing.assert_close(parted[part], whole[part], rtol=0, atol=0)


def test_another_optimiser_is_refused(copied: Path, settings: Mapped) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"and optimiser of a run cannot change \(optim\.optimizer: was adamw, now muon\)",
    ):
        train(config_of(settings, optim={"optimizer": "muon"}), copied, "cpu")


def test_another_model_is_refused_by_name_of_its_keys(copied: Path, settings: Mapped) -> None:
    before = (copied / "config.yaml").read_text()
    with pytest.raises(
        CheckpointError, match=r"\(model\.d_ff: was 64, now 128; model\.norm: was pre, now post\)"
    ):
        train(config_of(settings, model={"d_ff": 128, "norm": "post"}), copied, "cpu")
    assert (copied / "config.yaml").read_text() == before


def test_a_tokenizer_of_an_interrupted_start_is_not_used_for_another_config(
    settings: Mapped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped while the store is built: the tokenizer is there already, and another vocabulary would be ignored."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mt.training.prepare.open_or_build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(config_of(settings), tmp_path, "cpu")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"\(tokenizer\.vocab_size: was 320, now 300\)"):
        train(config_of(settings, tokenizer={"vocab_size": 300}), tmp_path, "cpu")


# --- one process, and starting over ---------------------------------------------------------------


def test_two_processes_do_not_train_in_one_directory(copied: Path, settings: Mapped) -> None:
    before = (copied / "train.log").read_text()
    with claim(copied), pytest.raises(DataError) as error:
        train(config_of(settings), copied, "cpu")
    assert str(error.value) == (
        f"run directory {copied}: another process is training in it; wait for it, or give another --run-dir"
    )
    assert (copied / "train.log").read_text() == before


def test_fresh_sets_the_run_aside_and_starts_over(
    copied: Path,
    settings: Mapped,
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With another model, which could not go on."""
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(merged(settings, {"model": {"d_ff": 32}})), encoding="utf-8")
    command = [
        "train",
        "-c",
        config,
        "--run-dir",
        copied,
        "--device",
        "cpu",
        "--set",
        "train.max_steps=2",
    ]
    assert called(monkeypatch, *command) == 2
    assert "model.d_ff: was 64, now 32" in capsys.readouterr().err
    assert called(monkeypatch, *command, "--fresh") == 0
    assert f"mt: {copied} is now {copied.with_name('run.old-1')}\n" in capsys.readouterr().err
    check_equal(copied.with_name("run.old-1"), undisturbed)
    assert [folder.name for folder in checkpoint.checkpoints(copied)] == [checkpoint.step_name(2)]


def test_fresh_holds_for_every_command_of_a_slurm_allocation_and_once_for_a_requeued_job(
    settings: Mapped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, config = (
        tmp_path / "run",
        config_of(settings, train={"max_steps": 1}, data={"valid": None, "test": []}),
    )
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    for _ in range(3):
        train(config, run, "cpu", fresh=True)
        assert "resuming" not in (run / "train.log").read_text()
    aside = sorted(path.name for path in tmp_path.glob("run.old-*"))
    assert aside == ["run.old-1", "run.old-2"]
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    train(config, run, "cpu", fresh=True)
    assert "resuming after update 1 " in (run / "train.log").read_text()
    assert sorted(path.name for path in tmp_path.glob("run.old-*")) == aside


def test_best_and_patience_survive_a_restart(
    settings: Mapped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores 9, 1, 2 in one start, 3 in the next: the fourth validation is the third without a better one."""
    left = iter([9.0, 1.0, 2.0, 3.0, 4.0])

    def judge(self: validation.Validation, *_: Any) -> Any:
        return validation.ValidationResult(
            1.0,
            SimpleNamespace(value=next(left), signature=""),  # type: ignore[arg-type]
            self.ref,
        )

    monkeypatch.setattr(validation.Validation, "evaluate", judge)
    changes = {"valid_every": 1, "patience": 3, "keep_last": 1}
    train(config_of(settings, train={**changes, "max_steps": 3}), tmp_path, "cpu")
    outcome = train(config_of(settings, train={**changes, "max_steps": 9}), tmp_path, "cpu")
    assert outcome.reason.startswith(
        "no better validation in the last 3, at update 4; best model (BLEU 9.00 "
    )
    assert [folder.name for folder in checkpoint.checkpoints(tmp_path)] == [
        "step-00000001",
        "step-00000004",
    ]
