"""The token store: what goes in comes out; it is rebuilt exactly when something has changed."""

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
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import MonkeyPatch, write_lines
from faults import raising
from messages import raises_saying, says
from model_files import content_of
from subwords import rows
from token_stores import KEPT, PAIRS, build, store_of_lengths, stored, trained, write

from mt.artefacts import exclusive
from mt.config.load import config_from_mapping
from mt.config.plan import Limits
from mt.data.reading import text_files
from mt.data.tokens import store as store_module
from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.store import LENGTH_FAULTS, Counts, Store, length_fault, open_built
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import DataError


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return trained(300)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "a", PAIRS)
    write(tmp_path / "b", [("fünf", "five")])
    return tmp_path


@pytest.fixture
def builds(monkeypatch: MonkeyPatch) -> list[Path]:
    """The stores built from now on."""
    made: list[Path] = []
    real = store_module._build

    def counted(folder: Path, *arguments: Any) -> None:
        made.append(folder)
        real(folder, *arguments)

    monkeypatch.setattr(store_module, "_build", counted)
    return made


def sources_of(store: Store) -> list[list[int]]:
    return rows(DirectedPairs.of(store))[0]


# --- content ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lines_at_a_time", [2, 20_000])
def test_the_ids_are_those_of_the_tokenizer_and_only_good_pairs_are_kept(
    lines_at_a_time: int, root: Path, tokenizer: Tokenizer, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LINES_PER_CHUNK", lines_at_a_time)
    said: list[str] = []
    store = build(root, tokenizer, log=said.append)
    sides = zip(*(PAIRS[number] for number in KEPT), strict=True)
    src, tgt = (tokenizer.src.encode(list(side)) for side in sides)
    assert rows(DirectedPairs.of(store)) == (src, tgt)
    assert store.lengths.tolist() == [[*map(len, src)], [*map(len, tgt)]]
    assert said == [
        "data.train: 3 of 7 pairs kept; dropped: 1 with an empty side, 1 duplicate, "
        "1 longer than 40 tokens, 1 with one side over 3 times the other",
        "warning: data.train[0] (a.de): only 3 of 7 pairs kept. Check that source and "
        "target belong together, and the limits in data; of duplicates in several texts one stays, "
        "unless data.dedupe is false",
    ]
    assert len(build(root, tokenizer, dedupe=False)) == 4


def test_a_pair_in_two_corpora_counts_for_the_first(root: Path, tokenizer: Tokenizer) -> None:
    write(root / "b", [PAIRS[0], PAIRS[1], ("fünf", "five")])
    said: list[str] = []
    store = build(root, tokenizer, "ab", said.append)
    assert store.kept == (3, 1)
    assert sources_of(store)[3] == tokenizer.src.encode(["fünf"])[0]
    assert says(said[-1], "warning: data.train[1] (b.de): only 1 of 3 pairs", "data.dedupe")
    store = build(root, tokenizer, "ba")
    assert store.kept == (3, 1)
    assert sources_of(store)[0] == tokenizer.src.encode([PAIRS[0][0]])[0]


def test_a_corpus_of_higher_weight_keeps_the_pairs_of_both(
    root: Path, tokenizer: Tokenizer, builds: list[Path]
) -> None:
    """The weight of an in-domain part would do nothing if the general corpus kept its pairs."""
    write(root / "c", [PAIRS[0], PAIRS[1]])
    said: list[str] = []
    store = build(root, tokenizer, "ac", said.append, weights={"c": 5.0})
    assert store.kept == (1, 2)
    assert sources_of(store) == tokenizer.src.encode([PAIRS[i][0] for i in (6, 0, 1)])
    whole, of_a, warning, of_c = said
    assert says(whole, "data.train: 3 of 9 pairs kept", "3 duplicates", "over 3 times the other")
    assert says(of_a, "data.train[0] (a.de): 1 of 7 pairs kept", "3 duplicates", "40 tokens")
    assert says(warning, "warning: data.train[0] (a.de): only 1 of 7", "Check that source and")
    assert of_c == "data.train[1] (c.de): 2 of 2 pairs kept"
    assert build(root, tokenizer, "ac", weights={"c": 2.0}).kept == (1, 2)
    assert len(builds) == 1  # the order of the weights is the same
    assert build(root, tokenizer, "ac").kept == (3, 0)
    # c outweighs b both times, but a only the first time.
    heavy = {"a": 2.0, "b": 1.0}
    assert build(root, tokenizer, "abc", weights=heavy | {"c": 3.0}).kept == (1, 1, 2)
    assert build(root, tokenizer, "abc", weights=heavy | {"c": 1.5}).kept == (3, 1, 0)
    assert len(builds) == 4


@pytest.mark.parametrize(("size", "dtype"), [(2**16, "uint16"), (2**16 + 1, "uint32")])
def test_ids_take_two_bytes_if_the_vocabulary_allows(root: Path, size: int, dtype: str) -> None:

    def side(size: int, ids: list[int]) -> SimpleNamespace:
        return SimpleNamespace(size=size, encode=lambda lines, *_: [ids for _ in lines])

    wide = {"src": side(300, [4, 5, 6]), "tgt": side(size, [size - 1, 7])}
    tokenizer = SimpleNamespace(**wide, fingerprint="wide", languages={})
    store = build(root, tokenizer)  # type: ignore[arg-type]
    assert store.ids.dtype == dtype
    assert store.ids[:5].tolist() == [4, 5, 6, size - 1, 7]
    assert (root / "store" / "pairs.tokens").stat().st_size == store.ids.nbytes


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100])
def test_starts_are_the_sums_of_the_lengths_before(n: int) -> None:
    src, tgt = np.random.default_rng(n).integers(0, 70, (2, n)).astype(np.uint16)
    pairs = store_of_lengths(src, tgt)
    starts = pairs.store.starts(np.arange(n)).tolist()
    assert starts == [int((src + tgt)[:i].sum()) for i in range(n)]
    assert pairs.longest == max(src.max(), tgt.max()) + 1  # with eos


