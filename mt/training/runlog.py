"""The run directory: its files, its log, its figures, and what the user sees while it runs."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

from mt.config.load import load_config
from mt.config.schema import Config
from mt.errors import CheckpointError, ConfigError, DataError, MtError
from mt.files import write_whole
from mt.model import checkpoint
from mt.runtime.distributed import current_jobs, restarted_jobs

if TYPE_CHECKING:
    from mt.data.loader import Prefetcher, Update
    from mt.runtime.distributed import World

CONFIG, MANIFEST, METRICS, LOG = "config.yaml", "manifest.json", "metrics.jsonl", "train.log"
TENSORBOARD = "tensorboard"
LOCK = ".lock"


class RunLog:
    """What a run says: lines to stderr and `train.log`, figures to `metrics.jsonl`, and a progress bar.

    The bar shows only on a terminal; elsewhere log lines do its work. Where several processes train, all but one are
    silent. A context manager.
    """

    def __init__(
        self, folder: Path, total: int, speaks: bool = True, tensorboard: bool = False
    ) -> None:
        self.folder, self._total, self._speaks = folder, total, speaks
        self._board = summary_writer() if tensorboard and speaks else None
        self._writer: Any = None
        self._start = time.perf_counter()
        self._bar: tqdm[Any] | None = None
        self._logger = logging.getLogger("mt.train")
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False

    def __enter__(self) -> RunLog:
        if not self._speaks:
            return self
        lines = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")
        self._handlers = (_FileHandler(self.folder / LOG, encoding="utf-8"), _BarHandler(self))
        for handler in self._handlers:
            handler.setFormatter(lines)
            self._logger.addHandler(handler)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not self._speaks:
            return
        file, bar = self._handlers
        self._logger.removeHandler(bar)
        if isinstance(error, MtError):  # the command line shows it; the log must hold it too
            self._logger.error(str(error))
        self._logger.removeHandler(file)
        file.close()
        if self._writer is not None:
            self._writer.close()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def say(self, text: str) -> None:
        """One line for the user, on stderr and in `train.log`."""
        if self._speaks:
            self._logger.info(text)

    def progress(self, step: int, figures: Mapping[str, str] | None = None) -> None:
        """Move the bar to `step`, with new figures beside it where given; without a terminal there is none."""
        if not self._speaks or not sys.stderr.isatty():
            return
        if self._bar is None:
            self._bar = tqdm(
                total=self._total, initial=step, unit="update", dynamic_ncols=True, smoothing=0.05
            )
        if figures is not None:
            self._bar.set_postfix(figures, refresh=False)
        self._bar.update(step - self._bar.n)

    def write_line(self, line: str) -> None:
        """A line above the bar."""
        if self._bar is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self._bar.write(line, file=sys.stderr)

    def record(self, kind: str, step: int, **figures: Any) -> None:
        """One line of `metrics.jsonl`."""
        if not self._speaks:
            return
        # JSON has no word for what is not a number.
        known = {
            key: None if isinstance(x, float) and not math.isfinite(x) else x
            for key, x in figures.items()
        }
        line = json.dumps({"kind": kind, "step": step, **known}, ensure_ascii=False)
        with (self.folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        if self._board is not None:
            if self._writer is None:
                # What an earlier start has written of this step and later ones is hidden.
                self._writer = self._board(str(self.folder / TENSORBOARD), purge_step=step)
            for key, value in known.items():
                if isinstance(value, int | float):
                    self._writer.add_scalar(f"{kind}/{key}", value, step)

    def names(self, kind: str, step: int) -> set[str]:
        """What the lines of a kind and an update are about that are there already."""
        path = self.folder / METRICS
        if not path.exists():
            return set()
        start = json.dumps({"kind": kind, "step": step})[:-1] + ","
        lines = path.read_text(encoding="utf-8").split("\n")
        return {json.loads(line)["name"] for line in lines if line.startswith(start)}

    def forget_after(self, step: int) -> None:
        """Drop figures of updates after `step`: a resumed run will make them again."""
        path = self.folder / METRICS
        if not self._speaks or not path.exists():
            return
        lines = path.read_text(encoding="utf-8").split("\n")
        kept = [line for line in lines if line and _step_of(line) <= step]
        write_whole(path, "".join(line + "\n" for line in kept))
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def summary_writer() -> Any:
    """TensorBoard's writer. Raises ConfigError where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "train.tensorboard: true needs the package tensorboard, which is not installed; "
            "pip install tensorboard, or set it to false"
        ) from error
    return SummaryWriter


