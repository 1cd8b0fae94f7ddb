"""Read a run directory; what is missing or damaged becomes a remark on the page, no error."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mt.config.load import load_config
from mt.config.plan import HELD_OUT, Corpus, DataPlan, with_held_out_files
from mt.config.schema import Config
from mt.errors import CheckpointError, MtError, first_line
from mt.runs import records
from mt.runs.model_folder import META, sort_key
from mt.runs.records import METRICS, Sentence, number
from mt.runs.run_dir import CONFIG, LOG, MANIFEST, read_manifest
from mt.training.outcome import scored_by
from mt.training.validation import names_of

# Figures of a `train` line that the page shows, by their names in metrics.jsonl.
FIGURES = ("step", "seconds", "nll", "grad_norm", "lr", "tokens_per_second", "waiting", "skipped")
MAX_SENTENCES = 50_000  # sentences read of a file of outputs
VALIDATION = "validation"  # the name of the validation set among the sets that are scored
NOT_KEPT = (
    "The outputs behind some scores were not kept: those have no interval and no sentences. "
    "mt evaluate --model has the intervals."
)


@dataclass
class RecordedScore:
    """The score of a test set or of the best validation, and the sentences behind it if kept."""

    name: str
    step: int
    bleu: float
    signature: str
    sentences: list[Sentence] = field(default_factory=list)
    remark: str = ""


@dataclass
class Metrics:
    """`metrics.jsonl`: a column of numbers for each figure of training; the other lines whole."""

    train: dict[str, array[float]]
    valid: list[dict[str, Any]] = field(default_factory=list)
    other_valid: list[dict[str, Any]] = field(default_factory=list)  # of sets that do not decide
    tests: list[dict[str, Any]] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)  # but the first

    @property
    def last_step(self) -> int:
        steps = [*self.train["step"][-1:], *(line["step"] for line in self.valid[-1:])]
        return int(max(steps, default=0))

    @property
    def seconds(self) -> float:
        """Seconds of training up to the last record, over all starts."""
        valid = (number(line, "seconds") for line in self.valid[-1:])
        seconds = [*self.train["seconds"][-1:], *valid]
        return max((value for value in seconds if math.isfinite(value)), default=0.0)

    @property
    def skipped(self) -> int:
        return int(sum(value for value in self.train["skipped"] if math.isfinite(value)))


@dataclass
class RunSummary:
    """The content of a run directory, as far as it can be read."""

    folder: Path
    label: str
    config: Config | None
    manifest: dict[str, Any]
    metrics: Metrics
    scored: list[RecordedScore]  # the test sets, then the best validation
    remarks: list[str]


def read_run(folder: Path, label: str) -> RunSummary:
    """Read the run directory `folder`. Raises CheckpointError if it is none."""
    require_run(folder)
    remarks: list[str] = []
    config = _read_config(folder, remarks)
    metrics = _read_metrics(folder, remarks)
    manifest = _read_manifest(folder, remarks)
    scored = _read_tests(folder, metrics)
    n_tests = len(scored)
    if (valid := _best_validation(folder, metrics, config)) is not None:
        scored.append(valid)
    else:
        remarks.append("There is no validation yet, or the run has no validation set.")
    remarks += [score.remark for score in scored if score.remark]
    if not all(score.sentences for score in scored[: n_tests or 1]):
        remarks.append(NOT_KEPT)
    return RunSummary(folder, label, config, manifest, metrics, scored, remarks)


def scored_texts(data: DataPlan) -> dict[str, Corpus]:
    """The validation and test sets of a config, by the names of their scores."""
    # A validation of several directions is no text of which one language is known.
    validation = {VALIDATION: data.valid[0]} if len(data.valid) == 1 else {}
    return validation | dict(zip(names_of(data.test), data.test, strict=True))


def labels_of(folders: Sequence[Path]) -> list[str]:
    """A short name for each run: its folder's, or its path where several have the same."""
    names = [folder.resolve().name for folder in folders]
    both = zip(names, folders, strict=True)
    return [name if names.count(name) == 1 else str(folder) for name, folder in both]


