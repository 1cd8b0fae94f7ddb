"""The run directory: claimed, checked, set aside; its stand-in for a dry run; its manifest."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mt.artefacts import exclusive
from mt.config.data_schema import DataConfig
from mt.config.load import load_config
from mt.config.schema import MAX_POSITIONS, Config, keys_affecting, shape_keys, vocabulary_keys
from mt.config.settled import KEYS, OFF, Settled, auto_keys
from mt.data.reading.languages import base_code
from mt.data.tokens.tokenizer import Tokenizer
from mt.data.tokens.writing import WRITING
from mt.errors import CheckpointError, ConfigError, DataError, MtError
from mt.files import read_json, write_whole
from mt.package import VERSION
from mt.runs.model_folder import CHECKPOINTS, checkpoints, read_meta
from mt.runtime.machine import processor_name

if TYPE_CHECKING:
    from mt.runtime.distributed import World

# Its files and folders that have no module of their own beside this one.
CONFIG = "config.yaml"
SETTLED = "settled.json"
LOCK = ".lock"
LOG = "train.log"
REPORT = "report.html"
STORE = "store"  # token ids, in a folder for each of train and valid
CLEANED = f"{STORE}/cleaned"  # text


def claim(run_dir: Path) -> ExitStack:
    """Create, check and lock a run directory until the result is closed. DataError if it fails."""
    try:
        (run_dir / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        probe = run_dir / CHECKPOINTS / f".probe-{os.getpid()}"
        probe.write_bytes(b"mt")
        probe.unlink()
        return _lock(run_dir)
    except OSError as error:
        raise _not_writable(run_dir, error) from error


def _not_writable(run_dir: Path, error: OSError) -> DataError:
    return DataError(
        f"run directory {run_dir}: must be a folder that can be written, but {error.strerror} "
        f"({error.filename}); give another one with --run-dir"
    )


def _lock(run_dir: Path) -> ExitStack:
    def refuse() -> None:
        raise DataError(
            f"run directory {run_dir}: another process is training in it; wait for it, or give "
            "another --run-dir"
        )

    lock = ExitStack()
    lock.enter_context(exclusive(run_dir / LOCK, refuse))
    return lock


@contextmanager
def explain_write_errors(run_dir: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a DataError; checkpoints report their own."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"run directory {run_dir}: cannot be written ({error}). Everything saved earlier is "
            "intact: free some space or fix the cause, then run the same command again"
        ) from error


def _holds_run(run_dir: Path) -> bool:
    return any((run_dir / name).exists() for name in (LOCK, CONFIG, CHECKPOINTS))


def check_can_be_renamed(run_dir: Path) -> None:
    """Raise DataError if this process is in a run to set aside: paths would mean the old one."""
    place = Path(os.path.abspath(run_dir))
    if _holds_run(run_dir) and Path.cwd().is_relative_to(place.parent.resolve() / place.name):
        raise DataError(
            f"run directory {run_dir}: --fresh renames it, but the current folder is in it; run "
            "the command from another folder"
        )


def set_aside(run_dir: Path) -> Path | None:
    """Rename a used run directory to `NAME.old-N`, the path returned. DataError if it is in use."""
    check_can_be_renamed(run_dir)
    if not _holds_run(run_dir):
        return None
    run_dir = run_dir.absolute()
    names = (run_dir.with_name(f"{run_dir.name}.old-{number}") for number in count(1))
    aside = next(path for path in names if not path.exists())
    try:
        with _lock(run_dir):
            run_dir.rename(aside)
    except OSError as error:
        raise DataError(
            f"run directory {run_dir}: cannot be renamed to {aside.name} ({error.strerror}); give "
            "another --run-dir"
        ) from error
    return aside


def check_is_run(run_dir: Path) -> None:
    """Raise DataError if the folder holds a `config.yaml` that no run of mt has written."""
    is_run = any((run_dir / name).exists() for name in (LOCK, MANIFEST)) or checkpoints(run_dir)
    if (run_dir / CONFIG).exists() and not is_run:
        raise DataError(
            f"run directory {run_dir}: holds a {CONFIG} that no run of mt has written, and "
            "training would overwrite it; rename that file, or give another --run-dir"
        )


def check_can_start(run_dir: Path, fresh: bool) -> None:
    """Raise DataError or CheckpointError before minutes of reading; nothing is created."""
    with suppress(OSError):  # `claim` reports it
        if (run_dir / LOCK).exists():
            _lock(run_dir).close()
    check_can_be_renamed(run_dir) if fresh else check_version(run_dir)


def check_version(run_dir: Path) -> None:
    """Raise CheckpointError if mt 0.2 or before made the run, or trained it last."""
    version = ""
    with suppress(OSError, ValueError):
        version = str(read_manifest(run_dir).get("packages", {}).get("mt"))
    if version.startswith(("0.1.", "0.2.")):
        raise CheckpointError(
            f"run directory {run_dir}: was made by mt {version}, and this is mt {VERSION}, "
            "which does not read it; train anew (--fresh sets it aside), or use that version"
        )


def load_run_config(run_dir: Path) -> Config:
    """Load the config that a run was started with. Raises CheckpointError if it cannot be used."""
    try:
        return load_config(str(run_dir / CONFIG)).config
    except ConfigError as error:
        raise CheckpointError(
            f"{error}\nrun directory {run_dir}: cannot be resumed with this config; take what left "
            f"mt out of its {CONFIG} to go on without it, or give --fresh to set the run aside"
        ) from error


def check_same_run(run_dir: Path, config: Config) -> list[str]:
    """Lines about keys that differ from the run's first config; CheckpointError if one is fixed."""
    path = run_dir / CONFIG
    if not path.exists():
        return []
    before = load_run_config(run_dir)
    if settled := read_settled(run_dir):
        before, config = settled.apply(before), settled.apply(config)
    differing = _differing_keys(before, config)
    has_weights = bool(checkpoints(run_dir))
    has_tokenizer = Tokenizer.exists_in(run_dir)

    def is_fixed(key: str) -> bool:
        """Whether a key that makes another model cannot change any more."""
        section, _, name = key.partition(".")
        if section in ("tokenizer", "train"):
            return has_tokenizer
        if section == "data":  # its languages
            old, new = before.value(key), config.value(key)
            is_same = base_code(old) == base_code(new)
            return has_weights and not is_same and old != DataConfig.model_fields[name].default
        return has_weights and (key != MAX_POSITIONS or config.model.learned_positions)

    keys = [key for key in keys_affecting("model") if key in differing]
    if fixed := [differing[key] for key in keys if is_fixed(key)]:
        raise CheckpointError(
            f"run directory {run_dir}: holds a run with another model, tokenizer, start or "
            f"language, which cannot change ({'; '.join(fixed)}); set them back, give --fresh to "
            f"set it aside, or another --run-dir{' (for train.init_from, this one)' * has_weights}"
        )
    return list(differing.values())


