"""Converted models in the user's cache: made once, as a whole, and trusted only from this user."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from conftest import Mt, mt_command, refused, write_lines
from faults import raising
from messages import says
from model_files import copy_model, drop, empty, flip, truncate

from mt import artefacts
from mt.artefacts import RECORD, is_made, user_cache
from mt.errors import CheckpointError
from mt.files import sha256_of
from mt.runs.model_folder import ModelFolder, checkpoints, open_model
from mt.search import ctranslate2_model
from mt.translate import load, load_ctranslate2
from mt.translate.load_ctranslate2 import CACHE, is_mine, load_converted

Convert = Callable[[ModelFolder, Path], None]
DISK_FULL = OSError(28, "No space left on device")


@pytest.fixture
def described(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelFolder:
    """A model folder of its own, not converted; the user's cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return open_model(copy_model(tiny_run, tmp_path / "model"))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said from now on."""
    messages: list[str] = []
    monkeypatch.setattr(load_ctranslate2, "say", messages.append)
    return messages


@pytest.fixture
def converts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Convert], None]:
    """`converts(function)`: from now on, models are converted by that function."""
    return lambda function: monkeypatch.setattr(load_ctranslate2, "convert", function)


@pytest.fixture
def calls(converts: Callable[[Convert], None]) -> list[Path]:
    """The models converted, by a function that writes one file."""
    models: list[Path] = []

    def convert(model: ModelFolder, output: Path) -> None:
        models.append(model.folder)
        write(model, output)

    converts(convert)
    return models


def write(_: ModelFolder, output: Path) -> None:
    (output / "model.bin").write_bytes(b"weights")


def content(folder: Path) -> bytes:
    """Stands for loading a conversion."""
    return (folder / "model.bin").read_bytes()


def cached() -> list[Path]:
    return sorted(path for path in user_cache(CACHE).iterdir() if path.suffix != ".lock")


def test_it_is_made_once_and_again_if_damaged(
    described: ModelFolder, calls: list[Path], said: list[str]
) -> None:
    before = sorted(described.folder.iterdir())
    assert load_converted(described, content) == b"weights"
    (place,) = cached()
    (message,) = said
    assert says(message, "converted for CTranslate2", "kept in", place)
    load_converted(described, content)
    assert (len(calls), len(said)) == (1, 1)
    harms = [partial(flip, place / "model.bin"), partial(empty, place / "model.bin")]
    harms += [partial(truncate, place / RECORD), partial(drop, place / RECORD)]
    harms += [partial(write_lines, place / RECORD, [text]) for text in ("[]", "{}", "[" * 10**5)]
    harms.append(partial(write_lines, place / "vmap.txt", []))
    for number, harm in enumerate(harms, 2):
        harm()
        assert load_converted(described, content) == b"weights"
        assert len(calls) == number
        assert is_made(place, None, sha256_of)
    assert cached() == [place]
    assert sorted(described.folder.iterdir()) == before


