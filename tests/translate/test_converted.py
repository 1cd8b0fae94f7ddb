"""The converted model beside a model: made once, as a whole, and again where it is of no use."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt.errors import CheckpointError
from mt.runs.model_folder import ModelFolder, checkpoints, find_model, read_folder
from mt.translate import converted
from mt.translate.converted import FOLDER, RECORD, converted_model, is_current, user_cache


class Converter:
    """Stands for the conversion: writes one file, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: Path, output: Path) -> None:
        self.calls += 1
        output.mkdir()
        (output / "model.bin").write_bytes(b"weights")


@pytest.fixture
def described(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelFolder:
    """A model folder of its own, not converted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    shutil.copytree(find_model(tiny_run), folder, ignore=shutil.ignore_patterns(".ctranslate2*"))
    shutil.copy(tiny_run / "tokenizer.model", folder)
    return read_folder(folder)


def quiet(_: str) -> None:
    """Say nothing."""


def test_it_is_made_once_and_again_if_stale_or_damaged(described: ModelFolder) -> None:
    convert = Converter()
    said: list[str] = []
    place = converted_model(described, convert, said.append)
    assert place == described.folder / FOLDER
    assert len(said) == 1
    assert said[0].endswith(f"kept in {place}")
    assert converted_model(described, convert, said.append) == place
    assert (convert.calls, len(said)) == (1, 1)
    (place / "model.bin").write_bytes(b"damaged")
    converted_model(described, convert, quiet)
    assert (place / "model.bin").read_bytes() == b"weights"
    record = json.loads((place / RECORD).read_text(encoding="utf-8"))
    changes: list[Any] = [{**record, "weights": "0" * 64}, {**record, "format": 0}, [], {}]
    for changed in changes:
        (place / RECORD).write_text(json.dumps(changed), encoding="utf-8")
        converted_model(described, convert, quiet)
    assert convert.calls == 6
    assert is_current(place, described)
    assert sorted(path.name for path in described.folder.glob(".*")) == [FOLDER]


def test_a_folder_that_cannot_be_written(
    described: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_folder: Callable[[Path], Path] = converted._new_folder

    def read_only(place: Path) -> Path:
        if place.parent == described.folder:
            raise OSError(30, "Read-only file system")
        return new_folder(place)

    monkeypatch.setattr(converted, "_new_folder", read_only)
    convert = Converter()
    place = converted_model(described, convert, quiet)
    assert place.parent == user_cache()
    assert converted_model(described, None, quiet) == place
    shutil.rmtree(place)
    with pytest.raises(CheckpointError, match="has not been converted for CTranslate2"):
        converted_model(described, None, quiet)

    def full(place: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(converted, "_new_folder", full)
    with pytest.raises(CheckpointError, match=r"cannot be kept in .* \(No space left on device\)"):
        converted_model(described, convert, quiet)


def test_two_at_a_time(described: ModelFolder) -> None:
    """While one converts, another does the same and is faster."""

    def slow(model: Path, output: Path) -> None:
        converted_model(described, Converter(), quiet)
        Converter()(model, output)

    place = converted_model(described, slow, quiet)
    assert is_current(place, described)
    assert sorted(path.name for path in described.folder.glob(".*")) == [FOLDER]


def test_a_failed_conversion_leaves_nothing(described: ModelFolder) -> None:
    def fails(model: Path, output: Path) -> Any:
        output.mkdir()
        raise CheckpointError("other probabilities")

    before = sorted(described.folder.iterdir())
    with pytest.raises(CheckpointError, match="other probabilities"):
        converted_model(described, fails, quiet)
    assert sorted(described.folder.iterdir()) == before


def test_a_full_disk_leaves_the_cache(
    described: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's disk is full: while it is converted, or when the record is written."""
    full = OSError(28, "No space left on device")

    def no_room(model: Path, output: Path) -> None:
        if output.is_relative_to(described.folder):
            raise CheckpointError("cannot be written") from full
        Converter()(model, output)

    place = converted_model(described, no_room, quiet)
    assert place.parent == user_cache()
    shutil.rmtree(place)
    publish: Callable[..., None] = converted._publish

    def no_room_for_record(made: Path, place: Path, described: ModelFolder) -> None:
        if made.is_relative_to(described.folder):
            raise full
        publish(made, place, described)

    monkeypatch.setattr(converted, "_publish", no_room_for_record)
    assert converted_model(described, Converter(), quiet).parent == user_cache()
    assert list(described.folder.glob(".*")) == []


def test_a_user_without_a_home(described: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert converted_model(described, Converter(), quiet) == described.folder / FOLDER


def test_a_run_lists_its_checkpoints_as_before(described: ModelFolder, tiny_run: Path) -> None:
    before = checkpoints(tiny_run)
    converted_model(described, Converter(), quiet)
    assert checkpoints(tiny_run) == before
    assert read_folder(described.folder).weights_hash == described.weights_hash
