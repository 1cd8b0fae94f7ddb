"""Outputs sorted by a reverse model: against mt score, in all forms of output, and by hand."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Mt, config_of, lines_of, refused, write_lines
from marian_models import SAVED
from messages import raises_saying, says
from model_files import changed_meta, copy_model

from mt.config.plan import DataPlan, Direction, plan_data
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import ConfigError
from mt.interop.huggingface_import import import_model
from mt.model.checkpoint import load_model
from mt.search.options import SearchOptions
from mt.search.scoring import ForcedScores
from mt.translate.lines import Line, Segment, SegmentOutput
from mt.translate.load import check_source_language
from mt.translate.rerank import Reranker, _tag_of


@pytest.fixture(scope="module")
def reverse(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as one from English to German: a bad one, but it scores any pair."""
    folder = copy_model(tiny_run, tmp_path_factory.mktemp("reverse") / "model")
    with changed_meta(folder) as meta:
        meta["config"]["data"] |= {"src_lang": "en", "tgt_lang": "de"}
    return folder


def n_best_of(lines: list[str]) -> list[list[tuple[str, float]]]:
    """The texts and scores of each source in the form `index ||| text ||| score`."""
    rows: dict[str, list[tuple[str, float]]] = {}
    for line in lines:
        number, text, score = line.split(" ||| ")
        rows.setdefault(number, []).append((text, float(score)))
    return list(rows.values())


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_outputs_are_sorted_by_both_models(
    mt: Mt, tiny_run: Path, reverse: Path, tiny_corpus: Path, tmp_path: Path, engine: str
) -> None:
    pytest.importorskip(engine)
    sources = lines_of(tiny_corpus / "test.src")[:10]
    write_lines(tmp_path / "in", [*sources[:5], "", *sources[5:]])
    arguments = ("translate", "-m", tiny_run, tmp_path / "in", "--beam-size", 4, "--engine", engine)
    plain = n_best_of(mt(*arguments, "--n-best", 4).lines)
    assert len(plain) == 11
    flat = [(text, line) for line, row in enumerate(plain) for text, _ in row if line != 5]
    texts = [*sources[:5], "", *sources[5:]]
    write_lines(tmp_path / "src", [text for text, _ in flat])
    write_lines(tmp_path / "tgt", [texts[line] for _, line in flat])
    pairs = ("--src", tmp_path / "src", "--tgt", tmp_path / "tgt")
    scores = map(float, mt("score", "-m", reverse, *pairs).lines)
    expected = [
        sorted(((text, one + 0.5 * next(scores)) for text, one in row), key=lambda pair: -pair[1])
        if line != 5
        else row
        for line, row in enumerate(plain)
    ]
    reranked = ("--rerank-with", reverse, "--rerank-weight", 0.5)
    found = n_best_of(mt(*arguments, "--n-best", 4, *reranked).lines)
    for row, wanted in zip(found, expected, strict=True):
        assert [text for text, _ in row] == [text for text, _ in wanted]
        assert [one for _, one in row] == pytest.approx([one for _, one in wanted], abs=1e-3)
    assert found != plain
    best = [row[0][0] for row in expected]
    assert mt(*arguments, *reranked).lines == best != [row[0][0] for row in plain]
    two = mt(*arguments, "--n-best", 2, *reranked).lines
    assert n_best_of(two) == [row[:2] for row in found]


