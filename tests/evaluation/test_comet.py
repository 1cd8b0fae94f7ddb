"""COMET, by a stand-in that has the interface of unbabel-comet: its models cannot be had here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import MonkeyPatch, Mt, refused, write_lines
from messages import says

from mt.evaluation import comet as metric

# The score of a sentence is the share of reference words in the translation, if there is a source.
STAND_IN = """
from types import SimpleNamespace

def load_from_checkpoint(checkpoint_path, reload_hparams=False, local_files_only=False):
    if not local_files_only:
        raise OSError("would download")
    if "broken" in checkpoint_path:
        raise OSError("Can't load tokenizer for 'xlm-roberta-large'.\\nMore advice.")
    return Model()

class Model:
    def predict(self, samples, batch_size=16, gpus=1, devices=None, progress_bar=True):
        assert gpus == 0 and not progress_bar
        scores = []
        for sample in samples:
            words = sample["ref"].split()
            share = sum(word in sample["mt"].split() for word in words) / max(1, len(words))
            scores.append(share if sample["src"] else 0.0)
        return SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))
"""


@pytest.fixture
def comet_model(tmp_path: Path, monkeypatch: MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """`comet_model("name")`: the folder of a COMET model; the stand-in can be imported."""
    package = tmp_path / "packages" / "comet"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(package.parent))

    def made(name: str = "wmt-da") -> Path:
        folder = tmp_path / name
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints" / "model.ckpt").touch()
        (folder / "hparams.yaml").write_text("class_identifier: regression_metric\n")
        return folder

    yield made
    sys.modules.pop("comet", None)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """src, ref, and the outputs good and bad, of 40 lines."""
    folder = tmp_path / "texts"
    folder.mkdir()
    ref = [f"a b c d{i}" for i in range(40)]
    good = [line if i % 4 else "a b c" for i, line in enumerate(ref)]
    bad = [line if i % 2 else "a b" for i, line in enumerate(ref)]
    for name, lines in (("src", ["x"] * 40), ("ref", ref), ("good", good), ("bad", bad)):
        write_lines(folder / name, lines)
    return folder


Models = Callable[..., Path]


def test_comet_beside_other_metrics(mt: Mt, comet_model: Models, texts: Path) -> None:
    """Of the sentences of `good` a quarter has 75 %, of `bad` a half has 50 %."""
    options = [
        "--hyp", texts / "bad", "--hyp", texts / "good", "--src", texts / "src",
        "--ref", texts / "ref", "--metrics", "bleu,comet", "--comet-model", comet_model(),
        "--confidence",
    ]  # fmt: skip
    ended = mt("evaluate", *options, "--json")
    assert ended.code == 0, ended.err
    assert "downloaded" not in ended.err
    assert "model:wmt-da|scale:100|version:" in json.dumps(json.loads(ended.out))
    table = mt("evaluate", *options).out.decode()
    assert "COMET" in table
    assert "93.75" in table
    assert "75.00" in table
    one = mt("evaluate", *options[2:], "--device", "cpu")  # where COMET computes
    assert "COMET" in one.out.decode(), one.err


def test_message_about_comet(
    mt: Mt, comet_model: Models, texts: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    comet_model("wmt")
    comet_model("broken")
    for options, parts in [
        ("--metrics comet", "metric comet: … --comet-model … folder"),
        ("--comet-model wmt", "--comet-model: … metric comet … --metrics"),
        ("--metrics comet --comet-model no", "--comet-model: … no folder no"),
        ("--metrics comet --comet-model .", "--comet-model: . … hparams.yaml … found 0 … no hpar"),
        ("--metrics comet --comet-model wmt", "metric comet: … --src"),
        (
            "--metrics comet --comet-model broken --src texts/src",
            "--comet-model: … broken/checkpoints/model.ckpt … xlm-roberta-large … encoder",
        ),
    ]:
        given = ["--hyp", texts / "good", "--ref", texts / "ref", *options.split()]
        assert says(refused(mt("evaluate", *given)), *parts.split(" … "))


def test_without_the_package(mt: Mt, texts: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(metric, "find_spec", lambda _: None)
    parts = ("metric comet:", "unbabel-comet", "not installed", "pip install", "leave")
    given = ["--hyp", texts / "good", "--ref", texts / "ref", "--metrics", "comet"]
    assert says(refused(mt("evaluate", *given)), *parts)
