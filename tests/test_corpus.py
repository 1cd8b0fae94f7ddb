"""Sentence pairs from every kind of file, and what is said where a file is wrong."""

import gzip
import hashlib
import json
import logging
import lzma
import os
import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.config.schema import DataConfig, Source
from mt.data import corpus
from mt.data.corpus import (
    check_sources,
    decode_lines,
    file_facts,
    local_files,
    read_lines,
    read_pairs,
)
from mt.errors import DataError

WHERE = "data.train[0]"


def write(path: Path, text: str | bytes, packed: bool = False) -> Path:
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


def pairs_of(root: Path, src: str = "a.de", tgt: str = "a.en", **keys) -> list[tuple[str, str]]:
    return list(read_pairs(Source(src=src, tgt=tgt, **keys), root, WHERE))


def message_of(root: Path, src: str = "a.de", tgt: str = "a.en", **keys) -> str:
    """What reading says; `check_sources` must say the same without being asked to read."""
    with pytest.raises(DataError) as caught:
        pairs_of(root, src, tgt, **keys)
    message = str(caught.value)
    checked = check_sources(DataConfig(root=str(root), train=[Source(src=src, tgt=tgt, **keys)]))
    assert checked == message.split("\n")
    return message


# --- lines


@pytest.mark.parametrize("packed", [False, True])
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
def test_lines_end_at_line_feeds_only(tmp_path, packed, content, lines):
    # What a file is shows in its first bytes; the names here say the opposite.
    path = write(tmp_path / ("text" if packed else "text.gz"), content, packed)
    assert list(read_lines(path)) == lines
    assert file_facts(path) == (hashlib.sha256(path.read_bytes()).hexdigest(), len(lines))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))))
def test_any_lines_come_back(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("lines") / "text"
    path.write_bytes("".join(line + "\r\n" for line in ["", *lines]).encode())
    assert list(read_lines(path)) == ["", *lines]


def test_joined_gzip_files_are_one(tmp_path):
    path = write(tmp_path / "a.gz", gzip.compress(b"a\n") + gzip.compress(b"b\n"))
    assert list(read_lines(path)) == ["a", "b"]


@pytest.mark.parametrize("packed", [False, True])
def test_a_bad_byte_is_named_with_line_and_place(tmp_path, packed):
    path = write(tmp_path / "a.de", "\ufeffgut\nschön\n".encode() + b"sch\xf6n ist\n", packed)
    write(tmp_path / "a.en", "good\nnice\nis nice\n")
    assert message_of(tmp_path) == (
        f"data.train[0].src: {path}, line 3, byte 3 (the line's first is 0): f6 6e 20 69 is not "
        f"UTF-8. Convert the file; if it is WINDOWS-1252: iconv -f WINDOWS-1252 -t UTF-8 FILE > "
        "FILE.utf8"
    )


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"\xef\xbb\xbfab\xff\n", "line 1, byte 5 (the line's first is 0): ff 0a"),
        (b"ok\ncut \xe2\x82", "line 2, byte 4 (the line's first is 0): e2 82"),
        (b"\xed\xa0\x80\n", "line 1, byte 0 (the line's first is 0): ed a0 80 0a"),
    ],
)
def test_bytes_are_counted_as_they_lie_in_the_file(tmp_path, content, place):
    path = write(tmp_path / "a", content)
    with pytest.raises(DataError) as caught:
        list(read_lines(path))
    assert str(caught.value).startswith(f"{path}, {place} is not UTF-8. ")