class _Handler(logging.Handler):
    """A full disk or a closed terminal is no reason to stop training, nor for a traceback: the line is lost."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        pass


class _FileHandler(_Handler, logging.FileHandler):
    pass


class _BarHandler(_Handler):
    def __init__(self, run: RunLog) -> None:
        super().__init__()
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._run.write_line(self.format(record))
        except OSError:
            self.handleError(record)


def _step_of(line: str) -> float:
    """A line that a crash cut short counts as later than all."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


class Window:
    """Figures since the last log line, of all ranks. Sums stay on the device until they are asked for."""

    def __init__(self, feed: Prefetcher, world: World) -> None:
        self.feed, self.world = feed, world
        self.restart()

    def restart(self) -> None:
        self.start = time.perf_counter()
        self.waited = self.feed.waited
        self.updates = self.n_tgt = self.n_real = self.n_padded = 0
        # Smoothed loss, nll, and, of updates that were not skipped, gradient norm, target tokens and their number.
        self.sums = torch.zeros(5)

    def leave_out(self, seconds: float) -> None:
        """So much of the time went into something else than training."""
        self.start += seconds

    def add(self, update: Update, smoothed: Tensor, nll: Tensor, norm: Tensor) -> None:
        """An update, this rank's share of its smoothed loss and nll per target token, and its gradient norm."""
        self.updates += 1
        self.n_tgt += update.n_tgt
        self.n_real += sum(batch.n_src + batch.n_tgt for batch in update.batches)
        self.n_padded += sum(batch.n_padded for batch in update.batches)
        one = torch.ones_like(norm)
        sums = torch.stack(
            [smoothed * update.n_tgt, nll * update.n_tgt, norm, one * update.n_tgt, one]
        )
        sums = torch.where(torch.isfinite(norm), sums, 0.0)
        self.sums = self.sums.to(sums.device) + sums

    def figures(self) -> dict[str, Any]:
        """Their means; the device is waited for, and so are the other ranks."""
        seconds, count = time.perf_counter() - self.start, self.world.size
        waited = self.feed.waited - self.waited
        host = torch.tensor([self.n_real, self.n_padded, waited], dtype=torch.float64)
        totals = self.world.all_reduce_sum(torch.cat([self.sums.cpu().double(), host])).tolist()
        smoothed, nll, norm, n_tgt, updates, n_real, n_padded, waited = totals
        if updates:  # the last three of the sums are the same in every rank
            smoothed, nll = smoothed * count / n_tgt, nll * count / n_tgt
            norm, updates = norm / updates, updates / count
        else:
            smoothed = nll = norm = math.nan
        return {
            "loss": smoothed,
            "nll": nll,
            "perplexity": _perplexity(nll),
            "grad_norm": norm,
            "skipped": self.updates - round(updates),
            "tokens_per_second": self.n_tgt / seconds,
            "padding": 1 - n_real / n_padded,
            "waiting": waited / count / seconds,
        }


def _perplexity(nll: float) -> float:
    return math.exp(min(nll, 700.0))


def format_duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def claim(folder: Path) -> Any:
    """Make the run directory, see that it can be written, and lock it for this process.

    The lock lives as long as the returned file. Raises DataError where the folder cannot be written or
    another process trains in it.
    """
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        probe = folder / "checkpoints" / f".probe-{os.getpid()}"
        probe.write_bytes(b"mt")
        probe.unlink()
        return _lock(folder)
    except OSError as error:
        raise DataError(
            f"run directory {folder}: must be a folder that can be written, but {error.strerror} "
            f"({error.filename}); give another one with --run-dir"
        ) from error


def _lock(folder: Path) -> Any:
    lock = (folder / LOCK).open("a")
    try:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise DataError(
            f"run directory {folder}: another process is training in it; wait for it, or give another --run-dir"
        ) from error
    except OSError:  # some network file systems have no such locks
        pass
    return lock


