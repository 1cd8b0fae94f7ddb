"""A store built in parts: by jobs at the same time, after an interruption."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import raising
from messages import raises_saying, says
from model_files import content_of
from token_stores import KEPT, PAIRS, build, trained, write

from mt.artefacts import exclusive
from mt.data.tokens import store as store_module
from mt.data.tokens import store_parts
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import DataError

MORE = [*PAIRS, ("fünf", "five"), ("drei", "three"), ("eins", "one"), ("", "")]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return trained(300)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The corpora a and b, which has some pairs of a."""
    write(tmp_path / "a", PAIRS)
    write(tmp_path / "b", MORE)
    return tmp_path


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the parts encoded from now on, of two pairs each: ten of both corpora."""
    names: list[str] = []
    real = store_parts._encode_part

    def counted(part: Path, *arguments: Any) -> None:
        real(part, *arguments)
        names.append(part.name)

    monkeypatch.setattr(store_parts, "_encode_part", counted)
    monkeypatch.setattr(store_parts, "PAIRS_PER_PART", 2)
    monkeypatch.setattr(store_parts, "LINES_PER_CHUNK", 1)
    return names


@pytest.fixture
def whole(root: Path, tokenizer: Tokenizer) -> dict[str, bytes]:
    """What one process makes of the corpora, each in a single part."""
    build(root, tokenizer, "ab", weights={"b": 2.0})
    made = content_of(root / "store")
    shutil.rmtree(root / "store")
    return made


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (OSError("48 requested and 0 written"), "No space left on device"),  # as numpy says it
        (KeyboardInterrupt(), None),
    ],
)
def test_a_full_disk_or_an_interrupted_build_leaves_what_the_next_one_continues(
    error: BaseException,
    reason: str | None,
    whole: dict[str, bytes],
    root: Path,
    tokenizer: Tokenizer,
    encoded: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, calls = np.save, list[object]()

    def full(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > 11:  # the fourth part, of three arrays each
            raise error
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        with pytest.raises(DataError if reason else KeyboardInterrupt) as raised:
            build(root, tokenizer, "ab", weights={"b": 2.0})
    if reason:
        place = f"{root / 'store'}: "
        assert says(str(raised.value), place, reason, "free some space", "continues", "--run-dir")
    parts = ["00000", "00001", "00002"]
    assert sorted(path.name for path in (root / "store.partial").iterdir()) == [*parts, "key"]
    assert encoded == parts
    build(root, tokenizer, "ab", weights={"b": 2.0})
    assert encoded == [f"{n:05}" for n in range(10)]
    assert content_of(root / "store") == whole


@pytest.fixture
def interrupted(root: Path, tokenizer: Tokenizer, encoded: list[str]) -> Path:
    """The folder of a build that was killed in merging its parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "_merge", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build(root, tokenizer, "ab", weights={"b": 2.0})
    assert len(encoded) == 10
    encoded.clear()
    return root / "store.partial"


@pytest.mark.usefixtures("interrupted")
def test_parts_of_other_texts_are_not_continued(
    root: Path, tokenizer: Tokenizer, encoded: list[str]
) -> None:
    write(root / "b", [("fünf", "five"), ("vier", "four")])
    assert build(root, tokenizer, "ab", weights={"b": 2.0}).kept == (3, 2)
    assert len(encoded) == 5


@pytest.mark.parametrize("name", ["meta.json", "lengths.npy", "pairs.tokens", "faults.npy"])
def test_a_damaged_part_is_named_and_encoded_again(
    name: str, root: Path, tokenizer: Tokenizer, encoded: list[str], interrupted: Path
) -> None:
    (interrupted / "00000" / name).write_bytes(b"[")
    with raises_saying(DataError, "store.partial", "damaged", "same command again"):
        build(root, tokenizer, "ab", weights={"b": 2.0})
    assert len(build(root, tokenizer, "ab", weights={"b": 2.0})) == 5
    assert len(encoded) == 10


def test_two_jobs_that_finish_a_part_at_once_both_go_on(
    root: Path, tokenizer: Tokenizer, encoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job puts its part in place just before this one does."""
    real = Path.rename

    def late(self: Path, target: Path) -> Path:
        if target.name == "00000":
            shutil.copytree(self, target)
        return real(self, target)

    monkeypatch.setattr(Path, "rename", late)
    assert len(build(root, tokenizer)) == len(KEPT)


def test_two_jobs_that_start_at_once_build_it_once(
    root: Path, tokenizer: Tokenizer, encoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    started, waiting = threading.Event(), threading.Event()
    real = store_parts._encode_part

    def slow(*arguments: Any) -> None:
        started.set()
        assert waiting.wait(30)
        real(*arguments)

    def log(line: str) -> None:
        said.append(line)
        waiting.set()

    monkeypatch.setattr(store_parts, "_encode_part", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(build, root, tokenizer)
        assert started.wait(30)
        second = pool.submit(build, root, tokenizer, log=log)
        assert len(second.result()) == len(first.result()) == len(KEPT)
    assert says(said[0], "data.train: waiting", "another process", "token store")
    assert encoded == [f"{n:05}" for n in range(4)]


def test_the_lock_of_a_killed_process_is_free(root: Path) -> None:
    code = (
        "import pathlib, sys, time; from mt.artefacts import exclusive\n"
        "with exclusive(pathlib.Path(sys.argv[1]), print):\n"
        "    print('held', flush=True), time.sleep(60)"
    )
    waited: list[int] = []
    with subprocess.Popen(
        [sys.executable, "-c", code, root / "lock"], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"

        def kill() -> None:
            waited.append(1)
            holder.kill()

        with exclusive(root / "lock", kill):
            assert waited == [1]


def test_without_locks_nobody_waits(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", raising(OSError(errno.ENOLCK, "No locks available")))
    with exclusive(root / "lock", pytest.fail), exclusive(root / "lock", pytest.fail):
        pass
