"""Several processes train one model: the same one that a single process trains. Over gloo, on a CPU, under torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import Ended, merged, metrics_of, mt_command
from torch import Tensor

from mt.config.load import config_from_mapping
from mt.config.schema import BatchConfig
from mt.data.batches import Plan, shard_batches
from mt.data.loader import Prefetcher
from mt.data.store import Store, open_or_build
from mt.data.tokenizer import Tokenizer
from mt.errors import ConfigError
from mt.model import checkpoint
from mt.runtime.devices import Device, choose_device
from mt.runtime.distributed import World, process_group, world_from_environment
from mt.training.launch import agree_on_devices, train
from mt.training.validation import interleaved, score_tests

Mapped = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def settings(tiny_mapping: Mapped) -> dict[str, Any]:
    """A run whose weights do not hang on the last bit of a sum.

    No key biases, whose gradient is 0 but for rounding, and an eps beside which rounding is small: Adam would make
    steps of full size of either.
    """
    changes = {
        "data": {"test": []},
        "model": {"dropout": 0.0, "attention_bias": False},
        "optim": {"eps": 1e-3},
        "train": {"max_steps": 20, "valid_every": 10, "log_every": 5, "ema": 0.9},
        "decode": {"beam_size": 1, "max_len_factor": 1.0, "max_len_extra": 1},
    }
    return merged(tiny_mapping, changes)


def torchrun(processes: int, *options: object) -> list[str]:
    """The command that starts so many processes of what follows."""
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
    ]
    return [*launcher, *map(str, options), "-m"]


def command_of(mapping: Mapped, run: Path) -> list[str]:
    """`mt train` in this run directory, as a module and its arguments."""
    config = run.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(dict(mapping)), encoding="utf-8")
    return ["mt", "train", "-c", str(config), "--run-dir", str(run), "--device", "cpu"]


STARTED: list[subprocess.Popen[str]] = []


def start(command: list[str], **variables: object) -> subprocess.Popen[str]:
    environment = (
        mt_command()[1]
        | {"OMP_NUM_THREADS": "1"}
        | {name: str(value) for name, value in variables.items()}
    )
    pipe = subprocess.PIPE
    STARTED.append(
        subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, encoding="utf-8")
    )
    return STARTED[-1]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A test that fails leaves no process behind."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.terminate()
        process.communicate()


def ended(process: subprocess.Popen[str], seconds: float = 100) -> Ended:
    out, err = process.communicate(timeout=seconds)
    return Ended(process.returncode, out.encode(), err)


def trained(mapping: Mapped, run: Path, processes: int, *options: object) -> Path:
    """The directory of a run by so many processes that ended well."""
    if processes == 1:
        assert train(config_from_mapping(mapping, "test"), run, "cpu").exit_code == 0
        return run
    done = ended(start([*torchrun(processes, *options), *command_of(mapping, run)]))
    assert done.code == 0, done.err
    return run


def state_of(run: Path) -> dict[str, Any]:
    return checkpoint.load_state(run / "checkpoints" / "last")


def tensors_of(run: Path) -> dict[str, Tensor]:
    """Both sets of weights, and the optimiser's moments."""
    state, tensors = state_of(run), checkpoint.load_weights(run / "checkpoints" / "last")
    moments = {
        f"{key} {i}": m[key]
        for i, m in state["optimizer"]["state"].items()
        for key in ("exp_avg", "exp_avg_sq")
    }
    return {
        **{f"ema {name}": tensor for name, tensor in tensors.items()},
        **state["weights"],
        **moments,
    }


def check_close(run: Path, other: Path) -> None:
    """The same weights within 1e-6, at the same place in the same data."""
    ours, others = tensors_of(run), tensors_of(other)
    assert ours.keys() == others.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], others[name], rtol=0, atol=1e-6, msg=name)
    own, theirs = (
        {
            key: value
            for key, value in state_of(path)["train"].items()
            if key not in ("seconds", "scores")
        }
        for path in (run, other)
    )
    assert own == theirs


