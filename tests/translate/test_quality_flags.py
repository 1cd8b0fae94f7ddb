"""Quality flags; outputs that repeat themselves are searched again, and the better is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import lines_of
from messages import says
from odd_lines import odd_lines

from mt.search.options import EngineName, EngineOptions, Sampling, SearchOptions
from mt.translate.lines import Translation
from mt.translate.load import load_engine, load_translator
from mt.translate.quality_flags import EscapeLoops, flags, loops
from mt.translate.translator import make_translator


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
    flags = found("ein Mann geht fort", "ein Mann geht fort", truncated=True)
    assert flags == ("copied", "truncated")


# --- loops ----------------------------------------------------------------------------------------


def runs_away(line: str, one: Translation) -> bool:
    return "truncated" in one.flags and loops(one.texts[0].split(), line.split())


def test_what_runs_away_is_searched_again(tiny_run: Path, tiny_corpus: Path) -> None:
    plain = lines_of(tiny_corpus / "test.src")[:20]
    lines = [*plain, *(line.upper()[:28] for line in plain), *odd_lines(250)]
    escaped = []
    engines: list[EngineName] = ["torch", "ctranslate2"]
    for engine in engines:
        options = EngineOptions(models=[tiny_run], engine=engine, precision="fp32", workers=1)
        with load_engine(SearchOptions(beam_size=1, as_written=True), options) as loaded:
            staying = make_translator(loaded)
            staying.steps = staying.steps[:-1]
            before = list(staying.translate(lines))
            translator = make_translator(loaded)
            after = list(translator.translate(lines))
            summary = translator.summary()
            other_order = [one.texts for one in translator.translate(lines[::-1])]
            single = [n for n in range(len(lines)) if before[n].segments == 1]
            looping = [n for n in single if runs_away(lines[n], before[n])]
            alone = next(translator.translate([lines[looping[0]]]))
        assert len(looping) >= 3
        assert says(summary, " repeating up to the limit", "searched again", "better for")
        for n in single:
            # The second search may find nothing better.
            if n not in looping or runs_away(lines[n], after[n]):
                assert after[n] == before[n]
        left = [n for n in looping if runs_away(lines[n], after[n])]
        assert len(left) <= len(looping) / 2
        escaped.append({n: after[n].texts for n in looping if n not in left})
        assert alone.texts == after[looping[0]].texts
        in_order = zip(after, other_order[::-1], strict=True)
        assert sum(one.texts != texts for one, texts in in_order) <= 1
    torch, ctranslate2 = escaped
    common = torch.keys() & ctranslate2.keys()
    assert len(common) >= 2
    assert sum(torch[n] != ctranslate2[n] for n in common) <= len(common) // 20


@pytest.mark.parametrize("search", [{"n_best": 2}, {"sample": Sampling()}], ids=str)
def test_drawn_and_several_outputs_have_no_retry(search: dict[str, Any], tiny_run: Path) -> None:
    options = EngineOptions(models=[tiny_run], engine="torch", workers=1)
    with load_translator(SearchOptions(**search), options) as translator:
        assert not any(isinstance(step, EscapeLoops) for step in translator.steps)
