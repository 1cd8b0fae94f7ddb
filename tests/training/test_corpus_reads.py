"""The training text is read twice before the first update: to check it, and to encode it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from conftest import MonkeyPatch, QuickConfig

from mt.config.schema import Config
from mt.data.reading import check, text_files
from mt.errors import DataError
from mt.runs.run_dir import MANIFEST
from mt.training.launch import train
from mt.training.trainer import Outcome, Trainer

# What looks at the beginning of a file may read besides.
HEAD = 1 << 18
PAIRS = 8_000


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Texts of twice that size and more, and the same pairs as a table."""
    pairs = [(f"satz {i} " + "wort " * 12, f"sentence {i} " + "word " * 12) for i in range(PAIRS)]
    for side, name in enumerate(("a.de", "a.en")):
        lines = "".join(pair[side] + "\n" for pair in pairs)
        (tmp_path / name).write_text(lines, encoding="utf-8")
    rows = "".join(json.dumps({"de": src, "en": tgt}) + "\n" for src, tgt in pairs)
    (tmp_path / "a.jsonl").write_text(rows, encoding="utf-8")
    return tmp_path


@pytest.fixture
def passes(monkeypatch: MonkeyPatch) -> Callable[[Path], int]:
    """How often a file has been read whole since the last call; heads do not count."""
    read: Counter[str] = Counter()
    open_text, sha256_of = text_files.open_text, text_files.sha256_of

    @contextmanager
    def counted(path: Path, *options: Any) -> Iterator[BinaryIO]:
        with open_text(path, *options) as file:
            try:
                yield file
            finally:
                read[str(path)] += file.tell()

    def hashed(path: Path) -> str:
        read[str(path)] += path.stat().st_size
        return sha256_of(path)

    def count(path: Path) -> int:
        whole, rest = divmod(read.pop(str(path), 0), path.stat().st_size)
        assert rest <= HEAD
        return whole

    monkeypatch.setattr(text_files, "open_text", counted)
    monkeypatch.setattr(text_files, "sha256_of", hashed)
    return count


def config_for(quick_config: QuickConfig, corpus: Path, **source: str) -> Config:
    data = {"root": str(corpus), "train": [source], "valid": None, "test": []}
    return quick_config(data=data, tokenizer={"vocab_size": 300, "sample_lines": 500})


def test_the_corpus_is_read_twice(
    quick_config: QuickConfig, corpus: Path, passes: Callable[[Path], int], monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "train", lambda _: Outcome("", 0, None))
    for source in [{"path": "a.jsonl", "src": "de", "tgt": "en"}, {"src": "a.de", "tgt": "a.en"}]:
        config, run = config_for(quick_config, corpus, **source), corpus / f"run-{len(source)}"
        train(config, run, "cpu")
        names = [source[key] for key in source if source[key].startswith("a.")]
        assert [passes(corpus / name) for name in names] == [2] * len(names)
        records = json.loads((run / MANIFEST).read_text())["data"]
        for name in names:
            assert records[str(corpus / name)] == {
                "sha256": text_files.sha256_of(corpus / name),
                "lines": PAIRS,
            }
            passes(corpus / name)
    monkeypatch.setattr(check, "MAX_PAIRS_BEFORE_TRAINING", 10)
    train(config, run, "cpu")  # nothing has changed
    assert [passes(corpus / name) for name in names] == [0, 0]


def test_faults_of_all_texts_are_found_before_anything_is_written(
    quick_config: QuickConfig, corpus: Path, monkeypatch: MonkeyPatch
) -> None:
    """Those at the end of a text, too, behind the pairs that a tokenizer is trained on."""
    monkeypatch.setattr("mt.runs.run_dir.claim", lambda _: pytest.fail("the run directory is used"))
    with (corpus / "a.de").open("ab") as file:
        file.write(b"\xff\n")
    with (corpus / "a.en").open("ab") as file:
        file.write(b"ok\n\xfe\n")
    config = config_for(quick_config, corpus, src="a.de", tgt="a.en")
    with pytest.raises(DataError) as caught:
        train(config, corpus / "run", "cpu")
    src, tgt = str(caught.value).split("\n")
    assert src.startswith("data.train[0].src: ")
    assert tgt.startswith("data.train[0].tgt: ")
    assert not (corpus / "run").exists()