def test_utf16_is_recognised(tmp_path):
    path = write(tmp_path / "a", "Hallo\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"if it is UTF-16: iconv -f UTF-16 -t UTF-8"):
        list(read_lines(path))


def test_bad_bytes_can_be_replaced_and_streams_be_read():
    stream = [b"\xef\xbb\xbfgut\r\n", b"sch\xf6n\n", b"\xe2\x82 ok"]
    assert list(decode_lines(stream, "stdin", "replace")) == ["gut", "sch\ufffdn", "\ufffd ok"]
    with pytest.raises(DataError, match=r"^stdin, line 2, byte 3 "):
        list(decode_lines(stream, "stdin"))


def test_reading_is_lazy_and_takes_little_memory(tmp_path):
    write(tmp_path / "a.de", b"wort " * 20 + b"\n" + b"wort " * 20_000_0 + b"\xff\n")
    write(tmp_path / "a.en", b"word\nword\n")
    pairs = read_pairs(Source(src="a.de", tgt="a.en"), tmp_path, WHERE)
    assert next(pairs) == ("wort " * 20, "word")
    with pytest.raises(DataError):
        next(pairs)

    write(tmp_path / "a.de", b"ein paar Worte\n" * 200_000, packed=True)
    write(tmp_path / "a.en", b"a few words\n" * 200_000)
    tracemalloc.start()
    assert sum(1 for _ in read_pairs(Source(src="a.de", tgt="a.en"), tmp_path, WHERE)) == 200_000
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_text_pairs_are_aligned_line_by_line(tmp_path):
    write(tmp_path / "a.de", "eins\r\n\r\ndrei\r\n", packed=True)
    write(tmp_path / "a.en", "one\ntwo\nthree")
    assert pairs_of(tmp_path) == [("eins", "one"), ("", "two"), ("drei", "three")]
    assert pairs_of(Path("/elsewhere"), f"{tmp_path}/a.de", f"{tmp_path}/a.en")[0][0] == "eins"
    source = Source(src="a.de", tgt="a.en")
    assert local_files(source, tmp_path) == [tmp_path / "a.de", tmp_path / "a.en"]


# --- unequal counts


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


def test_unequal_counts_name_both_files_and_the_first_pair_that_looks_shifted(tmp_path):
    src, tgt = aligned(29_000)
    del tgt[1203]
    write(tmp_path / "train.de", "\n".join(src) + "\n")
    write(tmp_path / "train.en", "\n".join(tgt) + "\n")
    assert message_of(tmp_path, "train.de", "train.en") == (
        f"data.train[0].tgt: {tmp_path}/train.en has 28,999 lines, {tmp_path}/train.de has 29,000; "
        "first pair that looks shifted: line 1,204. Line n of one file must be the translation of "
        "line n of the other: put back the line that is missing, or take out the one too many."
    )


@pytest.mark.parametrize(
    ("drop_src", "drop_tgt", "line"),
    [
        (range(0), range(700, 701), 701),  # a line is missing
        (range(700, 701), range(0), 701),  # a line too many
        (range(0), range(700, 717), 701),  # a paragraph is missing
        (range(0), range(0, 1), 1),  # from the beginning, such as a title line
        (range(0), range(990, 1000), None),  # cut off at the end: all in step
        (range(0), range(400, 1000), None),
    ],
)
def test_the_place_where_files_part_is_found_or_not_guessed(tmp_path, drop_src, drop_tgt, line):
    src, tgt = aligned(1000)
    del src[drop_src.start : drop_src.stop]
    del tgt[drop_tgt.start : drop_tgt.stop]
    a = write(tmp_path / "a.de", "\n".join(src))
    b = write(tmp_path / "a.en", "\n".join(tgt))
    found = corpus.first_shift(a, b, len(src) - len(tgt))
    assert (found is None) == (line is None)
    # Inside the gap neither alignment fits.
    assert line is None or -1 <= found - line <= max(1, len(drop_tgt))
    message = message_of(tmp_path)
    assert f"has {len(tgt):,} lines, " in message
    assert f"has {len(src):,}" in message
    assert ("looks shifted" in message) == (line is not None)


def test_files_that_never_matched_get_no_guess(tmp_path):
    src, tgt = aligned(1000)
    random.Random(1).shuffle(tgt)
    write(tmp_path / "a.de", "\n".join(src))
    write(tmp_path / "a.en", "\n".join(tgt[:-3]))
    assert "looks shifted" not in message_of(tmp_path)
    write(tmp_path / "a.de", "a\nb\n")
    write(tmp_path / "a.en", "a\n")
    assert f"{tmp_path}/a.en has 1 lines, {tmp_path}/a.de has 2. Line n" in message_of(tmp_path)


# --- files that are not there or not what they should be


def test_a_missing_file_is_named_with_its_neighbours(tmp_path):
    for name in ("train.de.gz", "train.en.gz", "val.de.gz"):
        write(tmp_path / name, "a\n", packed=True)
    assert message_of(tmp_path, "train.de", "train.en.gz") == (
        f"data.train[0].src: there is no file {tmp_path}/train.de ('train.de' below data.root, "
        f"which is '{tmp_path}'). Near it: train.de.gz, train.en.gz. Correct the name, or "
        "data.root where paths start."
    )
    message = message_of(tmp_path / "none", "train.de", f"{tmp_path}/train.en.gz")
    assert f"'{tmp_path}/none'). Its folder {tmp_path}/none does not exist either." in message


def test_an_empty_file_is_an_error(tmp_path):
    write(tmp_path / "a.de", "")
    write(tmp_path / "a.en", "", packed=True)
    assert message_of(tmp_path).split("\n") == [
        f"data.train[0].{side}: {tmp_path}/{name} is empty, at least one line is required. Name "
        "the file that holds the text."
        for side, name in (("src", "a.de"), ("tgt", "a.en"))
    ]
    write(tmp_path / "a.de", "a\n")
    assert message_of(tmp_path).startswith(f"data.train[0].tgt: {tmp_path}/a.en is empty, ")


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "a.en").mkdir()
    write(tmp_path / "a.de", "a\n")
    assert message_of(tmp_path) == (
        f"data.train[0].tgt: {tmp_path}/a.en is a folder, a file is required. Name the file inside "
        "it, or for a data set written by save_to_disk set path to the folder and src, tgt to its "
        "columns."
    )


