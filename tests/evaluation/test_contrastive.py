"""Contrastive scoring: does a model prefer the correct translation, in all and by phenomenon?"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from conftest import Mt, lines_of, refused, write_lines
from messages import says

from mt.evaluation.contrastive import (
    Accuracy,
    Item,
    ScoredItem,
    accuracies,
    format_items,
    format_table,
    notes_on,
    read_items,
    scored_items,
    table_json,
    translation_pairs,
)


@pytest.fixture(scope="module")
def texts(tiny_corpus: Path) -> tuple[list[str], list[str]]:
    """Sources and targets of the test split with two different words at their beginning."""
    pairs = zip(*(lines_of(tiny_corpus / f"test.{side}") for side in ("src", "tgt")), strict=True)
    chosen = [(src, tgt) for src, tgt in pairs if len(set(tgt.split()[:2])) == 2]
    return [src for src, _ in chosen], [tgt for _, tgt in chosen]


def swapped(line: str) -> str:
    """The line with its first two words swapped."""
    first, second, *rest = line.split()
    return " ".join([second, first, *rest])


def test_a_trained_model_prefers_correct_sentences(
    mt: Mt, tiny_run: Path, texts: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    """Against swapped words, a word left out, and the other way round, where it must be wrong."""
    rows = ["source\tcorrect\tcontrastive\tphenomenon"]
    for src, tgt in zip(*texts, strict=True):
        rows += [
            f"{src}\t{tgt}\t{swapped(tgt)}\tword order",
            f"{src}\t{tgt}\t{tgt.split(' ', 1)[1]}\tomission",
            f"{src}\t{swapped(tgt)}\t{tgt}\tmislabelled",
        ]
    write_lines(tmp_path / "set.tsv", rows)
    ended = mt("score", "-m", tiny_run, "--contrastive", tmp_path / "set.tsv", "--json")
    assert ended.code == 0
    found = json.loads(ended.out)
    accuracy = {name: row["accuracy"] for name, row in found["phenomena"].items()}
    assert list(accuracy) == ["mislabelled", "omission", "word order"]
    assert accuracy["word order"] > 0.9
    assert accuracy["omission"] > 0.9
    assert accuracy["mislabelled"] == pytest.approx(1 - accuracy["word order"])
    n_items = len(texts[0])
    assert found["all"]["items"] == 3 * n_items
    assert found["all"]["accuracy"] == pytest.approx(sum(accuracy.values()) / 3)
    assert f"mt: {3 * n_items} items: {6 * n_items} translations scored in " in ended.err
    assert "perplexity" not in ended.err  # of correct and wrong translations together


def test_text_files_line_by_line(
    mt: Mt, tiny_run: Path, texts: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    """The scores are those of `mt score`; an equal translation is a tie."""
    src, tgt = (lines[:4] for lines in texts)
    wrong = [swapped(tgt[0]), tgt[1], "two " * 99, swapped(tgt[3])]
    for name, lines in (("src", src), ("tgt", tgt), ("wrong", wrong), ("more", ["x"] * 4)):
        write_lines(tmp_path / name, lines)
    write_lines(tmp_path / "labels", ["order", "copy", "length", "order"])
    files = ["score", "-m", tiny_run, "--src", tmp_path / "src", "--tgt"]
    ended = mt(
        *files, tmp_path / "tgt", "--contrastive", tmp_path / "wrong",
        "--contrastive", tmp_path / "more", "--phenomena", tmp_path / "labels",
        "-o", tmp_path / "out",
    )  # fmt: skip
    assert ended.lines[0].split("  ")[0] == "phenomenon"
    assert [line.split() for line in ended.lines[1:]] == [
        ["copy", "1", "0", "0.0", "0.0", "to", "79.3"],
        ["order", "2", "2", "100.0", "34.2", "to", "100.0"],
        ["all", "items", "3", "2", "66.7", "20.8", "to", "93.9"],
    ]
    assert "mt: 4 items: 11 translations scored in " in ended.err
    assert "mt: note: 1 with equal scores count as wrong\n" in ended.err
    assert "mt: note: 1 too long for the model are left out\n" in ended.err
    rows = [line.split("\t") for line in lines_of(tmp_path / "out")]
    assert [row[0] for row in rows] == ["1", "0", "nan", "1"]
    for number, name in enumerate(("tgt", "wrong", "more"), start=1):
        assert mt(*files, tmp_path / name).lines == [row[number] for row in rows]


def test_accuracy_and_its_interval_by_hand() -> None:
    """Wilson's interval of 8 in 10: (0.8 + 0.192 +- 0.2725) / 1.384."""
    low, high = Accuracy(10, 8).interval
    assert (low, high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    items = [Item("a", "b", ("c", "d"), "x"), Item("e", "f", ("g",))]
    assert list(translation_pairs(items)) == [
        ("a", "b"), ("a", "c"), ("a", "d"), ("e", "f"), ("e", "g"),
    ]  # fmt: skip
    first, second = scored_items(items, [-1.0, -2.0, -0.5, -1.0, math.nan])
    assert first == ScoredItem(items[0], (-1.0, -2.0, -0.5))
    assert not first.is_correct
    assert accuracies([first, second]) == ({"x": Accuracy(1, 0)}, Accuracy(1, 0))
    assert notes_on([first, second]) == ["1 too long for the model are left out"]
    assert [json.loads(line) for line in format_items([first, second], as_json=True)] == [
        {"preferred": False, "scores": [-1.0, -2.0, -0.5], "phenomenon": "x"},
        {"preferred": None, "scores": [-1.0, None], "phenomenon": None},
    ]


def test_a_phenomenon_may_have_the_name_of_the_last_row() -> None:
    items = [Item("a", "b", ("c",), "all items"), Item("d", "e", ("f",), "x")]
    found = accuracies(list(scored_items(items, [-1.0, -2.0, -2.0, -1.0])))
    assert found == ({"all items": Accuracy(1, 1), "x": Accuracy(1, 0)}, Accuracy(2, 1))
    counts = [line.split()[-6:-4] for line in format_table(*found).splitlines()[1:]]
    assert counts == [["1", "1"], ["1", "0"], ["2", "1"]]
    assert set(json.loads(table_json(*found))["phenomena"]) == {"all items", "x"}


def test_tables_in_json_and_csv(tmp_path: Path) -> None:
    rows = [
        {"source": "a", "correct": "b", "contrastive": ["c", "d"], "phenomenon": "x"},
        {"source": "e", "correct": "f", "contrastive": "g\nh", "contrastive_2": "i"},
    ]
    expected = [Item("a", "b", ("c", "d"), "x"), Item("e", "f", ("g h", "i"))]
    write_lines(tmp_path / "set.jsonl", [json.dumps(row) for row in rows])
    assert read_items(tmp_path / "set.jsonl", "--contrastive") == expected
    text = 'source,correct,contrastive,contrastive_2,phenomenon\na,b,c,d,x\ne,f,"g\nh",i,\n'
    (tmp_path / "set.csv").write_text(text)
    assert read_items(tmp_path / "set.csv", "--contrastive") == expected


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("", "score: … --src and --tgt … --contrastive"),
        ("--src a", "--src: … --tgt"),
        ("--tgt a --contrastive a", "--tgt: … --src"),
        ("--contrastive a", "--contrastive: a … .tsv, .csv, .json or .jsonl"),
        ("--contrastive no.tsv", "--contrastive: … no file"),
        ("--contrastive wrong.tsv", "wrong.tsv, line 2: … in correct; … source, reference, contr"),
        (
            "--contrastive none.tsv",
            "none.tsv, line 2: … contrastive … found none … source, correct",
        ),
        ("--contrastive empty.tsv", "--contrastive: empty.tsv … no items"),
        ("--src a --tgt a --contrastive two", "--contrastive two … 2 lines, --src a … 1;"),
        ("--src a --tgt a --contrastive blank", "--contrastive blank, line 1: … blank"),
        ("--src a --tgt a --phenomena a", "--phenomena: … --contrastive … column phenomenon"),
        ("--contrastive one.tsv --alignments", "--alignments: … --contrastive"),
        ("--contrastive one.tsv -o one.tsv", "--output one.tsv: … --contrastive"),
    ],
)
def test_message_about_contrastive_options(
    options: str, parts: str, mt: Mt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (
        ("a", "x\n"),
        ("two", "x\ny\n"),
        ("blank", " \n"),
        ("wrong.tsv", "source\treference\tcontrastive\na\tb\tc\n"),
        ("none.tsv", "source\tcorrect\na\tb\n"),
        ("empty.tsv", "source\tcorrect\tcontrastive\n"),
        ("one.tsv", "source\tcorrect\tcontrastive\na\tb\tc\n"),
    ):
        (tmp_path / name).write_text(content)
    assert says(refused(mt("score", "-m", "no-model", *options.split())), *parts.split(" … "))