def _differing_keys(before: Config, now: Config) -> dict[str, str]:
    """`section.key` -> a line about it, for every key whose value differs."""
    old, new = (config.model_dump(mode="json") for config in (before, now))
    short = [config.model_dump(mode="json", exclude_defaults=True) for config in (before, now)]
    lines = {}
    for section, values in old.items():
        was, is_now = (tree.get(section, {}) for tree in short)
        for key, value in values.items():
            if (other := new[section][key]) != value:
                shown = f"was {was.get(key, value)}, now {is_now.get(key, other)}"
                lines[f"{section}.{key}"] = f"{section}.{key}: {shown}"
    return lines


def write_config(run_dir: Path, config: Config, settled: Settled) -> None:
    """Write both, the numbers first: an `auto` of the config has one, whatever stops this."""
    with explain_write_errors(run_dir):
        write_whole(run_dir / SETTLED, json.dumps(asdict(settled), indent=1))
        write_whole(run_dir / CONFIG, config.to_yaml())


def read_settled(run_dir: Path) -> Settled | None:
    """Read what a run has settled; None where it has no tokenizer, as in a new run."""
    if not (run_dir / CONFIG).exists() or not Tokenizer.exists_in(run_dir):
        return None
    config = load_run_config(run_dir)
    try:
        settled: Settled | None = Settled(**read_json(run_dir / SETTLED))
    except (OSError, ValueError, TypeError):
        settled = _settled_by_checkpoints(run_dir, config)
    if settled is None:
        return None
    numbers = {key: config.value(key) for key in KEYS if config.value(key) != "auto"}
    values = {**OFF, **numbers, **settled.values}  # earlier versions settled fewer
    if checkpoints(run_dir):  # from the first one on what was measured counts
        return replace(settled, values=values)
    return Settled(values, reasons=settled.reasons)