def test_a_file_that_may_not_be_read_is_an_error(tmp_path, monkeypatch):
    def refuse(path, mode):
        raise PermissionError(13, "Permission denied", str(path))

    write(tmp_path / "a.de", "a\n")
    write(tmp_path / "a.en", "a\n")
    monkeypatch.setattr(corpus, "open", refuse, raising=False)
    with pytest.raises(DataError) as caught:
        pairs_of(tmp_path)
    assert str(caught.value) == (
        f"data.train[0].src: {tmp_path}/a.de cannot be read: Permission denied. See that you have "
        "the right to read it (ls -l) and that its disk is there, or copy it elsewhere."
    )


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda packed: packed[:-12], "Compressed file ended before the end-of-stream marker"),
        (lambda packed: packed[:-8] + b"12345678", "CRC check failed"),
        (lambda packed: packed[:20] + b"\xff" * 40 + packed[60:], "Error -3 while decompressing"),
    ],
)
def test_a_damaged_gzip_file_is_an_error(tmp_path, damage, said):
    write(tmp_path / "a.en", "x y z\n" * 5000)
    text = "".join(f"{random.Random(i).random()}\n" for i in range(5000))
    path = write(tmp_path / "a.de.gz", damage(gzip.compress(text.encode())))
    message = message_of(tmp_path, "a.de.gz")
    assert message.startswith(
        f"data.train[0].src: {path} is a gzip file that is cut off or damaged ({said}"
    )
    assert message.endswith(f"). Fetch or pack it again; `gzip -t {path}` tells when it is whole.")


def test_other_packers_are_named(tmp_path):
    path = write(tmp_path / "a.de", lzma.compress(b"a\n"))
    write(tmp_path / "a.en", "a\n")
    assert message_of(tmp_path) == (
        f"data.train[0].src: {path} is packed in a way that mt does not read; required is plain "
        f"text or gzip. Unpack it first: xz -dk {path}"
    )


