"""Shared by many tests: a tiny corpus, its config, a model trained on it, `mt` as a command."""

from __future__ import annotations

import io
import itertools
import json
import os

# Before torch is imported: sums over threads differ in their last bit, and tests compare bits.
os.environ["OMP_NUM_THREADS"] = "1"

import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import hypothesis
import pytest
import yaml

from mt.terminal import print_messages

if TYPE_CHECKING:
    from finetuning import Started
    from torch import Tensor

    from mt.config.schema import Config
    from mt.model.checkpoint import LoadedModel
    from mt.training.trainer import Trainer

hypothesis.settings.register_profile(
    "mt", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("mt")

# A shell makes background jobs ignore Ctrl-C; the commands that tests start must not inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
DIGITS = {
    "null": "zero", "eins": "one", "zwei": "two", "drei": "three", "vier": "four",
    "fünf": "five", "sechs": "six", "sieben": "seven", "acht": "eight", "neun": "nine",
}  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Hide the GPUs of this machine from all tests but those that need one."""
    if "gpu" not in config.option.markexpr.replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    print_messages()  # as the command line does: tests of functions read stderr


# Changes to the tiny config: no beam; no test sets; no validation either.
QUICK: dict[str, Any] = {"decode": {"beam_size": 1}}
NO_TEST: dict[str, Any] = {"data": {"test": []}}
BLIND: dict[str, Any] = {"data": {"valid": None, "test": []}}


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().split("\n")[:-1]


# Short names of what many tests take.
Mapped = Mapping[str, Any]
MonkeyPatch = pytest.MonkeyPatch
TempPathFactory = pytest.TempPathFactory
Mt = Callable[..., Ended]
QuickConfig = Callable[..., "Config"]
TrainerOf = Callable[..., "Trainer"]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: TempPathFactory) -> Iterator[None]:
    """Models are converted for CTranslate2 in a cache of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: TempPathFactory) -> Path:
    """{train,valid,test}.{src,tgt}: 1 to 8 German digits a line, and English; no line twice."""
    folder = tmp_path_factory.mktemp("corpus")
    draw, seen = random.Random(7), set[tuple[str, ...]]()
    for split, size in (("train", 2000), ("valid", 40), ("test", 40)):
        lines: list[tuple[str, ...]] = []
        while len(lines) < size:
            line = tuple(draw.choices(list(DIGITS), k=draw.randint(1, 8)))
            if line not in seen:
                seen.add(line)
                lines.append(line)
        write_lines(folder / f"{split}.src", [" ".join(line) for line in lines])
        write_lines(folder / f"{split}.tgt", [" ".join(DIGITS[w] for w in line) for line in lines])
    return folder


@pytest.fixture(scope="session")
def short_corpus(tiny_corpus: Path, tmp_path_factory: TempPathFactory) -> dict[str, str]:
    """`data.train` of the first 500 pairs of the tiny corpus."""
    source = {}
    for side in ("src", "tgt"):
        lines = lines_of(tiny_corpus / f"train.{side}")[:500]
        write_lines(path := tmp_path_factory.mktemp("short") / f"train.{side}", lines)
        source[side] = str(path)
    return source


@pytest.fixture(scope="session")
def short_preflight() -> Iterator[None]:
    """Trainings of a few updates need not time eight of them first."""
    from mt.training import settle

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settle, "N_TIMED", 1)
        yield


@pytest.fixture(scope="session")
def tiny_mapping(tiny_corpus: Path, short_preflight: None) -> dict[str, dict[str, Any]]:
    """The config of the tiny model, to be read and not written; `merged` makes another of it."""

    def pair(split: str) -> dict[str, str]:
        return {"src": f"{split}.src", "tgt": f"{split}.tgt"}

    return {
        "run": {"seed": 1},
        "data": {
            "root": str(tiny_corpus), "src_lang": "de", "tgt_lang": "en", "max_tokens": 32,
            "train": [pair("train")], "valid": pair("valid"), "test": [pair("test")],
        },
        "tokenizer": {"vocab_size": 320},
        "batch": {"tokens_per_update": 500, "tokens_per_batch": 500},
        "model": {
            "d_model": 32, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1, "d_ff": 64,
            "dropout": 0.1, "max_positions": 64,
        },
        "optim": {"peak_lr": 1e-2, "warmup_steps": 30},
        "train": {
            "max_steps": 8, "precision": "fp32", "compile": False, "log_every": 4, "valid_every": 4,
        },
        "decode": {"beam_size": 2, "max_len_factor": 1.0, "max_len_extra": 1},  # soon at the limit
    }  # fmt: skip


