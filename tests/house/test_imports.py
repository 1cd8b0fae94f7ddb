"""Heavy packages are imported only by what uses them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import mt_command

HEAVY = {"ctranslate2", "datasets", "matplotlib", "sacrebleu", "torch", "transformers"}


def imported_by(*arguments: object, stdin: str = "") -> set[str]:
    """The heavy packages that one command imports in a process of its own."""
    code = (
        "import sys\nfrom mt.cli.main import main\ntry:\n    main()\n"
        "finally:\n    print('imported:', *sys.modules, file=sys.stderr)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=mt_command()[1],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    (names,) = re.findall("^imported: (.*)$", ended.stderr, re.MULTILINE)
    return HEAVY & set(names.split())


def test_help_and_a_translation_by_ctranslate2_import_no_torch(
    tiny_run: Path, tmp_path: Path
) -> None:
    assert imported_by("--help") == set()
    pytest.importorskip("ctranslate2")
    run = tmp_path / "run"
    shutil.copytree(tiny_run, run, symlinks=True)
    translate = ("translate", "--model", run, "--device", "cpu", "--engine", "ctranslate2")
    assert imported_by(*translate, stdin="eins\n") == {"ctranslate2"}


def test_training_on_text_files_imports_neither_datasets_nor_matplotlib(
    tiny_config: Path, tmp_path: Path
) -> None:
    train = ("train", "--config", tiny_config, "--run-dir", tmp_path / "run", "--device", "cpu")
    sets = ("--set", "train.max_steps=1", "--set", "data.test=null")
    assert imported_by(*train, *sets) == {"torch", "sacrebleu"}
