"""Each leaf of `mt` can be cut off: training, translating and scoring do without."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
from conftest import MonkeyPatch, Mt
from messages import says
from test_structure import LEAVES

# A command of each leaf.
COMMANDS = {
    "cleaning": ["data", "clean", "text.de", "text.en", "-o", "clean"],
    "documents": ["translate", "-m", "RUN", "text.srt", "-o", "out.srt"],
    "inspect": ["inspect", "model", "--config", "base.yaml"],
    "interop": ["export", "ctranslate2", "--model", "run", "-o", "folder"],
    "report": ["report", "run"],
    "synthetic": ["backtranslate", "-m", "run", "text.en", "-o", "corpus.tsv"],
}


def test_every_leaf_has_a_command() -> None:
    assert set(COMMANDS) == set.union(*LEAVES)


def test_all_leaves_can_be_cut_off(
    tiny_config: Path, tiny_corpus: Path, copied_run: Path, tmp_path: Path, mt: Mt,
    monkeypatch: MonkeyPatch,
) -> None:  # fmt: skip
    for leaf in COMMANDS:
        for module in [name for name in sys.modules if name.startswith(f"mt.{leaf}.")]:
            monkeypatch.delitem(sys.modules, module)
        # Python then raises ModuleNotFoundError for it.
        monkeypatch.setitem(sys.modules, f"mt.{leaf}", cast("ModuleType", None))
    settings = ["--set", "train.max_steps=1", "--set", "data.test=null"]
    trained = mt("train", "--config", tiny_config, "--run-dir", tmp_path / "run", *settings)
    assert trained.code == 0, trained.err
    source, target = tiny_corpus / "test.src", tiny_corpus / "test.tgt"
    n_lines = len(source.read_text(encoding="utf-8").splitlines())
    for engine in ("torch", "ctranslate2"):
        if engine == "ctranslate2":
            pytest.importorskip("ctranslate2")
        output = tmp_path / f"output.{engine}"
        translated = mt("translate", "-m", copied_run, source, "-o", output, "--engine", engine)
        assert (translated.code, len(output.read_bytes().splitlines())) == (0, n_lines)
    assert mt("score", "-m", copied_run, "--src", source, "--tgt", target).code == 0
    assert mt("evaluate", "--hyp", tmp_path / "output.torch", "--ref", target).code == 0
    for leaf, command in COMMANDS.items():
        missing = mt(*(copied_run if word == "RUN" else word for word in command))
        assert (missing.code, missing.out, len(missing.err.splitlines())) == (2, b"", 1)
        assert says(missing.err, f"mt.{leaf}", "install")


def test_shells_complete_commands_beside_a_missing_leaf(mt: Mt, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mt.report.commands", cast("ModuleType", None))
    monkeypatch.setenv("_MT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "mt r")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert mt().out.decode().split() == ["report"]