def test_it_is_named_by_all_that_it_depends_on(
    described: ModelFolder, calls: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = described.config.model.model_copy(update={"n_heads": 4})
    other = replace(described, config=described.config.model_copy(update={"model": model}))
    for each in (described, other):
        load_converted(each, content)
    assert (len(calls), len(cached())) == (2, 2)
    monkeypatch.setattr(load_ctranslate2, "version", lambda _: "0")
    load_converted(described, content)
    assert (len(calls), len(cached())) == (3, 3)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owner")
def test_what_another_user_may_have_written_is_not_trusted(
    described: ModelFolder, calls: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_converted(described, content)
    (place,) = cached()
    assert is_mine(place)
    place.chmod(0o770)
    assert not is_mine(place)
    load_converted(described, content)
    assert (len(calls), is_mine(place)) == (2, True)
    monkeypatch.setattr(os, "geteuid", lambda: place.stat().st_uid + 1)
    assert not is_mine(place)


def test_a_conversion_in_a_strangers_model_folder_is_ignored(
    described: ModelFolder, tiny_run: Path, tiny_corpus: Path, mt: Mt
) -> None:
    """A valid one of other weights, with a record."""
    pytest.importorskip("ctranslate2")
    other = open_model(checkpoints(tiny_run)[0])
    assert other.weights_hash != described.weights_hash
    planted = described.folder / ".ctranslate2"
    planted.mkdir()
    load_ctranslate2.convert(other, planted)
    record = {
        "format": 1,
        "weights": described.weights_hash,
        "tokenizer": described.tokenizer.fingerprint,
        "files": {path.name: sha256_of(path) for path in planted.iterdir()},
    }
    (planted / RECORD).write_text(json.dumps(record), encoding="utf-8")
    source = tiny_corpus / "test.src"
    options = ("-m", described.folder, source, "--precision", "fp32")
    ended = mt("translate", *options)
    assert says(ended.err, "converted for CTranslate2", "kept in", user_cache(CACHE))
    torch = mt("translate", *options, "--engine", "torch", "--workers", 1)
    assert ended.out == torch.out
    assert ended.out.count(b"\n") == 40


def test_a_cache_that_cannot_be_written_a_full_disk_and_no_home(
    described: ModelFolder,
    calls: list[Path],
    converts: Callable[[Convert], None],
    said: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is converted in a temporary folder then, for this process, and each start says why."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with monkeypatch.context() as patch:
        patch.setattr(artefacts, "exclusive", raising(OSError(30, "Read-only file system")))
        assert load_converted(described, content) == b"weights"
    with monkeypatch.context() as patch:
        patch.setattr(artefacts, "sync_files", raising(DISK_FULL))
        assert load_converted(described, content) == b"weights"
    with monkeypatch.context() as patch:
        patch.delenv("XDG_CACHE_HOME")
        patch.setattr(Path, "home", raising(RuntimeError("no home")))
        assert load_converted(described, content) == b"weights"
    reasons = ("Read-only file system", "No space left on device", "no home directory")
    for message, reason in zip(said, reasons, strict=True):
        assert says(message, "not kept", reason)
    assert cached() == list(temporary.iterdir()) == []
    converts(raising(DISK_FULL))
    with pytest.raises(CheckpointError) as error:
        load_converted(described, content)
    assert says(
        str(error.value), user_cache(CACHE), "No space", temporary, "No space", "XDG_CACHE_HOME"
    )


@pytest.mark.parametrize("given", ["", "caches", "~/caches"])
def test_a_cache_has_one_place_whatever_the_current_folder(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative XDG_CACHE_HOME is not valid; it would put models into the current folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert user_cache(CACHE) == tmp_path / ".cache" / "mt" / "ctranslate2"


@pytest.mark.slow
def test_two_processes_convert_at_the_same_time(described: ModelFolder) -> None:
    pytest.importorskip("ctranslate2")
    command, environment = mt_command("translate", "-m", described.folder)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    both = [subprocess.Popen(command, env=environment, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    ended = [process.communicate(b"drei acht\n", timeout=120) for process in both]
    (place,) = cached()
    assert is_made(place, None, sha256_of)
    assert [process.returncode for process in both] == [0, 0]
    assert ended[0][0] == ended[1][0] != b""
    assert f"kept in {place}" in ended[0][1].decode() + ended[1][1].decode()


def test_the_cache_keeps_what_was_used_last_and_is_limited(
    described: ModelFolder, calls: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [
        replace(described, meta={**described.meta, "sha256": {"model.safetensors": str(number)}})
        for number in range(4)
    ]
    for model in models[:3]:
        load_converted(model, content)
    for age, place in enumerate(cached()):
        os.utime(place, (age, age))
    load_converted(models[0], content)  # used now
    size = sum(file.stat().st_size for file in cached()[0].iterdir())
    monkeypatch.setattr(load_ctranslate2, "MAX_BYTES", 2 * size)
    interrupted, current = (user_cache(CACHE) / f".{name}.partial" for name in ("old", "new"))
    for folder in (interrupted, current):
        folder.mkdir()
    os.utime(interrupted, (1, 1))
    load_converted(models[3], content)
    assert (len(calls), len(cached())) == (4, 3)
    assert current in cached()
    for model in (models[0], models[3]):
        load_converted(model, content)
    assert len(calls) == 4
    monkeypatch.setattr(load_ctranslate2, "MAX_BYTES", 0)  # a model larger than the cache
    load_converted(models[1], content)
    load_converted(models[1], content)
    assert (len(calls), len(cached())) == (5, 2)


def test_a_conversion_that_is_wrong_or_of_other_weights_is_not_kept(
    described: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real conversion: of a folder that was replaced meanwhile, and of changed weights."""
    pytest.importorskip("ctranslate2")
    replaced = replace(described, meta={**described.meta, "tokenizer": "0" * 64})
    with pytest.raises(CheckpointError, match="was replaced while it was being read"):
        load_converted(replaced, content)
    array = ctranslate2_model._array
    monkeypatch.setattr(ctranslate2_model, "_array", lambda tensor: array(tensor) * 1.02)
    with pytest.raises(CheckpointError, match="other probabilities"):
        load_converted(described, content)
    assert cached() == []


@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_an_unknown_language_is_refused_before_the_model_is_converted(
    command: str, mt: Mt, tiny_run: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_load", raising(AssertionError("it was loaded")))
    files: dict[str, list[object]] = {"translate": [tiny_corpus / "test.src"]}
    files["evaluate"] = ["--src", tiny_corpus / "test.src", "--ref", tiny_corpus / "test.tgt"]
    said = refused(mt(command, "--model", tiny_run, *files[command], "--to", "fr"))
    assert says(said, "--to: must be a language that this model translates into", "found fr")
