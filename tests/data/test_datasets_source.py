"""Data sets that the `datasets` library reads: Parquet, save_to_disk and the hub."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from corpora import CELLS, message_of, pairs_of, rows_file, write
from faults import raising
from messages import says

from mt.config.plan import plan_data
from mt.config.schema import DataConfig, Source
from mt.data.reading.check import check_data
from mt.data.reading.corpus import local_files


def parquet(path: Path, pairs: list[tuple[str, str]]) -> Path:
    """Write pairs with the columns `translation.de` and `translation.en`."""
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"translation": {"de": de, "en": en}} for de, en in pairs]
    table = pyarrow.Table.from_pylist(rows or [{"translation": {"de": "", "en": ""}}])
    pyarrow.parquet.write_table(table.slice(0, len(rows)), path)
    return path


def test_a_folder_of_parquet_files_as_downloaded_from_the_hub(tmp_path: Path) -> None:
    """Splits are those of the data card, and without one those of the file names."""
    for number in range(2):
        parquet(tmp_path / f"hub/data/train-0000{number}-of-00002.parquet", [CELLS[number]] * 2)
    parquet(tmp_path / "hub/data/validation-00000-of-00001.parquet", CELLS[2:])
    keys: dict[str, Any] = {"src": "translation.de", "tgt": "translation.en", "path": "hub"}
    for card in (False, True):
        if card:
            splits = "".join(
                f"  - split: {split}\n    path: data/{split}-*\n"
                for split in ("train", "validation")
            )
            text = f"---\nconfigs:\n- config_name: default\n  data_files:\n{splits}---\n"
            write(tmp_path / "hub/README.md", text)
        assert pairs_of(tmp_path, **keys) == [CELLS[0]] * 2 + [CELLS[1]] * 2
        assert pairs_of(tmp_path, **keys, split="validation") == CELLS[2:]
        assert message_of(tmp_path, **keys, split="dev") == (
            f"data.train[0].split: {tmp_path}/hub has no split 'dev'; set split to one that it "
            "has: 'train', 'validation'."
        )
    assert len(local_files(Source(**keys), tmp_path)) == 4


def test_several_parquet_files_by_a_pattern(tmp_path: Path) -> None:
    for number in range(3):
        parquet(tmp_path / f"data/train-{number}.parquet", [CELLS[number]])
    parquet(tmp_path / "data/train-3.parquet", [])
    parquet(tmp_path / "data/test.parquet", [CELLS[3]])
    keys: dict[str, Any] = {
        "src": "translation.de", "tgt": "translation.en", "path": "data/train-*.parquet",
    }  # fmt: skip
    assert pairs_of(tmp_path, **keys) == CELLS[:3]
    files = local_files(Source(**keys), tmp_path)
    assert files == [tmp_path / f"data/train-{number}.parquet" for number in range(4)]
    assert "has no rows" in message_of(tmp_path, **keys | {"path": "data/train-3.parquet"})


def test_a_damaged_parquet_file_is_one_quiet_message(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.parquet", b"PAR1 but no more")
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", logged.append)
    monkeypatch.setattr(logging.getLogger("datasets"), "handlers", [handler])
    message = message_of(tmp_path, "de", "en", path="a.parquet")
    assert message.startswith(
        f"data.train[0].path: {tmp_path}/a.parquet cannot be read with the datasets library: "
    )
    assert message.endswith(". Repair or write the file again; every row needs the same columns.")
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")
    assert logged == []


def test_splits_that_do_not_exist_are_errors(tmp_path: Path) -> None:
    folder = rows_file(tmp_path, "splits", CELLS)
    assert pairs_of(tmp_path, "de", "en", path=folder, split="dev") == CELLS
    assert "'train', 'dev'" in message_of(tmp_path, "de", "en", path=folder, split="test")
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
        f"data.root, which is '{tmp_path}'). Correct the name, or data.root where paths start."
    )
    assert "there is no file" in message_of(tmp_path, "de", "en", path="./corpus")
    assert "there is no file" in message_of(tmp_path, "de", "en", path="a/b/corpus")
    assert "there is no file" in message_of(tmp_path, "de", "en", path="owner/corpus*")
    write(tmp_path / "a.doc", "x")
    message = message_of(tmp_path, "de", "en", path="a.doc")
    assert says(message, f"data.train[0].path: {tmp_path}/a.doc", ".tmx", "Set format", "src and")
    (tmp_path / "folder").mkdir()
    message = message_of(tmp_path, "de", "en", path="folder")
    assert says(
        message, f"data.train[0].path: {tmp_path}/folder is a folder", ".tmx", ".de and .en"
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
    data = {
        "train": [keys | {"split": "more"}, keys | {"split": "train[:5]"}],
        "test": [keys | {"split": "test"}],
    }
    assert check_data(plan_data(DataConfig.model_validate(data))).faults == []
    assert asked == [
        ("owner/corpus", "de-en", "train", False),
        ("owner/corpus", "de-en", "test", False),  # looked for in the training text
        ("owner/corpus", "de-en", "more", True),
        ("owner/corpus", "de-en", "train[:5]", False),
    ]
    assert local_files(Source(**keys), tmp_path) == []


def test_a_hub_name_that_cannot_be_downloaded_says_all_that_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    lost = ConnectionError("Couldn't reach 'owner/corpus' on the Hub\n(no network).")
    monkeypatch.setattr(datasets, "load_dataset", raising(lost))
    assert message_of(tmp_path, "de", "en", path="owner/corpus", name="de-en") == (
        f"data.train[0].path: 'owner/corpus' cannot be opened. Tried: {tmp_path}/owner/corpus (no "
        "such file or folder), then the hub data set 'owner/corpus', name 'de-en', split 'train' "
        "(Couldn't reach 'owner/corpus' on the Hub (no network)). Correct path, name or split; "
        "without a network, download the data set beforehand or name a local file."
    )
