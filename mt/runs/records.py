"""Records of a training in its run directory: `metrics.jsonl`, `outputs/` and `samples/`.

`metrics.jsonl` has one JSON object a line, each with its kind and its update. `outputs/` holds what
scores were computed from, a `Sentence` a line: `step-00000650-valid.jsonl` of the best validation
up to each kept checkpoint, and `step-00000650-test-1.jsonl` of each test set.
`samples/step-00000650.txt` holds a few sentences of each validation, to be read by people.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from mt.files import parse_json, write_whole
from mt.runs.model_folder import checkpoints, step_name, step_of

METRICS = "metrics.jsonl"
# The kind of the lines of validation sets after the first one, each with its name.
OTHER_VALID = "other valid"


def metrics_lines(run_dir: Path) -> Iterator[dict[str, Any] | None]:
    """Yield each line, which has a `kind` and a `step`, or None for one that no run writes."""
    with suppress(FileNotFoundError), (run_dir / METRICS).open("rb") as file:
        for raw in file:
            if raw.strip():
                yield _line(raw)


def _line(raw: bytes) -> dict[str, Any] | None:
    try:
        line = parse_json(raw)
        kind, step = line["kind"], line["step"]
    except (ValueError, KeyError, TypeError):
        return None
    is_step = isinstance(step, int) and not isinstance(step, bool)
    return line if isinstance(kind, str) and is_step else None


def drop_after(run_dir: Path, step: int) -> None:
    """Drop metrics and outputs of updates after `step`, and a line that a crash cut short."""
    if (run_dir / METRICS).exists():
        kept = [line for line in metrics_lines(run_dir) if line and line["step"] <= step]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept)
        write_whole(run_dir / METRICS, text)
    for later in valid_output_steps(run_dir):
        if later > step:
            valid_path(run_dir, later).unlink(missing_ok=True)


def scored_step(line: Mapping[str, Any]) -> int:
    """The update after which the model of a validation or test had its weights."""
    step = line.get("model_step")
    return step if isinstance(step, int) else line["step"]


def number(line: Mapping[str, Any], key: str) -> float:
    """A figure of a line; NaN where it is null, missing or no number."""
    value = line.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else math.nan  # type: ignore[arg-type]


OUTPUTS = "outputs"
SAMPLES = "samples"
SAMPLE = "source     {}\nreference  {}\noutput     {}\n"


@dataclass(frozen=True)
class Sentence:
    """A sentence of the validation or a test set, with its translation by the model."""

    source: str
    reference: str
    output: str
    score: float | None = None  # log-probability / length^penalty, eos counted; None: non-finite
    flags: tuple[str, ...] = ()  # of `mt.translate.quality_flags`


def write_test_outputs(run_dir: Path, step: int, sentences: Sequence[Sentence]) -> str:
    """Write the outputs of a test set under the next free number; return the path in the run."""
    named = {line.get("outputs") for line in metrics_lines(run_dir) if line}
    names = (f"{OUTPUTS}/{step_name(step)}-test-{number}.jsonl" for number in count(1))
    name = next(name for name in names if name not in named and not (run_dir / name).exists())
    write_sentences(run_dir / name, sentences)
    return name


def drop_other_outputs(run_dir: Path) -> None:
    """Delete the outputs of validations that were not the best one up to any checkpoint."""
    steps = valid_output_steps(run_dir)
    saved = [step_of(folder.name) for folder in checkpoints(run_dir)]
    needed = {max((step for step in steps if step <= last), default=None) for last in saved}
    for step in set(steps) - needed:
        valid_path(run_dir, step).unlink(missing_ok=True)


def valid_output_steps(run_dir: Path) -> list[int]:
    """The updates of the validations whose outputs are kept, in order."""
    names = (path.name for path in (run_dir / OUTPUTS).glob("step-*-valid.jsonl"))
    matches = (re.fullmatch(r"step-(\d+)-valid.jsonl", name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def valid_path(run_dir: Path, step: int) -> Path:
    return run_dir / OUTPUTS / f"{step_name(step)}-valid.jsonl"


def write_sentences(path: Path, sentences: Sequence[Sentence]) -> None:
    """Write the outputs of a validation or a test set."""
    path.parent.mkdir(exist_ok=True)
    scores = (math.nan if each.score is None else each.score for each in sentences)
    rounded = (round(score, 4) if math.isfinite(score) else None for score in scores)
    rows = [asdict(each) | {"score": score} for each, score in zip(sentences, rounded, strict=True)]
    write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_test_sentences(run_dir: Path, name: object, at_most: int) -> list[Sentence]:
    """The first sentences of a test set; `name`: the path of its outputs in the run directory."""
    # No other file is opened: the name may be from the metrics of a stranger.
    if not re.fullmatch(rf"{OUTPUTS}/step-\d+-test-\d+\.jsonl", str(name)):
        return []
    return read_sentences(run_dir / str(name), at_most)


def read_sentences(path: Path, at_most: int | None = None) -> list[Sentence]:
    """The first sentences of a file; damaged lines are left out."""
    with suppress(OSError), path.open("rb") as file:
        return list(islice(filter(None, map(_sentence, file)), at_most))
    return []


def _sentence(raw: bytes) -> Sentence | None:
    try:
        line = parse_json(raw)
        source, reference, output = (line[key] for key in ("source", "reference", "output"))
    except (ValueError, KeyError, TypeError):
        return None
    if not all(isinstance(text, str) for text in (source, reference, output)):
        return None
    score, flags = number(line, "score"), line.get("flags")
    names = tuple(str(flag) for flag in flags) if isinstance(flags, list) else ()
    return Sentence(source, reference, output, score if math.isfinite(score) else None, names)


def write_samples(run_dir: Path, step: int, sentences: Sequence[Sentence]) -> None:
    path = run_dir / SAMPLES / f"{step_name(step)}.txt"
    path.parent.mkdir(exist_ok=True)
    write_whole(path, "\n".join(SAMPLE.format(*astuple(each)[:3]) for each in sentences))