# --- rebuilt, or not --------------------------------------------------------------------------


def test_a_store_is_built_once_and_opened_again(
    root: Path, tokenizer: Tokenizer, builds: list[Path], monkeypatch: MonkeyPatch
) -> None:
    """Also where the corpus has moved: then the records name the new place."""
    first, said = build(root, tokenizer), list[str]()
    again = build(root, tokenizer, log=said.append)
    assert again.fingerprint == first.fingerprint
    assert np.array_equal(again.ids, first.ids)
    assert said[0] == f"data.train: {first.counts}"
    os.utime(root / "a.de")  # touched, but not changed
    assert build(root, tokenizer).fingerprint == first.fingerprint
    with monkeypatch.context() as patch:  # what did not change is not read again
        patch.setattr(text_files, "count_lines", pytest.fail)
        build(root, tokenizer)
    elsewhere = root / "elsewhere"
    elsewhere.mkdir()
    for name in ("a.de", "a.en", "store"):
        shutil.move(root / name, elsewhere / name)
    assert build(elsewhere, tokenizer).fingerprint == first.fingerprint
    known = store_module.known_records(elsewhere / "store")
    assert sorted(known) == [str(elsewhere / "a.de"), str(elsewhere / "a.en")]
    assert len(builds) == 1


def test_opening_a_store_needs_no_corpus(root: Path, tokenizer: Tokenizer) -> None:
    built = build(root, tokenizer)
    for name in ("a.de", "a.en"):
        (root / name).unlink()
    opened = open_built(root / "store")
    assert opened.fingerprint == built.fingerprint
    assert sources_of(opened) == sources_of(built)
    (root / "store" / "lengths.npy").unlink()
    with raises_saying(DataError, root / "store", "holds no whole token store", "remove"):
        open_built(root / "store")


@pytest.mark.parametrize(
    "change",
    ["max_tokens", "max_length_ratio", "dedupe", "text", "one side", "swapped", "ba", "a", "b"],
)
def test_a_store_is_rebuilt_when_data_or_limits_change(
    change: str, root: Path, tokenizer: Tokenizer, builds: list[Path]
) -> None:
    first = build(root, tokenizer, "ab")
    limits: dict[str, Any] = {"max_tokens": 39, "max_length_ratio": 2.5, "dedupe": False}
    if change == "text":
        write(root / "a", [*PAIRS, ("fünf drei", "five three")])
    elif change == "one side":
        write(root / "b", [("fünf", "FIVE")])
    elif change == "swapped":
        write(root / "a", [(tgt, src) for src, tgt in PAIRS])
    names = change if len(change) < 3 else "ab"
    own = {key: value for key, value in limits.items() if key == change}
    assert build(root, tokenizer, names, **own).fingerprint != first.fingerprint
    assert len(builds) == 2


def test_another_tokenizer_rebuilds_it(root: Path, tokenizer: Tokenizer) -> None:
    before = sources_of(build(root, tokenizer))
    other = trained(290)
    assert sources_of(build(root, other))[0] == other.src.encode([PAIRS[0][0]])[0] != before[0]


