"""Runs of scripts/gpu_check.py as on a machine that has few packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

# Packages of mt that a machine with torch, NumPy, PyYAML and pydantic does not have.
ABSENT = (
    "ctranslate2", "datasets", "jinja2", "matplotlib", "sacrebleu", "safetensors", "sentencepiece",
    "tqdm", "transformers", "typer", "xxhash",
)  # fmt: skip


def bare_environment(folder: Path) -> dict[str, str]:
    """An environment where none of these packages can be imported."""
    absent = folder / "absent"
    absent.mkdir()
    for name in ABSENT:
        (absent / f"{name}.py").write_text(f'raise ImportError("{name} is absent")\n')
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (absent, ROOT)))}


def run(bare: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "gpu_check.py", *arguments], env=bare,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
