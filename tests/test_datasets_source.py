"""Two columns of a data set, of every kind, and the messages where one is wrong."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from corpora import message_of, pairs_of, write

from mt.config.schema import DataConfig, Source
from mt.data.corpus import check_sources, local_files
from mt.errors import DataError

# Cells that readers of tables like to turn into something else.
CELLS = [
    ("NA", "null"),
    ("007", "1.50"),
    ('er sagte "ja", gut', 'he said "yes", fine'),
    ("2020-01-01", "nan"),
    ("a\u2028b\x85c", "True"),
    (" leer ", "'tis"),
]


def saved(tmp_path: Path, rows: list[dict[str, Any]], splits: bool = False) -> Path:
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
def test_cells_come_as_they_stand(
    tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    cache = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    path = rows_file(tmp_path, kind, CELLS)
    capfd.readouterr()
    assert pairs_of(tmp_path, "de", "en", path=path) == CELLS
    assert pairs_of(tmp_path, "en", "de", path=path)[0] == ("null", "NA")
    source = Source(src="de", tgt="en", path=path)
    assert check_sources(DataConfig(root=str(tmp_path), valid=source)) == []
    assert capfd.readouterr() == ("", "")
    assert not cache.exists()
    files = local_files(source, tmp_path)
    assert files
    assert all(file.is_file() for file in files)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_nothing_but_numbers_are_text(tmp_path: Path, kind: str) -> None:
    pairs = [("007", "1.50"), ("12", "1e3"), ("0", "2.00")]
    path = rows_file(tmp_path, kind, pairs)
    assert pairs_of(tmp_path, "de", "en", path=path) == pairs


def test_quotation_marks_in_tsv_are_text(tmp_path: Path) -> None:
    write(tmp_path / "a.tsv", 'de\ten\n"Ja"\t"yes\n"nein\tno" "\n')
    pairs = [('"Ja"', '"yes'), ('"nein', 'no" "')]
    assert pairs_of(tmp_path, "de", "en", path="a.tsv") == pairs


@pytest.mark.parametrize("kind", [".jsonl", ".json", ".csv", ".parquet", "saved"])
def test_line_breaks_inside_cells_become_spaces(tmp_path: Path, kind: str) -> None:
    pairs = [("eins\nzwei", "one \n\n two"), ("drei", "three\n")]
    path = rows_file(tmp_path, kind, pairs)
    assert pairs_of(tmp_path, "de", "en", path=path) == [
        ("eins zwei", "one two"),
        ("drei", "three "),
    ]


@pytest.mark.parametrize("name", ["rows.tsv", "rows[1].csv"])
def test_windows_tables(tmp_path: Path, name: str) -> None:
    sep = "\t" if name.endswith("tsv") else ","
    write(tmp_path / name, f"\ufeffde{sep}en\r\nja{sep}yes\r\nnein{sep}no\r\n")
    assert pairs_of(tmp_path, "de", "en", path=name) == [("ja", "yes"), ("nein", "no")]


def test_a_carriage_return_does_not_end_a_row(tmp_path: Path) -> None:
    write(tmp_path / "rows.tsv", "de\ten\nja\rdoch\tyes\n")
    assert pairs_of(tmp_path, "de", "en", path="rows.tsv") == [("ja\rdoch", "yes")]


@pytest.mark.parametrize("kind", [".jsonl", "saved"])
def test_dots_lead_into_nested_columns(tmp_path: Path, kind: str) -> None:
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


def test_missing_columns_are_all_named(tmp_path: Path) -> None:
    path = rows_file(tmp_path, ".csv", CELLS)
    assert message_of(tmp_path, "deu", "zzz", path=path).split("\n") == [
        "data.train[0].src: rows.csv has no column 'deu'; did you mean 'de'? Set src to one of its "
        "columns: 'n', 'de', 'en'.",
        "data.train[0].tgt: rows.csv has no column 'zzz'. Set tgt to one of its columns: 'n', "
        "'de', 'en'.",
    ]


@pytest.mark.parametrize(
    ("cell", "found"),
    [(None, "null"), (7, "int '7'"), (["a"], "list \"['a']\""), (True, "bool 'True'")],
)
@pytest.mark.parametrize("row", [1, 1203])
def test_a_cell_without_text_is_named_with_its_row(
    tmp_path: Path, cell: object, found: str, row: int
) -> None:
    rows: list[dict[str, object]] = [{"de": "ja", "en": "yes"} for _ in range(1500)]
    rows[row - 1]["en"] = cell
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows))).name
    with pytest.raises(DataError) as caught:
        pairs_of(tmp_path, "de", "en", path=path)
    assert str(caught.value) == (
        f"data.train[0].tgt: a.jsonl, row {row:,} (the first is 1): column 'en' holds {found}, "
        "text is required. Correct the row or remove it."
    )


def test_rows_with_more_cells_than_columns_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.tsv", "de\ten\nja\tyes\tja\n")
    assert message_of(tmp_path, "de", "en", path="a.tsv") == (
        "data.train[0].path: a.tsv, row 1 has more cells than the first line has column names. "
        "Name every column in the first line."
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
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: str | bytes,
    said: str,
) -> None:
    write(tmp_path / name, content)
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", logged.append)
    monkeypatch.setattr(logging.getLogger("datasets"), "handlers", [handler])
    message = message_of(tmp_path, "de", "en", path=name)
    assert message.startswith(
        f"data.train[0].path: {tmp_path}/{name} cannot be read with the datasets library: {said}"
    )
    assert message.endswith(". Repair or write the file again; every row needs the same columns.")
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")
    assert logged == []


@pytest.mark.parametrize(("name", "head"), [("a.csv", b"de,en\n"), ("a.jsonl", b"")])
def test_a_bad_byte_in_a_data_file_is_named_with_its_line(
    tmp_path: Path, name: str, head: bytes
) -> None:
    row = b"\xff,b\n" if head else b'{"de": "\xff", "en": "b"}\n'
    write(tmp_path / name, head + row)
    message = message_of(tmp_path, "de", "en", path=name)
    line, byte = (2, 0) if head else (1, 8)
    assert message.startswith(
        f"data.train[0].path: {tmp_path}/{name}, line {line}, byte {byte} (the line's first is 0): "
        "ff "
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", ""), ("a.csv", ""), ("a.csv", "de,en\n"), ("a.tsv", "de\ten\n"), ("a.json", "[]")],
)
def test_a_data_file_without_rows_is_an_error(
    tmp_path: Path, name: str, content: str | bytes
) -> None:
    write(tmp_path / name, content)
    assert message_of(tmp_path, "de", "en", path=name) == (
        f"data.train[0].path: {tmp_path}/{name} has no rows, at least one is required. Name a "
        "data set or split that contains text."
    )


def test_splits_that_do_not_exist_are_errors(tmp_path: Path) -> None:
    folder = rows_file(tmp_path, "splits", CELLS)
    assert pairs_of(tmp_path, "de", "en", path=folder, split="dev") == CELLS
    assert message_of(tmp_path, "de", "en", path=folder, split="test") == (
        f"data.train[0].split: {tmp_path}/saved has no split 'test'; set split to one that it "
        "has: 'train', 'dev'."
    )
    path = rows_file(tmp_path, ".jsonl", CELLS)
    assert message_of(tmp_path, "de", "en", path=path, split="dev") == (
        f"data.train[0].split: {tmp_path}/rows.jsonl has no split 'dev'; set split to one "
        "that it has: 'train'."
    )


def test_a_missing_or_unknown_data_file_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("asked the hub"))
    write(tmp_path / "train.jsonl", "x")
    assert message_of(tmp_path, "de", "en", path="trian.jsonl") == (
        f"data.train[0].path: there is no file {tmp_path}/trian.jsonl ('trian.jsonl' below "
        f"data.root, which is '{tmp_path}'). Similar names there: train.jsonl. Correct the name, "
        "or data.root where paths start."
    )
    assert "there is no file" in message_of(tmp_path, "de", "en", path="./corpus")
    assert "there is no file" in message_of(tmp_path, "de", "en", path="a/b/corpus")
    write(tmp_path / "a.txt", "x")
    assert message_of(tmp_path, "de", "en", path="a.txt") == (
        f"data.train[0].path: {tmp_path}/a.txt is not of a type that mt reads; required is .jsonl, "
        ".json, .csv, .tsv, .parquet or a folder written by save_to_disk. For two line-aligned "
        "text files leave path out and set src and tgt to the files."
    )
    (tmp_path / "folder").mkdir()
    assert message_of(tmp_path, "de", "en", path="folder") == (
        f"data.train[0].path: {tmp_path}/folder is a folder that save_to_disk did not write. Name "
        "a file in it (.jsonl, .json, .csv, .tsv, .parquet), or save the data set there with "
        "save_to_disk."
    )


def test_a_hub_name_is_downloaded_to_read_and_streamed_to_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    import huggingface_hub

    datasets.utils.enable_progress_bars()
    huggingface_hub.utils.enable_progress_bars()
    asked = []

    def hub(name: str, config: str, *, split: str, streaming: bool) -> datasets.Dataset:
        assert datasets.utils.are_progress_bars_disabled()
        assert huggingface_hub.utils.are_progress_bars_disabled()
        asked.append((name, config, split, streaming))
        return datasets.Dataset.from_list([{"de": "ja", "en": "yes"}])

    monkeypatch.setattr(datasets, "load_dataset", hub)
    keys: dict[str, Any] = {"path": "owner/corpus", "name": "de-en", "src": "de", "tgt": "en"}
    assert pairs_of(tmp_path, **keys) == [("ja", "yes")]
    sources = [Source(**keys, split="test"), Source(**keys, split="train[:5]")]
    assert check_sources(DataConfig(train=sources)) == []
    assert asked == [
        ("owner/corpus", "de-en", "train", False),
        ("owner/corpus", "de-en", "test", True),
        ("owner/corpus", "de-en", "train[:5]", False),
    ]
    assert local_files(sources[0], tmp_path) == []


def test_a_hub_name_that_cannot_be_downloaded_says_all_that_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'owner/corpus' on the Hub\n(no network).")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    assert message_of(tmp_path, "de", "en", path="owner/corpus", name="de-en") == (
        f"data.train[0].path: 'owner/corpus' cannot be opened. Tried: {tmp_path}/owner/corpus (no "
        "such file or folder), then the hub data set 'owner/corpus', name 'de-en', split 'train' "
        "(Couldn't reach 'owner/corpus' on the Hub (no network)). Correct path, name or split; "
        "without a network, download the data set beforehand or name a local file."
    )
