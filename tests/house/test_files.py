"""Files that appear complete or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import MonkeyPatch

from mt import files
from mt.files import whole_file, write_whole


def test_a_file_is_replaced_only_if_the_block_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_whole(path, "früher")

    def fail() -> None:
        with whole_file(path) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text(encoding="utf-8") == "früher"
    assert os.listdir(tmp_path) == ["a"]
    with whole_file(path) as file:
        file.write(b"later")
        file.flush()
        assert path.read_text(encoding="utf-8") == "früher"
    assert path.read_bytes() == b"later"
    assert os.listdir(tmp_path) == ["a"]


def test_the_content_is_flushed_before_the_rename(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(files.os, "fsync", lambda _: done.append("flushed"))
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        done.append("renamed")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    write_whole(tmp_path / "a", b"x")
    assert done == ["flushed", "renamed"]


def test_behind_a_link_the_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real/a")
    write_whole(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "a").read_bytes() == b"x"


def test_a_pipe_or_device_is_written_to_not_replaced(tmp_path: Path) -> None:
    """As `-o >(gzip > out.gz)` and `-o /dev/null` need it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(fifo, b"through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert fifo.is_fifo()
    write_whole(Path(os.devnull), b"x")
    assert not Path(os.devnull).is_file()