def test_other_columns_of_a_file_are_another_corpus(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.jsonl").write_text('{"de": "drei", "en": "three", "nl": "vier"}\n')
    for column, text in (("de", "drei"), ("nl", "vier")):
        train = [{"path": "a.jsonl", "src": column, "tgt": "en"}]
        data = config_from_mapping({"data": {"root": str(tmp_path), "train": train}}, "test").data
        assert sources_of(stored(tmp_path / "s", data, tokenizer)) == tokenizer.src.encode([text])


@pytest.mark.parametrize("size", [0, 1, "half", "odd", None])
@pytest.mark.parametrize("name", ["pairs.tokens", "lengths.npy", "meta.json", "made.json"])
def test_a_damaged_store_is_rebuilt(
    name: str, size: int | str | None, root: Path, tokenizer: Tokenizer, builds: list[Path]
) -> None:
    first = build(root, tokenizer).ids.copy()  # what is mapped cannot be read once it is cut short
    path = root / "store" / name
    whole = path.read_bytes()
    cut = {"half": len(whole) // 2, "odd": len(whole) - 1}.get(str(size), size)
    path.unlink() if cut is None else path.write_bytes(whole[: int(cut)])
    again = build(root, tokenizer)
    assert len(builds) == 2
    assert path.read_bytes() == whole
    assert np.array_equal(again.ids, first)


# --- messages ---------------------------------------------------------------------------------


def test_nothing_left_or_a_fault_leaves_the_old_store(root: Path, tokenizer: Tokenizer) -> None:
    build(root, tokenizer)
    before = content_of(root / "store")
    parts = "data.train: no pair is left", "5 longer than 1 token", "data.max_tokens"
    with raises_saying(DataError, *parts):
        build(root, tokenizer, max_tokens=1)
    write_lines(root / "a.en", ["one line too few"])
    with pytest.raises(DataError, match="lines"):
        build(root, tokenizer)
    assert content_of(root / "store") == before
    assert not (root / "store.partial").exists()


# --- filters ----------------------------------------------------------------------------------


def test_length_limits_are_inclusive() -> None:
    data = Limits(6, 2.5, dedupe=True)
    faults = {
        "": [(6, 6), (6, 3), (5, 2), (1, 1)],
        "too_long": [(7, 6), (1, 7)],  # too long and unequal: one reason, the first
        "ratio": [(6, 2), (1, 3)],
        "empty": [(0, 4)],
    }
    for fault, pairs in faults.items():
        assert [length_fault(*pair, data) for pair in pairs] == [fault] * len(pairs)
    assert {*faults} == {*LENGTH_FAULTS}
    assert Counts(read=8, empty=1, too_long=2, ratio=2).kept == 3


# --- building ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (OSError("48 requested and 0 written"), "No space left on device"),  # as numpy says it
        (KeyboardInterrupt(), None),
    ],
)
def test_a_full_disk_or_an_interruption_leaves_nothing_and_the_next_one_builds_it(
    error: BaseException, reason: str | None, root: Path, tokenizer: Tokenizer
) -> None:
    whole = rows(DirectedPairs.of(build(root, tokenizer, "ab")))
    shutil.rmtree(root / "store")
    with MonkeyPatch.context() as patch:
        patch.setattr(np, "save", raising(error))
        with pytest.raises(DataError if reason else KeyboardInterrupt) as raised:
            build(root, tokenizer, "ab")
    if reason:
        assert says(str(raised.value), f"{root / 'store'}: ", reason, "free some space")
    assert not [path for path in root.rglob("*store*") if path.is_dir()]
    assert rows(DirectedPairs.of(build(root, tokenizer, "ab"))) == whole


def test_blocks_of_pairs_are_copied_without_the_duplicates(
    root: Path, tokenizer: Tokenizer, monkeypatch: MonkeyPatch
) -> None:
    write(root / "a", [*PAIRS * 30, ("vier", "four"), ("fünf", "five")])
    whole = rows(DirectedPairs.of(build(root, tokenizer, "ab", weights={"b": 2.0})))
    shutil.rmtree(root / "store")
    monkeypatch.setattr(store_module, "LINES_PER_CHUNK", 1)  # fifty pairs are copied at a time
    assert rows(DirectedPairs.of(build(root, tokenizer, "ab", weights={"b": 2.0}))) == whole
    assert len(whole[0]) == 5


def test_two_jobs_that_start_at_once_build_it_once(
    root: Path, tokenizer: Tokenizer, builds: list[Path], monkeypatch: MonkeyPatch
) -> None:
    said: list[str] = []
    started, waiting = threading.Event(), threading.Event()
    real = store_module._encode

    def slow(*arguments: Any) -> Any:
        started.set()
        assert waiting.wait(30)
        return real(*arguments)

    def log(line: str) -> None:
        said.append(line)
        waiting.set()

    monkeypatch.setattr(store_module, "_encode", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(build, root, tokenizer)
        assert started.wait(30)
        second = pool.submit(build, root, tokenizer, log=log)
        assert len(second.result()) == len(first.result()) == len(KEPT)
    assert says(said[0], "data.train: waiting", "another process", "token store")
    assert len(builds) == 1


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


def test_without_locks_nobody_waits(root: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", raising(OSError(errno.ENOLCK, "No locks available")))
    with exclusive(root / "lock", pytest.fail), exclusive(root / "lock", pytest.fail) as is_locked:
        assert not is_locked