def require_run(folder: Path) -> None:
    """Raise CheckpointError if a folder is no run directory."""
    if any((folder / name).is_file() for name in (CONFIG, MANIFEST, METRICS, LOG)):
        return
    if not folder.exists():
        problem = "nothing exists at this path"
    elif folder.is_file():
        problem = "this is a file"
    elif (folder / META).is_file():
        problem = "this is a checkpoint or model folder; give the run directory that it is from"
    else:
        problem = f"it has none of {CONFIG}, {MANIFEST}, {METRICS}, {LOG}"
    raise CheckpointError(f"RUN {folder}: must be the run directory of a training; {problem}")


def _read_config(folder: Path, remarks: list[str]) -> Config | None:
    path = folder / CONFIG
    if not path.is_file():
        remarks.append(f"There is no {CONFIG}: settings are not shown.")
        return None
    try:
        return with_held_out_files(load_config(str(path)).config, folder / HELD_OUT)
    except (MtError, OSError, ValueError) as error:
        remarks.append(f"{CONFIG} cannot be read, so settings are not shown: {first_line(error)}")
        return None


def _read_manifest(folder: Path, remarks: list[str]) -> dict[str, Any]:
    try:
        return read_manifest(folder)
    except FileNotFoundError:
        reason = "the file is missing"
    except (OSError, ValueError) as error:
        reason = str(error)
    remarks.append(f"{MANIFEST}: parameters, pairs and device are not known, {reason}.")
    return {}


def _read_metrics(folder: Path, remarks: list[str]) -> Metrics:
    metrics = Metrics({name: array("d") for name in FIGURES})
    if not (folder / METRICS).is_file():
        remarks.append(f"There is no {METRICS} yet: no update has been logged.")
        return metrics
    unreadable, last_is_bad = 0, False
    others = {"valid": metrics.valid, "test": metrics.tests}
    others |= {"stage": metrics.stages, records.OTHER_VALID: metrics.other_valid}
    for line in records.metrics_lines(folder):
        last_is_bad = line is None
        unreadable += last_is_bad
        if line is not None and line["kind"] == "train":
            for name, column in metrics.train.items():
                column.append(number(line, name))
        elif line is not None and line["kind"] in others:
            others[line["kind"]].append(line)
    if last_is_bad:
        remarks.append(f"The last line of {METRICS} is incomplete and was left out.")
    if count := unreadable - last_is_bad:
        remarks.append(f"{count:,} lines of {METRICS} cannot be read, and are left out.")
    return metrics


def _recorded(name: str, line: Mapping[str, Any], sentences: list[Sentence]) -> RecordedScore:
    """The score of a line, with its sentences if they are all there."""
    signature = str(line.get("signature", ""))
    step = records.scored_step(line)
    scored = RecordedScore(name, step, number(line, "bleu"), signature, sentences)
    n_lines = line.get("lines", len(sentences))
    if sentences and n_lines != len(sentences):
        scored.sentences = []
        scored.remark = (
            f"{name}: {len(sentences):,} of {n_lines:,} outputs can be read, so they are left out. "
            "The score is the one that the training recorded."
        )
    return scored


def _read_tests(folder: Path, metrics: Metrics) -> list[RecordedScore]:
    """The test sets, each with its last score."""
    by_name: dict[str, RecordedScore] = {}
    for line in metrics.tests:
        name = str(line.get("name", "test"))
        by_name.pop(name, None)
        sentences = records.read_test_sentences(folder, line.get("outputs"), MAX_SENTENCES)
        by_name[name] = _recorded(name, line, sentences)
    return list(by_name.values())


def _best_validation(folder: Path, metrics: Metrics, config: Config | None) -> RecordedScore | None:
    """The validation whose outputs are kept, else the best by `train.metric`."""
    lines = {line["step"]: line for line in metrics.valid}
    if not lines:
        return None
    metric = config.train.metric if config else "bleu"
    kept = [step for step in records.valid_output_steps(folder) if step in lines]
    step = kept[-1] if kept else max(lines, key=lambda n: sort_key(scored_by(metric, lines[n])))
    sentences = records.read_sentences(records.valid_path(folder, step), MAX_SENTENCES)
    return _recorded(VALIDATION, lines[step], sentences)
