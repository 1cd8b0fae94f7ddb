"""Text files: lines end at line feeds only, and every damage is named with its place."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import MonkeyPatch, Mt, TempPathFactory, refused
from corpora import message_of, pack, pairs_of, write
from hypothesis import given
from hypothesis import strategies as st
from messages import raises_saying, says

from mt.data.reading.corpus import first_shifted_line
from mt.data.reading.text_files import FileRecords, decode_lines, file_record, read_lines
from mt.errors import DataError
from mt.translate.streaming import TextFiles

# --- lines ------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", ["", "gz", "xz", "zst", "bz2"])
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n\r\n", ["a", "b", ""]),
        (b"a\r\r\nb\rc\r", ["a\r", "b\rc"]),
        ("\ufeffa\n\ufeffb\n".encode(), ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf", [""]),
        (
            "a\u2028b\x85c\x0bd\te\0f\x1cg\u2029h\n".encode(),
            ["a\u2028b\x85c\x0bd\te\0f\x1cg\u2029h"],
        ),
        (b"  spaces stay \n", ["  spaces stay "]),
    ],
)
def test_only_lf_ends_lines(tmp_path: Path, packed: str, content: bytes, lines: list[str]) -> None:
    """The first bytes of a file say what it is; the names here say something else."""
    path = write(tmp_path / ("text" if packed else "text.gz"), pack(packed, content))
    assert list(read_lines(path)) == lines
    records: FileRecords = {}
    assert list(read_lines(path, records=records)) == lines
    assert (
        records[str(path)]
        == file_record(path, "", {})
        == {
            "size": path.stat().st_size,
            "mtime_ns": path.stat().st_mtime_ns,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "lines": len(lines),
        }
    )


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))))
def test_any_lines_come_back(tmp_path_factory: TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "any lines"
    path.write_bytes("".join(line + "\r\n" for line in ["", *lines]).encode())
    assert list(read_lines(path)) == ["", *lines]


# --- what is not UTF-8 ------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_a_bad_byte_is_named_with_line_and_place(tmp_path: Path, packed: bool) -> None:
    path = write(tmp_path / "a.de", "\ufeffgut\nschön\n".encode() + b"sch\xf6n ist\n", packed)
    write(tmp_path / "a.en", "good\nnice\nis nice\n")
    place = f"data.train[0].src: {path}, line 3, byte 3 "
    assert says(message_of(tmp_path), place, "f6 6e 20 69", "iconv -f WINDOWS-1252 -t UTF-8")


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"\xef\xbb\xbfab\xff\n", "line 1, byte 5 (the line's first is 0): ff"),
        (b"ok\ncut \xe2\x82", "line 2, byte 4 (the line's first is 0): e2 82"),
        (b"\xed\xa0\x80\n", "line 1, byte 0 (the line's first is 0): ed a0 80"),
    ],
)
def test_bytes_are_counted_as_in_the_file(tmp_path: Path, content: bytes, place: str) -> None:
    path = write(tmp_path / "a", content)
    with pytest.raises(DataError) as caught:
        list(read_lines(path))
    assert str(caught.value).startswith(f"{path}, {place} is not UTF-8. ")


def test_utf16_is_recognised(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "Hallo\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"is UTF-16.*iconv -f UTF-16 -t UTF-8"):
        list(read_lines(path))


def test_compressed_text_from_a_pipe_is_recognised() -> None:
    with raises_saying(DataError, "stdin", "compressed (.gz)", "unpack"):
        list(decode_lines([gzip.compress(b"Hallo\n")], "stdin"))


@pytest.mark.parametrize("text", ["de,en\nja,yes\n", "да это нет\nда\n" * 3, "他来了。上\n"])
@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE", "UTF-32"])
def test_wide_encodings_are_named(tmp_path: Path, encoding: str, text: str) -> None:
    if "16" in encoding and text.startswith("他"):
        pytest.skip("without a NUL")
    path = write(tmp_path / "a", text.encode(encoding))
    with raises_saying(DataError, f"a is {encoding}.", f"iconv -f {encoding} -t"):
        list(read_lines(path))
    with raises_saying(DataError, f"a is {encoding}.", f"iconv -f {encoding} -t"):
        TextFiles(source=str(path)).read_whole()


@pytest.mark.parametrize("name", ["a.de", "a.csv", "a.jsonl"])
def test_utf16_without_a_mark_is_not_taken_for_text(tmp_path: Path, name: str) -> None:
    """It decodes as UTF-8: every other byte is NUL."""
    path = write(tmp_path / name, "de,en\nja,yes\n".encode("utf-16-le"))
    write(tmp_path / "a.en", "1\n2\n")
    keys = {} if name == "a.de" else {"path": name}
    field = "path" if keys else "src"
    message = message_of(tmp_path, **keys)
    assert says(message, f"data.train[0].{field}: {path} ", "iconv -f UTF-16LE -t UTF-8")


def test_a_nul_character_is_one_like_others(tmp_path: Path) -> None:
    write(tmp_path / "a.de", "eins\0 und zwei und drei\n")
    write(tmp_path / "a.en", "one and two and three\n")
    assert pairs_of(tmp_path) == [("eins\0 und zwei und drei", "one and two and three")]


def test_bad_bytes_can_be_replaced_and_streams_be_read() -> None:
    stream = [b"\xef\xbb\xbfgut\r\n", b"sch\xf6n\n", b"\xe2\x82 ok"]
    assert list(decode_lines(stream, "stdin", "replace")) == ["gut", "sch\ufffdn", "\ufffd ok"]
    with pytest.raises(DataError, match=r"^stdin, line 2, byte 3 "):
        list(decode_lines(stream, "stdin"))


# --- files that are missing, damaged or of another kind ---------------------------------------


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "train.en", "a\n")
    message = message_of(tmp_path, "train.de", "train.en")
    assert says(message, "data.train[0].src: there is no file", f"{tmp_path}/train.de", "data.root")


def test_demo_corpus_is_not_everywhere(mt: Mt, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """One message that says how to train on text of one's own, not a line for each file."""
    monkeypatch.chdir(tmp_path)
    message = refused(mt("train", "--config", "base.yaml"))
    assert message.count("\n") == 0
    assert says(
        message, "demonstration corpus", "data/demo", "recipe: base.yaml", "train:", "split"
    )


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """It would be, for ever: by the second of those who read a corpus."""
    os.mkfifo(tmp_path / "train.de")
    write(tmp_path / "train.en", "a\n")
    message = message_of(tmp_path, "train.de", "train.en")
    assert says(message, "data.train[0].src", f"{tmp_path}/train.de is a pipe", "to a file first")
    message = message_of(tmp_path, "1", "2", path="train.de", format="tsv")
    assert says(message, "data.train[0].path", f"{tmp_path}/train.de is a pipe")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.en").mkdir()
    write(tmp_path / "a.de", "a\n")
    message = message_of(tmp_path)
    assert says(message, f"data.train[0].tgt: {tmp_path}/a.en is a folder", "Name the file", "path")


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """The memory of a process, read from its start, is refused even to root."""
    path = tmp_path / "a.de"
    path.symlink_to("/proc/self/mem")
    if not path.exists():
        pytest.skip("this system has no /proc/self/mem")
    parts = f"data.train[0].src: {path} ", "Input/output error", "ls -l", "mounted"
    with raises_saying(DataError, *parts):
        list(read_lines(path, "data.train[0].src"))


