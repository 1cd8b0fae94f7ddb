"""Run directories written by hand, to be reported on: also such as no training would write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

SCRIPT = "<script>console.error('ran')</script>"
HOSTILE = (
    SCRIPT, '"><img src=x onerror=alert(1)> & &amp; {{ 7 * 7 }} ]]>',
    "half a pair: \ud83d, an emoji: 👩‍👩‍👧‍👦", "שלום עולם, זה משפט מימין לשמאל",
    " ".join(["lang"] * 3000), "a" * 5000, "\u2028 \x00 \x1b[31m", "   ",
)  # fmt: skip


def write_run(
    folder: Path, *, train: Sequence[Mapping[str, Any]] = (),
    valid: Sequence[Mapping[str, Any]] = (), config: Mapping[str, Any] | None = None,
    manifest: Mapping[str, Any] | None = None, outputs: Sequence[Mapping[str, Any]] = (),
    end: str = "",
) -> Path:  # fmt: skip
    """Write a run directory; `outputs` are those of a test set, `end` ends metrics.jsonl."""
    (folder / "outputs").mkdir(parents=True)
    lines = [{"kind": "train"} | dict(line) for line in train]
    lines += [{"kind": "valid"} | dict(line) for line in valid]
    if outputs:
        name = "outputs/step-00000010-test-1.jsonl"
        lines.append({"kind": "test", "step": 10, "name": "test.de", "bleu": 1.0, "outputs": name})
        text = "".join(json.dumps(line) + "\n" for line in outputs)
        (folder / name).write_text(text, encoding="utf-8")
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + end, encoding="utf-8")
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config or {})), encoding="utf-8")
    (folder / "manifest.json").write_text(json.dumps(dict(manifest or {})), encoding="utf-8")
    log = (
        "2026-11-22 10:00:00 run directory x on CPU\n2026-11-22 10:00:01 stopped by SIGTERM after\n"
    )
    (folder / "train.log").write_text(log, encoding="utf-8")
    return folder


def train_line(step: int, **figures: Any) -> dict[str, Any]:
    """A line of training figures."""
    usual = {
        "nll": 1000 / (step + 100), "grad_norm": 0.5, "lr": 1e-3, "tokens_per_second": 5000.0,
        "waiting": 0.01, "skipped": 0, "seconds": step * 0.5, "memory_mb": 500.0,
    }  # fmt: skip
    return {"step": step, **usual, **figures}


def hostile_run(folder: Path) -> Path:
    """A run whose texts, names and figures are as bad as they can be."""
    outputs = [
        {"source": text, "reference": f"{text} x", "output": f"y {text}", "score": None,
         "flags": ["looping", SCRIPT]}
        for text in HOSTILE
    ]  # fmt: skip
    return write_run(
        folder,
        train=[
            train_line(10),
            train_line(20, nll=None, grad_norm=None, seconds=None),
            train_line(30, skipped=7, lr="high", waiting=True),
        ],
        valid=[
            {"step": 10, "nll": None, "bleu": None, "seconds": 5.0},
            {"step": 20, "bleu": SCRIPT},
        ],
        config={"data": {"src_lang": SCRIPT, "train": [{"src": SCRIPT, "tgt": "gone.en"}]}},
        manifest={"command": ["mt", SCRIPT], "device": SCRIPT, "packages": {SCRIPT: SCRIPT}},
        outputs=outputs,
        end='{"kind": "stage", "step": 20, "stage": 1, "drawn": [60, "<"]}\n'
        '{"kind": "stage", "step": 20, "drawn": 7}\n{"kind": "train", "step": 40, "nl',
    )
