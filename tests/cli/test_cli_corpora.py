"""Corpora on the command line of `mt data`: which names belong together, and their languages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from corpora import write
from messages import raises_saying

from mt.cli.options import CorpusGroup
from mt.config.plan import plan_data
from mt.data.reading.corpus import training_pairs
from mt.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.de", "a.en", "b.de", "b.en", "one.txt", "two.txt"):
        write(Path(name), f"{name}\n")
    write(Path("c.tsv"), "de\ten\nja\tyes\n")
    write(Path("d.txt"), "de\ten\nnein\tno\n")
    write(Path("e.jsonl"), '{"x": "so", "translation": {"de": "gut", "en": "good"}}\n')


def pairs(*names: str, langs: str | None = None) -> list[tuple[str, str]]:
    return list(training_pairs(plan_data(CorpusGroup(list(names), langs).value())))


def test_text_files_go_in_pairs_and_all_else_by_itself() -> None:
    names = ["a.de", "a.en", "?.tsv", "d.txt", "one.txt", "two.txt", "e.jsonl", "b"]
    names.append("{path: e.jsonl, src: x}")
    assert pairs(*names, langs="de-en") == [
        *[("a.de", "a.en"), ("ja", "yes"), ("nein", "no"), ("one.txt", "two.txt")],
        *[("gut", "good"), ("b.de", "b.en"), ("so", "good")],
    ]
    texts = [("a.de", "a.en"), ("b.de", "b.en")]
    assert pairs("?.de", "?.en") == texts
    for number, pair in enumerate(texts, 1):
        for side, text in zip(("de", "en"), pair, strict=True):
            write(Path(f"s-{number}.de-en.{side}"), f"{text}\n")
    assert pairs("s-*", langs="de-en") == texts  # of both sides
    assert pairs("s-1.de-en", "s-2.de-en", langs="de-en") == texts


@pytest.mark.parametrize(
    ("langs", "found"),
    [
        (None, ("de", "en")),
        ("pt_BR-zh-Hant", ("pt_BR", "zh-Hant")),
        ("pt-BR-en", ("pt-BR", "en")),
        ("de-pt-BR", ("de", "pt-BR")),
    ],
)
def test_languages_are_those_given_or_the_endings(langs: str | None, found: Any) -> None:
    data = CorpusGroup(["a.de", "a.en", "c.tsv"], langs).value()
    table = plan_data(data).corpora[1].source
    assert (data.src_lang, data.tgt_lang) == (table.src, table.tgt) == found
    data = CorpusGroup(["one.txt", "two.txt"]).value()
    assert (data.src_lang, data.tgt_lang) == ("src", "tgt")


def test_a_config_names_them_too() -> None:
    write(Path("c.yaml"), "data: {root: /data, src_lang: de, tgt_lang: en, train: x.tmx}")
    data = plan_data(CorpusGroup(config="c.yaml", settings=["data.tgt_lang=fr"]).value())
    source = data.corpora[0].source
    assert (data.root, source.path, source.tgt) == (Path("/data"), "x.tmx", "fr")


def test_what_cannot_be_meant_is_refused() -> None:
    for group, parts in [
        (CorpusGroup(["a.de"]), ["a.de", "translation", "found nothing"]),
        (CorpusGroup(["a.de", "c.tsv"]), ["a.de", "found c.tsv", "in turn"]),
        (CorpusGroup(["c.tsv"]), ["--langs", "required", "--langs de-en"]),
        (CorpusGroup(["d.tsv"], "de-en"), ["d.tsv", "no such file"]),
        (CorpusGroup(["no.de", "no.en"]), ["no.de", "no such file"]),
        (CorpusGroup(["?.de"]), ["?.de", "translation", "found nothing"]),
        (CorpusGroup(["c.tsv"], "german"), ["--langs", "de-en", "'german'"]),
        (CorpusGroup(["{path: [}"], "de-en"), ["{path: [}"]),
        (CorpusGroup(["{path: c.tsv, srk: a}"], "de-en"), ["IN: data.train[0].srk", "mean src"]),
        (CorpusGroup(), ["IN", "--config"]),
        (CorpusGroup(["c.tsv"], "de-en", None, ["a=b"]), ["--set", "--config"]),
        (CorpusGroup(["c.tsv"], None, "tiny.yaml"), ["--config tiny.yaml", "c.tsv", "leave out"]),
        (CorpusGroup(None, "de-en", "tiny.yaml"), ["--config tiny.yaml", "--langs", "leave out"]),
    ]:
        with raises_saying(ConfigError, *parts):
            group.value()


@pytest.mark.parametrize(
    ("names", "langs", "said"),
    [
        (["a.en", "a.de"], "de-en", "a.en: text in de|.en|--langs en-de"),
        (["a.en", "a.de"], "deu-en_GB", "a.en: text in deu|.en|swap"),
        (["a.de", "b.de"], "de-en", "b.de: text in en|.de"),
        (["a.de", "a.en", "b.en", "b.de"], None, "b.en: text in de|.en|swap"),
    ],
)
def test_files_of_another_language_fail(names: list[str], langs: str | None, said: str) -> None:
    with raises_saying(ConfigError, *said.split("|")):
        pairs(*names, langs=langs)
