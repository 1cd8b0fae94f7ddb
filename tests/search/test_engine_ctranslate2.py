"""The engine with CTranslate2 finds what the one with torch finds, and says what it cannot do."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import MonkeyPatch, Mt, lines_of, refused
from messages import says
from odd_lines import odd_lines

from mt.search.options import DEFAULT_SEARCH, EngineName, EngineOptions, Sampling, SearchOptions
from mt.translate import load
from mt.translate.load import load_engine, reasons_for_torch
from mt.translate.translator import Translator, make_translator

pytest.importorskip("ctranslate2")

Load = Callable[..., Translator]


@pytest.fixture
def both(tiny_run: Path) -> Load:
    """`both(engine, beam_size=4, max_len_extra=1)`: a translator in fp32 with one of the engines.

    Options of the search, or length limits of the model's config.
    """

    def load(name: EngineName, **options: Any) -> Translator:
        limits = {name: options.pop(name) for name in list(options) if name.startswith("max_len")}
        loaded = load_engine(
            SearchOptions(**options),
            EngineOptions(models=[tiny_run], engine=name, precision="fp32", workers=1),
        )
        engine: Any = loaded.engine
        decode = engine.decode.model_copy(update=limits)
        return make_translator(replace(loaded, engine=replace(engine, decode=decode)))

    return load


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 4, "length_penalty": 2.0},
        {"beam_size": 4, "length_penalty": 0.6, "n_best": 4},
        {"beam_size": 3, "length_penalty": 0.0, "n_best": 3},
        # Every output is cut at its limit.
        {"beam_size": 1, "max_len_factor": 0.3, "max_len_extra": 1},
    ],
    ids=str,
)
def test_both_engines_find_the_same(both: Load, tiny_corpus: Path, options: dict[str, Any]) -> None:
    """Another order of a list, or another line, only where a search is cut at its limit.

    All scores of a line may be higher with CTranslate2 by one number, before they are divided by
    the length: what no output contains has no probability there.
    """
    plain = lines_of(tiny_corpus / "test.src")
    lines = plain + odd_lines(60)
    found = []
    for engine in ("torch", "ctranslate2"):
        with both(engine, **options) as translator:
            found.append(list(translator.translate(lines)))
    pairs = list(zip(*found, strict=True))
    # The flags are of the best output; in a beam that repeats itself others reach the limit.
    whole = [
        n for n, pair in enumerate(pairs)
        if not {"truncated", "looping"} & {*pair[0].flags, *pair[1].flags}
    ]  # fmt: skip
    assert sum(one.texts[0] != other.texts[0] for one, other in pairs) <= 0.04 * len(lines)
    for n in whole:
        one, other = pairs[n]
        if n < len(plain):
            assert one.texts == other.texts
        more = [y - x for x, y in zip(one.scores, other.scores, strict=True)]
        assert min(more) > -5e-4
        assert one.texts != other.texts or max(more) < 0.2


def test_a_beam_does_not_depend_on_the_limits_of_its_batch(both: Load, tiny_corpus: Path) -> None:
    lines = lines_of(tiny_corpus / "test.src")
    options = {"beam_size": 4, "n_best": 2, "max_len_factor": 0.5, "max_len_extra": 1}
    with both("ctranslate2", **options) as translator:
        together = list(translator.translate(lines))
        alone = [next(translator.translate([line])) for line in lines]
    assert [line.texts for line in together] == [line.texts for line in alone]
    assert sum("truncated" in line.flags for line in together) > len(lines) / 2


# --- which engine ---------------------------------------------------------------------------------


def reasons(search: SearchOptions = DEFAULT_SEARCH, **engine: Any) -> str:
    return "; ".join(reasons_for_torch(search, EngineOptions(models=[Path("model")], **engine)))


def test_what_ctranslate2_cannot_do_goes_to_torch(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(load, "has_gpu", lambda: False)
    assert reasons() == ""
    everything = SearchOptions(prefixes=True, no_repeat_ngram=3, alignments=True)
    assert says(reasons(everything), "--prefix, --no-repeat-ngram, --alignments")
    assert "--sample" in reasons(SearchOptions(sample=Sampling()))
    says(reasons(device="cuda:1"), "CPU", "--device cuda:1")
    says(reasons(precision="fp16"), "fp16")
    monkeypatch.setattr(load, "has_gpu", lambda: True)
    assert "GPU" in reasons()
    assert reasons(device="cpu") == reasons(precision="int8") == ""
    with monkeypatch.context() as broken:
        broken.setitem(sys.modules, "ctranslate2", None)  # importing it raises ImportError
        broken.setattr(load, "find_spec", lambda _: "installed")
        says(reasons(device="cpu"), "CTranslate2", "imported")
    monkeypatch.setattr(load, "find_spec", lambda _: None)
    says(reasons(device="cpu"), "pip install ctranslate2")


def test_messages_about_the_engine(mt: Mt, tiny_run: Path, tiny_corpus: Path) -> None:
    arguments = ["translate", "-m", tiny_run, tiny_corpus / "test.src", "--engine"]
    says(refused(mt(*arguments, "fast")), "--engine", "auto, torch or ctranslate2", "'fast'")
    said = refused(mt(*arguments, "ctranslate2", "--sample", "--alignments"))
    says(said, "--engine ctranslate2", "--sample", "--alignments", "--engine torch")
    says(refused(mt(*arguments, "torch", "--shortlist", "vmap.txt")), "--shortlist", "ctranslate2")
    for options, reason in (
        (["auto", "--sample"], "CTranslate2 has no --sample"),
        (["auto", "--device", "cuda"], "not on --device cuda"),
        (["torch"], "--engine torch was asked for"),
    ):
        message = refused(mt(*arguments, *options, "--precision", "int8"))
        assert says(message, "--precision int8: only CTranslate2", reason, "leave it out")
    ended = mt(*arguments, "auto", "--no-repeat-ngram", 3)
    assert ended.code == 0
    says(ended.err.splitlines()[-1], "engine: torch", "CTranslate2", "--no-repeat-ngram")
    ended = mt(*arguments, "auto", "--device", "cpu")
    assert re.search(r"mt: engine: CTranslate2 [\d.]+ on CPU in fp32, \d+ thread", ended.err)