@pytest.mark.parametrize("kind", ["gz", "xz", "zst", "bz2"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: packed[:-12],
        lambda packed: packed[:-8] + b"12345678",
        lambda packed: packed[:20] + b"\xff" * 40 + packed[60:],
        lambda _: gzip.compress(b"a\n" * 500_000, 0, mtime=0).replace(
            b"a", b"\xff", 1
        ),  # not UTF-8 either
    ],
)
def test_a_damaged_compressed_file_is_an_error(
    tmp_path: Path, kind: str, damage: Callable[[bytes], bytes]
) -> None:
    """Its name says nothing: the first bytes do."""
    write(tmp_path / "a.en", "x y z\n" * 5000)
    text = "".join(f"{random.Random(i).random()}\n" for i in range(5000))
    path = write(tmp_path / "a.de", damage(pack(kind, text)))
    said = f"data.train[0].src: {path} is a compressed file"
    assert says(message_of(tmp_path), said, "truncated or damaged", "again")


def test_a_zip_archive_is_named_with_its_command(tmp_path: Path) -> None:
    path = write(tmp_path / "a.de", b"PK\x03\x04...")
    write(tmp_path / "a.en", "a\n")
    assert says(message_of(tmp_path), f"data.train[0].src: {path} is a zip", f"unzip {path}")
    path = path.rename(tmp_path / "a.Docx")
    with raises_saying(DataError, f"{path} is a zip", "text, HTML or CSV"):
        next(read_lines(path))


# --- where two files get out of step ----------------------------------------------------------


def aligned(n: int) -> tuple[list[str], list[str]]:
    """Two sides that resemble each other in length and numbers only."""
    rng = random.Random(11)
    src, tgt = [], []
    for i in range(n):
        size = rng.randrange(2, 20)
        number = f" {i}" if i % 5 == 0 else ""
        src.append(" ".join(["wort"] * size) + number)
        tgt.append(" ".join(["ord"] * (size + rng.randrange(2))) + number)
    return src, tgt


def test_the_place_where_files_get_out_of_step_is_found_or_not_guessed(tmp_path: Path) -> None:
    for drop_src, drop_tgt, line in [
        (range(0), range(700, 701), 701),  # a line is missing
        (range(700, 701), range(0), 701),  # a line too many
        (range(0), range(700, 717), 701),  # a paragraph is missing
        (range(0), range(0, 1), 1),  # from the beginning, such as a title line
        (range(0), range(990, 1000), None),  # truncated: all in step
        (range(0), range(400, 1000), None),
    ]:
        src, tgt = aligned(1000)
        del src[drop_src.start : drop_src.stop]
        del tgt[drop_tgt.start : drop_tgt.stop]
        a = write(tmp_path / "a.de", "\n".join(src))
        found = first_shifted_line(a, write(tmp_path / "a.en", "\n".join(tgt)))
        if line is None:
            assert found is None
        else:
            assert found is not None
            # Inside the gap neither alignment fits.
            assert -1 <= found - line <= max(1, len(drop_tgt))
        message = message_of(tmp_path)
        assert f"has {len(tgt):,} lines, " in message
        assert f"has {len(src):,}" in message
        assert ("looks shifted" in message) == (line is not None)


def test_files_that_never_matched_get_no_guess(tmp_path: Path) -> None:
    src, tgt = aligned(1000)
    random.Random(1).shuffle(tgt)
    write(tmp_path / "a.de", "\n".join(src))
    write(tmp_path / "a.en", "\n".join(tgt[:-3]))
    assert "looks shifted" not in message_of(tmp_path)
    write(tmp_path / "a.de", "a\nb\n")
    write(tmp_path / "a.en", "a\n")
    assert f"{tmp_path}/a.en has 1 lines, {tmp_path}/a.de has 2. Line n" in message_of(tmp_path)
