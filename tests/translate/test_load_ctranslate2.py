"""Converted models in the user's cache, made once and trusted only from this user; shortlists."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from conftest import MonkeyPatch, Mt, lines_of, refused, write_lines
from faults import raising
from messages import raises_saying, says
from model_files import copy_model, drop, empty, flip, truncate

from mt import artefacts
from mt.artefacts import RECORD, is_made, user_cache
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import CheckpointError
from mt.files import sha256_of
from mt.interop.ctranslate2 import ALWAYS, CANDIDATES, store_of
from mt.runs.model_folder import ModelFolder, checkpoints, open_model
from mt.search import ctranslate2_model
from mt.translate import load, load_ctranslate2
from mt.translate.load_ctranslate2 import CACHE, is_mine, load_converted

Convert = Callable[[ModelFolder, Path], None]
DISK_FULL = OSError(28, "No space left on device")


@pytest.fixture
def described(tiny_run: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> ModelFolder:
    """A model folder of its own, not converted; the user's cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return open_model(copy_model(tiny_run, tmp_path / "model"))


@pytest.fixture
def said(monkeypatch: MonkeyPatch) -> list[str]:
    """What is said from now on."""
    messages: list[str] = []
    monkeypatch.setattr(load_ctranslate2, "say", messages.append)
    return messages


@pytest.fixture
def converts(monkeypatch: MonkeyPatch) -> Callable[[Convert], None]:
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
    left = artefacts.beside(place, f"{artefacts.socket.gethostname()}-1.partial")
    for number, harm in enumerate(harms, 2):
        left.mkdir()  # by a process that was killed; the last start has removed it
        harm()
        assert load_converted(described, content) == b"weights"
        assert len(calls) == number
        assert is_made(place, None, sha256_of)
    assert cached() == [place]
    assert sorted(described.folder.iterdir()) == before


def test_it_is_named_by_all_that_it_depends_on(
    described: ModelFolder, calls: list[Path], monkeypatch: MonkeyPatch
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
    described: ModelFolder, calls: list[Path], monkeypatch: MonkeyPatch
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
        "format": 1, "weights": described.weights_hash,
        "tokenizer": described.tokenizer.fingerprint,
        "files": {path.name: sha256_of(path) for path in planted.iterdir()},
    }  # fmt: skip
    (planted / RECORD).write_text(json.dumps(record), encoding="utf-8")
    source = tiny_corpus / "test.src"
    options = ("-m", described.folder, source, "--precision", "fp32")
    ended = mt("translate", *options)
    assert says(ended.err, "converted for CTranslate2", "kept in", user_cache(CACHE))
    assert ended.out == mt("translate", *options, "--engine", "torch", "--workers", 1).out
    assert ended.out.count(b"\n") == 40


def test_a_cache_that_cannot_be_written_a_full_disk_and_no_home(
    described: ModelFolder, calls: list[Path], monkeypatch: MonkeyPatch
) -> None:
    def refused_for(reason: str) -> None:
        with raises_saying(CheckpointError, reason, "XDG_CACHE_HOME", "--engine torch"):
            load_converted(described, content)

    with monkeypatch.context() as patch:
        patch.setattr(artefacts, "exclusive", raising(OSError(30, "Read-only file system")))
        refused_for("Read-only file system")
    with monkeypatch.context() as patch:
        patch.setattr(artefacts, "sync_files", raising(DISK_FULL))
        refused_for("No space left on device")
    assert cached() == []
    with monkeypatch.context() as patch:
        patch.delenv("XDG_CACHE_HOME")
        patch.setattr(Path, "home", raising(RuntimeError("no home")))
        refused_for("no home directory")


