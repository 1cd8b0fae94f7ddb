"""The run directory: its files, its log, its figures, and what the user sees while it runs."""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mt.config import Config, config_from_mapping, load_config
from mt.errors import CheckpointError, DataError
from mt.files import write_whole

CONFIG, MANIFEST, METRICS, LOG = "config.yaml", "manifest.json", "metrics.jsonl", "train.log"


class RunLog:
    """What a run says: lines to stderr and `train.log`, figures to `metrics.jsonl`, and a progress bar.

    The bar shows only on a terminal; elsewhere log lines do its work. A context manager.
    """

    def __init__(self, folder: Path, total: int) -> None:
        self.folder, self._total = folder, total
        self._start = time.perf_counter()
        self._bar: tqdm[Any] | None = None
        self._logger = logging.getLogger("mt.train")
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False

    def __enter__(self) -> RunLog:
        lines = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")
        file = logging.FileHandler(self.folder / LOG, encoding="utf-8")
        for handler in (file, _BarHandler(self)):
            handler.setFormatter(lines)
            self._logger.addHandler(handler)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        for handler in list(self._logger.handlers):
            self._logger.removeHandler(handler)
            handler.close()

    def say(self, text: str) -> None:
        """One line for the user, on stderr and in `train.log`."""
        self._logger.info(text)

    def progress(self, step: int, figures: Mapping[str, str]) -> None:
        """Move the bar to `step`; without a terminal there is none."""
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            self._bar = tqdm(total=self._total, initial=step, unit="update", dynamic_ncols=True, smoothing=0.05)
        self._bar.n = step
        self._bar.set_postfix(figures, refresh=False)
        self._bar.refresh()

    def write_line(self, line: str) -> None:
        """A line above the bar."""
        if self._bar is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self._bar.write(line, file=sys.stderr)

    def record(self, kind: str, step: int, **figures: Any) -> None:
        """One line of `metrics.jsonl`."""
        line = json.dumps({"kind": kind, "step": step, **figures}, ensure_ascii=False)
        with (self.folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def has(self, kind: str, step: int) -> bool:
        """Whether such a line is there already."""
        path = self.folder / METRICS
        if not path.exists():
            return False
        start = json.dumps({"kind": kind, "step": step})[:-1]
        return any(line.startswith(start) for line in path.read_text(encoding="utf-8").split("\n"))

    def forget_after(self, step: int) -> None:
        """Drop figures of updates after `step`: a resumed run will make them again."""
        path = self.folder / METRICS
        if not path.exists():
            return
        lines = path.read_text(encoding="utf-8").split("\n")
        kept = [line for line in lines if line and _step_of(line) <= step]
        write_whole(path, "".join(line + "\n" for line in kept))


class _BarHandler(logging.Handler):
    def __init__(self, run: RunLog) -> None:
        super().__init__()
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        self._run.write_line(self.format(record))


def _step_of(line: str) -> float:
    """A line that a crash cut short counts as later than all."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def claim(folder: Path) -> Any:
    """Make the run directory, see that it can be written, and lock it for this process.

    The lock lives as long as the returned file. Raises DataError where the folder cannot be written or
    another process trains in it.
    """
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a")
        probe = folder / "checkpoints" / f".probe-{os.getpid()}"
        probe.write_bytes(b"mt")
        probe.unlink()
    except OSError as error:
        raise DataError(
            f"run directory {folder}: must be a folder that can be written, but {error.strerror} "
            f"({error.filename}); give another one with --run-dir"
        ) from error
    try:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # no such locks on Windows
        pass
    except OSError as error:
        lock.close()
        raise DataError(
            f"run directory {folder}: another process is training in it; wait for it, or give another --run-dir"
        ) from error
    return lock


def set_aside(folder: Path) -> Path | None:
    """Rename a used run directory out of the way (`--fresh`); returns its new name."""
    if not folder.exists():
        return None
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    folder.rename(aside)
    return aside


def check_same_run(folder: Path, config: Config) -> list[str]:
    """Compare with the config that the run was started with, if it was.

    Another `model` or `tokenizer` section cannot resume: CheckpointError with the differing keys. Returns
    the other keys that differ.
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
    fixed = [line for line in differing if line.startswith(("model.", "tokenizer."))]
    if fixed:
        raise CheckpointError(
            f"run directory {folder}: holds a run with another model or tokenizer, and weights cannot change "
            f"their shape ({'; '.join(fixed)}); give another --run-dir, or --fresh to set that run aside"
        )
    return differing


def write_start(folder: Path, config: Config, facts: Mapping[str, Any]) -> None:
    """`config.yaml` and `manifest.json`: what is run, on which data, with which software and hardware."""
    config_from_mapping(config.model_dump(mode="json"), "config")
    write_whole(folder / CONFIG, config.to_yaml())
    manifest = {
        "command": sys.argv,
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
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
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
