"""The engine with CTranslate2 finds what the engine with torch finds, and says what it cannot do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_cli_translate import odd_lines

from mt.cli.convert import convert_model
from mt.decoding.translate import Translation, Translator, load_translator

pytest.importorskip("ctranslate2")

Load = Callable[..., Translator]


@pytest.fixture
def both(tiny_run: Path) -> Load:
    """`both(engine, n_best, beam_size=4)`: a translator in fp32 with one of the engines."""

    def load(engine: str, n_best: int = 1, **decode: Any) -> Translator:
        return load_translator(
            [tiny_run],
            decode,
            engine=engine,
            n_best=n_best,
            precision="fp32",
            workers=1,
            convert=convert_model,
        )

    return load


def rows(found: Sequence[Translation]) -> list[list[tuple[str, float]]]:
    return [list(zip(one.texts, one.scores, strict=True)) for one in found]


def share_alike(a: Sequence[Translation], b: Sequence[Translation]) -> float:
    """Share of lines with the same texts in the same order, and scores equal to 0.0005."""
    same = [
        [text for text, _ in one] == [text for text, _ in other]
        and all(abs(x - y) < 5e-4 for (_, x), (_, y) in zip(one, other, strict=True))
        for one, other in zip(rows(a), rows(b), strict=True)
    ]
    return sum(same) / len(same)


@pytest.mark.parametrize(
    ("n_best", "decode"),
    [
        (1, {"beam_size": 1}),
        (1, {"beam_size": 4, "length_penalty": 2.0}),
        (4, {"beam_size": 4, "length_penalty": 0.6}),
        (3, {"beam_size": 3, "length_penalty": 0.0}),
        # Every output is cut at its limit.
        (1, {"beam_size": 1, "max_len_factor": 0.3, "max_len_extra": 1}),
        (1, {"beam_size": 4, "max_len_factor": 0.5, "max_len_extra": 1}),
    ],
    ids=str,
)
def test_both_engines_find_the_same(
    both: Load, tiny_corpus: Path, n_best: int, decode: dict[str, Any]
) -> None:
    lines = (tiny_corpus / "test.src").read_text(encoding="utf-8").splitlines() + odd_lines(60)
    found = []
    for engine in ("torch", "ctranslate2"):
        with both(engine, n_best, **decode) as translator:
            found.append(list(translator.translate(lines)))
    assert share_alike(*found) >= 0.99
    print(share_alike(*found))


def test_prefixes(both: Load, tiny_corpus: Path) -> None:
    sources = (tiny_corpus / "test.src").read_text(encoding="utf-8").splitlines()
    targets = (tiny_corpus / "test.tgt").read_text(encoding="utf-8").splitlines()
    prefixes = [" ".join(line.split()[: number % 3]) for number, line in enumerate(targets)]
    found = []
    for engine in ("torch", "ctranslate2"):
        with both(engine, 2, beam_size=4) as translator:
            found.append(list(translator.translate(sources, prefixes)))
    assert all(
        one.texts[0].startswith(prefix) for one, prefix in zip(found[1], prefixes, strict=True)
    )
    print(share_alike(*found))
    assert share_alike(*found) >= 0.95