def test_all_faults_of_all_sources_are_found_at_once(tmp_path):
    write(tmp_path / "good.de", "a\nb\n")
    write(tmp_path / "good.en", "a\nb\n")
    write(tmp_path / "bad.de", b"\xff\n")
    write(tmp_path / "empty", "")
    write(tmp_path / "rows.jsonl", '{"de": "a", "en": "b"}\n')
    good = {"src": "good.de", "tgt": "good.en"}
    data = DataConfig(
        root=str(tmp_path),
        train=[
            Source(**good),
            Source(src="bad.de", tgt="none.en"),
            Source(path="rows.jsonl", src="de", tgt="fr"),
        ],
        valid=Source(src="good.de", tgt="empty"),
        test=[Source(**good), Source(src="good.de", tgt="rows.jsonl")],
    )
    assert [fault.split(": ")[0] for fault in check_sources(data)] == [
        *["data.train[1].src", "data.train[1].tgt", "data.train[2].tgt"],
        *["data.valid.tgt", "data.test[1].tgt"],
    ]
    assert check_sources(DataConfig(root=str(tmp_path), train=[Source(**good)])) == []


# --- through the `datasets` library

# Cells that readers of tables like to turn into something else.
CELLS = [
    ("NA", "null"),
    ("007", "1.50"),
    ('er sagte "ja", gut', 'he said "yes", fine'),
    ("2020-01-01", "nan"),
    ("a\u2028b\x85c", "True"),
    (" leer ", "'tis"),
]


def saved(tmp_path: Path, rows: list[dict], splits: bool = False) -> Path:
    import datasets

    datasets.disable_progress_bars()
    data = datasets.Dataset.from_list(rows)
    folder = tmp_path / "saved"
    (datasets.DatasetDict(train=data, dev=data) if splits else data).save_to_disk(str(folder))
    return folder


def rows_file(tmp_path: Path, kind: str, pairs: list[tuple[str, str]]) -> str:
    """The pairs in a file of that kind, with a third column besides; its name."""
    import pyarrow.parquet

    path = tmp_path / f"rows{kind}"
    rows = [{"n": i, "de": de, "en": en} for i, (de, en) in enumerate(pairs)]
    packed = kind.endswith(".gz")
    match kind.removesuffix(".gz"):
        case ".jsonl":
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        case ".json":
            text = json.dumps(rows)
        case ".tsv":
            text = "n\tde\ten\n" + "".join(f"{i}\t{de}\t{en}\n" for i, (de, en) in enumerate(pairs))
        case ".csv":
            quoted = [[cell.replace('"', '""') for cell in pair] for pair in pairs]
            text = "n,de,en\n" + "".join(f'{i},"{a}","{b}"\n' for i, (a, b) in enumerate(quoted))
        case ".parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
            return path.name
        case "saved" | "splits":
            return saved(tmp_path, rows, kind == "splits").name
    return write(path, text, packed).name


KINDS = [".jsonl", ".json", ".tsv", ".csv", ".parquet", "saved", "splits", ".jsonl.gz", ".csv.gz"]


@pytest.mark.parametrize("kind", KINDS)
def test_cells_come_as_they_stand(tmp_path, kind, capfd, monkeypatch):
    import datasets

    cache = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    path = rows_file(tmp_path, kind, CELLS)
    capfd.readouterr()
    assert pairs_of(tmp_path, "de", "en", path=path) == CELLS
    assert pairs_of(tmp_path, "en", "de", path=path)[0] == ("null", "NA")
    assert (
        check_sources(DataConfig(root=str(tmp_path), valid=Source(src="de", tgt="en", path=path)))
        == []
    )
    assert capfd.readouterr() == ("", "")
    assert not cache.exists()
    files = local_files(Source(src="de", tgt="en", path=path), tmp_path)
    assert files
    assert all(file.is_file() for file in files)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_nothing_but_numbers_are_text(tmp_path, kind):
    pairs = [("007", "1.50"), ("12", "1e3"), ("0", "2.00")]
    path = rows_file(tmp_path, kind, pairs)
    assert pairs_of(tmp_path, "de", "en", path=path) == pairs


