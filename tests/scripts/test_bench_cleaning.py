"""The benchmark of cleaning: damage is damage, and good pairs are counted apart."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path
from typing import Any

import bench_cleaning as bench
import pytest
from conftest import lines_of

LINES = {
    "de": "Ein Mann geht mit seinem großen Hund durch den Park Nummer {}.",
    "en": "A man is walking through the park number {} with his big dog.",
    "fr": "Un homme se promène avec son grand chien dans le parc numéro {}.",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for lang, line in LINES.items():
        text = "".join(f"{line.format(number)}\n" for number in range(10, 50))
        (tmp_path / f"train.{lang}.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


@pytest.mark.parametrize("kind", bench.DAMAGE)
def test_damage_is_planted_and_found(folder: Path, kind: str) -> None:
    texts = bench.captions(folder, ("de", "en"))
    numbers, pairs = bench.plant(texts, kind, 20, random.Random(1))
    assert len(numbers) == len(pairs) == 20
    assert all(pair != texts.pairs[i] for i, pair in zip(numbers, pairs, strict=True))
    row = bench.measure(texts, kind, numbers, pairs)
    # Few truncated pairs are short enough to be told; one of 20 numbers stays within the rules.
    least = {"misaligned by one": 19, "target truncated": 4, "boilerplate": 16}
    least["numbers changed"] = 19
    assert row.found >= least.get(kind, 20), row


def test_tables_and_corpora_are_written(folder: Path, monkeypatch: Any, capsys: Any) -> None:
    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["bench", "--data", str(folder), *arguments])
        bench.main()
        return str(capsys.readouterr().out)

    printed = run("--count", "5", "--json", str(folder / "rows.json"))
    rows = json.loads((folder / "rows.json").read_text())
    good = [row for row in rows if row["kind"] == "good pairs"]
    assert [row["corpus"] for row in good] == [f"Multi30k {n}" for n in ("de-en", "de-fr", "en-fr")]
    assert [(row["pairs"], row["found"]) for row in good] == [(40, 0)] * 3
    assert "| Multi30k de-en | sides swapped | 5 | 100.00 % |" in printed

    run("--write", str(folder / "out"), "--share", "0.5")
    lines = {path.name: lines_of(path) for path in (folder / "out").iterdir()}
    assert {len(lines[f"{name}.{lang}"]) for name in ("clean",) for lang in ("de", "en")} == {40}
    assert len(lines["dirty.de"]) == 40 + 3 * len(bench.DAMAGE) == len(lines["dirty.en"])
    kept = set(zip(lines["cleaned.de"], lines["cleaned.en"], strict=True))
    assert set(zip(lines["clean.de"], lines["clean.en"], strict=True)) <= kept
    assert len(kept) < 50
