"""Table files: cells come as they are written, and a damaged line is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from corpora import CELLS, message_of, pairs_of, rows_file, saved, write
from messages import says

from mt.config.plan import plan_data
from mt.config.schema import DataConfig, Source
from mt.data.reading.check import check_data
from mt.data.reading.corpus import local_files

KINDS = [".jsonl", ".json", ".tsv", ".csv", ".parquet", "saved", "splits", ".jsonl.gz", ".csv.gz"]

NO_COLUMN = (
    " (a number from 1 if line 1 has no names); where only some rows lack it set errors: skip."
)


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
    assert check_data(plan_data(DataConfig(root=str(tmp_path), valid=[source]))).faults == []
    assert capfd.readouterr() == ("", "")
    assert not cache.exists()
    files = local_files(source, tmp_path)
    assert files
    assert all(file.is_file() for file in files)


@pytest.mark.parametrize("name", ["a.xml", "a", "a.gz"])
def test_a_file_of_another_suffix_is_not_read_as_csv(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "de,en\nja,yes\n")
    message = message_of(tmp_path, "de", "en", path=name)
    assert says(message, f"data.train[0].path: {path}", ".tsv", "Set format")


def test_quotation_marks_in_tsv_are_text(tmp_path: Path) -> None:
    write(tmp_path / "a.tsv", 'de\ten\n"Ja"\t"yes\n"nein\tno" "\n')
    assert pairs_of(tmp_path, "de", "en", path="a.tsv") == [('"Ja"', '"yes'), ('"nein', 'no" "')]


@pytest.mark.parametrize("kind", [".jsonl", ".json", ".csv", ".parquet", "saved"])
def test_line_breaks_inside_cells_become_spaces(tmp_path: Path, kind: str) -> None:
    pairs = [("eins\nzwei", "one \n\n two"), ("drei", "three\n")]
    path = rows_file(tmp_path, kind, pairs)
    cells = [("eins zwei", "one two"), ("drei", "three ")]
    assert pairs_of(tmp_path, "de", "en", path=path) == cells


@pytest.mark.parametrize("name", ["rows.tsv", "rows[1].csv"])
def test_windows_tables(tmp_path: Path, name: str) -> None:
    sep = "\t" if name.endswith("tsv") else ","
    write(tmp_path / name, f"\ufeffde{sep}en\r\nja{sep}yes\r\nnein{sep}no\r\n")
    assert pairs_of(tmp_path, "de", "en", path=name) == [("ja", "yes"), ("nein", "no")]


def test_a_carriage_return_does_not_end_a_row(tmp_path: Path) -> None:
    write(tmp_path / "rows.tsv", "de\ten\nja\rdoch\tyes\n")
    assert pairs_of(tmp_path, "de", "en", path="rows.tsv") == [("ja\rdoch", "yes")]


# --- columns ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [".jsonl", "saved"])
def test_dots_lead_into_nested_columns(tmp_path: Path, kind: str) -> None:
    rows = [{"translation": {"de": "ja", "en": "yes"}, "x.y": "flat"}] * 3
    if kind == "saved":
        path = saved(tmp_path, rows).name
        place = f"{path}, row 1 (the first is 1)"
    else:
        path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows))).name
        place = f"{tmp_path}/a.jsonl, line 1"
    assert pairs_of(tmp_path, "translation.de", "translation.en", path=path) == [("ja", "yes")] * 3
    assert pairs_of(tmp_path, "x.y", "translation.en", path=path)[0] == ("flat", "yes")
    assert message_of(tmp_path, "translation.de", "translation.fr", path=path) == (
        f"data.train[0].tgt: {place}: there is no column 'translation.fr'. Set tgt "
        f"to one of its columns: 'translation.de', 'translation.en', 'x.y'{NO_COLUMN}"
    )
    if kind == ".jsonl":  # a column that is not text is there all the same, also by its short name
        write(tmp_path / path, json.dumps({"translation": {"de": 5, "en": "yes"}}))
        for column in ("de", "translation.de"):
            message = message_of(tmp_path, column, "en", path=path)
            assert says(message, f"column {column!r} holds int '5', text is required")


@pytest.mark.parametrize("columns", ["de en", "translation.de translation.en"])
def test_a_null_object_is_null_and_a_row_may_lack_a_key(tmp_path: Path, columns: str) -> None:
    """Of other rows than the first one; the advice is not the column of the other side."""
    names = columns.split()
    whole, lacking = '{"translation": {"de": "ja", "en": "yes"}}', '{"translation": {"en": "no"}}'
    path = write(tmp_path / "a.jsonl", f'{whole}\n{{"translation": null}}\n').name
    assert pairs_of(tmp_path, *names, path=path) == [("ja", "yes"), ("", "")]
    write(tmp_path / path, f"{whole}\n{lacking}\n")
    message = message_of(tmp_path, *names, path=path)
    assert says(message, "[0].src", "line 2: there is no column", "lack it set errors: skip")
    assert pairs_of(tmp_path, *names, path=path, errors="skip") == [("ja", "yes")]
    write(tmp_path / path, f"{lacking}\n")
    message = message_of(tmp_path, *names, path=path)
    assert says(message, "line 1: there is no column", "only some rows lack it set errors: skip")


def test_missing_columns_are_all_named(tmp_path: Path) -> None:
    path = rows_file(tmp_path, ".csv", CELLS)
    place = f"{tmp_path}/rows.csv, line 2"
    faults = message_of(tmp_path, "deu", "zzz", path=path).split("\n")
    for fault, side, column in zip(faults, ("src", "tgt"), ("deu", "zzz"), strict=True):
        assert says(fault, f"[0].{side}: {place}", f"no column '{column}'", "'n', 'de', 'en'")


@pytest.mark.parametrize(
    ("cell", "found"), [(7, "int '7'"), (["a"], "list \"['a']\""), (True, "bool 'True'")]
)
@pytest.mark.parametrize("row", [1, 1203])
def test_an_empty_cell_is_named_by_row(tmp_path: Path, cell: object, found: str, row: int) -> None:
    rows: list[dict[str, object]] = [{"de": "ja", "en": "yes"} for _ in range(1500)]
    rows[row - 1]["en"] = cell
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows))).name
    assert message_of(tmp_path, "de", "en", path=path) == (
        f"data.train[0].tgt: {tmp_path}/a.jsonl, line {row:,}: column 'en' holds {found}, text is "
        "required. Correct the row or remove it."
    )


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.txt"])
def test_columns_of_files_without_names_are_numbers(tmp_path: Path, name: str) -> None:
    """As `cut -f` counts them. Where the first line has these very names it names the columns."""
    sep = "," if name == "a.csv" else "\t"
    write(tmp_path / name, f"yes{sep}ja{sep}CC-BY\nno{sep}nein{sep}CC-BY\n")
    assert pairs_of(tmp_path, "2", "1", path=name) == [("ja", "yes"), ("nein", "no")]
    assert Source.model_validate({"src": 2, "tgt": 1}) == Source(src="2", tgt="1")
    assert message_of(tmp_path, "1", "4", path=name) == (
        f"data.train[0].tgt: {tmp_path}/{name}, line 1: there is no column '4'. Set tgt to one of "
        f"its columns: '1', '2', '3'{NO_COLUMN}"
    )
    write(tmp_path / name, f"1{sep}2\nja{sep}yes\n")
    assert pairs_of(tmp_path, "1", "2", path=name) == [("ja", "yes")]


def test_a_column_named_twice_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "de,en,de\nja,yes,ja\n")
    message = message_of(tmp_path, "de", "en", path="a.csv")
    assert says(message, f"[0].path: {tmp_path}/a.csv, line 1", "'de' 2 times", "another name")


# --- delimiters and quotation marks -----------------------------------------------------------


def test_a_csv_may_have_another_delimiter(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", 'de;en\n"ja; doch";yes, sure\n')
    pairs = [("ja; doch", "yes, sure")]
    assert pairs_of(tmp_path, "de", "en", path="a.csv", delimiter=";") == pairs
    write(tmp_path / "a.csv", "de\ten\nja\tyes\n")
    message = message_of(tmp_path, "de", "en", path="a.csv")
    assert says(message, "there is no column 'de'", r"'de\ten'")
    tab = Source.model_validate({"src": "de", "tgt": "en", "delimiter": "\\t"}).delimiter
    assert pairs_of(tmp_path, "de", "en", path="a.csv", delimiter=tab) == [("ja", "yes")]


def test_a_tsv_may_be_quoted_as_csv_is_and_a_csv_may_not(tmp_path: Path) -> None:
    write(tmp_path / "a.tsv", 'de\ten\n"er sagte ""ja""\tund\nging"\t"yes"\n')
    pairs = [('er sagte "ja"\tund ging', "yes")]
    assert pairs_of(tmp_path, "de", "en", path="a.tsv", quoting="csv") == pairs
    write(tmp_path / "a.csv", 'de,en\n"ja","yes\n')
    assert pairs_of(tmp_path, "de", "en", path="a.csv", quoting="none") == [('"ja"', '"yes')]


def test_quotation_marks_that_are_not_csv_are_an_error(tmp_path: Path) -> None:
    for rows, line in [('ja,yes\n"ja" doch,yes\n', 3), ('ja,yes\nnein,no\n"ja,yes\nnein,no\n', 4)]:
        write(tmp_path / "a.csv", "de,en\n" + rows)
        message = message_of(tmp_path, "de", "en", path="a.csv")
        assert message.startswith(
            f"data.train[0].path: {tmp_path}/a.csv, line {line}: this row is no CSV ("
        )
        assert says(message, "not closed", 'written twice ("")', "quoting to none")
    write(tmp_path / "a.csv", 'de,en\nja,"yes\n' + "nein,no\n" * 20_000)
    message = message_of(tmp_path, "de", "en", path="a.csv")
    assert says(message, "a.csv, line 2", "unexpected end of data", "not closed")


def test_a_cell_may_be_as_long_as_a_line(tmp_path: Path) -> None:
    """Python's csv module refuses more than 131,072 characters unless it is told."""
    write(tmp_path / "a.csv", f"de,en\n{'ja ' * 60_000},yes\n")
    ((src, _),) = pairs_of(tmp_path, "de", "en", path="a.csv")
    assert len(src) == 180_000