@contextmanager
def write_faults(run: Path) -> Iterator[None]:
    """Checkpoints report their own; this is for a line of figures, a sample or a link."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"run directory {run}: cannot be written ({error}). What was saved before is whole: make room there or "
            "mend what is wrong, then run the same command again"
        ) from error


def set_aside(folder: Path) -> Path | None:
    """Rename a used run directory out of the way (`--fresh`); returns its new name.

    None where there is no run in the folder: another's files are left alone. Raises DataError where another
    process trains in it, or it cannot be renamed.
    """
    if not any((folder / name).exists() for name in (LOCK, CONFIG, "checkpoints")):
        return None
    folder = folder.absolute()
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    try:
        with _lock(folder):
            folder.rename(aside)
    except OSError as error:
        raise DataError(
            f"run directory {folder}: cannot be renamed to {aside.name} ({error.strerror}); give another --run-dir"
        ) from error
    return aside


def is_of_this_job(folder: Path) -> bool:
    """Whether an earlier start of this very job has made the run: by torchrun, or out of a queue."""
    try:
        made_by = json.loads((folder / MANIFEST).read_text(encoding="utf-8")).get("jobs", [])
    except (OSError, ValueError):
        return False
    return not set(made_by).isdisjoint(restarted_jobs())


def check_is_run(folder: Path) -> None:
    """Raises DataError where `config.yaml` in the folder would be overwritten and no run of mt has written it."""
    ours = (
        (folder / LOCK).exists() or (folder / MANIFEST).exists() or checkpoint.checkpoints(folder)
    )
    if (folder / CONFIG).exists() and not ours:
        raise DataError(
            f"run directory {folder}: holds a {CONFIG} that is of no run of mt, and a run writes its own under that "
            "name; give the file another name, or another --run-dir"
        )


def check_same_run(folder: Path, config: Config) -> list[str]:
    """Compare with the config that the run was started with, if it was.

    Another `model` or `tokenizer` section cannot resume once there are weights or a tokenizer, and no other start:
    CheckpointError with the differing keys. Returns the other keys that differ, such as the dropouts of the model.
    """
    path = folder / CONFIG
    if not path.exists():
        return []
    before = load_config(str(path)).config.model_dump(mode="json")
    now = config.model_dump(mode="json")
    differing = [
        f"{section}.{key}: was {old}, now {now[section][key]}"
        for section, values in before.items()
        for key, old in values.items()
        if now[section][key] != old
    ]
    made = {
        "model.": checkpoint.checkpoints(folder),
        "tokenizer.": list(folder.glob("tokenizer*.model")),
    }
    free = tuple(f"{key}:" for key in _free_keys(config))
    held = [line for line in differing if not line.startswith(free)]
    if fixed := [
        line
        for line in held
        if any(files and line.startswith(part) for part, files in made.items())
    ]:
        raise CheckpointError(
            f"run directory {folder}: holds a run with another model or tokenizer, and weights cannot change "
            f"their shape ({'; '.join(fixed)}); give another --run-dir, or --fresh to set that run aside"
        )
    ready = {
        "train.init_from:": made["tokenizer."],
        "train.new_vocabulary:": made["tokenizer."],
        "train.freeze:": made["model."],
        "optim.optimizer:": made["model."],
    }
    if fixed := [
        line
        for line in differing
        if any(files and line.startswith(key) for key, files in ready.items())
    ]:
        raise CheckpointError(
            f"run directory {folder}: what a run starts from, what it leaves frozen and its optimiser cannot change "
            f"({'; '.join(fixed)}); set it back (train.init_from is not read again), or give another --run-dir, where "
            "train.init_from can name this run, or --fresh to set this one aside"
        )
    return differing


def with_batch(config: Config, tokens: int) -> Config:
    """The config with another `batch.tokens_per_batch`."""
    return config.model_copy(
        update={"batch": config.batch.model_copy(update={"tokens_per_batch": tokens})}
    )


def _free_keys(config: Config) -> set[str]:
    """Keys of `model` and `tokenizer` that decide neither the shape of a weight nor what it is for."""
    dropouts = {f"model.{key}" for key in type(config.model).model_fields if "dropout" in key}
    free = {"tokenizer.sampling_alpha", *dropouts}
    return free | {"model.max_positions"} if config.model.positions == "sinusoidal" else free


def write_config(folder: Path, config: Config) -> None:
    """`config.yaml`, before anything is made from it, so that what lies in the folder is always of this config."""
    write_whole(folder / CONFIG, config.to_yaml())


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    """`manifest.json`: what is run, on which data, with which software and hardware."""
    manifest = {
        "command": sys.argv,
        "jobs": current_jobs(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "packages": _versions(),
        **facts,
    }
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor()


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    names = (
        "mt",
        "torch",
        "sentencepiece",
        "datasets",
        "sacrebleu",
        "safetensors",
        "numpy",
        "pydantic",
    )
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
