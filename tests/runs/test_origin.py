"""What a model came from: no corpus behind it is lost, whatever was done to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from conftest import BLIND, MonkeyPatch, Mt, QuickConfig, lines_of, log_of, refused, write_lines
from marian_models import SAVED
from messages import says

from mt.api import export
from mt.data.reading.corpus_record import CorpusRecord, TrainedCorpus, described
from mt.interop.exporter import model_card
from mt.interop.huggingface_import import import_model
from mt.model.checkpoint import average_models, average_run, load_model
from mt.runs.origin import Start, continued, corpora_of_output, corpora_of_text, history_of, merged
from mt.runs.run_dir import read_manifest
from mt.training.launch import train
from mt.training.trainer import Trainer

Sides = dict[str, str]
Trained = Callable[..., Path]


@pytest.fixture
def corpus(tiny_corpus: Path, tmp_path: Path) -> Callable[[str, str], Sides]:
    """`corpus("A", "CC0-1.0")`: data.train of a fetched corpus of that licence."""

    def fetched(name: str, licence: str) -> Sides:
        folder = tmp_path / name
        folder.mkdir()
        for side in ("src", "tgt"):
            write_lines(folder / f"{name}.{side}", lines_of(tiny_corpus / f"train.{side}")[:200])
        record = CorpusRecord(
            source=f"opus:{name}", name=name, version="v1", languages=["de", "en"], url=["http://a"],
            fetched="2026-11-23", licence=licence, citation=f"{name} et al.",
            files=described(folder.iterdir()),
        )  # fmt: skip
        (folder / "corpus.yaml").write_text(record.model_dump_json())
        return {side: str(folder / f"{name}.{side}") for side in ("src", "tgt")}

    return fetched


@pytest.fixture
def trained(quick_config: QuickConfig, tmp_path: Path) -> Trained:
    """`trained("run", source, max_steps=2)`: the run directory after a start on this data."""

    def run(name: str, source: Sides, **keys: object) -> Path:
        keys = {"valid_every": 2, **keys}
        train(quick_config(BLIND, data={"train": [source]}, train=keys), tmp_path / name, "cpu")
        return tmp_path / name

    return run


def recorded(run: Path) -> list[Start]:
    """The history in the manifest of a run."""
    return [Start.model_validate(entry) for entry in read_manifest(run)["history"]]


def licences_of(model: Path) -> list[tuple[str, str]]:
    """Name and licence of each corpus on the card of a model, each with its citation."""
    card = model_card(load_model(model), "Use it.")
    section = card.partition("## Corpora")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    cited = [row for row in rows if row[3].startswith("unknown") or f"{row[0][2:]} et al." in card]
    assert cited == rows
    assert all(licence in card.partition("## Use")[0] for _, _, _, licence, *_ in rows)
    return [(name.removeprefix("| "), licence) for name, _, _, licence, *_ in rows]


def test_each_start_that_did_updates_is_in_the_history(
    corpus: Callable[[str, str], Sides], trained: Trained, monkeypatch: MonkeyPatch
) -> None:
    closed = corpus("Closed", "CC-BY-NC-4.0")
    run = trained("run", closed, max_steps=2)
    trained("run", corpus("Free", "CC0-1.0"), max_steps=4)
    claimed = (run / "manifest.json").read_bytes()
    trained("run", corpus("Unused", "GPL"), max_steps=4)
    assert "no update is left to do, so nothing is trained on this data" in log_of(run)
    assert (run / "manifest.json").read_bytes() == claimed
    history = recorded(run)
    assert [
        (start.model, start.began_from, start.updates, [each.name for each in start.corpora])
        for start in history
    ] == [("run", "new weights", "1–2", ["Closed"]), ("run", "update 2", "3–4", ["Free"])]
    assert history[0].files[closed["src"]]["lines"] == 200
    # Nor does the card, once a start was killed before it saved anything.
    lost = corpus("Lost", "GPL")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            trained("run", lost, max_steps=6)
    assert "Lost" not in model_card(load_model(run), "Use it.")
    assert licences_of(run) == [("Closed", "CC-BY-NC-4.0"), ("Free", "CC0-1.0")]
    # A checkpoint knows the starts until it was written.
    first = run / "checkpoints" / "step-00000002"
    assert licences_of(first) == [("Closed", "CC-BY-NC-4.0")]
    assert "Free" not in model_card(load_model(first), "Use it.")
    # A start on the same data goes on with the row of the one before.
    for steps in (7, 8):
        trained("run", closed, max_steps=steps)
    assert [start.updates for start in recorded(run)] == ["1–2", "3–4", "5–8"]
    # A model without a history claims none.
    (start,) = history_of(run / "checkpoints" / "step-00000004", {"step": 4})
    assert (start.updates, start.began_from) == ("1–4", "not recorded")


def test_exported_files_of_one_name_stay_apart() -> None:
    paths = ["/a/X/t.de", "/b/B/t.de", "/c/B/t.de", "t.de", "/a/own.de"]
    start = Start(model="", began_from="", corpora=[], files={path: {"by": path} for path in paths})
    exported = start.without_folders()
    names = ["X/t.de", "B/t.de", "B/t.de (2)", "t.de", "own.de"]
    assert exported.files == {name: {"by": path} for name, path in zip(names, paths, strict=True)}


def test_only_equal_corpora_are_one_and_only_starts_with_updates_count() -> None:
    corpus = TrainedCorpus.of_unknown_origin("A", "not recorded")
    others: list[Any] = [{"licence": "CC0-1.0"}, {"changed": ["a.de"]}, {"cleaned": ["a.de"]}]
    different = [corpus, *(corpus.model_copy(update=other) for other in others)]
    assert merged(different) == different
    assert merged([corpus.used("b"), corpus.used("c", "b")]) == [corpus.used("b", "c")]
    start = Start(model="", began_from="", from_update=4, corpora=[corpus])
    assert continued([], start, 4) == []
    assert [entry["to_update"] for entry in continued([], start, 5)] == [5]


def test_models_that_began_from_others_keep_their_corpora(
    corpus: Callable[[str, str], Sides], trained: Trained, tmp_path: Path
) -> None:
    """Fine-tuned, averaged, handed to transformers; imported ones are of unknown text."""
    closed = corpus("Closed", "CC-BY-NC-4.0")
    base = trained("base", closed, max_steps=1)
    plain = {side: str(tmp_path / f"own.{side}") for side in closed}
    for side, path in plain.items():
        write_lines(Path(path), lines_of(Path(closed[side])))
    tuned = trained("tuned", plain, max_steps=1, init_from=str(base))
    unknown = ("own.src, own.tgt", "unknown: no corpus.yaml beside it")
    behind = [("Closed", "CC-BY-NC-4.0"), unknown]
    assert licences_of(tuned) == behind
    assert [start.began_from for start in recorded(tuned)] == ["new weights", "base"]
    # The average of two models began from neither alone, and the card names both.
    average_models([tuned, base], [0.25, 0.75], tmp_path / "mixed")
    card = model_card(load_model(tmp_path / "mixed"), "Use it.")
    assert says(card, "the average of several models, in the ratio 0.25 tuned : 0.75 base.")
    assert "of update" not in card
    assert str(tmp_path) not in card
    again = trained("again", plain, max_steps=1, init_from=str(tmp_path / "mixed"))
    assert recorded(again)[-1].began_from == "mixed"
    average_run(tuned, 1, tmp_path / "mean")
    assert licences_of(tmp_path / "mean") == behind
    if find_spec("transformers"):
        export(tmp_path / "mean", tmp_path / "hf", "huggingface")
        assert says((tmp_path / "hf" / "README.md").read_text(), *behind[0], *unknown)
        assert str(tmp_path) not in (tmp_path / "hf" / "config.json").read_text()
    marian = shutil.copytree(SAVED, tmp_path / "marian")
    (marian / "README.md").write_text("---\nlanguage: de\nlicense: apache-2.0\n---\nlicense: no\n")
    import_model(marian, tmp_path / "imported")
    stated = "unknown: the model's card states apache-2.0"
    assert licences_of(tmp_path / "imported") == [("training data of marian", stated)]


def test_a_text_that_a_model_wrote_names_the_models_corpora(
    corpus: Callable[[str, str], Sides], trained: Trained, mt: Mt, tiny_run: Path, tmp_path: Path
) -> None:
    """Back-translated or distilled, then cleaned: the text, and what its model was trained on."""
    mono = corpus("Mono", "CC-BY-4.0")["src"]
    corpora = corpora_of_output("out", corpora_of_text({mono: {"sha256": ""}}), [])
    ways = ["translated into out", "by hand"]
    (once,) = merged([*corpora, corpora[0].model_copy(update={"through": ways[1:]})])
    assert once.through == ways
    (tmp_path / "a.tsv.corpus.yaml").write_text("packages: [a]\n")  # of another program
    message = refused(mt("backtranslate", "-m", tiny_run, mono, "-o", tmp_path / "a.tsv"))
    assert says(message, "a.tsv.corpus.yaml", "is not a record of mt", "rename")
    teacher = ("train.src, train.tgt", "unknown: no corpus.yaml beside it")
    for command, text in (("backtranslate", [mono]), ("distill", ["--src", mono])):
        out = tmp_path / command / "out.tsv"
        out.parent.mkdir()
        options = ("--beam-size", 1, "--device", "cpu")
        assert mt(command, "-m", tiny_run, *text, "-o", out, *options).code == 0
        clean = out.with_name("clean.tsv")
        source = f"{{path: {out}, src: 1, tgt: 2}}"
        assert mt("data", "clean", source, "--langs", "de-en", "-o", clean).code == 0
        student = trained(command, {"path": str(clean), "src": "1", "tgt": "2"}, max_steps=1)
        assert licences_of(student) == [("Mono", "CC-BY-4.0"), teacher]
        card = model_card(load_model(student), "Use it.")
        assert says(card, "Mono", "cleaned: clean.tsv", "translated into out.tsv", *teacher)
        assert "training data of run, which wrote out.tsv" in card
