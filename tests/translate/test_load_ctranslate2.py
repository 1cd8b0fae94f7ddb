"""The converted model beside a model: made once, as a whole, and again where it is of no use."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from mt.errors import CheckpointError
from mt.runs.model_folder import ModelFolder, checkpoints, find_model, read_folder
from mt.search import ctranslate2_model
from mt.translate import load_ctranslate2
from mt.translate.load_ctranslate2 import FOLDER, RECORD, converted_model, is_current, user_cache

Convert = Callable[[Path, Path], None]


@pytest.fixture
def described(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelFolder:
    """A model folder of its own, not converted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    shutil.copytree(find_model(tiny_run), folder, ignore=shutil.ignore_patterns(".ctranslate2*"))
    shutil.copy(tiny_run / "tokenizer.model", folder)
    return read_folder(folder)


@pytest.fixture
def converts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Convert], None]:
    """`converts(function)`: from now on, models are converted by that function."""
    return lambda function: monkeypatch.setattr(load_ctranslate2, "convert", function)


@pytest.fixture(autouse=True)
def calls(converts: Callable[[Convert], None]) -> list[Path]:
    """The models converted, by a function that writes one file."""
    models: list[Path] = []

    def convert(model: Path, output: Path) -> None:
        models.append(model)
        write(model, output)

    converts(convert)
    return models


def write(_: Path, output: Path) -> None:
    (output / "model.bin").write_bytes(b"weights")


def quiet(_: str) -> None:
    """Report nothing."""


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".*"))


def test_it_is_made_once_and_again_if_stale_or_damaged(
    described: ModelFolder, tiny_run: Path, calls: list[Path]
) -> None:
    before = checkpoints(tiny_run)
    said: list[str] = []
    place = converted_model(described, said.append)
    assert place == described.folder / FOLDER
    assert len(said) == 1
    assert said[0].endswith(f"kept in {place}")
    assert converted_model(described, said.append) == place
    assert (len(calls), len(said)) == (1, 1)
    (place / "model.bin").write_bytes(b"damaged")
    converted_model(described, quiet)
    assert (place / "model.bin").read_bytes() == b"weights"
    record = json.loads((place / RECORD).read_text(encoding="utf-8"))
    changes: list[Any] = [{**record, "weights": "0" * 64}, {**record, "format": 0}, [], {}]
    for changed in changes:
        (place / RECORD).write_text(json.dumps(changed), encoding="utf-8")
        converted_model(described, quiet)
    assert len(calls) == 6
    assert is_current(place, described)
    assert hidden(described.folder) == [FOLDER]
    assert checkpoints(tiny_run) == before
    assert read_folder(described.folder).weights_hash == described.weights_hash


def test_a_folder_that_cannot_be_written(
    described: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_folder: Callable[[Path], AbstractContextManager[Path]] = load_ctranslate2._new_folder

    def read_only(place: Path) -> AbstractContextManager[Path]:
        if place.parent == described.folder:
            raise OSError(30, "Read-only file system")
        return new_folder(place)

    monkeypatch.setattr(load_ctranslate2, "_new_folder", read_only)
    place = converted_model(described, quiet)
    assert place.parent == user_cache()
    assert converted_model(described, quiet) == place
    shutil.rmtree(place)

    def full(place: Path) -> AbstractContextManager[Path]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(load_ctranslate2, "_new_folder", full)
    with pytest.raises(CheckpointError, match=r"cannot be kept in .* \(No space left on device\)"):
        converted_model(described, quiet)


def test_two_at_a_time(described: ModelFolder, converts: Callable[[Convert], None]) -> None:
    """While one converts, another does the same and is faster."""

    def slow(model: Path, output: Path) -> None:
        converts(write)
        converted_model(described, quiet)
        write(model, output)

    converts(slow)
    place = converted_model(described, quiet)
    assert is_current(place, described)
    assert hidden(described.folder) == [FOLDER]


def test_a_conversion_that_finds_other_probabilities_is_not_kept(
    described: ModelFolder, converts: Callable[[Convert], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real conversion, with weights that are changed on the way."""
    pytest.importorskip("ctranslate2")
    monkeypatch.undo()
    before = sorted(described.folder.iterdir())
    array = ctranslate2_model._array
    monkeypatch.setattr(ctranslate2_model, "_array", lambda tensor: array(tensor) * 1.02)
    with pytest.raises(CheckpointError, match="other probabilities"):
        converted_model(described, quiet)
    assert sorted(described.folder.iterdir()) == before


def test_a_full_disk_leaves_the_cache(
    described: ModelFolder, converts: Callable[[Convert], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's disk is full: while it is converted, or when the record is written."""
    full = OSError(28, "No space left on device")

    def no_room(model: Path, output: Path) -> None:
        if output.is_relative_to(described.folder):
            raise full
        write(model, output)

    converts(no_room)
    place = converted_model(described, quiet)
    assert place.parent == user_cache()
    shutil.rmtree(place)
    converts(write)
    publish: Callable[..., None] = load_ctranslate2._publish

    def no_room_for_record(made: Path, place: Path, described: ModelFolder) -> None:
        if made.is_relative_to(described.folder):
            raise full
        publish(made, place, described)

    monkeypatch.setattr(load_ctranslate2, "_publish", no_room_for_record)
    assert converted_model(described, quiet).parent == user_cache()
    assert hidden(described.folder) == []


def test_a_user_without_a_home(described: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert converted_model(described, quiet) == described.folder / FOLDER
