"""Translation of a text by one, two and four workers that share a GPU."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from gpu_sections.report import Report
from gpu_sections.setting import Setting
from gpu_sections.translating import SearchHere, prepared_text, random_model, translator_of

WORKERS = (1, 2, 4)


def run(report: Report, setting: Setting) -> None:
    """Translate the same lines with each number of workers; outputs must be equal but for ties."""
    model = random_model(setting)
    lines = prepared_text(model, setting)
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), weights := Path(folder) / "weights.pt")
        for count in (2,) if setting.tiny else WORKERS:
            name = f"{count} worker{'s' * (count > 1)}"
            report.attempt(name, partial(measure, report, setting, weights, lines, count))


def measure(report: Report, setting: Setting, weights: Path, lines: list[str], count: int) -> None:
    """Lines per second once every worker has loaded the model."""
    searches = [SearchHere(setting, weights) for _ in range(count)]
    with translator_of(setting, searches) as translator:
        list(translator.translate(lines[: len(lines) * count // 8]))  # a batch for each
        start = time.perf_counter()
        found = list(translator.translate(lines))
        elapsed = time.perf_counter() - start
    n_tokens = sum(len(line.texts[0].split()) + 1 for line in found)
    name = f"{count} worker{'s' * (count > 1)}: decoding"
    report.add(name, value=n_tokens / elapsed, unit="tokens/s", note=f"{len(lines):,} lines")
