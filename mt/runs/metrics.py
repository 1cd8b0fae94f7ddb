"""`metrics.jsonl` of a run directory: one JSON object a line, each with its kind and its update."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from mt.files import parse_json, write_whole

METRICS = "metrics.jsonl"
# The kind of the lines of validation sets after the first one, each with its name.
OTHER_VALID = "other valid"
# Of a validation: the score, higher being better, its nll, and whether the score decides yet.
Scored: TypeAlias = tuple[float, float, bool]


def rank(scored: Scored) -> tuple[bool, float, float]:
    """A key to sort validations by, of which the greatest is the best.

    The higher score is better, of equal scores the lower nll. As long as the score does not decide,
    the lower nll is better, and any validation whose score decides is better than those.
    """
    score, nll, decides = scored
    return (True, score, -nll) if decides else (False, -nll, score)


def append_metrics(run_dir: Path, kind: str, step: int, figures: Mapping[str, Any]) -> None:
    line = json.dumps({"kind": kind, "step": step, **figures}, ensure_ascii=False)
    with (run_dir / METRICS).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def metrics_lines(run_dir: Path) -> Iterator[dict[str, Any] | None]:
    """Yield each line, None for one that no run writes; nothing if there is no file.

    A line that is yielded has a `kind` and a whole number `step`; its figures are not checked.
    """
    try:
        with (run_dir / METRICS).open("rb") as file:
            for raw in file:
                if raw.strip():
                    yield _line(raw)
    except FileNotFoundError:
        return


def _line(raw: bytes) -> dict[str, Any] | None:
    try:
        line = parse_json(raw)
        kind, step = line["kind"], line["step"]
    except (ValueError, KeyError, TypeError):
        return None
    is_step = isinstance(step, int) and not isinstance(step, bool)
    return line if isinstance(kind, str) and is_step else None


def drop_metrics_after(run_dir: Path, step: int) -> None:
    """Drop the lines of updates after `step`, and the line that a crash cut short."""
    if (run_dir / METRICS).exists():
        kept = [line for line in metrics_lines(run_dir) if line and line["step"] <= step]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept)
        write_whole(run_dir / METRICS, text)


def scored_step(line: Mapping[str, Any]) -> int:
    """The update after which the model of a validation or test had its weights.

    Tests are scored after the last update, with the best checkpoint.
    """
    step = line.get("model_step")
    return step if isinstance(step, int) else line["step"]


def number(line: Mapping[str, Any], key: str) -> float:
    """A figure of a line; NaN where it is null, missing or no number."""
    value = line.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else math.nan  # type: ignore[arg-type]
