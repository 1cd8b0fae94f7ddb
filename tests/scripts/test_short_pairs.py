"""Words and phrases of a made-up corpus, in which each word has one translation."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import pytest
import short_pairs

NOUNS = {"Hund": "dog", "Katze": "cat", "Vogel": "bird", "Apfel": "apple"}
VERBS = {"sieht": "sees", "sucht": "seeks", "findet": "finds"}
DAYS = {"gestern": "yesterday", "heute": "today"}
EN = NOUNS | VERBS | DAYS
PAIRS = [(f"{noun}, {day}.", f"{EN[noun]}, {EN[day]}.") for noun, day in product(NOUNS, DAYS)]
for name, n, v, d in product(("Tom", "Maria"), NOUNS, VERBS, DAYS):
    PAIRS.append((f"¿{d.title()} {v} {name} {n}, oder?", f"{name} {EN[v]} {EN[n]} {EN[d]}."))


def test_words_and_phrases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, lines in enumerate(zip(*PAIRS, strict=True)):
        Path(f"in.{number}").write_text("\n".join(lines))
    command = "short_pairs.py --src in.0 --tgt in.1 --output short --share 1 --held-out 3"
    monkeypatch.setattr(sys, "argv", command.split())
    short_pairs.main()
    names = ("src", "tgt", "held-out.src")
    src, tgt, held_out = (Path(f"short.{name}").read_text().splitlines() for name in names)
    found = dict(zip(src, tgt, strict=True))
    known = EN | {"Tom": "Tom", "Maria": "Maria"}  # in the case after a word
    known |= {f"{verb} Tom": f"Tom {VERBS[verb]}" for verb in VERBS}
    assert known.items() <= (found | {text: known.get(text) for text in held_out}).items()
    assert len({*held_out} - {*src}) == 3
    assert not any(char in text for text in (*src, *tgt) for char in ",.?")
    Path("one").write_text("Ja.\n")
    for options, problem in {
        "": "short.src exists", "--output new/short": "cannot be written",
        "--output new --share 2": "at most 1, found 2", "--output new --tgt one": "in.0 has 56",
        "--output new --held-out 20": "at most half of the 17",
        "--output new --src one --tgt one --held-out 0": "of 1 pairs, 0 words",
    }.items():  # fmt: skip
        monkeypatch.setattr(sys, "argv", [*command.split(), *options.split()])
        with pytest.raises(SystemExit, match=r"^2$"):
            short_pairs.main()
        assert problem in capsys.readouterr().err
    assert not [*Path().glob("new*")]