@pytest.mark.parametrize(("row", "cells"), [("ja\tyes\tja", 3), ("ja", 1)])
def test_a_row_with_another_number_of_cells_fails(tmp_path: Path, row: str, cells: int) -> None:
    write(tmp_path / "a.tsv", f"de\ten\nja\tyes\n\n{row}\n")
    message = message_of(tmp_path, "de", "en", path="a.tsv")
    place = f"data.train[0].path: {tmp_path}/a.tsv, line 4"
    assert says(message, place, "required (2)", f"found {cells}", "quoting")


@pytest.mark.parametrize("key", [{"delimiter": ";"}, {"quoting": "csv"}, {"name": "x"}])
def test_keys_that_are_of_another_format(tmp_path: Path, key: dict[str, str]) -> None:
    write(tmp_path / "a.jsonl", '{"de": "a", "en": "b"}\n')
    (name,) = key
    kind = "data sets of the hub" if name == "name" else ".csv, .tsv, .txt files"
    message = f"data.train[0].{name}: only for {kind}, but path is a.jsonl. Leave {name} out."
    assert message_of(tmp_path, "de", "en", path="a.jsonl", **key) == message


# --- damaged files ----------------------------------------------------------------------------


def test_a_broken_row_of_json_lines_is_named_with_its_line(tmp_path: Path) -> None:
    for line, found in [
        ('{"de":', "this cannot be read (Expecting value: line 1 column 7 (char 6))"),
        ('["a", "b"]', "found list"),
        ("7", "found int"),
    ]:
        write(tmp_path / "a.jsonl", '{"de": "a", "en": "b"}\n' * 149 + "\n" + line + "\n")
        message = message_of(tmp_path, "de", "en", path="a.jsonl")
        assert message.startswith(
            f"data.train[0].path: {tmp_path}/a.jsonl, line 151: one JSON object is required, "
        )
        assert found in message
        assert ". Correct the line or remove it" in message