def test_quotation_marks_in_tsv_are_text(tmp_path):
    write(tmp_path / "a.tsv", 'de\ten\n"Ja"\t"yes\n"nein\tno" "\n')
    pairs = [('"Ja"', '"yes'), ('"nein', 'no" "')]
    assert pairs_of(tmp_path, "de", "en", path="a.tsv") == pairs


@pytest.mark.parametrize("kind", [".jsonl", ".json", ".csv", ".parquet", "saved"])
def test_line_breaks_inside_cells_become_spaces(tmp_path, kind):
    pairs = [("eins\nzwei", "one \n\n two"), ("drei", "three\n")]
    path = rows_file(tmp_path, kind, pairs)
    assert pairs_of(tmp_path, "de", "en", path=path) == [
        ("eins zwei", "one two"),
        ("drei", "three "),
    ]


@pytest.mark.parametrize("name", ["rows.tsv", "rows[1].csv"])
def test_windows_tables(tmp_path, name):
    sep = "\t" if name.endswith("tsv") else ","
    write(tmp_path / name, f"\ufeffde{sep}en\r\nja{sep}yes\r\nnein{sep}no\r\n")
    assert pairs_of(tmp_path, "de", "en", path=name) == [("ja", "yes"), ("nein", "no")]


def test_a_carriage_return_does_not_end_a_row(tmp_path):
    write(tmp_path / "rows.tsv", "de\ten\nja\rdoch\tyes\n")
    assert pairs_of(tmp_path, "de", "en", path="rows.tsv") == [("ja\rdoch", "yes")]


@pytest.mark.parametrize("kind", [".jsonl", "saved"])
def test_dots_lead_into_nested_columns(tmp_path, kind):
    rows = [{"translation": {"de": "ja", "en": "yes"}, "x.y": "flat"}] * 3
    if kind == "saved":
        path = saved(tmp_path, rows).name
    else:
        path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows))).name
    assert pairs_of(tmp_path, "translation.de", "translation.en", path=path) == [("ja", "yes")] * 3
    assert pairs_of(tmp_path, "x.y", "translation.en", path=path)[0] == ("flat", "yes")
    assert message_of(tmp_path, "translation.de", "translation.fr", path=path) == (
        f"data.train[0].tgt: {path} has no column 'translation.fr'; did you mean "
        "'translation.en'? Set tgt to one of its columns: 'translation.de', 'translation.en', "
        "'x.y'."
    )


def test_missing_columns_are_all_named(tmp_path):
    path = rows_file(tmp_path, ".csv", CELLS)
    assert message_of(tmp_path, "deu", "zzz", path=path).split("\n") == [
        "data.train[0].src: rows.csv has no column 'deu'; did you mean 'de'? Set src to one of its "
        "columns: 'n', 'de', 'en'.",
        "data.train[0].tgt: rows.csv has no column 'zzz'. Set tgt to one of its columns: 'n', 'de', 'en'.",
    ]


@pytest.mark.parametrize(
    ("cell", "found"),
    [(None, "null"), (7, "int '7'"), (["a"], "list \"['a']\""), (True, "bool 'True'")],
)
@pytest.mark.parametrize("row", [1, 1203])
def test_a_cell_that_holds_no_text_is_named_with_its_row(tmp_path, cell, found, row):
    cells = ["yes"] * 1500
    rows = [{"de": "ja", "en": text} for text in cells]
    rows[row - 1]["en"] = cell
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows))).name
    with pytest.raises(DataError) as caught:
        pairs_of(tmp_path, "de", "en", path=path)
    assert str(caught.value) == (
        f"data.train[0].tgt: a.jsonl, row {row:,} (the first is 1): column 'en' holds {found}, "
        "text is required. Mend the row or take it out."
    )


