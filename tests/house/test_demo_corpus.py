"""The demonstration corpus: its files agree with each other, with its page and with its config."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT

from mt.config.load import load_config

SPLITS = {"train": 20_000, "valid": 500, "test": 500}
Corpus = dict[str, list[tuple[str, str]]]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """The sentence pairs of each split."""

    def lines(name: str) -> list[str]:
        text = (ROOT / "data" / "demo" / name).read_bytes().decode()
        assert text.endswith("\n")
        assert "\r" not in text
        return text[:-1].split("\n")

    return {
        split: list(zip(lines(f"{split}.de"), lines(f"{split}.en"), strict=True))
        for split in SPLITS
    }


def test_no_source_sentence_occurs_twice_in_train_valid_and_test(corpus: Corpus) -> None:
    assert {split: len(pairs) for split, pairs in corpus.items()} == SPLITS
    sources = [de for pairs in corpus.values() for de, _ in pairs]
    assert len(set(sources)) == len(sources)


def test_lines_are_sentences(corpus: Corpus) -> None:
    for pair in [pair for pairs in corpus.values() for pair in pairs]:
        for text in pair:
            assert text[0].isupper(), text
            assert text[-1] in ".?", text
            assert re.search(r"  | [.,?]|[{}_]", text) is None, text


def test_tiny_yaml_and_the_quick_start_use_it(corpus: Corpus) -> None:
    data = load_config(str(ROOT / "configs" / "tiny.yaml")).config.data
    assert [(source.src, source.tgt) for source in data.train] == [
        ("data/demo/train.de", "data/demo/train.en")
    ]
    page = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Quick start\n")[1]
    shown = re.findall(r"^(?:mt|echo) [^#\n]*[^# \n]", page.split("```")[1], re.MULTILINE)
    script = (ROOT / "scripts" / "quickstart.sh").read_text(encoding="utf-8")
    assert script.split("LINES'\n")[1].splitlines() == [*shown, "LINES"]
    assert "mt train --config tiny.yaml" in shown
    (sentence,) = re.findall("^echo '(.*)'", script, re.MULTILINE)
    trained = [de for de, _ in corpus["train"]]
    assert sentence not in trained
    assert set(re.findall(r"\w+", sentence)) <= set(re.findall(r"\w+", " ".join(trained)))


def test_the_table_of_its_page_counts_what_is_there(corpus: Corpus) -> None:
    page = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    for split, pairs in corpus.items():
        german, english = ([len(pair[side].split()) for pair in pairs] for side in (0, 1))
        size = sum(len(f"{text}\n".encode()) for pair in pairs for text in pair)
        row = (
            f"| `{split}` | {len(pairs):,} | {sum(german):,} | {sum(english):,} "
            f"| {min(german)} to {max(german)}, mean {sum(german) / len(german):.1f} | {size:,} |"
        )
        assert row in page
