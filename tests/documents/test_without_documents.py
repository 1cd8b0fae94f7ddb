"""Where `mt.documents` is not installed, lines translate as ever; the rest says what is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conftest import Mt, refused, write_lines
from messages import says


@pytest.fixture(autouse=True)
def without_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mt.documents", "mt.documents.translate_document"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises ImportError


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_lines_of_every_format_translate(
    engine: str, tiny_run: Path, tmp_path: Path, mt: Mt
) -> None:
    pytest.importorskip(engine)
    write_lines(tmp_path / "text", ["eins zwei"])
    write_lines(tmp_path / "tsv", ["eins zwei\tx"])
    write_lines(tmp_path / "jsonl", [json.dumps({"text": "eins zwei"})])
    for form in ("text", "tsv", "jsonl"):
        command = ["translate", "-m", tiny_run, "--engine", engine, "--format", form]
        ended = mt(*command, tmp_path / form)
        assert ended.code == 0
        assert b"one two" in ended.out


def test_what_needs_it_says_so_in_one_line(tiny_run: Path, mt: Mt) -> None:
    for options, named in [
        (["in.srt"], "--format"),
        (["in", "--format", "html"], "--format"),
        (["in.xlf"], "--format"),
        (["in", "--protect", "auto"], "--protect"),
        (["in", "--glossary", "terms.tsv"], "--glossary"),
    ]:
        message = refused(mt("translate", "-m", tiny_run, *options))
        assert says(message, f"{named}: ", "mt.documents", "install", "do without")
        assert message.count("\n") == 0