def test_rows_with_more_cells_than_columns_are_an_error(tmp_path):
    write(tmp_path / "a.tsv", "de\ten\nja\tyes\tja\n")
    assert message_of(tmp_path, "de", "en", path="a.tsv") == (
        "data.train[0].path: a.tsv, row 1 has more cells than the first line names columns. Name "
        "every column in the first line."
    )
    write(tmp_path / "a.tsv", "de\ten\nja\tyes\nja\tyes\tja\n")
    with pytest.raises(DataError, match="Expected 2 fields in line 3, saw 3"):
        pairs_of(tmp_path, "de", "en", path="a.tsv")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"de": "a", "en": "b"}\n{"de":\n', "JSON parse error"),
        ("a.json", b"[1, 2", ""),
        ("a.parquet", b"PAR1 but no more", ""),
    ],
)
def test_a_damaged_data_file_is_one_quiet_message(
    tmp_path, capfd, monkeypatch, name, content, said
):
    write(tmp_path / name, content)
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", logged.append)
    monkeypatch.setattr(logging.getLogger("datasets"), "handlers", [handler])
    message = message_of(tmp_path, "de", "en", path=name)
    assert message.startswith(
        f"data.train[0].path: {tmp_path}/{name} cannot be read through the datasets library: {said}"
    )
    assert message.endswith(". Mend or write the file again; every row needs the same columns.")
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")
    assert logged == []


@pytest.mark.parametrize(("name", "head"), [("a.csv", b"de,en\n"), ("a.jsonl", b"")])
def test_a_bad_byte_in_a_data_file_is_named_with_its_line(tmp_path, name, head):
    row = b"\xff,b\n" if head else b'{"de": "\xff", "en": "b"}\n'
    write(tmp_path / name, head + row)
    message = message_of(tmp_path, "de", "en", path=name)
    line, byte = (2, 0) if head else (1, 8)
    assert message.startswith(
        f"data.train[0].path: {tmp_path}/{name}, line {line}, byte {byte} (the line's first is 0): ff "
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", ""), ("a.csv", ""), ("a.csv", "de,en\n"), ("a.tsv", "de\ten\n"), ("a.json", "[]")],
)
def test_a_data_file_without_rows_is_an_error(tmp_path, name, content):
    write(tmp_path / name, content)
    assert message_of(tmp_path, "de", "en", path=name) == (
        f"data.train[0].path: {tmp_path}/{name} holds no row, at least one is required. Name a "
        "data set or split that holds text."
    )


def test_splits_that_do_not_exist_are_errors(tmp_path):
    folder = rows_file(tmp_path, "splits", CELLS)
    assert pairs_of(tmp_path, "de", "en", path=folder, split="dev") == CELLS
    assert message_of(tmp_path, "de", "en", path=folder, split="test") == (
        f"data.train[0].split: {tmp_path}/saved has no split 'test'; set split to one that it has: 'train', 'dev'."
    )
    path = rows_file(tmp_path, ".jsonl", CELLS)
    assert message_of(tmp_path, "de", "en", path=path, split="dev") == (
        f"data.train[0].split: {tmp_path}/rows.jsonl has no split 'dev'; set split to one that it has: 'train'."
    )


def test_a_missing_or_unknown_data_file_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("asked the hub"))
    write(tmp_path / "train.jsonl", "x")
    assert message_of(tmp_path, "de", "en", path="trian.jsonl") == (
        f"data.train[0].path: there is no file {tmp_path}/trian.jsonl ('trian.jsonl' below "
        f"data.root, which is '{tmp_path}'). Near it: train.jsonl. Correct the name, or "
        "data.root where paths start."
    )
    assert "there is no file" in message_of(tmp_path, "de", "en", path="./corpus")
    assert "there is no file" in message_of(tmp_path, "de", "en", path="a/b/corpus")
    write(tmp_path / "a.txt", "x")
    assert message_of(tmp_path, "de", "en", path="a.txt") == (
        f"data.train[0].path: {tmp_path}/a.txt is of no kind that mt reads; required is .jsonl, "
        ".json, .csv, .tsv, .parquet or a folder written by save_to_disk. For two line-aligned "
        "text files leave path out and set src and tgt to the files."
    )
    (tmp_path / "folder").mkdir()
    assert message_of(tmp_path, "de", "en", path="folder") == (
        f"data.train[0].path: {tmp_path}/folder is a folder that save_to_disk did not write. Name "
        "a file in it (.jsonl, .json, .csv, .tsv, .parquet), or save the data set there with "
        "save_to_disk."
    )