def test_an_alignment_stays_with_its_output(
    mt: Mt, tiny_run: Path, reverse: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    sources = lines_of(tiny_corpus / "test.src")[:6]
    write_lines(tmp_path / "in", sources)
    arguments = ("translate", "-m", tiny_run, tmp_path / "in", "--beam-size", 3, "--alignments")
    plain = [line.split(" ||| ") for line in mt(*arguments, "--n-best", 3).lines]
    links = {(number, text): alignment for number, text, _, alignment in plain}
    found = [line.split("\t") for line in mt(*arguments, "--rerank-with", reverse).lines]
    for number, (text, alignment) in enumerate(found):
        assert alignment == links[str(number), text]


def test_a_pair_that_is_too_long_leaves_the_order(loaded: Any) -> None:
    """ln p of each source token is given: means -1 and -3 for two outputs of the first source."""
    tokenizer: Tokenizer = loaded.tokenizer
    asked: list[Any] = []

    def score(pairs: list[Any]) -> list[ForcedScores]:
        asked.extend(pairs)
        table = [(-3.0, -3.0), (-1.0, -1.0), (-1.0,), ()]
        return [ForcedScores(row) for row in table]

    source = tokenizer.src.encode(["zwei drei"])[0]
    outputs = [
        [SegmentOutput(text, one, 2 * one, 1, False, []) for text, one in row]
        for row in ([("two", -1.0), ("three", -2.0)], [("one", -0.5), ("two", -0.25)])
    ]
    segments = [Segment(source, [], row) for row in outputs]
    forced: Any = SimpleNamespace(score=score)
    one = Reranker(forced, tokenizer, tokenizer, 0.6, "null", frozenset({"zwei"}), 2, "")
    one.found([Line(1, "", segments=segments)])
    assert replace(one, n_best=3).settings != one.settings  # --resume refuses another n-best list
    assert [found.text for found in segments[0].outputs] == ["three", "two"]
    assert [found.score for found in segments[0].outputs] == pytest.approx([-2.6, -2.8])
    assert segments[1].outputs == outputs[1]
    # The tag of the reverse model comes before its source; that of the source is no target.
    assert asked[0] == (tokenizer.src.encode(["null two"])[0], tokenizer.tgt.encode(["drei"])[0])


def test_the_language_that_a_line_names_is_no_target(loaded: Any, tmp_path: Path) -> None:
    import_model(SAVED, tmp_path / "model")
    forward = load_model(tmp_path / "model").tokenizer
    asked: list[Any] = []

    def score(pairs: list[Any]) -> list[ForcedScores]:
        asked.extend(pairs)
        return [ForcedScores((-1.0,))]

    (source,) = forward.src.encode([">>fra<< Nein"])
    segment = Segment(source, [], [SegmentOutput("one", -1.0, -1.0, 1, False, [])])
    forced: Any = SimpleNamespace(score=score)
    reranker = Reranker(forced, loaded.tokenizer, forward, 0.2, "", frozenset(), 1, "")
    reranker.found([Line(1, "", segments=[segment])])
    assert [target for _, target in asked] == loaded.tokenizer.tgt.encode(["Nein"])


def test_a_model_of_both_directions_is_its_own_reverse(tiny_mapping: Any, loaded: Any) -> None:
    both = {
        "tokenizer": {"user_defined_symbols": ["<de>", "<en>"]},
        "data": {
            "train": [
                {"src": "train.src", "tgt": "train.tgt", "tag": "<en>"},
                {"src": "train.src", "tgt": "train.tgt", "tag": "<de>", "reverse": True},
            ]
        },
    }

    def plan(*changes: dict[str, Any]) -> DataPlan:
        return plan_data(config_of(tiny_mapping, *changes).data)

    forward = Direction("de", "en")
    assert _tag_of(plan(both), forward, Path("both")) == "<de>"
    assert _tag_of(plan(both), forward.turned, Path("both")) == "<en>"
    stages = [{"until": {"epochs": 1}, "both_directions": True}, {}]
    staged = plan({"data": {"stages": stages}})
    for call, said in (  # of what it has not learnt to the end
        (lambda: _tag_of(staged, forward, Path("staged")), "from en to de"),
        (lambda: loaded.tokenizer.before_source("de", staged), "into (en), found de"),
        (lambda: check_source_language("en", staged), "from (de), found en"),
    ):
        with raises_saying(ConfigError, said):
            call()
    german = plan({"data": {"src_lang": "en", "tgt_lang": "de", "train": []}})
    assert _tag_of(german, forward, Path("imported")) == ""  # names no training text
    with pytest.raises(ConfigError) as error:
        _tag_of(plan(), forward, Path("one"))
    assert says(str(error.value), "--rerank-with one", "from en to de", "found de to en", "of both")


@pytest.mark.parametrize("option", ["--from", "--to"])
def test_the_reverse_is_that_of_the_direction_that_is_translated(
    option: str, mt: Mt, tiny_run: Path, reverse: Path, tmp_path: Path
) -> None:
    both = shutil.copytree(reverse, tmp_path / "both")
    with changed_meta(both) as meta:
        (text,) = meta["config"]["data"]["train"]
        meta["config"]["data"]["train"] = [text, text | {"reverse": True}]
    into_english, into_german = ("de", "en") if option == "--from" else ("en", "de")
    command = ("translate", "-m", both, "--rerank-with", tiny_run)  # which is of de-en
    assert mt(*command, option, into_german, stdin=b"one\n").code == 0
    message = refused(mt(*command, option, into_english, stdin=b"eins\n"))
    assert says(message, "--rerank-with", "from en to de", "found de to en")


def test_what_cannot_be_reranked(mt: Mt, tiny_run: Path, reverse: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "in", ["eins"])
    arguments = ("translate", "-m", tiny_run, tmp_path / "in", "--rerank-with", reverse)
    message = refused(mt(*arguments, "--beam-size", 1))
    assert says(message, "--rerank-with", "beam size is 1", "--beam-size 5")
    message = refused(mt(*arguments, "--sample"))
    assert says(message, "--rerank-with", "--n-best is 1", "--n-best 16")
    message = refused(mt(*arguments[:-1], tmp_path / "nothing"))
    assert says(message, "--rerank-with", tmp_path / "nothing", "nothing exists")
    message = refused(mt(*arguments, "--beam-size", 2, "--n-best", 3))
    assert says(message, "--n-best", "at most the beam size, 2", "found 3")
    message = refused(mt(*arguments, "-o", reverse / "out"))
    assert says(message, "is inside --model", reverse)
    with pytest.raises(ConfigError, match="leave out one"):
        SearchOptions(n_best=2, mbr="bleu", rerank_with=reverse)
    with pytest.raises(ConfigError, match=r"--rerank-weight: must be above 0 .* found -1"):
        SearchOptions(rerank_with=reverse, rerank_weight=-1.0)
    with pytest.raises(ConfigError, match="only with --rerank-with"):
        SearchOptions(rerank_weight=1.0)