@pytest.fixture(scope="session")
def tiny_config(tiny_mapping: Mapped, tmp_path_factory: TempPathFactory) -> Path:
    """A config file: the tiny corpus and model, 8 updates, two validations."""
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_mapping), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_run(tiny_mapping: Mapped, tmp_path_factory: TempPathFactory) -> Path:
    """The run directory of a tiny model that knows the digits. Copy it before you write to it."""
    from mt.training.launch import train

    config = config_of(
        tiny_mapping,
        {"model": {"dropout": 0.0}, "decode": {"max_len_factor": 2.0, "max_len_extra": 10}},
        batch={"tokens_per_update": 1000, "tokens_per_batch": 1000},
        train={"max_steps": 200, "valid_every": 100, "log_every": 50},
    )
    run = tmp_path_factory.mktemp("tiny") / "run"
    train(config, run, "cpu")
    if find_spec("ctranslate2"):  # as the first translation would, which says so on stderr
        from mt.runs.model_folder import open_model
        from mt.translate.load_ctranslate2 import load_converted

        load_converted(open_model(run), Path.exists)
    return run


@pytest.fixture
def copied_run(tiny_run: Path, tmp_path: Path) -> Path:
    """`run` in `tmp_path`: a copy of `tiny_run` to write to."""
    return shutil.copytree(tiny_run, tmp_path / "run", symlinks=True)


@pytest.fixture(scope="module")
def loaded(tiny_run: Path) -> LoadedModel:
    """The tiny model of `tiny_run`."""
    from mt.model.checkpoint import load_model

    return load_model(tiny_run)


@pytest.fixture(scope="module")
def pairs(loaded: LoadedModel, tiny_corpus: Path) -> list[tuple[list[int], list[int]]]:
    """Token ids of source and target, for each line of the test split."""
    src, tgt = (lines_of(tiny_corpus / f"test.{side}") for side in ("src", "tgt"))
    tokenizer = loaded.tokenizer
    return list(zip(tokenizer.src.encode(src), tokenizer.tgt.encode(tgt), strict=True))


@pytest.fixture(scope="module")
def base_of(tiny_mapping: Mapped, tmp_path_factory: TempPathFactory) -> Callable[..., Path]:
    """`base_of(model={...})`: a run of four updates with these changes, trained once for each."""
    from mt.training.launch import train

    trained: dict[str, Path] = {}

    def base(**changes: Any) -> Path:
        key = json.dumps(changes, sort_keys=True)
        if key not in trained:
            trained[key] = tmp_path_factory.mktemp("base") / "run"
            short = config_of(tiny_mapping, QUICK, NO_TEST, {"train": {"max_steps": 4}}, changes)
            train(short, trained[key], "cpu")
        return trained[key]

    return base


@pytest.fixture(scope="module")
def other_corpus(tmp_path_factory: TempPathFactory) -> Path:
    """train.src, train.tgt: digits without 0 and 1, but with 11, 12 and a rare letter."""
    folder = tmp_path_factory.mktemp("other")
    words = dict(list(DIGITS.items())[2:]) | {"elf": "eleven", "zwölf": "twelve", "ω": "omega"}
    lines = list(itertools.product(words, repeat=3))
    write_lines(folder / "train.src", [" ".join(line) for line in lines])
    write_lines(folder / "train.tgt", [" ".join(words[word] for word in line) for line in lines])
    return folder


@pytest.fixture
def start_from(tiny_mapping: Mapped, tmp_path_factory: TempPathFactory) -> Callable[..., Started]:
    """`start_from(base, {...}, train={...})`: fine-tune `base`, with changes to the config."""
    from finetuning import Started

    def started(base: Path | None, *changes: Mapped, **sections: Any) -> Started:
        init_from = {"train": {"init_from": base and str(base)}}
        config = config_of(tiny_mapping, QUICK, NO_TEST, init_from, *changes, **sections)
        return Started(config, tmp_path_factory.mktemp("started"))

    return started


