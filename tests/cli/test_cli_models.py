"""What `--model` takes, a message for each folder that is no model; and `mt average`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Mt, TempPathFactory, equal_weights, refused
from messages import says
from model_files import changed_meta, drop, flip, truncate
from torch import Tensor

from mt.model.checkpoint import average_run, load_weights
from mt.runs.model_folder import checkpoints, step_name


@pytest.fixture(scope="module")
def exported(tiny_run: Path, tmp_path_factory: TempPathFactory) -> Path:
    """A complete model folder: the newest weights, tokenizer and meta.json."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    average_run(tiny_run, 1, folder)
    return folder


def harmed(harm: Callable[[Path], None], name: str) -> Callable[[Path], None]:
    """Harm the file `name` of a folder."""
    return lambda folder: harm(folder / name)


def meta(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Change the tree in meta.json."""

    def rewrite(folder: Path) -> None:
        path = folder / "meta.json"
        path.write_text(json.dumps(change(json.loads(path.read_bytes()))), encoding="utf-8")

    return rewrite


def nest(path: Path) -> None:
    path.write_text("[" * 9999)


def lacking(key: str) -> Callable[[Any], Any]:
    """Remove a key of meta.json."""
    return lambda tree: {name: value for name, value in tree.items() if name != key}


def wider(tree: Any) -> Any:
    """Make the config in meta.json that of a larger model."""
    tree["config"]["model"]["d_model"] = 64
    return tree


def test_a_damaged_model_folder(mt: Mt, exported: Path, tmp_path: Path) -> None:
    for number, (harm, expected) in enumerate([
        (harmed(drop, "meta.json"), ["a run directory, a checkpoint", "meta.json"]),
        (harmed(drop, "model.safetensors"), ["model.safetensors", "No such file", "use another"]),
        (harmed(drop, "tokenizer.model"), ["tokenizer.model"]),
        (harmed(flip, "model.safetensors"), ["model.safetensors", "checksum", "use another"]),
        (harmed(truncate, "tokenizer.model"), ["tokenizer"]),
        (harmed(nest, "meta.json"), ["meta.json", "too deep"]),
        (meta(lambda tree: tree | {"format": 99}), ["newer mt", "99", "install"]),
        (meta(lambda tree: tree | {"format": 1}), ["made by mt 0.2 or before", "train anew"]),
        (meta(lambda tree: {"format": 1}), ["not a complete", "meta.json"]),
        (meta(lambda tree: tree | {"config": 3}), ["meta.json"]),
        (meta(lacking("config")), ["meta.json", "config"]),
        (meta(lacking("tokenizer")), ["meta.json", "tokenizer"]),
        (meta(lambda tree: tree | {"tokenizer": "0" * 64}), ["its tokenizer is not the one"]),
        (meta(wider), ["the weights do not fit", "(64,)", "(32,)", "copy both"]),
    ]):  # fmt: skip
        folder = shutil.copytree(exported, tmp_path / f"model-{number}")
        harm(folder)
        assert says(refused(mt("translate", "-m", folder, stdin=b"eins\n")), folder, *expected)


def test_a_path_that_is_no_model(mt: Mt, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "young" / "checkpoints").mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"x")
    for name in ("other", "marian"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": name}))
    neither = "it contains neither meta.json nor checkpoints/best"
    young = "this run has not saved a checkpoint yet; wait for"
    problems = {"nowhere": "nothing exists", "empty": neither, "file": neither, "young": young}
    problems |= dict.fromkeys(("other", "marian"), "for another program")
    for name, problem in problems.items():
        message = refused(mt("translate", "-m", tmp_path / name, stdin=b"eins\n"))
        assert says(message, f"--model {tmp_path / name}", "a run directory", problem)
        assert ("mt import huggingface" in message) == (name == "marian")


# --- mt average -----------------------------------------------------------------------------------


def assert_mean(mean: Path, one: Path, two: Path) -> None:
    """The weights of two folders differ, and those of `mean` lie in the middle."""
    first, second = load_weights(one), load_weights(two)
    assert not equal_weights(first, second)
    expected: Mapping[str, Tensor] = {name: (first[name] + second[name]) / 2 for name in first}
    torch.testing.assert_close(load_weights(mean), expected, rtol=0, atol=1e-7)


@pytest.fixture
def scored(copied_run: Path) -> Path:
    """A run of four checkpoints: three with the scores 1, 3, 2 and one without."""
    one, two = checkpoints(copied_run)
    for number, folder, score in ((501, one, 1), (502, two, 3), (503, one, 2), (504, two, None)):
        copy = copied_run / "checkpoints" / step_name(number)
        shutil.copytree(folder, copy)
        with changed_meta(copy) as meta:
            meta |= {"score": score, "scored": None, "step": number}  # as an earlier mt wrote it
    shutil.rmtree(one)
    shutil.rmtree(two)
    return copied_run


def test_best_checkpoints_are_chosen_by_their_score(mt: Mt, scored: Path, tmp_path: Path) -> None:
    mean = tmp_path / "mean"
    ended = mt("average", scored, "--best", 2, "-o", mean)
    assert (ended.code, ended.out) == (0, b"")
    assert says(ended.err, "mt: ", "2 checkpoints", "[502, 503]", mean)
    assert_mean(mean, *(scored / "checkpoints" / step_name(number) for number in (502, 503)))
    for arguments, parts in (
        ([], (scored, "--last 5 (the default)", "keeps 4", "fewer", "train.keep_last")),
        (["--best", 4], (scored, "--best 4", "keeps 3 with a score", "fewer", "train.keep_best")),
        (["--best", 2, "--last", 2], ("--last, --best", "one of them")),
    ):
        assert says(refused(mt("average", scored, *arguments, "-o", tmp_path / "new")), *parts)
    # Scores of another metric, or on another text, are no scores of this validation.
    with changed_meta(checkpoints(scored)[1]) as meta:
        meta["scored_on"] = "another set"
    ended = mt("average", scored, "--best", 2, "-o", tmp_path / "others")
    assert says(ended.err, "2 checkpoints", "[501, 503]")


def test_several_models_are_averaged_by_their_weights(mt: Mt, scored: Path, tmp_path: Path) -> None:
    first, second = checkpoints(scored)[:2]
    mean = tmp_path / "mean"
    ended = mt("average", first, second, "--weights", "3,1", "-o", mean)
    assert (ended.code, ended.out) == (0, b"")
    assert says(ended.err, f"75% {first}", f"25% {second}", mean)
    old, new, made = (load_weights(folder) for folder in (first, second, mean))
    for name, weight in made.items():
        assert torch.allclose(weight, 0.75 * old[name] + 0.25 * new[name], atol=1e-7)
    assert json.loads((mean / "meta.json").read_bytes())["mixed"][0] == [str(first), 3.0]
    assert mt("translate", "--model", mean, stdin=b"eins\n").code == 0
    for arguments, parts in (
        ([first, second, "--weights", "1"], ("--weights 1", "2 numbers", "0.5,0.5")),
        ([first, second, "--weights", "1,-1"], ("--weights 1,-1", "2 numbers")),
        ([first, second, "--last", 2], ("--last, --best", "one run")),
        ([scored, "--weights", "1"], ("--weights", "several models", "found one")),
        ([first, tmp_path / "none"], ("MODEL", "none", "nothing exists")),
    ):
        assert says(refused(mt("average", *arguments, "-o", tmp_path / "new")), *parts)
    assert not (tmp_path / "new").exists()


def test_checkpoints_of_another_model_or_with_another_tokenizer_are_refused(
    mt: Mt, scored: Path, tmp_path: Path
) -> None:
    folders = checkpoints(scored)
    average = ("average", scored, "--last", 2, "-o", tmp_path / "mean")

    for heads in (1, 4):
        with changed_meta(folders[2]) as meta:
            meta["config"]["model"]["n_heads"] = heads
        assert says(refused(mt(*average)), folders[3], "not the same model as", folders[2])
    with changed_meta(folders[2]) as meta:  # a resumed run may change these
        meta["config"]["model"] |= {"n_heads": 2, "dropout": 0.5, "max_positions": 99}
    assert mt("average", scored, "--last", 2, "-o", tmp_path / "resumed").code == 0
    with changed_meta(folders[1]) as meta:
        meta["score"] = "high"
    assert says(refused(mt("average", scored, "--best", 3, "-o", tmp_path / "mean")), "keeps 2")
    assert not (tmp_path / "mean").exists()


def test_an_average_is_the_mean_and_translates(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    source, mean = tiny_corpus / "test.src", tmp_path / "mean"
    one, two = checkpoints(tiny_run)[-2:]
    ended = mt("average", tiny_run, "--last", 2, "-o", mean)
    assert says(ended.err, "mt: ", "2 checkpoints", "[100, 200]", mean)
    assert_mean(mean, one, two)
    assert len(mt("translate", "-m", mean, source).lines) == 40
    ended = mt("average", tiny_run, "--last", 1, "-o", tmp_path / "newest")
    assert says(ended.err, "1 checkpoint (updates [200])")
    assert equal_weights(load_weights(tmp_path / "newest"), load_weights(two))
    for run, output, parts in (
        (tiny_run, mean, (f"--output {mean}", "already exists", "another path")),
        (tmp_path / "no", tmp_path / "new", (tmp_path / "no", "nothing exists")),
        (tmp_path, tmp_path / "new", (tmp_path, "a run directory", "no checkpoint")),
        (tiny_run, source / "new", (source / "new", "cannot be saved")),
    ):
        assert says(refused(mt("average", run, "--last", 1, "-o", output)), *parts)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mean", "newest"]
    hidden = tmp_path / "new" / ".." / "mean"  # which is not there until `new` is
    assert says(refused(mt("average", tiny_run, "--last", 1, "-o", hidden)), "already exists")
    assert_mean(mean, one, two)
