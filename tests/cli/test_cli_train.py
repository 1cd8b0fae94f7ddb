"""`mt train`, `mt data prepare`, `mt config` and `mt inspect`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from conftest import MonkeyPatch, Mt, refused
from messages import says
from model_files import changed_meta, copy_model


def test_config_check(mt: Mt, tiny_config: Path, tmp_path: Path) -> None:
    ended = mt("config", "check", "-c", tiny_config)
    assert (ended.code, ended.err, ended.lines) == (0, "", [f"{tiny_config}: good"])
    missing = ["--set", "data.valid[0].src=no.src", "--set", "data.train[0].tgt=no.tgt"]
    (tmp_path / "empty.yaml").write_text("model: {d_model: 64}\n", encoding="utf-8")
    for arguments, parts in (
        ([tiny_config, *missing], ("data.train[0].tgt: ", "\nmt: data.valid[0].src: ")),
        ([tmp_path / "empty.yaml"], ("data.train", "at least")),
        ([tiny_config, "--set", "model.n_hedas=2"], ("model.n_hedas", "n_heads?")),
        ([tiny_config, "--set", "data.clean={against: [no.en]}"], ("data.clean.against", "no.en")),
        (["tyni"], ("--config tyni", "a file or the name of")),
    ):
        assert says(refused(mt("config", "check", "-c", *arguments)), *parts)


def test_config_show_and_schema(mt: Mt, tiny_config: Path) -> None:
    import yaml

    lines = mt("config", "show", "-c", tiny_config, "--set", "optim.peak_lr=1e-3").lines
    shown = {" ".join(line.split()) for line in lines}
    assert {"d_model: 32 # tiny.yaml", "peak_lr: 0.001 # --set"} <= shown
    assert "label_smoothing: 0.1 # default" in shown
    assert yaml.safe_load("\n".join(lines))["data"]["train"][0]["src"] == "train.src"

    schema = json.loads(mt("config", "schema").out)
    sections = "run data tokenizer batch model optim train decode recipe"
    assert [*schema["properties"]] == sections.split()


def test_inspect_model(mt: Mt, tiny_config: Path) -> None:
    first = mt("inspect", "model", "--config", "vaswani2017").lines[0]
    assert first == "d 512, h 8 (heads of 64), f 2048, N_e 6, N_d 6, V 37,000, post-norm"
    small = mt("inspect", "model", "--config", tiny_config, "--set", "model.d_ff=128").out.decode()
    assert re.search(r"feed_forward\.inner\.weight\s+128 x 32\b", small)
    wrong = mt("inspect", "model", "-c", tiny_config, "--set", "model.d_model=33")
    assert refused(wrong).startswith("--set: ")


def test_inspect_a_trained_model(mt: Mt, tiny_run: Path, tiny_config: Path, tmp_path: Path) -> None:
    """Counts the vocabulary of its tokenizer, which may be smaller than the config allows."""
    from mt.model.checkpoint import load_model

    with changed_meta(copy_model(tiny_run, tmp_path / "model")) as meta:
        meta["config"]["tokenizer"]["vocab_size"] = 5000
    lines = mt("inspect", "model", "--model", tmp_path / "model").lines
    assert "V 320, " in lines[0]
    (total,) = (line.split()[-1] for line in lines if line.startswith("  all "))
    weights = load_model(tiny_run).model.parameters()
    assert total == f"{sum(weight.numel() for weight in weights):,}"
    for options, parts in (
        ([], ("--config, --model", "one of the two", "neither")),
        (["-m", tiny_run, "-c", tiny_config], ("--config, --model", "one of the two", "both")),
        (["-m", tiny_run, "--set", "model.d_ff=8"], ("--set", "give --config")),
    ):
        assert says(refused(mt("inspect", "model", *options)), *parts)


FEW = ["--device", "cpu", "--set", "data.valid=null", "--set", "data.test=null", "--set"]


def test_train_set_and_run_dir(
    mt: Mt, tiny_config: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train = ["train", "-c", tiny_config, *FEW, "train.max_steps=1", "--set", "train.valid_every=1"]
    named = ((["--set", "run.dir=a"], "a"), (["--run-dir", "b"], "b"))
    for options, folder in (([], "runs/tiny"), *named):
        ended = mt(*train, *options)
        assert (ended.code, ended.out) == (0, b"")
        assert (tmp_path / folder / "checkpoints" / "step-00000001" / "model.safetensors").is_file()
        assert "Traceback" not in ended.err
    assert "resuming after update 1" in mt(*train, "--run-dir", "b").err
    message = refused(mt(*train, "--run-dir", "c", "--device", "abacus"))
    assert says(message, "--device", "auto, cpu, cuda or cuda:N", "'abacus'")
    assert refused(mt(*train, "--set", "data.train=null")).startswith("data.train: must name")
    assert refused(mt(*train, "--run-dir", "")) == "--run-dir: must be a path, found ''"
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("option", [[], ["--fresh"], ["--dry-run"]])
def test_training_does_not_overwrite_a_config_written_by_hand(
    option: list[str], mt: Mt, tiny_config: Path, tmp_path: Path
) -> None:
    own = tmp_path / "exp" / "config.yaml"
    own.parent.mkdir()
    own.write_text("# my notes\n" + tiny_config.read_text(encoding="utf-8"), encoding="utf-8")
    before = own.read_bytes()
    message = refused(mt("train", "-c", own, "--run-dir", own.parent, "--device", "cpu", *option))
    assert says(message, own.parent, "config.yaml", "rename", "another --run-dir")
    assert own.read_bytes() == before
    assert list(tmp_path.rglob("*")) == [own.parent, own]


def test_a_run_resumes_from_its_own_config(mt: Mt, tiny_config: Path, tmp_path: Path) -> None:
    train = ["train", "--run-dir", tmp_path / "run", *FEW]
    assert mt(*train, "train.max_steps=1", "-c", tiny_config).code == 0
    own = tmp_path / "run" / "config.yaml"
    again = mt(*train, "train.max_steps=2", "-c", own)
    assert (again.code, "resuming after update 1" in again.err) == (0, True)
    for command in (["train"], ["data", "prepare"]):
        message = refused(mt(*command, "-c", own))
        assert says(message, f"--config {own}", "of a run", f"--run-dir {own.parent} to resume")
    # The state after a crash before the first manifest and checkpoint were written.
    (own.parent / "manifest.json").unlink()
    shutil.rmtree(own.parent / "checkpoints")
    assert mt(*train, "train.max_steps=1", "-c", own).code == 0


# --- mt data prepare ------------------------------------------------------------------------------


def test_what_is_prepared_is_what_training_uses(mt: Mt, tiny_config: Path, tmp_path: Path) -> None:
    sizes = ("--set", "tokenizer.vocab_size=auto", "--set", "model.dropout=auto")
    prepare = ("data", "prepare", "--config", tiny_config, *sizes, "--run-dir")
    first, again = (mt(*prepare, tmp_path) for _ in range(2))
    assert says(first.lines[-1], tmp_path, "ready to train on 2,000 pairs")
    assert first.lines == again.lines
    assert "auto is 4,000, model.dropout: auto is 0.3, for 2,000 pairs\n" in first.err
    assert says(again.err, "auto is 4,000, model.dropout: auto is 0.3, since this run was started")
    assert "tokenizer: training" not in again.err

    options = ("--run-dir", tmp_path, "--set", "train.max_steps=1", "--device", "cpu")
    ended = mt("train", "--config", tiny_config, *sizes, *options)
    assert ended.code == 0, ended.err
    assert "2,000 of 2,000 pairs kept" in ended.err
    assert "tokenizer: training" not in ended.err
    assert "encoding into" not in ended.err
    assert "have changed" not in ended.err
