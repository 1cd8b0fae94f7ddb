"""Fine-tuning: initial weights from another model, resuming, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import NO_TEST, Mt, QuickConfig, log_of, metrics_of, refused
from finetuning import SPLIT, BaseOf, StartFrom, on
from messages import says
from run_comparison import check_equal, kept_steps, train_until_lost

from mt.config.load import config_from_mapping, load_config
from mt.config.schema import Config
from mt.config.settled import Settled, with_shape_of
from mt.errors import CheckpointError, ConfigError, MtError
from mt.model import checkpoint
from mt.report.curves import draw_curves
from mt.report.run_summary import read_run
from mt.runs import model_folder
from mt.training.finetune import load_base
from mt.training.launch import train

# --- the same vocabulary ----------------------------------------------------------------------


def test_before_the_first_update_it_scores_as_the_other_model(
    tiny_run: Path, start_from: StartFrom, mt: Mt, tiny_corpus: Path
) -> None:
    """With another seed and corpus: the same scores to the last digit, the same vocabulary."""
    short = {"data": {"train": [{"src": "valid.src", "tgt": "valid.tgt"}]}, "run": {"seed": 9}}
    started = start_from(tiny_run, short, train={"ema": 0.9, "max_steps": 400})
    started.trainer.save()
    texts = ["--src", tiny_corpus / "test.src", "--tgt", tiny_corpus / "test.tgt", "--json"]
    before = mt("score", "--model", tiny_run, *texts)
    after = mt("score", "--model", started.run_dir, *texts)
    assert before.code == after.code == 0
    assert before.out == after.out
    models = [(run / "tokenizer.model").read_bytes() for run in (started.run_dir, tiny_run)]
    assert models[0] == models[1]
    state = checkpoint.load_state(started.run_dir / "checkpoints" / "last")
    assert state["train"]["step"] == 0
    assert state["optimizer"]["state"] == {}
    for name, weight in checkpoint.weights_of(started.trainer.updater.model).items():
        assert torch.equal(state["weights"][name], weight)
        assert torch.equal(started.trainer.updater.ema.state_dict()[name], weight)  # type: ignore[union-attr]
    best = model_folder.find_model(tiny_run)
    assert started.log[0] == (
        "tokenizer: taken from train.init_from (train.new_vocabulary: true trains one on this data)"
    )
    assert f"initial weights from {best}, update {int(best.name[5:])}" in started.log
    size = started.trainer.tokenizer.tgt.size
    assert f"joint vocabulary: {size} pieces kept, 0 new, 0 dropped" in started.log


@pytest.mark.parametrize(
    "way", ["run directory", "checkpoint", "exported folder", "relative path", "~"]
)
def test_init_from_takes_a_run_a_checkpoint_or_an_exported_folder(
    way: str, base_of: BaseOf, start_from: StartFrom, tmp_path: Path, monkeypatch: Any
) -> None:
    base = base_of()
    init_from = base
    if way == "checkpoint":
        init_from = base / "checkpoints" / "last"
    elif way == "exported folder":
        init_from = tmp_path / "averaged"
        checkpoint.average_run(base, 1, init_from)
    elif way == "relative path":
        monkeypatch.chdir(base.parent)
        init_from = Path("run")
    elif way == "~":
        monkeypatch.setenv("HOME", str(base.parent))
        init_from = Path("~/run")
    # Dropout and positions change neither the shape nor the meaning of a weight.
    other = {"model": {"dropout": 0.3, "max_positions": 48}, "optim": {"peak_lr": 1e-4}}
    started = start_from(init_from, other if way == "checkpoint" else {})
    assert started.base is not None
    expected = checkpoint.load_weights(base / "checkpoints" / "last")
    weights = checkpoint.weights_of(started.trainer.updater.model)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert started.config.train.init_from == str(init_from)


# --- resuming, and what is recorded -----------------------------------------------------------


def without_shape(config: Config, **model: Any) -> Config:
    """A config that names nothing of its vocabulary, and of its model only this."""
    values = config.model_dump(mode="json") | {"model": model, "tokenizer": {}}
    return config_from_mapping(values, "without its shape")


def shaped(config: Config) -> Config:
    """A config with what the model of `train.init_from` decides."""
    base = load_base(config)
    assert base is not None
    return Settled.at_start(config, 1, base.config).apply(config)


def test_a_config_names_the_shape_or_has_that_of_the_other_model(
    base_of: BaseOf, fine_tuned: FineTuned, tmp_path: Path, mt: Mt
) -> None:
    base = base_of(model={"positions": "learned", "max_positions": 66, "tie_embeddings": False})
    (tmp_path / "c.yaml").write_text(
        f"train: {{init_from: {base}}}\nmodel: {{d_ff: 64}}\ndata: {{max_tokens: 64}}\n"
    )
    origins = load_config(str(tmp_path / "c.yaml")).origins
    assert says(origins["model.d_model"], "default", "train.init_from")
    assert (origins["model.d_ff"], "model.dropout" in origins) == ("c.yaml", False)
    config_shown, model_shown = (
        [line for line in mt("inspect", "model", *given).lines[1:] if "an update" not in line]
        for given in (("--config", tmp_path / "c.yaml"), ("--model", base))
    )
    assert config_shown == model_shown
    config = shaped(without_shape(fine_tuned(base), dropout=0.3))
    there = model_folder.open_model(base).config
    assert config.tokenizer == there.tokenizer
    assert config.model == there.model.model_copy(update={"dropout": 0.3})
    said = message(without_shape(fine_tuned(base), d_ff=8), tmp_path / "run", ConfigError)
    assert says(said, f"train.init_from {base}", "model.d_ff is 64 there and 8 here")
    long = without_shape(fine_tuned(base)).with_values({"data.max_tokens": 65})
    said = message(long, tmp_path / "run", ConfigError)
    assert says(said, f"train.init_from {base}", "model.max_positions", "data.max_tokens + 2 (67)")
    # 5 heads divide neither the default d_model nor the base's; 3 of them could divide a base's.
    shape = without_shape(fine_tuned(base), n_heads=5)
    said = message(shape, tmp_path / "run", ConfigError)
    assert says(said, f"train.init_from {base}", "model.d_model", "multiple of model.n_heads (5)")
    asked, other_base = without_shape(fine_tuned(base), n_heads=3), {"model.d_model": 24}
    assert with_shape_of(asked, shape.with_values(other_base)).model.d_model == 24
    values = fine_tuned(base).model_dump(mode="json")
    values["model"] |= {"d_model": 255, "n_heads": 5}  # all is named here, so it is refused at once
    with pytest.raises(ConfigError, match=r"model\.d_model: must be even"):
        config_from_mapping(values, "whole")
    values |= {"model": {"n_heads": 5}, "optim": {"peak_lr": -3}}
    with pytest.raises(ConfigError) as caught:
        config_from_mapping(values, "two sections")
    assert "model.d_model" not in str(caught.value)
    # A new vocabulary is that of the config.
    config = shaped(without_shape(fine_tuned(base, {"train": {"new_vocabulary": True}})))
    assert config.tokenizer.vocab_size != there.tokenizer.vocab_size


@pytest.mark.parametrize("vocabulary", ["kept", "new"])
def test_a_killed_run_resumes_to_the_same_weights(
    vocabulary: str, base_of: BaseOf, quick_config: QuickConfig, other_corpus: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(base_of(), base, symlinks=True)
    fine_tuning = {"init_from": str(base), "ema": 0.9, "max_steps": 8, "valid_every": 4}
    data = {} if vocabulary == "kept" else on(other_corpus)
    config = quick_config(NO_TEST, data, train=fine_tuning)
    if vocabulary == "kept":  # then the base tells the shape of both, also once it is gone
        config = without_shape(config)
    assert train(config, tmp_path / "whole", "cpu").exit_code == 0
    run = tmp_path / "run"
    for updates in (2, 5):
        train_until_lost(config, run, updates)
    assert kept_steps(run) == ([0, 4] if vocabulary == "kept" else [4])
    origin = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["init_from"]
    best = model_folder.find_model(base)
    checksum = json.loads((best / "meta.json").read_text())["sha256"]["model.safetensors"]
    assert origin == {"folder": str(best), "step": 4, "sha256": checksum}
    saved = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    assert saved["train"]["init_from"] == str(base)
    there = yaml.safe_load((base / "config.yaml").read_text(encoding="utf-8"))
    assert model_folder.open_model(run).config.tokenizer.model_dump() == there["tokenizer"]
    effective = model_folder.open_model(run).config.model.model_dump()
    assert all(effective[key] == there["model"][key] for key in ("d_model", "d_ff", "norm"))
    assert "init_from" not in json.loads((base / "manifest.json").read_text(encoding="utf-8"))
    shutil.rmtree(base)
    assert train(config, run, "cpu").exit_code == 0
    check_equal(run, tmp_path / "whole")
    for folder in model_folder.checkpoints(run):
        assert model_folder.read_meta(folder, [])["init_from"] == origin
    assert json.loads((run / "manifest.json").read_text(encoding="utf-8"))["init_from"] == origin


def test_a_model_that_only_gets_worse_ends_as_the_one_it_started_from(
    tiny_run: Path, tiny_corpus: Path, quick_config: QuickConfig, tmp_path: Path
) -> None:
    """Two validation sets; the starting model is scored on both and stays the best one."""
    valid = [{"src": str(tiny_corpus / f"{name}.src"), "tgt": str(tiny_corpus / f"{name}.tgt")}
             for name in ("valid", "test")]  # fmt: skip
    changes = {"max_steps": 4, "valid_every": 2, "init_from": str(tiny_run)}
    ruinous = {"peak_lr": 0.5, "warmup_steps": 1, "schedule": "constant"}
    config = quick_config({"data": {"valid": valid, "test": []}}, train=changes, optim=ruinous)
    outcome = train(config, tmp_path / "run", "cpu")
    assert outcome.exit_code == 0
    assert outcome.best is not None
    assert outcome.best.resolve().name == "step-00000000"
    assert says(outcome.reason, "which is the model that training started from")
    for kind, before in (("valid", "valid"), ("other valid", "test")):
        steps = {line["step"]: line["bleu"] for line in metrics_of(tmp_path / "run", kind)}
        assert [*steps] == [0, 2, 4]
        assert steps[0] > 50 > steps[4], before
    assert {line["name"] for line in metrics_of(tmp_path / "run", "other valid")} == {
        str(tiny_corpus / "test.src")
    }
    pictures, _ = draw_curves([read_run(tmp_path / "run", "run")])
    bleu = [picture for picture in pictures if "BLEU" in picture["title"]]
    assert sum(bool(picture["by_updates"]) for picture in bleu) == 2
    log = log_of(tmp_path / "run")
    assert says(log, "valid | step 0 |", "new best", "valid | step 4 |", "no new best")
    assert train(config, tmp_path / "run", "cpu").exit_code == 0  # scores nothing again
    assert len(metrics_of(tmp_path / "run", "valid")) == 3


def test_fresh_can_start_from_the_weights_of_the_same_run(
    base_of: BaseOf, quick_config: QuickConfig, tmp_path: Path
) -> None:
    """`--fresh` renames the folder after what it holds has been read."""
    run = tmp_path / "run"
    shutil.copytree(base_of(), run, symlinks=True)
    config = quick_config(NO_TEST, train={"init_from": str(run), "max_steps": 1})
    assert train(config, run, "cpu", fresh=True).exit_code == 0
    assert "pieces kept, 0 new, 0 dropped" in log_of(run)
    assert (run / "writing.json").is_file()


# --- messages ---------------------------------------------------------------------------------


def message(config: Config, run_dir: Path, kind: type[MtError]) -> str:
    with pytest.raises(kind) as error:
        train(config, run_dir, "cpu")
    return str(error.value)


FineTuned = Callable[..., Config]


@pytest.fixture
def fine_tuned(quick_config: QuickConfig) -> FineTuned:
    """`fine_tuned(base, {...})`: the config of a training that starts from this model."""
    return lambda base, *more: quick_config(NO_TEST, {"train": {"init_from": str(base)}}, *more)


def test_a_folder_without_a_model(base_of: BaseOf, fine_tuned: FineTuned, tmp_path: Path) -> None:
    empty, new, damaged = (tmp_path / name for name in ("empty", "new", "damaged"))
    empty.mkdir()
    (new / "checkpoints").mkdir(parents=True)
    shutil.copytree(base_of(), damaged, symlinks=True)
    weights = model_folder.find_model(damaged) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    kinds = "must be a run directory, a checkpoint, or an averaged or imported model"
    for base, *parts in (
        (tmp_path / "no", kinds, "nothing exists"),
        (empty, kinds, "neither meta.json nor checkpoints/best"),
        (new, kinds, "not saved a checkpoint yet", "wait"),
        (damaged, weights, "checksum differs", "another checkpoint"),
    ):
        said = message(fine_tuned(base), tmp_path / "run", CheckpointError)
        assert says(said, f"train.init_from {base}: ", *parts)
    assert not (tmp_path / "run").exists()


def test_train_and_config_check_say_the_same(tiny_config: Path, tmp_path: Path, mt: Mt) -> None:
    sets = ["-c", tiny_config, "--set", "train.init_from=no/run"]
    said = refused(mt("train", *sets, "--run-dir", tmp_path / "run"))
    assert says(said, "train.init_from no/run: ", "nothing exists")
    assert refused(mt("config", "check", *sets)) == said
    assert not (tmp_path / "run").exists()


TIED = "one matrix cannot be initialised from two"
CHANGED = {"vocab_size": 400, "type": "unigram", "character_coverage": 1.0}


def test_weights_that_do_not_fit_are_refused_with_all_reasons(
    base_of: BaseOf, fine_tuned: FineTuned, tmp_path: Path
) -> None:
    rows: list[Any] = [
        (
            {},
            {"model": {"d_model": 64, "attention_bias": False}},
            [["model.d_model is 32 there and 64 here", "model.attention_bias is true there and f"]],
        ),
        (
            {},
            {"model": {"n_heads": 4}, "tokenizer": CHANGED},
            [
                ["model.n_heads is 2 there and 4 here", "set what differs to the value there"],
                [
                    "tokenizer.vocab_size is 320 there and 400 here",
                    "tokenizer.type is bpe there and unigram here",
                    "tokenizer.character_coverage is null there and 1.0 here",
                    "train.new_vocabulary",
                ],
            ],
        ),
        (
            {"tokenizer": SPLIT},
            {"train": {"new_vocabulary": True}},
            [["source and target embedding", TIED, "tokenizer.joint or model.tie_embeddings"]],
        ),
        (
            {"model": {"tie_embeddings": False}},
            {"model": {"tie_embeddings": True}},
            [["target embedding and output", TIED, "model.tie_embeddings to false"]],
        ),
        (
            {"data": {"language_tokens": True}},
            {},
            [["data.language_tokens is true there", "new_v"]],
        ),
    ]
    for before, now, reasons in rows:
        base = base_of(**before)
        said = message(fine_tuned(base, now), tmp_path / "run", ConfigError)
        for line, parts in zip(said.split("\n"), reasons, strict=True):
            assert says(line, f"train.init_from {base}: ", *parts)
        assert not (tmp_path / "run").exists()


def test_initial_weights_are_fixed(base_of: BaseOf, fine_tuned: FineTuned, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(base_of(), run, symlinks=True)
    config = fine_tuned(base_of(), {"train": {"new_vocabulary": True}})
    init_from = f"train.init_from: was None, now {base_of()}"
    keys = init_from, "train.new_vocabulary: was False, now True"
    said = message(config, run, CheckpointError)
    assert says(said, f"run directory {run}: ", *keys, "set them back", "--fresh")


def test_invalid_values_of_the_config_keys() -> None:
    with pytest.raises(ConfigError) as error:
        config_from_mapping({"train": {"init_from": 3, "new_vocabulary": 1}}, "c")
    first, second = str(error.value).split("\n")
    assert says(first, "train.init_from: must be text or null, found 3", "quotes")
    assert says(second, "train.new_vocabulary: must be true or false, found 1")