@pytest.fixture
def no_process_left() -> Iterator[None]:
    """Terminate the processes that a failed test has left."""
    from processes import stop_all

    yield
    stop_all()


@pytest.fixture
def quick_config(tiny_mapping: Mapped) -> QuickConfig:
    """`quick_config(BLIND, train={"max_steps": 3})`: the tiny config without a beam."""
    return partial(config_of, tiny_mapping, QUICK)


@pytest.fixture
def trainer_of(quick_config: Callable[..., Config], tmp_path: Path) -> Callable[..., Trainer]:
    """`trainer_of(BLIND, ...)`: a trainer of a config, each in a run directory of its own."""
    from mt.runtime.devices import choose_device
    from mt.training.prepare import prepare
    from mt.training.runlog import RunLog
    from mt.training.trainer import Trainer

    def made(*changes: Mapped, **sections: Any) -> Trainer:
        config = quick_config(*changes, **sections)
        run_dir = Path(tempfile.mkdtemp(dir=tmp_path))
        (run_dir / "checkpoints").mkdir()
        device = choose_device("cpu", config.train.precision)
        log = RunLog(run_dir, config.train.max_steps)
        return Trainer(prepare(config, device, log), log)

    return made


@pytest.fixture
def scripted_validations(monkeypatch: MonkeyPatch) -> Callable[..., None]:
    """`scripted_validations(5.0, (9.0, 2.5))`: BLEU, and nll if not 1, of those to come."""
    from mt.evaluation.metrics import Score
    from mt.training.outcome import ValidationResult
    from mt.training.validation import Validation

    def script(*results: float | tuple[float, float]) -> None:
        left = iter(results)

        def evaluate(self: Validation, *_: Any) -> ValidationResult:
            result = next(left)
            bleu, nll = result if isinstance(result, tuple) else (result, 1.0)
            scores = {"bleu": Score("BLEU", bleu, "scripted")}
            if self.config.train.metric == "chrf":
                scores["chrf"] = Score("chrF2", 50.0, "scripted")
            return ValidationResult(nll, scores, self.ref)

        monkeypatch.setattr(Validation, "evaluate", evaluate)

    return script


@pytest.fixture(scope="session")
def interruptible(tiny_mapping: Mapped, short_corpus: dict[str, str]) -> Mapped:
    """The config of a training of 12 updates that tests interrupt: dropouts and averaged weights.

    An update has about 4 micro-batches, an epoch 9 updates, so that it ends between checkpoints.
    """
    changes = {
        "batch": {"tokens_per_update": 675, "tokens_per_batch": 175},
        "model": {"attention_dropout": 0.1, "activation_dropout": 0.2},
        "train": {"max_steps": 12, "valid_every": 4, "log_every": 2, "ema": 0.9, "keep_last": 2},
        "data": {"train": [short_corpus], "test": []},
    }
    return merged(merged(tiny_mapping, QUICK), changes)


@pytest.fixture(scope="session")
def undisturbed(interruptible: Mapped, tmp_path_factory: TempPathFactory) -> Path:
    """The run directory of that training when nothing interrupts it."""
    from mt.model.checkpoint import load_state
    from mt.training.launch import train

    run_dir = tmp_path_factory.mktemp("resume") / "undisturbed"
    assert train(config_of(interruptible), run_dir, "cpu").exit_code == 0
    position = load_state(run_dir / "checkpoints" / "last")["train"]
    assert (position["epoch"], position["update"]) == (1, 3)
    return run_dir


