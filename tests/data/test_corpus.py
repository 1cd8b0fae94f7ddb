"""Sentence pairs of a corpus, and all faults of a config's data in one go."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path

import pytest
from corpora import WHERE, message_of, pairs_of, write

from mt.config.plan import plan_data
from mt.config.schema import DataConfig, Source
from mt.data.reading.check import check_data
from mt.data.reading.corpus import local_files, read_pairs
from mt.data.reading.text_files import file_record
from mt.errors import DataError


def test_text_pairs_are_aligned_line_by_line(tmp_path: Path) -> None:
    write(tmp_path / "a.de", "eins\r\n\r\ndrei\r\n", packed=True)
    write(tmp_path / "a.en", "one\ntwo\nthree")
    assert pairs_of(tmp_path) == [("eins", "one"), ("", "two"), ("drei", "three")]
    assert pairs_of(Path("/elsewhere"), f"{tmp_path}/a.de", f"{tmp_path}/a.en")[0][0] == "eins"
    source = Source(src="a.de", tgt="a.en")
    assert local_files(source, tmp_path) == [tmp_path / "a.de", tmp_path / "a.en"]


def test_reading_is_lazy_and_takes_little_memory(tmp_path: Path) -> None:
    write(tmp_path / "a.de", b"wort " * 20 + b"\n" + b"wort " * 200_000 + b"\xff\n")
    write(tmp_path / "a.en", b"word\nword\n")
    pairs = read_pairs(Source(src="a.de", tgt="a.en"), tmp_path, WHERE)
    assert next(pairs) == ("wort " * 20, "word")
    with pytest.raises(DataError):
        next(pairs)

    write(tmp_path / "a.de", b"ein paar Worte\n" * 80_000, packed=True)
    write(tmp_path / "a.en", b"a few words\n" * 80_000)
    pairs_of(tmp_path)  # imports what unpacks
    tracemalloc.start()
    assert sum(1 for _ in read_pairs(Source(src="a.de", tgt="a.en"), tmp_path, WHERE)) == 80_000
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.de", "")
    write(tmp_path / "a.en", "", packed=True)
    assert message_of(tmp_path).split("\n") == [
        f"data.train[0].{side}: {tmp_path}/{name} is empty, at least one line is required. Name "
        "the file that contains the text."
        for side, name in (("src", "a.de"), ("tgt", "a.en"))
    ]
    write(tmp_path / "a.de", "a\n")
    assert message_of(tmp_path).startswith(f"data.train[0].tgt: {tmp_path}/a.en is empty, ")


def test_all_faults_of_all_sources_are_found_at_once(tmp_path: Path) -> None:
    write(tmp_path / "good.de", "a\nb\n")
    write(tmp_path / "good.en", "a\nb\n")
    write(tmp_path / "bad.de", b"\xff\n")
    write(tmp_path / "empty", "")
    write(tmp_path / "rows.jsonl", '{"de": "a", "en": "b"}\n')
    good = Source(src="good.de", tgt="good.en")
    data = DataConfig(
        root=str(tmp_path),
        train=[
            good,
            Source(src="bad.de", tgt="none.en"),
            Source(path="rows.jsonl", src="de", tgt="fr"),
        ],
        valid=[Source(src="good.de", tgt="empty")],
        test=[good, Source(src="good.de", tgt="rows.jsonl")],
    )
    assert [fault.split(": ")[0] for fault in check_data(plan_data(data)).faults] == [
        *["data.train[1].src", "data.train[1].tgt", "data.train[2].tgt"],
        *["data.valid[0].tgt", "data.test[1].tgt"],
    ]
    assert (
        check_data(
            plan_data(data.model_copy(update={"train": [good], "valid": [], "test": []}))
        ).faults
        == []
    )


def test_facts_of_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", b"PAR1\xff\xfe\n\x00")
    records = file_record(path, "", {})
    assert records["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert records["lines"] is None
    with pytest.raises(DataError, match="is not UTF-8"):
        file_record(path, "", {}, text=True)
    with pytest.raises(DataError, match=f"there is no file {tmp_path}/none"):
        file_record(tmp_path / "none", "", {})
