"""`outputs/` of a run directory: the translations that scores were computed from.

One file for the best validation, `outputs/step-00000650-valid.jsonl`, and one for each test set,
`outputs/step-00000650-test-1.jsonl`. A line holds one sentence: `source`, `reference`, `output`,
`score` (log-probability / length^penalty, eos counted; null if non-finite) and `flags`
(`mt.translate.quality_flags`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mt.files import write_whole
from mt.runs.model_folder import step_name

OUTPUTS = "outputs"


@dataclass(frozen=True)
class Sentence:
    """A sentence of the validation or a test set, with its translation by the model."""

    source: str
    reference: str
    output: str
    score: float | None = None  # log-probability / length^penalty
    flags: tuple[str, ...] = ()


def write_valid_outputs(run_dir: Path, step: int, sentences: Sequence[Sentence]) -> None:
    """Write the outputs of the best validation so far."""
    _write(_valid_path(run_dir, step), sentences)


def drop_other_outputs(run_dir: Path, best_step: int | None) -> None:
    """Delete the outputs of validations that are not the best any more.

    Once the checkpoint of the best one is saved: a run killed before that resumes with the one
    before, and needs its outputs.
    """
    for path in (run_dir / OUTPUTS).glob("step-*-valid.jsonl"):
        if best_step is None or path != _valid_path(run_dir, best_step):
            path.unlink(missing_ok=True)


def read_valid_outputs(run_dir: Path, step: int) -> list[str] | None:
    """The outputs of the validation after update `step`; None if a line is missing or damaged."""
    try:
        lines = _valid_path(run_dir, step).read_bytes().split(b"\n")[:-1]
    except OSError:
        return None
    sentences = [_sentence(line) for line in lines]
    outputs = [sentence.output for sentence in sentences if sentence is not None]
    return outputs if len(outputs) == len(sentences) else None


def _valid_path(run_dir: Path, step: int) -> Path:
    return run_dir / OUTPUTS / f"{step_name(step)}-valid.jsonl"


def write_test_outputs(run_dir: Path, step: int, number: int, sentences: Sequence[Sentence]) -> str:
    """Write the outputs of test set `number`, from 1; return the file's path in the run."""
    name = f"{OUTPUTS}/{step_name(step)}-test-{number}.jsonl"
    _write(run_dir / name, sentences)
    return name


def _write(path: Path, sentences: Sequence[Sentence]) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = []
    for sentence in sentences:
        values = asdict(sentence)
        score = sentence.score
        values["score"] = None if score is None or not math.isfinite(score) else round(score, 4)
        lines.append(json.dumps(values, ensure_ascii=False) + "\n")
    write_whole(path, "".join(lines))


def read_outputs(path: Path, at_most: int) -> list[Sentence]:
    """The first `at_most` sentences of a file of outputs; damaged lines and files are left out."""
    sentences: list[Sentence] = []
    try:
        with path.open("rb") as file:
            for raw in file:
                if len(sentences) == at_most:
                    break
                if (sentence := _sentence(raw)) is not None:
                    sentences.append(sentence)
    except OSError:
        return []
    return sentences


def _sentence(raw: bytes) -> Sentence | None:
    """Read one line; None where it is damaged."""
    try:
        line = json.loads(raw)
        source, reference, output = (line[key] for key in ("source", "reference", "output"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not all(isinstance(text, str) for text in (source, reference, output)):
        return None
    score, flags = line.get("score"), line.get("flags")
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    names = tuple(str(flag) for flag in flags) if isinstance(flags, list) else ()
    known = float(score) if is_number and math.isfinite(score) else None
    return Sentence(source, reference, output, known, names)
