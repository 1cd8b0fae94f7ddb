"""The recipes in scripts/recipes run as they stand."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, mt_command
from marian_models import SAVED

from mt.translate.resume import FORMAT

RECIPES = ROOT / "scripts" / "recipes"
SETTINGS = "data.max_tokens=40 batch.tokens_per_batch=1000 decode.beam_size=1 run.seed=2"


def run_recipe(name: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = mt_command()[1] | {"MT": f"{sys.executable} -m mt"} | variables
    command = ["bash", str(RECIPES / name), *map(str, arguments)]
    return subprocess.run(
        command, env=environment, capture_output=True, encoding="utf-8", timeout=280, check=False
    )


@pytest.mark.slow
def test_finetune(tiny_corpus: Path, tmp_path: Path) -> None:
    """An imported Marian with random weights learns the tiny corpus; folders have spaces."""
    pytest.importorskip("ctranslate2")
    pytest.importorskip("transformers")
    corpus, output = tmp_path / "my corpus", tmp_path / "the output"
    shutil.copytree(tiny_corpus, corpus)
    text = [corpus / f"{split}.{side}" for split in ("train", "valid") for side in ("src", "tgt")]
    options = {"STEPS": "60", "VALID_EVERY": "20", "AVERAGE": "2", "TOKENS": "500", "LR": "3e-3"}
    options["EXPORT"] = "ctranslate2 huggingface"
    ended = run_recipe("finetune.sh", SAVED, *text, output, SET=SETTINGS, **options)
    assert ended.returncode == 0, ended.stderr
    assert (output / "before.txt").read_text() != (output / "after.txt").read_text()
    assert ended.stdout.count("BLEU") >= 2
    assert (output / "ctranslate2" / "model.bin").exists()
    assert "## Use" in (output / "huggingface" / "README.md").read_text(encoding="utf-8")
    # As `mt translate` leaves behind when it is interrupted.
    (output / "after.txt.partial").touch()
    record = {"format": FORMAT, "lines": 0, "bytes": 0, "sha256": "", "made_with": {}, "counts": {}}
    (output / "after.txt.partial.json").write_text(json.dumps(record))
    options["EXPORT"] = ""
    again = run_recipe("finetune.sh", SAVED, *text, output, SET=SETTINGS, **options)
    assert again.returncode == 0, again.stderr


def test_finetune_explains_itself() -> None:
    ended = run_recipe("finetune.sh", "model")
    assert ended.returncode == 2
    assert ended.stderr.startswith("Fine-tunes a published Marian model")
    assert "AVERAGE=3" in ended.stderr
    ended = run_recipe("finetune.sh", *"mabcdo", STEPS="40", VALID_EVERY="20")
    assert ended.returncode == 2
    assert "fewer than AVERAGE=3 checkpoints" in ended.stderr
