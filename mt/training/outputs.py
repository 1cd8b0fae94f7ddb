"""`outputs/` of a run directory: the translations that scores were computed from.

One file for the best validation, `outputs/step-00000650-valid.jsonl`, and one for each test set,
`outputs/step-00000650-test-1.jsonl`. A line holds one sentence: `source`, `reference`, `output`,
`score` (log-probability / length^penalty, eos counted; null if non-finite) and `flags`
(`mt.decoding.quality_flags`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mt.files import write_whole
from mt.model.checkpoint import step_name

if TYPE_CHECKING:
    from mt.decoding.lines import Translation

OUTPUTS = "outputs"


def write_valid_outputs(
    run_dir: Path,
    step: int,
    src: Sequence[str],
    ref: Sequence[str],
    translations: Sequence[Translation],
) -> None:
    """Write the outputs of the best validation so far."""
    _write(_valid_path(run_dir, step), src, ref, translations)


def drop_other_outputs(run_dir: Path, best_step: int | None) -> None:
    """Delete the outputs of validations that are not the best any more.

    Once the checkpoint of the best one is saved: a run killed before that resumes with the one
    before, and needs its outputs.
    """
    for path in (run_dir / OUTPUTS).glob("step-*-valid.jsonl"):
        if best_step is None or path != _valid_path(run_dir, best_step):
            path.unlink(missing_ok=True)


def read_valid_outputs(run_dir: Path, step: int) -> list[str] | None:
    """The outputs of the validation after update `step`; None if they are not there, or damaged."""
    try:
        lines = _valid_path(run_dir, step).read_text(encoding="utf-8").split("\n")[:-1]
        return [str(json.loads(line)["output"]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _valid_path(run_dir: Path, step: int) -> Path:
    return run_dir / OUTPUTS / f"{step_name(step)}-valid.jsonl"


def write_test_outputs(
    run_dir: Path,
    step: int,
    number: int,
    src: Sequence[str],
    ref: Sequence[str],
    translations: Sequence[Translation],
) -> str:
    """Write the outputs of test set `number`, from 1; return the file's path in the run."""
    name = f"{OUTPUTS}/{step_name(step)}-test-{number}.jsonl"
    _write(run_dir / name, src, ref, translations)
    return name


def _write(
    path: Path, src: Sequence[str], ref: Sequence[str], translations: Sequence[Translation]
) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = []
    for source, reference, translation in zip(src, ref, translations, strict=True):
        score = translation.scores[0]
        values = {
            "source": source,
            "reference": reference,
            "output": translation.texts[0],
            "score": round(score, 4) if math.isfinite(score) else None,
            "flags": translation.flags,
        }
        lines.append(json.dumps(values, ensure_ascii=False) + "\n")
    write_whole(path, "".join(lines))
