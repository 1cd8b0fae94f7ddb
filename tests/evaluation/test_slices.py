"""Slices of a test set: each line in the slice that it belongs to, and scores of slices."""

from __future__ import annotations

from pathlib import Path

import pytest
from marian_models import SAVED
from scores import score_corpus
from token_stores import trained

from mt.data.reading.words import tokens, words
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import DataError
from mt.evaluation.slices import (
    Slicing,
    by_domain,
    by_length,
    by_rare_words,
    by_unknown_pieces,
    count_words,
)
from mt.evaluation.systems import EvaluationSet, Settings, evaluate_systems
from mt.interop.huggingface_import import import_model
from mt.runs.model_folder import open_tokenizer


def shown(slicing: Slicing) -> dict[str, list[int]]:
    return {part.label: list(part.lines) for part in slicing.slices}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Well-known words, “don’t” stop!", ["well-known", "words", "don’t", "stop"]),
        ("", []),
        (" \t… — ! ", []),
        ("我是学生。", ["我", "是", "学", "生"]),
        ("किताब पढ़ी।", ["किताब", "पढ़ी"]),  # vowel signs are part of the word
        ("C++ 3.5 % 🙂", ["c", "3.5"]),
    ],
)
def test_words(line: str, found: list[str]) -> None:
    assert words(line) == found
    assert "".join(tokens(line)) == line


def test_by_length_puts_about_as_many_lines_into_each_slice() -> None:
    sources = ["w " * n for n in (3, 1, 2, 9, 4, 5, 3, 8, 7, 6)]
    assert shown(by_length(sources)) == {
        "1–2": [1, 2], "3": [0, 6], "4–5": [4, 5], "6–7": [8, 9], "8–9": [3, 7],
    }  # fmt: skip
    assert shown(by_length(sources, 2)) == {"1–4": [0, 1, 2, 4, 6], "5–9": [3, 5, 7, 8, 9]}
    assert shown(by_length(["a", "b", ""])) == {"0": [2], "1": [0, 1]}
    assert shown(by_length(["a b"] * 3)) == {"2": [0, 1, 2]}


def test_by_the_rarest_word_of_the_source() -> None:
    counts = count_words(["The dog, the cat."] * 10 + ["a “Cat”"] * 90 + ["rare"])
    assert counts == {"the": 20, "dog": 10, "cat": 100, "a": 90, "rare": 1}
    sources = ["Cat!", "the cat", "a rare cat", "no dog", "…"]
    assert shown(by_rare_words(sources, counts)) == {
        "100 or more": [0, 4], "10–99": [1], "1–9": [2], "never": [3],
    }  # fmt: skip


def test_by_unknown_pieces(tiny_run: Path, tmp_path: Path) -> None:
    """Neither a user-defined symbol nor a language that an imported model is told is one."""
    tokenizer = Tokenizer.load(tiny_run)
    found = by_unknown_pieces(["eins zwei", "eins 🙂", ""], tokenizer)
    assert shown(found) == {"none": [0, 2], "1 or more": [1]}
    with_symbol = trained(300, user_defined_symbols=["<x>"])
    assert shown(by_unknown_pieces(["<x> eins"], with_symbol)) == {"none": [0]}
    import_model(SAVED, tmp_path / "imported")
    imported = open_tokenizer(tmp_path / "imported")
    found = by_unknown_pieces([">>fra<< er", ">>fra<< ☃"], imported)
    assert shown(found) == {"none": [0], "1 or more": [1]}


def test_by_domain_keeps_the_order_of_the_labels() -> None:
    assert shown(by_domain(["news", "law ", "news", ""])) == {
        "news": [0, 2], "law": [1], "(no label)": [3],
    }  # fmt: skip


def test_the_score_of_a_slice_is_that_of_its_lines_alone() -> None:
    refs = [["a b c d e", "x y z u v", "k l m n"], ["a b c d", "x y z", "k l m n o"]]
    hyps = ["a b c d f", "x y q u v", "k l m n"]
    data = EvaluationSet("", refs, slicings=[by_domain(["p", "q", "p"])])
    names = ["bleu", "ter"]
    for one in evaluate_systems(data, {"": hyps}, Settings(names)).systems[""]:
        for lines, value in zip(([0, 2], [1]), one.slices["domain"], strict=True):
            own = [[text[i] for i in lines] for text in (hyps, *refs)]
            assert [value] == [s.value for s in score_corpus(own[0], own[1:], [one.metric])]
    other = EvaluationSet("", refs, slicings=[by_domain(["p", "q"])])
    with pytest.raises(DataError, match="slices by domain have 2 lines, the hypotheses have 3"):
        evaluate_systems(other, {"": hyps}, Settings(names))