def _settled_by_checkpoints(run_dir: Path, config: Config) -> Settled | None:
    """Read what the newest checkpoint has settled; those of mt 0.3 have it in their config."""
    keys = [*KEYS, *shape_keys(), *vocabulary_keys(), MAX_POSITIONS]
    of_earlier = None if auto_keys(config) else Settled({key: config.value(key) for key in keys})
    for folder in reversed(checkpoints(run_dir)):
        with suppress(CheckpointError, TypeError):  # a damaged one is reported on resuming
            meta = read_meta(folder, [])
            if "settled" in meta:
                return Settled(**meta["settled"])
            measured = meta.get("measured_tokens_per_batch"), meta.get("epochs_in_time")
            return of_earlier and Settled(of_earlier.values, *measured, config.train.max_steps)
    return of_earlier


@contextmanager
def dry_run_dir(run_dir: Path, fresh: bool, world: World) -> Iterator[Path]:
    """A temporary run directory that starts like `run_dir`, or empty with `fresh`; then removed.

    So a dry run goes the way of a training, and nothing is changed in `run_dir`: small files are
    copied, large ones are links that nothing writes to. It is in the run directory, or the nearest
    folder above it that exists, so that all ranks see it. Raises DataError if it cannot be made.
    """
    with ExitStack() as stack:

        def make() -> Path:
            try:
                parent = next(p for p in (run_dir, *run_dir.absolute().parents) if p.exists())
                tmp = TemporaryDirectory(prefix=".dry-run-", dir=parent, ignore_cleanup_errors=True)
                path = Path(stack.enter_context(tmp))
                if not fresh:
                    _fill(path, run_dir.absolute())
            except OSError as error:
                raise _not_writable(run_dir, error) from error
            return path

        folder = world.on_main(make)
        try:
            yield folder
        except MtError as error:  # the temporary folder's name would be of no use
            error.args = (str(error).replace(str(folder), str(run_dir)),)
            raise
        world.all_gather(None)  # all ranks have read what is removed now


def _fill(folder: Path, run_dir: Path) -> None:
    # A copied lock is another one, so a training may be in progress.
    named = [run_dir / name for name in (CONFIG, SETTLED, MANIFEST, LOCK, WRITING)]
    for path in filter(Path.exists, [*named, *run_dir.glob("tokenizer.*")]):
        shutil.copy(path, folder)
    (folder / CHECKPOINTS).mkdir()
    for path in checkpoints(run_dir):
        (folder / CHECKPOINTS / path.name).symlink_to(path)
    if (run_dir / STORE).exists():
        shutil.copytree(run_dir / STORE, folder / STORE, copy_function=_copy_or_link)


def _copy_or_link(source: str, target: str) -> None:
    (shutil.copy if source.endswith(".json") else os.symlink)(source, target)


MANIFEST = "manifest.json"
PACKAGES = (
    "torch", "sentencepiece", "datasets", "sacrebleu", "safetensors", "numpy", "pydantic",
)  # fmt: skip


def write_manifest(run_dir: Path, details: Mapping[str, Any]) -> None:
    """Write the manifest: command, job, versions, machine, and `details` of data and model."""
    versions = {"mt": VERSION}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    manifest = {
        "command": sys.argv,
        "jobs": _jobs(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "packages": versions,
        **details,
    }
    write_whole(run_dir / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


def update_manifest(run_dir: Path, details: Mapping[str, Any]) -> None:
    with suppress(OSError, ValueError):
        manifest = {**read_manifest(run_dir), **details}
        write_whole(run_dir / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


def read_manifest(run_dir: Path) -> dict[str, Any]:
    """Read the manifest. Raises OSError or ValueError if it is missing or damaged."""
    manifest = read_json(run_dir / MANIFEST)
    if not isinstance(manifest, dict):
        raise ValueError("it is no JSON object")
    return manifest


def is_of_this_job(run_dir: Path) -> bool:
    """Whether an earlier start of this job, by torchrun or out of a queue, made the run."""
    with suppress(OSError, ValueError):
        return not set(read_manifest(run_dir).get("jobs", [])).isdisjoint(_jobs(before=True))
    return False


def _jobs(before: bool = False) -> list[str]:
    """Names of the torchrun and Slurm jobs that this process belongs to.

    `before`: only those that may have started this training before: torchrun's agent, which is the
    parent of its processes, and a Slurm job once requeued, as its id is that of all its commands.
    """
    jobs = []
    if "TORCHELASTIC_RUN_ID" in os.environ:
        jobs.append(f"torchrun {socket.gethostname()} {os.getppid()}")
    slurm = os.environ.get("SLURM_JOB_ID")
    if slurm and (not before or os.environ.get("SLURM_RESTART_COUNT", "0") != "0"):
        jobs.append(f"slurm {slurm}")
    return jobs