def test_half_a_surrogate_pair_is_not_text(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"de": "a\\ud83d", "en": "b"}\n')
    assert message_of(tmp_path, "de", "en", path="a.jsonl") == (
        f"data.train[0].src: {tmp_path}/a.jsonl, line 1: character 2 of the text is half of a "
        "surrogate pair, not a character. Correct the row or remove it."
    )


def test_json_lines_under_the_other_name_need_the_format(tmp_path: Path) -> None:
    rows = [{"de": "ja", "en": "yes"}, {"de": "nein", "en": "no"}]
    pairs = [("ja", "yes"), ("nein", "no")]
    write(tmp_path / "a.json", "\n".join(map(json.dumps, rows)))
    assert says(message_of(tmp_path, "de", "en", path="a.json"), "not JSON", "set format to jsonl")
    assert pairs_of(tmp_path, "de", "en", path="a.json", format="jsonl") == pairs
    write(tmp_path / "a.json", json.dumps(rows, indent=2))
    assert pairs_of(tmp_path, "de", "en", path="a.json") == pairs


def test_other_json_is_an_error(tmp_path: Path) -> None:
    for content in ["[1, 2", "nothing", '"text"', "[7]", "{}", '{"de": "a", "fr": "b"}']:
        write(tmp_path / "a.json", content)
        message = message_of(tmp_path, "de", "en", path="a.json")
        assert message.startswith(f"data.train[0].path: {tmp_path}/a.json")
        assert "object" in message


@pytest.mark.parametrize(("name", "head"), [("a.csv", b"de,en\n"), ("a.jsonl", b"")])
def test_a_bad_byte_in_a_data_file_has_its_line(tmp_path: Path, name: str, head: bytes) -> None:
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
def test_a_data_file_without_rows_fails(tmp_path: Path, name: str, content: str | bytes) -> None:
    write(tmp_path / name, content)
    message = message_of(tmp_path, "de", "en", path=name)
    assert says(message, f"data.train[0].path: {name} has no rows", "Name a data set")


def test_a_data_file_whose_rows_are_all_left_out_says_why(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "junk\njunk\n")
    message = message_of(tmp_path, "de", "en", path="a.jsonl", errors="skip")
    assert says(message, "a.jsonl has no row left", "2, the first in", "line 1")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.de"])
def test_a_file_with_carriage_returns_only_is_named_as_such(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "de,en\rja,yes\rnein,no\r")
    write(tmp_path / "a.en", "x\n")
    keys = {"src": "a.de"} if name == "a.de" else {"src": "de", "tgt": "en", "path": name}
    field = "src" if name == "a.de" else "path"
    message = message_of(tmp_path, **keys)
    assert says(message, f"data.train[0].{field}: {path}: ", "carriage returns", "tr '\\r' '\\n'")
