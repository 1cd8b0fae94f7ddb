"""Quality flags, each by an example and a counterexample."""

from __future__ import annotations

from typing import Any

import pytest

from mt.translate.quality_flags import flags, longest_repeat


def found(source: str, output: str, **more: Any) -> tuple[str, ...]:
    sizes = {"n_src": len(source.split()), "n_tgt": len(output.split())}
    return flags(source, output, **{**sizes, "truncated": False, "max_ratio": 3.0, **more})


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("ein Mann geht", "a man walks", ()),
        ("ein Mann geht fort", "ein  Mann geht fort", ("copied",)),
        ("Angela Merkel", "Angela Merkel", ()),  # names are copied
        ("ein Mann", "", ("empty",)),
        (" ", "", ()),  # blank stays blank
        ("ein Mann geht", "a man a man a man", ("looping",)),
        ("ein Mann geht", "no no no walks", ()),
        ("ein Mann geht", "no no no no walks", ("looping",)),
        ("nein nein nein nein", "no no no no", ()),  # so has the source
        # The source repeats one word, this output two.
        ("nein nein nein nein danke", "a man a man a man", ("looping",)),
        ("ein Mann geht im Regen nach Hause", "彼は家に帰る帰る帰る帰る帰る", ("looping",)),
        ("ein Mann geht im Regen nach Hause", "男の人が家へ男の人が家へ男の人が家へ", ("looping",)),
        ("EIN MANN GEHT", "A MANNNNNNNN GOES", ("looping",)),  # within a word
        ("EIN MANN GEHT", "ORNGORNGORNGORNGORNG A", ("looping",)),
        ("1.000.000.000.000 Mann", "1,000,000,000,000 men", ()),
        ("ein Mann --------", "a man --------", ()),
        ("ein Mann lacht", "ははははと男の人はどんどん笑う", ()),
        ("nein nein nein nein", "いいえいいえいいえいいえ", ()),
        ("帰る帰る帰る帰る帰る帰る", "no no no no no no", ()),
        ("彼女は赤い帽子をかぶっている。", "彼女は赤い帽子をかぶっている。", ("copied",)),
        ("安倍晋三", "安倍晋三", ()),
        ("ein Mann", "a b c d e f g h i j k l", ("ratio",)),
        ("ein Mann", "a b c d e f g", ()),  # too short to tell
        ("a b c d e f g h i j k l m", "a man", ("ratio",)),
    ],
)
def test_flags(source: str, output: str, expected: tuple[str, ...]) -> None:
    assert found(source, output) == expected


def test_flags_from_the_length_limit_and_ratio() -> None:
    assert found("ein Mann", "a man", truncated=True) == ("truncated",)
    assert found("ein Mann", "a b c d e f g h i j k l", max_ratio=6.0) == ()
    assert found("ein Mann geht fort", "ein Mann geht fort", truncated=True) == (
        "copied",
        "truncated",
    )


def test_longest_repeat() -> None:
    words = ["x", "a", "b", "a", "b", "a", "b", "a", "y"]
    assert [longest_repeat(words, n) for n in (1, 2, 3, 4)] == [1, 3, 1, 1]
    assert longest_repeat(["a", "a", "a", "b", "b"], 1) == 3
    assert longest_repeat([], 1) == 0
    assert longest_repeat(["a"], 2) == 0