def test_a_hub_name_is_fetched_whole_to_read_and_in_part_to_check(tmp_path, monkeypatch):
    import datasets
    import huggingface_hub

    datasets.utils.enable_progress_bars()
    huggingface_hub.utils.enable_progress_bars()
    asked = []

    def hub(name, config, *, split, streaming):
        assert datasets.utils.are_progress_bars_disabled()
        assert huggingface_hub.utils.are_progress_bars_disabled()
        asked.append((name, config, split, streaming))
        return datasets.Dataset.from_list([{"de": "ja", "en": "yes"}])

    monkeypatch.setattr(datasets, "load_dataset", hub)
    keys = {"path": "owner/corpus", "name": "de-en", "src": "de", "tgt": "en"}
    assert pairs_of(tmp_path, **keys) == [("ja", "yes")]
    sources = [Source(**keys, split="test"), Source(**keys, split="train[:5]")]
    assert check_sources(DataConfig(train=sources)) == []
    assert asked == [
        ("owner/corpus", "de-en", "train", False),
        ("owner/corpus", "de-en", "test", True),
        ("owner/corpus", "de-en", "train[:5]", False),
    ]
    assert local_files(sources[0], tmp_path) == []


def test_a_hub_name_that_cannot_be_fetched_says_all_that_was_tried(tmp_path, monkeypatch):
    import datasets

    def offline(*args, **keys):
        raise ConnectionError("Couldn't reach 'owner/corpus' on the Hub\n(no network).")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    assert message_of(tmp_path, "de", "en", path="owner/corpus", name="de-en") == (
        f"data.train[0].path: 'owner/corpus' cannot be opened. Tried: {tmp_path}/owner/corpus (no "
        "such file or folder), then the hub data set 'owner/corpus', name 'de-en', split 'train' "
        "(Couldn't reach 'owner/corpus' on the Hub (no network)). Correct path, name or split; "
        "where there is no network, fetch the data set beforehand or name a local file."
    )


def test_facts_of_a_file_that_is_no_text(tmp_path):
    path = tmp_path / rows_file(tmp_path, ".parquet", CELLS)
    assert file_facts(path) == (hashlib.sha256(path.read_bytes()).hexdigest(), None)
    with pytest.raises(DataError, match=f"there is no file {tmp_path}/none"):
        file_facts(tmp_path / "none")


# --- the real thing


@pytest.mark.multi30k
@pytest.mark.parametrize("line", [500, 14_387, 27_000])
def test_a_line_missing_from_multi30k_is_found(tmp_path, line):
    folder = Path(os.environ.get("MT_CORPORA", Path(__file__).parents[1] / "../shared/data"))
    if not (folder / "multi30k/train.de.gz").exists():
        pytest.skip("Multi30k is not here")
    source = Source(src="train.de.gz", tgt="train.en.gz")
    pairs = list(read_pairs(source, folder / "multi30k", WHERE))
    assert len(pairs) == 29_000
    english = [tgt for _, tgt in pairs]
    del english[line - 1]
    a = write(tmp_path / "a.de", "\n".join(src for src, _ in pairs))
    b = write(tmp_path / "a.en", "\n".join(english))
    found = corpus.first_shift(a, b, 1)
    assert found is not None
    assert abs(found - line) <= 3
