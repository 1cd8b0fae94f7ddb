"""`manifest.json` of a run directory: what was run, on which data, software and hardware."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mt import __version__
from mt.data.reading.corpus_record import (
    RECORD,
    CleanedRecord,
    CorpusRecord,
    TrainedCorpus,
    read_cleaned_record,
    read_record,
)
from mt.errors import ConfigError
from mt.files import read_json, write_whole
from mt.runtime.machine import processor_name

MANIFEST = "manifest.json"
PACKAGES = (
    "torch", "sentencepiece", "datasets", "sacrebleu", "safetensors", "numpy", "pydantic",
)  # fmt: skip


def write_manifest(run_dir: Path, details: Mapping[str, Any]) -> None:
    """Write the manifest: command, job, versions, machine, and `details` of data and model."""
    manifest = {
        "command": sys.argv,
        "jobs": _jobs(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "packages": _package_versions(),
        **details,
    }
    write_whole(run_dir / MANIFEST, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")


def read_manifest(run_dir: Path) -> dict[str, Any]:
    """Read the manifest. Raises OSError or ValueError if it is missing or damaged."""
    manifest = read_json(run_dir / MANIFEST)
    if not isinstance(manifest, dict):
        raise ValueError("it is no JSON object")
    return manifest


def fetched_corpora(files: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The corpora, fetched by `mt data get`, that training files belong to or were cleaned from.

    `files`: records with `sha256`, by path. Each corpus is a `TrainedCorpus`.
    """
    digests: dict[Path, dict[str, str]] = {}  # by folder and name
    for path, file in files.items():
        digests.setdefault(Path(path).parent, {})[Path(path).name] = file["sha256"]
    folders = digests.items()
    return [corpus.model_dump() for folder, used in folders for corpus in _corpora_in(folder, used)]


def _corpora_in(folder: Path, used: Mapping[str, str]) -> Iterator[TrainedCorpus]:
    """The corpora that files of a folder are, with these SHA-256 by name, or were cleaned from."""

    def changed(names: set[str], record: CorpusRecord | CleanedRecord) -> list[str]:
        return sorted(name for name in names if used[name] != record.files[name].sha256)

    with suppress(ConfigError):  # a corpus.yaml of another program
        record = read_record(folder)
        if record and (names := record.files.keys() & used):
            yield TrainedCorpus(**record.model_dump(), changed=changed(names, record))
    for path in sorted(folder.glob(f"*.{RECORD}")):
        with suppress(ConfigError):
            cleaned = read_cleaned_record(path)
            if cleaned and (names := cleaned.files.keys() & used):
                for corpus in cleaned.corpora:
                    both = corpus.changed + changed(names, cleaned)
                    yield corpus.model_copy(update={"cleaned": sorted(names), "changed": both})


def recorded_corpora(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The corpora that `fetched_corpora` gave, read from a manifest without damaged ones."""
    corpora = []
    entries = manifest.get("corpora")
    for entry in entries if isinstance(entries, list) else ():
        with suppress(ValidationError):
            corpora.append(TrainedCorpus.model_validate(entry).model_dump())
    return corpora


def is_of_this_job(run_dir: Path) -> bool:
    """Whether an earlier start of this job, by torchrun or out of a queue, made the run."""
    try:
        manifest = read_manifest(run_dir)
    except (OSError, ValueError):
        return False
    return not set(manifest.get("jobs", [])).isdisjoint(_jobs(before=True))


def _jobs(before: bool = False) -> list[str]:
    """Names of the torchrun and Slurm jobs that this process belongs to.

    `before`: only those that may have started this training before. torchrun's agent is the parent
    of its processes, and starts them again only on a restart. All commands of a Slurm allocation
    share its id, so a Slurm job counts only once requeued.
    """
    jobs = []
    if "TORCHELASTIC_RUN_ID" in os.environ:
        jobs.append(f"torchrun {socket.gethostname()} {os.getppid()}")
    slurm = os.environ.get("SLURM_JOB_ID")
    if slurm and (not before or os.environ.get("SLURM_RESTART_COUNT", "0") != "0"):
        jobs.append(f"slurm {slurm}")
    return jobs


def _package_versions() -> dict[str, str]:
    versions = {"mt": __version__}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions
