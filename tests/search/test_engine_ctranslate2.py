"""The engine with CTranslate2 finds what the one with torch finds, and says what it cannot do."""

from __future__ import annotations

import builtins
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Mt, lines_of, refused
from messages import says
from odd_lines import odd_lines

from mt.search.engine_contract import Hypothesis, Job
from mt.search.engine_ctranslate2 import CTranslate2Engine
from mt.search.options import DEFAULT_SEARCH, EngineName, EngineOptions, Sampling, SearchOptions
from mt.translate import load
from mt.translate.assemble import make_translator
from mt.translate.lines import Translation
from mt.translate.load import load_engine, reasons_for_torch
from mt.translate.translator import Translator

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


def other_lines(found: Sequence[Sequence[Translation]]) -> list[int]:
    """Lines with other texts, another order of them, or scores that differ by over 0.0005."""
    return [
        number
        for number, (one, other) in enumerate(zip(*found, strict=True))
        if one.texts != other.texts
        or any(abs(x - y) > 5e-4 for x, y in zip(one.scores, other.scores, strict=True))
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"beam_size": 4, "length_penalty": 2.0},
        {"beam_size": 4, "length_penalty": 0.6, "n_best": 4},
        {"beam_size": 3, "length_penalty": 0.0, "n_best": 3},
        # Every output is cut at its limit.
        {"beam_size": 1, "max_len_factor": 0.3, "max_len_extra": 1},
        {"beam_size": 4, "max_len_factor": 0.5, "max_len_extra": 1},
    ],
    ids=str,
)
def test_both_engines_find_the_same(both: Load, tiny_corpus: Path, options: dict[str, Any]) -> None:
    lines = lines_of(tiny_corpus / "test.src") + odd_lines(60)
    found = []
    for engine in ("torch", "ctranslate2"):
        with both(engine, **options) as translator:
            found.append(list(translator.translate(lines)))
    other = other_lines(found)
    # Where a beam is made to end at the limit, CTranslate2 has replaced what ended one step before.
    # The flags are of the best output; in a beam that repeats itself others reach the limit.
    cut = [
        number
        for number, pair in enumerate(zip(*found, strict=True))
        if {"truncated", "looping"} & {*pair[0].flags, *pair[1].flags}
    ]
    assert set(other) <= set(cut)
    assert len(other) <= 0.04 * len(lines)