@pytest.mark.parametrize("given", ["", "caches", "~/caches"])
def test_a_cache_has_one_place_whatever_the_current_folder(
    given: str, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """A relative XDG_CACHE_HOME is not valid; it would put models into the current folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert user_cache(CACHE) == tmp_path / ".cache" / "mt" / "ctranslate2"


def test_a_conversion_that_is_wrong_or_of_other_weights_is_not_kept(
    described: ModelFolder, monkeypatch: MonkeyPatch
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
    command: str, mt: Mt, tiny_run: Path, tiny_corpus: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_load", raising(AssertionError("it was loaded")))
    files: dict[str, list[object]] = {"translate": [tiny_corpus / "test.src"]}
    files["evaluate"] = ["--src", tiny_corpus / "test.src", "--ref", tiny_corpus / "test.tgt"]
    said = refused(mt(command, "--model", tiny_run, *files[command], "--to", "fr"))
    assert says(said, "--to: must be a language that this model translates into", "found fr")


# --- shortlists -----------------------------------------------------------------------------------


pytest.importorskip("ctranslate2")


def test_export_and_translate(mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = mt("export", "ctranslate2", "-m", tiny_run, "-o", out, "--shortlist")
    assert ended.code == 0
    assert f"{out / 'vmap.txt'}: candidates of " in ended.err
    lines = lines_of(out / "vmap.txt")
    rows = [(line.split("\t")[0], line.split("\t")[1].split(" ")) for line in lines]
    assert rows[0][0] == ""
    assert len(rows[0][1]) <= ALWAYS
    assert all(len(candidates) <= CANDIDATES + 1 for _, candidates in rows[1:])
    table = {source: set(candidates) for source, candidates in rows}
    tokenizer = Tokenizer.load(tiny_run)
    texts = [(tiny_corpus / f"test.{side}").read_text(encoding="utf-8") for side in ("src", "tgt")]
    hits = [
        piece in set().union(*(table.get(one, set()) for one in tokenizer.src.pieces(source)))
        for source, target in zip(*(text.splitlines() for text in texts), strict=True)
        for piece in tokenizer.tgt.pieces(target)
    ]
    assert sum(hits) > 0.9 * len(hits)
    arguments = ["translate", "-m", tiny_run, tiny_corpus / "test.src", "--engine", "ctranslate2"]
    plain = mt(*arguments).lines
    short = mt(*arguments, "--shortlist", out / "vmap.txt").lines
    assert len(plain) == len(short)
    assert sum(one == other for one, other in zip(plain, short, strict=True)) >= 30
    word = next(one[1:] for one in rows[0][1] if one[:1] == "▁" and one[1:].isalpha())
    (tmp_path / "few").write_text(f"\t▁{word}\n", encoding="utf-8")
    few = mt(*arguments, "--shortlist", tmp_path / "few").lines
    assert {word for line in few for word in line.split()} == {word}


def test_a_file_that_is_no_shortlist_of_the_model(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    arguments = ["translate", "-m", tiny_run, tiny_corpus / "test.src", "--device", "cpu"]
    path = tmp_path / "vmap.txt"
    piece = Tokenizer.load(tiny_run).tgt.pieces_of([10])[0]
    for content, parts in (
        (None, ["cannot be read", "No such file"]),
        (b"\t\xff\n", ["must be UTF-8"]),
        (f"\t{piece}\neins zwei\n".encode(), ["line 2", "a source piece, a tab", "no tab"]),
        (f"\t{piece} ▁foreign\n".encode(), ["line 1", "of this model", "'▁foreign'"]),
    ):
        if content is not None:
            path.write_bytes(content)
        for engine in ("auto", "ctranslate2"):
            message = refused(mt(*arguments, "--engine", engine, "--shortlist", path))
            assert says(message, "--shortlist", path, *parts, "mt export")
    path.write_text(f"\t{piece}\n", encoding="utf-8")
    message = refused(mt(*arguments, "--shortlist", path, "--no-repeat-ngram", 2))
    assert says(message, "--shortlist", "only CTranslate2", "no --no-repeat-ngram", "leave it out")


def test_a_model_without_a_run_has_no_store(mt: Mt, tiny_run: Path, tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    assert mt("average", tiny_run, "--last", 1, "-o", model).code == 0
    message = refused(mt("export", "ctranslate2", "-m", model, "-o", out, "--shortlist"))
    assert says(message, "--shortlist", "token store of the run", "but there is no", "leave out")
    assert not out.exists()
    # An average is looked for in the run that it lies in, not in the folder above that.
    assert store_of(tiny_run / "averaged") == tiny_run / "store" / "train"
