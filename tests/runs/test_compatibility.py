"""Runs of earlier versions still translate, score, resume and export.

`tests/files/run-VERSION/` holds a run directory as that version wrote it in 120 updates, its
corpus, and the output of that version for the test set: `translations.en` and `scores.txt`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import Mt, metrics_of
from messages import says

OLD_RUNS = sorted((Path(__file__).parents[1] / "files").glob("run-*"))


@pytest.fixture(params=OLD_RUNS, ids=lambda path: path.name)
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of an old run and its corpus, the corpus being the current folder."""
    folder: Path = tmp_path / "old"
    shutil.copytree(request.param, folder, symlinks=True)
    monkeypatch.chdir(folder / "corpus")
    return folder


def test_an_old_run_translates_and_scores_as_it_did(old: Path, mt: Mt) -> None:
    model = ("--model", old / "run", "--precision", "fp32")
    ended = mt("translate", *model, "--workers", 1, "test.de")
    assert (ended.code, ended.out) == (0, (old / "translations.en").read_bytes())
    before = [float(line) for line in (old / "scores.txt").read_text().split()]
    ended = mt("score", *model, "--src", "test.de", "--tgt", "test.en")
    assert [float(line) for line in ended.lines] == pytest.approx(before, abs=2e-4)


def test_an_old_run_resumes_with_the_new_order_of_the_data_and_says_so(old: Path, mt: Mt) -> None:
    run_dir = old / "run"
    options = ["--run-dir", run_dir, "--device", "cpu", "--set", "train.max_steps=160"]
    ended = mt("train", "--config", run_dir / "config.yaml", *options)
    assert ended.code == 0, ended.err
    steps = [line["step"] for line in metrics_of(old / "run", "train")]
    assert steps == [20, 40, 60, 80, 100, 120, 140, 160]
    valid = metrics_of(old / "run", "valid")[-1]
    assert valid["step"] == 160
    # Version 0.1.0 reached this from the same checkpoint, with updates of another composition.
    assert valid["nll"] == pytest.approx(0.33977, abs=0.04)
    assert says(ended.err, "order of the data, have changed", "a new epoch")


def test_an_old_run_is_exported(old: Path, mt: Mt, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    ended = mt("export", "ctranslate2", "--model", old / "run", "-o", tmp_path / "exported")
    assert ended.code == 0, ended.err
    assert (tmp_path / "exported" / "model.bin").exists()


def test_there_is_an_old_run() -> None:
    assert OLD_RUNS