@pytest.fixture(scope="session")
def run_mt() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_mt("translate", "--model", run, input="eins\n")`: mt in a process of its own."""

    def run(
        *arguments: object, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        command, environment = mt_command(*arguments)
        if isinstance(options.get("input"), bytes):
            options |= {"text": False, "encoding": None}
        settings: dict[str, Any] = {"capture_output": True, "encoding": "utf-8", "timeout": 120}
        completed: subprocess.CompletedProcess[str] = subprocess.run(
            command, env=environment | dict(env or {}), check=False, **settings | options
        )
        return completed

    return run


@pytest.fixture
def mt(capfdbinary: pytest.CaptureFixture[bytes]) -> Mt:
    """`mt("translate", "--model", run, stdin=b"...")` here; an exception fails the test."""

    def run(*arguments: object, stdin: bytes | None = b"") -> Ended:
        from mt.cli.main import main
        from mt.runtime.machine import received

        before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
        given = None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin))
        with (
            mock.patch.object(sys, "argv", ["mt", *map(str, arguments)]),
            mock.patch.object(sys, "stdin", given),
            pytest.raises(SystemExit) as ended,
        ):
            main()
        for number, handler in before.items():
            signal.signal(number, handler)
        received.clear()
        out, err = capfdbinary.readouterr()
        return Ended(int(ended.value.code or 0), out, err.decode())

    return run


@pytest.fixture(scope="module")
def slurm_conf() -> Iterator[str]:
    """The configuration of a Slurm with one node, this machine, while tests use it."""
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons are started by root")
    cluster = ROOT / "scripts" / "slurm" / "local-cluster.sh"
    started = subprocess.run(
        ["bash", cluster, "start"], capture_output=True, text=True, check=False
    )
    if started.returncode and not shutil.which("slurmctld"):
        pytest.skip(f"Slurm cannot be installed here: {started.stderr[-500:]}")
    assert started.returncode == 0, started.stderr
    yield started.stdout.strip().removeprefix("export SLURM_CONF=")
    assert subprocess.run(["bash", cluster, "stop"], check=False).returncode == 0


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], Path]]:
    """`small_disk(256)`: a file system of 256 kB; skips where none can be mounted."""
    mounted: list[str] = []

    def mount(kilobytes: int) -> Path:
        # Not below pytest's folder, which could not be deleted while this is mounted.
        folder = tempfile.mkdtemp()
        mounted.append(folder)
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("a small file system cannot be mounted here (that takes root)")
        return Path(folder)

    yield mount
    for folder in mounted:
        # Lazily: what was read from it may still be mapped.
        subprocess.run(["umount", "--lazy", folder], capture_output=True, check=False)
        os.rmdir(folder)


def refused(ended: Ended) -> str:
    """The message of a command that a user's mistake has ended."""
    assert ended.code == 2
    assert ended.out == b""
    assert ended.err.startswith("mt: ")
    for word in ("Traceback", "Error(", "Exception"):
        assert word not in ended.err
    return ended.err.removeprefix("mt: ").removesuffix("\n")


def mt_command(*arguments: object) -> tuple[list[str], dict[str, str]]:
    """Command line and environment that run this checkout's mt from any folder."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return (
        [sys.executable, "-m", "mt", *map(str, arguments)],
        os.environ | {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
    )


def open_pipes(command: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command with stdin and stdout as pipes; stderr is dropped."""
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=nowhere)


def merged(mapping: Mapped, changes: Mapped) -> dict[str, Any]:
    """A copy of `mapping` with the values of `changes`, section by section."""
    result = dict(mapping)
    for key, value in changes.items():
        below = mapping.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return result


def config_of(mapping: Mapped, *changes: Mapped, **sections: Mapped) -> Config:
    """`config_of(tiny_mapping, QUICK, train={"max_steps": 3})`: with changes."""
    from mt.config.load import config_from_mapping

    for change in (*changes, sections):
        mapping = merged(mapping, change)
    return config_from_mapping(mapping, "test")


def equal_weights(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether two models have the same weights, bit for bit."""
    return a.keys() == b.keys() and all(bool((a[name] == b[name]).all()) for name in a)


def metrics_of(run_dir: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`, or those of one kind: train, valid, test."""
    text = (run_dir / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if kind in (None, line["kind"])]


def weights_of(run_dir: Path) -> bytes:
    """The weights of a run's last checkpoint, as its file holds them."""
    return (run_dir / "checkpoints" / "last" / "model.safetensors").read_bytes()


def log_of(run_dir: Path) -> str:
    """The text of `train.log`."""
    return (run_dir / "train.log").read_text(encoding="utf-8")


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def write_lines(path: Path, lines: list[str]) -> None:
    path.write_bytes("".join(line + "\n" for line in lines).encode())