@pytest.fixture(scope="module")
def alone(settings: Mapped, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    return trained(settings, tmp_path_factory.mktemp("alone") / "run", 1)


@pytest.fixture(scope="module")
def together(settings: Mapped, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two processes."""
    return trained(settings, tmp_path_factory.mktemp("together") / "run", 2)


# --- one optimisation -------------------------------------------------------------------------


def test_two_processes_train_the_model_of_one(alone: Path, together: Path) -> None:
    """Weights, their running mean and the moments after 20 updates; the same tokens seen; the same scores."""
    check_close(together, alone)


def test_the_figures_of_two_are_those_of_one(alone: Path, together: Path) -> None:
    ours, others = metrics_of(together), metrics_of(alone)
    assert [(line["kind"], line["step"]) for line in ours] == [
        (line["kind"], line["step"]) for line in others
    ]
    same = {
        "loss": 1e-5,
        "nll": 1e-5,
        "perplexity": 1e-4,
        "grad_norm": 1e-4,
        "lr": 0,
        "epoch_position": 0,
        "bleu": 0,
    }
    for our, other in zip(ours, others, strict=True):
        assert our.keys() == other.keys()
        for key in same.keys() & our.keys():
            assert our[key] == pytest.approx(other[key], rel=same[key], abs=0), key
        assert 0 <= our.get("padding", 0) < 0.2


def test_only_the_first_process_writes(alone: Path, together: Path) -> None:
    """The same files, each line of the log once, and that there were two is said."""
    names = [
        sorted(str(path.relative_to(run)) for path in run.rglob("*")) for run in (alone, together)
    ]
    assert names[0] == names[1]
    logs = [
        (run / "train.log").read_text(encoding="utf-8").splitlines() for run in (alone, together)
    ]
    assert len(logs[0]) == len(logs[1])
    assert " on CPU in fp32, 1 thread, 2 processes" in logs[1][0]
    for name in ("samples/step-00000020.txt", "tokenizer.model", "store/train/src.tokens"):
        assert (alone / name).read_bytes() == (together / name).read_bytes()


VALIDATE = """
import sys
from mt.runtime.devices import choose_device
from mt.model import checkpoint
from mt.runtime.distributed import World, process_group, world_from_environment
from mt.training.runlog import RunLog
from mt.training.signals import Signals
from mt.training.validation import Validation
from pathlib import Path
import torch
run = Path(sys.argv[1])
loaded = checkpoint.load_model(run)
device = choose_device("cpu", "fp32")
with process_group(world_from_environment(), False) as world, RunLog(run, 1, False) as log:
    for name, tokens in (("small", 60), ("large", 5000)):
        batch = loaded.config.batch.model_copy(update={"tokens_per_batch": tokens})
        config = loaded.config.model_copy(update={"batch": batch})
        validation = Validation(config, config.data.valid, run, loaded.tokenizer, log, world)
        whole, dealt = (validation.evaluate(loaded.model, device, r, Signals()) for r in (World(), world))
        assert whole == dealt, (world.rank, whole.nll, dealt.nll, whole.bleu, dealt.bleu)
    scores = world.all_gather(dealt.bleu.value)
    assert len(set(scores)) == 1 and len(scores) == 3
    if world.is_main:
        print("equal", scores[0])
"""


def test_a_validation_in_shares_is_the_same_to_the_last_digit(
    tiny_run: Path, tmp_path: Path
) -> None:
    """Loss, outputs and score in each of three processes."""
    script = tmp_path / "validate.py"
    script.write_text(VALIDATE, encoding="utf-8")
    done = ended(start([*torchrun(3)[:-1], str(script), str(tiny_run)]))
    assert done.code == 0, done.err
    assert re.fullmatch(r"equal \d\d\.\d+\n", done.out.decode())


@pytest.mark.slow
def test_accumulated_by_two_processes_is_whole(settings: Mapped, tmp_path: Path) -> None:
    """Micro-batches of a fifth of the size, so that each process adds up several before gradients are exchanged."""
    small = merged(settings, {"batch": {"tokens_per_batch": 100}, "data": {"valid": None}})
    runs = [trained(small, tmp_path / str(processes), processes) for processes in (1, 2)]
    ours, others = (tensors_of(run) for run in runs)
    for name in ours:
        torch.testing.assert_close(ours[name], others[name], rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2), (2, 3)])
def test_stopped_by_so_many_and_resumed_by_others(
    first: int, second: int, settings: Mapped, alone: Path, tmp_path: Path
) -> None:
    """Checkpoints do not know how many processes wrote them."""
    run = tmp_path / "run"
    trained(merged(settings, {"train": {"max_steps": 10}}), run, first)
    trained(settings, run, second)
    check_close(run, alone)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.mark.slow
def test_two_agents_are_two_machines(settings: Mapped, alone: Path, tmp_path: Path) -> None:
    """As on two nodes: an agent on each, with one process."""
    run, port = tmp_path / "run", free_port()
    agents = [
        start(
            [
                sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={node}",
                "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}", "-m",
                *command_of(settings, run),
            ]
        )
        for node in range(2)
    ]  # fmt: skip
    for agent in agents:
        done = ended(agent)
        assert done.code == 0, done.err
    check_close(run, alone)


# --- bad luck ---------------------------------------------------------------------------------


def ranks_below(process: subprocess.Popen[str]) -> dict[int, int]:
    """rank -> process id of the processes that torchrun has started."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1]) == process.pid:
                environment = (folder / "environ").read_bytes().split(b"\0")
                (rank,) = (int(line[5:]) for line in environment if line.startswith(b"RANK="))
                found[rank] = int(folder.name)
    return found


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def has_step(run: Path, step: int) -> bool:
    return (run / "checkpoints" / checkpoint.step_name(step)).exists()


@pytest.fixture
def long(settings: Mapped) -> dict[str, Any]:
    """Long enough to be disturbed in."""
    return merged(
        settings, {"data": {"valid": None}, "train": {"max_steps": 150, "valid_every": 10}}
    )


@pytest.mark.slow
def test_a_killed_process_ends_the_job_and_is_named(long: Mapped, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start([*torchrun(2), *command_of(long, run)])
    wait_for(lambda: has_step(run, 10))
    killed = time.monotonic()
    os.kill(ranks_below(process)[1], signal.SIGKILL)
    done = ended(process)
    assert time.monotonic() - killed < 60
    assert done.code != 0
    assert re.search(r"rank +: 1 \(local_rank: 1\)\s+exitcode +: -9", done.err)
    assert "rank 0: lost the connection to another rank" in done.err


@pytest.mark.slow
def test_after_a_killed_process_torchrun_restarts_from_the_last_checkpoint(
    long: Mapped, tmp_path: Path
) -> None:
    """Three times: the weights are those of an undisturbed run, bit for bit."""
    quiet, run = trained(long, tmp_path / "quiet", 2), tmp_path / "run"
    process = start([*torchrun(2, "--max-restarts=3"), *command_of(long, run)])
    for step, victim in ((20, 1), (60, 0), (100, 1)):
        wait_for(lambda step=step: has_step(run, step))  # type: ignore[misc]
        os.kill(ranks_below(process)[victim], signal.SIGKILL)
    done = ended(process)
    assert done.code == 0, done.err
    assert (run / "train.log").read_text().count("resuming after update") == 3
    ours, others = tensors_of(run), tensors_of(quiet)
    assert all(torch.equal(ours[name], others[name]) for name in others)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_a_signal_to_one_process_stops_all_at_the_same_update(
    number: signal.Signals, code: int, long: Mapped, tmp_path: Path
) -> None:
    run, port = tmp_path / "run", free_port()
    command, _ = mt_command(*command_of(long, run)[1:])
    common = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    # Without torchrun, which would hide the exit codes.
    processes = [start(command, RANK=rank, LOCAL_RANK=rank, **common) for rank in range(2)]
    wait_for(lambda: has_step(run, 10))
    processes[1].send_signal(number)
    done = [ended(process) for process in processes]
    assert [one.code for one in done] == [code, code]
    (step,) = re.findall(
        rf"stopped by {number.name} after update (\d+); run the same command again", done[0].err
    )
    assert done[1].err == ""
    assert checkpoint.read_meta(run / "checkpoints" / "last", ["state.pt"])["step"] == int(step)
    assert trained(long, run, 2)


@pytest.mark.slow
def test_a_signal_to_torchrun_reaches_its_processes(long: Mapped, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start([*torchrun(2), *command_of(long, run)])
    wait_for(lambda: has_step(run, 10))
    process.send_signal(signal.SIGTERM)
    ended(process)
    (step,) = re.findall(r"stopped by SIGTERM after update (\d+);", (run / "train.log").read_text())
    assert checkpoint.read_meta(run / "checkpoints" / "last", ["state.pt"])["step"] == int(step)


@pytest.mark.slow
def test_fresh_is_meant_once_for_all_starts_of_a_job(long: Mapped, tmp_path: Path) -> None:
    """Else a restart would set the run aside that it should go on with."""
    run = trained(merged(long, {"train": {"max_steps": 10}}), tmp_path / "run", 1)
    process = start([*torchrun(2, "--max-restarts=1"), *command_of(long, run), "--fresh"])
    wait_for(lambda: has_step(run, 20))
    os.kill(ranks_below(process)[1], signal.SIGKILL)
    done = ended(process)
    assert done.code == 0, done.err
    assert (run / "train.log").read_text().count("resuming after update") == 1
    assert [path.name for path in tmp_path.glob("run.old*")] == ["run.old-1"]


POISON = """
import itertools, math, os, sys
from pathlib import Path
from mt.config.load import load_config
from mt.errors import MtError
from mt.training.launch import train
from mt.training.trainer import Trainer
real, until = Trainer.train, int(sys.argv[3])
def start(self):
    forward, learn, updates, spoilt = self.updater.forward, self.updater.train_step, itertools.count(), [False]
    def spoiling(*inputs):
        return forward(*inputs) * (math.nan if spoilt[0] else 1.0)
    def counted(*arguments):
        spoilt[0] = 4 <= next(updates) < until and self.world.rank == 1
        return learn(*arguments)
    self.updater.forward, self.updater.train_step = spoiling, counted
    return real(self)
Trainer.train = start
try:
    train(load_config(sys.argv[1]).config, Path(sys.argv[2]), "cpu")
except MtError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def poisoned(mapping: Mapped, run: Path, until: int) -> Ended:
    """Two processes, of which the second finds gradients that are no numbers from update 4 on."""
    script = run.with_suffix(".py")
    script.write_text(POISON, encoding="utf-8")
    command_of(mapping, run)
    return ended(
        start([*torchrun(2)[:-1], str(script), str(run.with_suffix(".yaml")), str(run), str(until)])
    )


@pytest.mark.slow
def test_both_go_back_together_and_on_with_the_data(long: Mapped, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = poisoned(
        merged(long, {"train": {"max_steps": 40, "log_every": 4, "valid_every": 4}}), run, 24
    )
    assert done.code == 0, done.err
    assert (
        "from update 24 back to the weights after update 20, continuing with the data"
        in (run / "train.log").read_text()
    )
    assert all(bool(tensor.isfinite().all()) for tensor in tensors_of(run).values())
    assert state_of(run)["train"]["rollbacks"] == 1


@pytest.mark.slow
def test_both_give_up_and_one_says_so(long: Mapped, tmp_path: Path) -> None:
    """With all sentences of the update, not only those of one process."""
    run = tmp_path / "run"
    mapping = merged(long, {"train": {"max_steps": 999, "log_every": 4, "valid_every": 4}})
    done = poisoned(mapping, run, 10**9)
    assert done.code != 0
    assert done.err.count("\ntraining gave up at update 72: ") == 1
    assert "lost the connection" not in done.err
    pairs = (run / "diverged.txt").read_text(encoding="utf-8").splitlines()
    state = checkpoint.load_state(run / "checkpoints" / checkpoint.step_name(68))["train"]
    config = config_from_mapping(mapping, "test")
    data = open_or_build(
        run / "store" / "train",
        config.data.train,
        "",
        config.data,
        Tokenizer.load(run),
        lambda _: None,
    )
    plan = Plan(data, [1.0], config.batch, config.run.seed)
    sizes = [sum(map(len, update)) for epoch in range(9) for update in plan.updates(epoch)]
    seen = sum(len(plan.updates(epoch)) for epoch in range(state["epoch"])) + state["update"]
    assert len(pairs) == sizes[seen - 1 + 4]


@pytest.mark.slow
def test_a_mistake_is_told_once(settings: Mapped, tmp_path: Path) -> None:
    """Found before there is a group of processes, and after: one message, no traceback of ours."""
    for changes, message in (
        ({"data": {"max_tokenz": 3}}, "max_tokenz"),
        ({"data": {"train": [{"src": "no.src", "tgt": "train.tgt"}]}}, "no.src"),
        ({"train": {"precision": "fp16"}}, "precision: fp16 needs a GPU"),
        ({"train": {"init_from": "nowhere"}}, "train.init_from"),
    ):
        mapping = merged(settings, changes)
        done = ended(start([*torchrun(2), *command_of(mapping, tmp_path / "run")]))
        assert done.code != 0
        assert len([line for line in done.err.splitlines() if line.startswith("mt: ")]) == 1
        assert message in done.err
        assert "mt/training/" not in done.err


def test_a_typo_is_told_although_the_first_process_is_the_last_to_see_it(
    settings: Mapped, tmp_path: Path
) -> None:
    late = "import os, time\nif os.environ.get('RANK') == '0':\n    time.sleep(3)\n"
    (tmp_path / "sitecustomize.py").write_text(late, encoding="utf-8")
    command = [
        *torchrun(2),
        *command_of(merged(settings, {"data": {"max_tokenz": 3}}), tmp_path / "run"),
    ]
    path = os.pathsep.join(filter(None, (str(tmp_path), mt_command()[1].get("PYTHONPATH"))))
    done = ended(start(command, PYTHONPATH=path))
    assert [
        line for line in done.err.splitlines() if line.startswith("mt: ") and "max_tokenz" in line
    ]


# --- what each process sees -------------------------------------------------------------------


def both(tmp_path: Path, command: list[str], *options: object) -> tuple[Ended, Ended]:
    """How two processes ended that started in the folders `0` and `1`, without torchrun, which would hide the codes."""
    common = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    processes = []
    for rank in range(2):
        (tmp_path / str(rank)).mkdir(exist_ok=True)
        there = ["env", "-C", str(tmp_path / str(rank)), *command, *map(str, options)]
        processes.append(start(there, RANK=rank, LOCAL_RANK=rank, **common))
    first, second = (ended(process) for process in processes)
    return first, second


def shortened(corpus: Path, copy: Path) -> None:
    """Another corpus of the same names: the first half of each text."""
    copy.mkdir(parents=True)
    for path in corpus.iterdir():
        lines = path.read_bytes().splitlines(keepends=True)
        (copy / path.name).write_bytes(b"".join(lines[: len(lines) // 2]))


def test_only_the_first_process_reads_the_corpus(
    settings: Mapped, alone: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    """The other has other texts under the same names, and the run is the one of the first's."""
    shutil.copytree(tiny_corpus, tmp_path / "0" / "corpus")
    shortened(tiny_corpus, tmp_path / "1" / "corpus")
    test = [{"src": "test.src", "tgt": "test.tgt"}]
    run = tmp_path / "run"
    command = command_of(merged(settings, {"data": {"root": "corpus", "test": test}}), run)
    done = both(tmp_path, mt_command(*command[1:])[0])
    assert [one.code for one in done] == [0, 0], done[0].err + done[1].err
    check_close(run, alone)
    facts = json.loads((run / "store" / "train" / "meta.json").read_text(encoding="utf-8"))["facts"]
    read = tmp_path / "0" / "corpus" / "train.src"
    assert facts[str(Path("corpus", "train.src"))]["mtime_ns"] == read.stat().st_mtime_ns
    scores = [line["bleu"] for line in metrics_of(run) if line["kind"] == "test"]
    assert scores == [bleu_of(run, tiny_corpus)]


def bleu_of(run: Path, corpus: Path) -> float:
    """BLEU of the run on the whole test set, by one process."""
    loaded = checkpoint.load_model(checkpoint.find_model(run))
    data = loaded.config.data.model_copy(update={"root": str(corpus)})
    config = loaded.config.model_copy(update={"data": data})
    device = choose_device("cpu", "fp32")
    ((_, score),) = score_tests(config, loaded.model, loaded.tokenizer, device, World(), set())
    return score.value


@pytest.mark.parametrize("there", ["nothing", "another run"])
def test_a_run_directory_that_is_not_shared_is_refused(
    there: str, settings: Mapped, tiny_corpus: Path, tmp_path: Path
) -> None:
    """One message, by the first process; nothing of the other's run is touched."""
    mapping = merged(settings, {"data": {"valid": None}})
    other = tmp_path / "1" / "run"
    message = "mt: rank 1: run directory run: holds no config.yaml. All processes must see what rank 0 writes: "
    if there == "another run":
        shortened(tiny_corpus, tmp_path / "corpus")
        trained(
            merged(
                mapping, {"data": {"root": str(tmp_path / "corpus")}, "train": {"max_steps": 2}}
            ),
            other,
            1,
        )
        message = "mt: rank 1: run directory run: holds another tokenizer and another token store than rank 0 sees. All processes "
    before = {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}
    command = command_of(mapping, tmp_path / "run")
    command[command.index("--run-dir") + 1] = "run"
    first, second = both(tmp_path, mt_command(*command[1:])[0])
    assert (first.code, second.code, second.err) == (2, 2, "")
    (told,) = [line for line in first.err.splitlines() if line.startswith("mt: ")]
    assert told.startswith(message)
    assert told.endswith("on a file system that all machines share, where nothing else writes")
    assert {path: path.read_bytes() for path in other.rglob("*") if path.is_file()} == before


def test_a_run_begins_anew_with_its_own_weights_in_both(
    settings: Mapped, tiny_run: Path, tmp_path: Path
) -> None:
    """Both have read them before the first process renames the folder."""
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run, symlinks=True)
    model = {"model": {"attention_bias": True}}  # as there
    mapping = merged(
        merged(settings, model),
        {"data": {"valid": None}, "train": {"init_from": str(run), "max_steps": 1}},
    )
    done = both(tmp_path, mt_command(*command_of(mapping, run)[1:], "--fresh")[0])
    assert [one.code for one in done] == [0, 0], done[0].err + done[1].err
    assert "pieces kept, 0 new, 0 dropped" in (run / "train.log").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.glob("run.old*")] == ["run.old-1"]


LITTLE_MEMORY = """
import os
from mt.cli.main import main
from mt.training import update
import torch
def full(*_, **__):
    raise torch.OutOfMemoryError
if os.environ["RANK"] == "1":
    if {moments}:
        update.Updater.optimizer_bytes = property(full)
    else:
        update.batch_loss = full
main()
"""


@pytest.mark.parametrize(
    ("tokens", "moments", "message"),
    [
        (100, False, "batch.tokens_per_batch: a batch of "),
        ("auto", False, "batch.tokens_per_batch: one sentence, "),
        (100, True, "the memory of CPU in fp32, 1 thread is too small: "),
    ],
)
def test_what_does_not_fit_into_the_memory_of_one_process_is_told_once(
    settings: Mapped, tmp_path: Path, tokens: int | str, moments: bool, message: str
) -> None:
    script = tmp_path / "little_memory.py"
    script.write_text(LITTLE_MEMORY.format(moments=moments), encoding="utf-8")
    mapping = merged(settings, {"data": {"valid": None}, "batch": {"tokens_per_batch": tokens}})
    command = [sys.executable, str(script), *command_of(mapping, tmp_path / "run")[1:]]
    first, second = both(tmp_path, command)
    assert (first.code, second.code, second.err) == (2, 2, "")
    (told,) = [line for line in first.err.splitlines() if line.startswith("mt: ")]
    assert told.startswith(f"mt: rank 1: {message}")


def test_processes_that_do_not_find_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no restart mends is no lost process."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", port)
        with pytest.raises(ConfigError) as error, process_group(World(0, 2), on_gpu=False):
            pass
    said = str(error.value)
    assert said.startswith(f"rank 0: the rendezvous of 2 processes at 127.0.0.1:{port} failed (")
    assert "MASTER_PORT a free port there" in said


FEW_GPUS = """
import os, torch
if os.environ["RANK"] == "1":
    torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 4
    os.environ["LOCAL_RANK"] = "4"
from mt.cli.main import main
main()
"""


def test_a_process_without_a_gpu_is_named(settings: Mapped, tmp_path: Path) -> None:
    """As the fifth of a machine with four; the first process, whose device is fine, says it."""
    script, run = tmp_path / "few_gpus.py", tmp_path / "run"
    script.write_text(FEW_GPUS, encoding="utf-8")
    command = [sys.executable, str(script), *command_of(settings, run)[1:]]
    command[command.index("--device") + 1] = "auto"
    first, second = both(tmp_path, command)
    assert (first.code, second.code, second.err) == (2, 2, "")
    assert first.err == (
        f"mt: rank 1: --device: cuda:4 does not exist: torch {torch.__version__} sees 4 CUDA devices; start one process "
        "for each GPU (torchrun --nproc-per-node=gpu), or use cpu\n"
    )
    assert not run.exists()


@dataclass(frozen=True)
class Told(World):
    """The last of three ranks, which is told what the others say."""

    gpus: tuple[str | None, ...] = ()

    def all_gather(self, value: Any) -> list[Any]:
        return list(self.gpus)

    def all_or_raise(self, do: Callable[[], Any]) -> Any:
        return do()


def test_two_processes_on_one_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each sees but one GPU, only its identity tells whether it is the same."""
    monkeypatch.setattr(
        "mt.training.launch.gpu_uuid", lambda device: "a" if device.is_cuda else None
    )
    gpu, cpu = (Device(torch.device(name), "fp32") for name in ("cuda:0", "cpu"))
    assert agree_on_devices(gpu, Told(2, 3, 2, gpus=("c", "b", "a"))) is gpu
    assert agree_on_devices(cpu, Told(2, 3, 2, gpus=(None, None, None))) is cpu
    with pytest.raises(ConfigError) as error:
        agree_on_devices(gpu, Told(2, 3, 2, gpus=("b", "a", "a")))
    assert str(error.value) == (
        "--device: cuda is the same GPU as that of rank 1; start one process for each GPU (torchrun "
        "--nproc-per-node=gpu)"
    )


ABORTING = """
import atexit, os
atexit.register(os.abort)
from mt.cli.main import main
main()
"""


@pytest.mark.slow
def test_who_has_lost_another_says_so_by_its_exit_code(long: Mapped, tmp_path: Path) -> None:
    """Although tearing Python down would abort it: as threads of gloo and NCCL do now and then, here always."""
    run, port = tmp_path / "run", free_port()
    script = tmp_path / "aborting.py"
    script.write_text(ABORTING, encoding="utf-8")
    command = [sys.executable, str(script), *command_of(long, run)[1:]]
    common = {"WORLD_SIZE": 3, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [start(command, RANK=rank, LOCAL_RANK=rank, **common) for rank in range(3)]
    wait_for(lambda: has_step(run, 10))
    processes[2].kill()
    done = [ended(process) for process in processes]
    assert [one.code for one in done] == [75, 75, -signal.SIGKILL]
    for rank in range(2):
        assert f"mt: rank {rank}: lost the connection to another rank" in done[rank].err


# --- the share of a rank ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tiny_mapping: Mapped, tiny_run: Path) -> Store:
    data = config_from_mapping(tiny_mapping, "tiny").data
    tokenizer = Tokenizer.load(tiny_run)
    return open_or_build(
        tiny_run / "store" / "train", data.train, "", data, tokenizer, lambda _: None
    )


@pytest.mark.parametrize("tokens", [40, 300, 2000])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_ranks_share_out_every_sentence_once(store: Store, tokens: int, count: int) -> None:
    """As many batches to each, none larger than the largest that there was."""
    plan = Plan(store, [1.0], BatchConfig(tokens_per_update=2000, tokens_per_batch=tokens), 1)
    longest = np.maximum(store.src_lengths, store.tgt_lengths) + 1

    def area(batch: Any) -> int:
        return int(longest[batch].max(initial=0)) * len(batch)

    for update in plan.updates(0)[:5]:
        shares = shard_batches(store.src_lengths, store.tgt_lengths, update, count)
        assert len(shares) == count
        assert len({len(share) for share in shares}) == 1
        dealt = np.concatenate([batch for share in shares for batch in share])
        assert sorted(dealt) == sorted(np.concatenate(update))
        assert max(area(batch) for share in shares for batch in share) <= max(map(area, update))
        totals = [sum(map(area, share)) for share in shares]
        assert max(totals) <= 1.5 * sum(totals) / count + longest.max()


def test_of_two_sentences_six_of_eight_ranks_get_none(store: Store) -> None:
    shares = shard_batches(store.src_lengths, store.tgt_lengths, [np.array([3, 5])], 8)
    assert sorted(len(batch) for (batch,) in shares) == [0] * 6 + [1, 1]


def test_a_rank_without_a_sentence_goes_through_the_motions(store: Store) -> None:
    """A batch in which nothing counts; the tokens of the update are known to it all the same."""
    plan = Plan(store, [1.0], BatchConfig(tokens_per_update=10, tokens_per_batch=10), 1)
    updates = []
    for rank in range(3):
        with Prefetcher(plan, 0, 0, rank, 3) as feed:
            updates.append(next(iter(feed)))
    assert len({update.n_tgt for update in updates}) == 1
    assert sum(batch.n_tgt for update in updates for batch in update.batches) == updates[0].n_tgt
    idle = [batch for update in updates for batch in update.batches if batch.n_tgt == 0]
    assert idle
    assert all(
        len(batch.tgt_out) == len(batch.tgt_positions) == 0 and batch.src.numel() > 0
        for batch in idle
    )


def test_what_was_dealt_in_turn_is_put_together_again() -> None:
    assert interleaved([[0, 3, 6], [1, 4], [2, 5]]) == list(range(7))
    assert interleaved([[], []]) == []


# --- what the environment says ----------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_up(**variables: str) -> None:
        for name in (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "MASTER_ADDR",
            "MASTER_PORT",
        ):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_up


def test_the_environment_says_who_is_who(environment: Callable[..., None]) -> None:
    environment()
    assert world_from_environment() == World()
    environment(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    assert world_from_environment() == World()
    environment(RANK="5", WORLD_SIZE="8", LOCAL_RANK="1", MASTER_ADDR="here", MASTER_PORT="1")
    assert world_from_environment() == replace(World(), rank=5, size=8, local_rank=1)
    environment(
        RANK="5",
        WORLD_SIZE="8",
        LOCAL_RANK="1",
        LOCAL_WORLD_SIZE="4",
        MASTER_ADDR="here",
        MASTER_PORT="1",
    )
    assert world_from_environment() == replace(World(), rank=5, size=8, local_rank=1, local_size=4)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"WORLD_SIZE": "two"},
            "WORLD_SIZE: must be a whole number, found 'two'; torchrun sets it",
        ),
        (
            {"WORLD_SIZE": "2", "RANK": "-1"},
            "RANK: must be a whole number, found '-1'; torchrun sets it",
        ),
        (
            {
                "WORLD_SIZE": "2",
                "RANK": "2",
                "LOCAL_RANK": "0",
                "MASTER_ADDR": "here",
                "MASTER_PORT": "1",
            },
            "RANK: must be below WORLD_SIZE, which is 2, found 2; torchrun sets both",
        ),
        (
            {"WORLD_SIZE": "2", "RANK": "1"},
            "WORLD_SIZE is 2, so LOCAL_RANK, MASTER_ADDR, MASTER_PORT must be set too; torchrun sets them all",
        ),
    ],
)
def test_an_environment_without_sense_is_refused(
    environment: Callable[..., None], variables: dict[str, str], message: str
) -> None:
    environment(**variables)
    with pytest.raises(ConfigError) as error:
        world_from_environment()
    assert str(error.value) == message