def test_a_greedy_output_is_cut_at_its_limit(
    both: Load, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs no second search, as in a beam, where it could have been another one."""
    monkeypatch.setattr(
        CTranslate2Engine, "_search_again", lambda self, sources, _: [None] * len(sources)
    )
    lines = lines_of(tiny_corpus / "test.src")
    found = []
    for engine in ("torch", "ctranslate2"):
        options = {"beam_size": 1, "max_len_factor": 0.5, "max_len_extra": 1}
        with both(engine, with_scores=False, **options) as translator:
            found.append([(one.texts, one.flags) for one in translator.translate(lines)])
    assert found[0] == found[1]
    assert sum("truncated" in flags for _, flags in found[0]) > len(lines) / 2


class Scripted:
    """Stands for CTranslate2's translator: returns prepared results."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.calls: list[dict[str, Any]] = []

    def translate_batch(self, sources: Any, **options: Any) -> list[Any]:
        self.calls.append(options)
        found = self.results.pop(0)[: len(sources)]
        return [SimpleNamespace(result=lambda one=one: one) for one in found]

    def score_batch(self, sources: Any, targets: list[list[str]], **options: Any) -> list[Any]:
        self.scored_with = options
        return [SimpleNamespace(log_probs=[-1.0] * (len(each) + 1)) for each in targets]


def result(*hypotheses: list[str]) -> Any:
    """Results in CTranslate2's form, each with a score of -1 a token."""
    return SimpleNamespace(hypotheses=list(hypotheses), scores=[-1.0] * len(hypotheses))


def test_what_may_differ_is_searched_again(both: Load) -> None:
    """By hand: unk in the beam, an output over its limit, and one that never ends."""
    with both("ctranslate2", beam_size=2, length_penalty=1.0) as translator:
        engine = translator.loaded.engine
        assert isinstance(engine, CTranslate2Engine)
        a, b = engine._tgt_texts[9:11]
        good = result([a, "</s>"], [b, "</s>"])

        def found(limit: int, *scripted: Any) -> tuple[list[Hypothesis], Scripted]:
            script = Scripted(*scripted)
            decode = engine.decode.model_copy(update={"max_len_factor": 0, "max_len_extra": limit})
            changed = replace(engine, translator=script, decode=decode)
            (row,) = changed.search([[9]])
            return row, script

        row, script = found(3, [good])
        assert (row, len(script.calls)) == ([Hypothesis((9,), -2.0, -1.0)], 1)
        row, script = found(3, [result([a, "</s>"], ["<unk>", "</s>"])], [good])
        assert row == [Hypothesis((9,), -2.0, -1.0)]
        assert ["disable_unk" in call for call in script.calls] == [False, True]
        assert [call["max_decoding_length"] for call in script.calls] == [4, 4]
        for options in (script.calls[1], script.scored_with):  # so that memory has a limit
            assert options["batch_type"] == "tokens"
            assert options["max_batch_size"] <= engine.batch_tokens // 2
        endless = result([a, a, a], [b, b, b])
        row, script = found(2, [endless], [endless], [result([a, a], [b, b])])
        assert row == [Hypothesis((9, 9), -3.0, -1.0)]
        assert [call["max_decoding_length"] for call in script.calls] == [3, 3, 2]


def test_no_output_in_the_beam_costs_one_search_and_no_score(both: Load) -> None:
    """By hand: the others share its probability, e^-1, and without that the longer one wins."""
    with both("ctranslate2", beam_size=2, length_penalty=1.0, n_best=2) as translator:
        engine = translator.loaded.engine
        assert isinstance(engine, CTranslate2Engine)
        a = engine._tgt_texts[9]
        short, long = [a, "</s>"], [a, a, a, "</s>"]
        again = SimpleNamespace(hypotheses=[short, long], scores=[-1.0, -1.1])
        script = Scripted([result(short, ["</s>"])], [again])
        (row,) = replace(engine, translator=script).search([[9, 9]])
        rest = math.log(1 - math.exp(-1))
        assert [each.tokens for each in row] == [(9, 9, 9), (9,)]
        assert [each.log_prob for each in row] == pytest.approx([-4.4 + rest, -2 + rest])
        assert [each.score for each in row] == pytest.approx([-1.1 + rest / 4, -1 + rest / 2])
        assert [call["min_decoding_length"] for call in script.calls] == [0, 1]
        assert not hasattr(script, "scored_with")
        # Too probable to be taken out of what is left, it makes all be scored.
        likely = SimpleNamespace(hypotheses=[["</s>"], short], scores=[-0.1, -1.0])
        script = Scripted([likely], [result(short, long)])
        (row,) = replace(engine, translator=script).search([[9, 9]])
        assert script.scored_with
        assert [each.log_prob for each in row] == [-2.0, -4.0]


def test_what_is_searched_again_comes_last_and_stays_in_its_place(both: Load) -> None:
    with both("ctranslate2", beam_size=2, length_penalty=1.0) as translator:
        engine = translator.loaded.engine
        assert isinstance(engine, CTranslate2Engine)
        a, b, c = engine._tgt_texts[9:12]
        one, other = result([a, "</s>"], [b, "</s>"]), result([c, "</s>"], [b, "</s>"])
        unknown = result(["<unk>", "</s>"], [b, "</s>"])
        script = Scripted([one, unknown], [one, one], [other])
        jobs: list[Job] = [([[9], [9]], [[], []])] * 2
        found = dict(replace(engine, translator=script).search_batches(jobs))
        assert list(found) == [1, 0]
        tokens = {number: [row[0].tokens for row in rows] for number, rows in found.items()}
        assert tokens == {0: [(9,), (11,)], 1: [(9,), (9,)]}


# --- which engine ---------------------------------------------------------------------------------


def reasons(search: SearchOptions = DEFAULT_SEARCH, **engine: Any) -> str:
    options = EngineOptions(models=[Path("model")], **engine)
    return "; ".join(reasons_for_torch(search, options))


def test_what_ctranslate2_cannot_do_goes_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "has_gpu", lambda: False)
    assert reasons() == ""
    everything = SearchOptions(prefixes=True, no_repeat_ngram=3, alignments="auto")
    assert says(reasons(everything), "--prefix, --alignments, --no-repeat-ngram")
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
    with monkeypatch.context() as terminated:
        terminated.setattr(builtins, "__import__", interrupted)
        with pytest.raises(ImportError):  # `mt` finds the signal in it
            reasons(device="cpu")
    monkeypatch.setattr(load, "find_spec", lambda _: None)
    says(reasons(device="cpu"), "pip install ctranslate2")


def interrupted(name: str, *_: Any) -> Any:
    """Stand for `__import__` of compiled code in which SIGTERM arrives."""
    raise ImportError("initialization failed") from SystemExit(143)


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


def test_what_was_made_with_the_other_engine_is_not_continued(both: Load) -> None:
    for engine in ("torch", "ctranslate2"):
        with both(engine) as translator:
            assert translator.settings["--engine"] == engine
