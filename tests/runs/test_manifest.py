"""The manifest of a run: what ran where, and whether this job made it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from conftest import BLIND, MonkeyPatch, QuickConfig, log_of
from messages import says

from mt.data.reading.corpus_record import CorpusRecord, described
from mt.package import VERSION
from mt.runs.origin import history_of
from mt.runs.run_dir import is_of_this_job, read_manifest, update_manifest, write_manifest
from mt.training.launch import train

SLURM = {"SLURM_JOB_ID": "7"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "a"}
BOTH = SLURM | TORCHRUN
REQUEUED = {"SLURM_RESTART_COUNT": "1"}


def test_only_a_restart_is_of_the_runs_own_job(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    for number, (before, now, agent, same) in enumerate([
        ({}, {}, 123, False),
        (SLURM, SLURM, 123, False),  # the second command of an allocation
        (SLURM, SLURM | {"SLURM_RESTART_COUNT": "0"}, 123, False),
        (SLURM, SLURM | REQUEUED, 123, True),
        (SLURM, {"SLURM_JOB_ID": "8"} | REQUEUED, 123, False),
        (TORCHRUN, TORCHRUN, 123, True),
        (TORCHRUN, {}, 123, False),
        (BOTH, BOTH, 123, True),
        (BOTH, BOTH | {"TORCHELASTIC_RUN_ID": "b"}, 999, False),
        (BOTH, BOTH | {"TORCHELASTIC_RUN_ID": "b"} | REQUEUED, 999, True),
    ]):  # fmt: skip
        (run := tmp_path / str(number)).mkdir()
        for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "TORCHELASTIC_RUN_ID"):
            monkeypatch.delenv(name, raising=False)

        assert not is_of_this_job(run)
        for name, value in before.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(os, "getppid", lambda: 123)
        write_manifest(run, {})
        for name in before:
            monkeypatch.delenv(name)
        for name, value in now.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(os, "getppid", lambda agent=agent: agent)
        assert is_of_this_job(run) == same


def test_the_manifest_names_command_data_versions_and_machine(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"seed": 3, "data": {"a.de": {"lines": 5}}})
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["seed"] == 3
    assert manifest["data"] == {"a.de": {"lines": 5}}
    assert manifest["command"] == sys.argv
    assert manifest["packages"]["mt"] == VERSION
    assert manifest["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert manifest["packages"].keys() >= {"sentencepiece", "sacrebleu", "safetensors", "numpy"}
    assert manifest["processor"]
    assert manifest["cores"] == os.cpu_count()


def test_fetched_corpora_of_the_training_data_are_in_the_manifest(
    quick_config: QuickConfig, tiny_corpus: Path, tmp_path: Path
) -> None:
    """Also what has changed since; neither the validation's corpus nor another corpus.yaml."""
    texts = {name: (tiny_corpus / name).read_text() for name in ("train.src", "train.tgt")}
    for folder in ("fetched", "changed", "other"):
        (tmp_path / folder).mkdir()
        for name, text in texts.items():
            (tmp_path / folder / name).write_text(text)
        record = CorpusRecord(
            source=f"opus:{folder}/v1", name=folder, version="v1", languages=["de", "en"],
            url=["http://a"], fetched="2026-11-23", licence="CC0-1.0", citation="not stated",
            files=described((tmp_path / folder).iterdir()),
        )  # fmt: skip
        (tmp_path / folder / "corpus.yaml").write_text(record.model_dump_json())
    with (tmp_path / "changed" / "train.src").open("a") as src:
        src.write("null\n")
    with (tmp_path / "changed" / "train.tgt").open("a") as tgt:
        tgt.write("zero\n")
    (tmp_path / "other" / "corpus.yaml").write_text("packages: [a]\n")
    sources = [
        {side: str(tmp_path / folder / f"train.{side}") for side in ("src", "tgt")}
        for folder in ("fetched", "changed", "other")
    ]
    config = quick_config(BLIND, data={"train": sources}, train={"max_steps": 1})
    train(config, tmp_path / "run", "cpu")
    corpora = read_manifest(tmp_path / "run")["corpora"]
    assert {corpus["name"]: corpus["changed"] for corpus in corpora} == {
        "fetched": [], "changed": ["train.src", "train.tgt"], "train.src, train.tgt": [],
    }  # fmt: skip
    licences = [corpus["licence"] for corpus in corpora]
    assert licences == ["CC0-1.0", "CC0-1.0", "unknown: no corpus.yaml beside it"]
    log = log_of(tmp_path / "run")
    assert log.count("warning: train.src, train.tgt: not as fetched from opus:changed/v1") == 1


@pytest.mark.parametrize("entries", [None, "text", 5, [5, "text", {}, {"name": 1}]])
def test_of_a_damaged_history_nothing_is_claimed(entries: object, tmp_path: Path) -> None:
    """And what a later version may record of a good one is left out."""
    (start,) = history_of(tmp_path / "model", {"history": entries, "step": 5})
    assert (start.model, start.updates, start.began_from) == ("model", "1–5", "not recorded")
    assert [corpus.licence for corpus in start.corpora] == ["unknown: not recorded"]
    assert history_of(tmp_path, {"history": [start.model_dump() | {"new": 1}]}) == [start]


def test_resuming_with_other_threads_is_noted(quick_config: QuickConfig, tmp_path: Path) -> None:
    """Sums over threads differ in their last bits; a run without updates has none yet."""
    train(quick_config(BLIND, train={"max_steps": 1}), tmp_path, "cpu")
    train(quick_config(BLIND, train={"max_steps": 2}), tmp_path, "cpu")
    assert "note: device" not in log_of(tmp_path)
    assert "note: processes" not in log_of(tmp_path)
    update_manifest(tmp_path, {"device": "CPU in fp32, 4 threads", "processes": 2})
    train(quick_config(BLIND, train={"max_steps": 3}), tmp_path, "cpu")
    told = "note: device: was CPU in fp32, 4 threads, now CPU in fp32, 1 thread: last bits"
    assert says(log_of(tmp_path), told, "note: processes: was 2, now 1: last bits will differ")
    shutil.rmtree(tmp_path / "checkpoints")
    update_manifest(tmp_path, {"processes": 7})
    train(quick_config(BLIND, train={"max_steps": 1}), tmp_path, "cpu")
    assert "was 7" not in log_of(tmp_path)
