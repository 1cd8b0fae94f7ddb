"""`mt data stats`: what it counts, the table; its messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MonkeyPatch, Mt, refused
from messages import says
from token_stores import write

from mt.inspect import corpus_statistics

A = [
    ("Guten Tag.", "Good day."), ("Guten Tag.", "Good day."), ("guten  tag", "good day"),
    ("", "nothing"), ("Berlin", "Berlin"),
    ("eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf", "one"),
    ("Wie geht es dir heute?", "How are you today?"), ("Привет", "日本語"),
]  # fmt: skip
B = [("Guten Tag.", "Good day."), ("Dieser Satz ist lang genug, um erkannt zu werden.", "Yes, so.")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("a"), A)
    write(Path("b"), B)


def stats(mt: Mt) -> dict[str, Any]:
    ended = mt("data", "stats", "a.de", "a.en", "b.de", "b.en", "--json")
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


def test_what_is_counted(mt: Mt, monkeypatch: MonkeyPatch) -> None:
    values = stats(mt)
    a, b, both = values["corpora"]
    assert [one["name"] for one in values["corpora"]] == ["a.de", "b.de", "all corpora"]
    keys = ["pairs", "blank", "identical", "duplicates", "normalised_duplicates"]
    assert [a[key] for key in keys] == [8, 1, 1, 1, 2]
    assert [b[key] for key in keys] == [2, 0, 0, 1, 1]
    assert [both[key] for key in keys] == [10, 1, 1, 2, 3]
    assert a["word_ratio"] == {"2": 1, "3": 1, "5": 0}  # (12 + 3) / (1 + 3)
    texts = [pair[0] for pair in A]
    for key, measure in (("words", lambda text: len(text.split())), ("characters", len)):
        lengths = [measure(text) for text in texts]
        own = a["source"][key]
        assert (own["total"], own["longest"]) == (sum(lengths), max(lengths))
        assert own["quantiles"]["0.5"] == np.quantile(lengths, 0.5, method="inverted_cdf")
    letters = sum(map(str.isalpha, "".join(texts)))
    assert a["source"]["scripts"]["Cyrl"] == pytest.approx(6 / letters, abs=1e-6)
    assert (b["source"]["languages"], b["target"]["languages"]) == ({"de": 1.0}, {})
    # The same from several processes and many chunks.
    monkeypatch.setattr(corpus_statistics, "PAIRS_PER_CHUNK", 1)
    monkeypatch.setattr(corpus_statistics, "usable_cores", lambda: 2)
    assert stats(mt) == values


def test_the_table(mt: Mt) -> None:
    text = mt("data", "stats", "a.de", "a.en", "b.de", "b.en").out.decode()
    rows = {" ".join(row.split("  ")[0].split()): row.split("  ") for row in text.splitlines()}
    assert [cell.strip() for cell in rows["pairs"] if cell.strip()] == ["pairs", "8", "2", "10"]
    assert says(text, "duplicates", "12.50 %", "words a line", "0 / 2 / 12 / 12", "Latn", "Cyrl")
    assert says(text, "words, de", "words, en")
    turned = "{src: b.en, tgt: b.de, src_lang: en, tgt_lang: de}"
    both = mt("data", "stats", "a.de", "a.en", turned).out.decode()
    assert says(both, "a.de de-en", "b.en en-de", "words, source", "words, target")


def test_what_cannot_be_counted(mt: Mt) -> None:
    Path("bad.de").write_bytes(b"\xff\n")
    for arguments, parts in [
        (["a.de"], ["a.de", "text file"]),
        (["a.de", "b.en"], ["IN[0]", "2 lines", "8"]),
        (["{src: bad.de, tgt: bad.de, errors: skip}"], ["IN[0]: no pair", "not UTF-8", "bad.de"]),
    ]:
        assert says(refused(mt("data", "stats", *arguments)), *parts)
