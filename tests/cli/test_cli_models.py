"""What `--model` takes, and the message for each folder that is not a model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Mt, refused
from messages import says
from model_files import drop, flip, truncate

from mt.model.checkpoint import average_run


@pytest.fixture(scope="module")
def exported(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_bytes(b"{}")
    neither = "it contains neither meta.json nor checkpoints/best"
    young = "this run has not saved a checkpoint yet; wait for"
    problems = {"nowhere": "nothing exists", "empty": neither, "file": neither, "young": young}
    problems["other"] = "for another program"
    for name, problem in problems.items():
        message = refused(mt("translate", "-m", tmp_path / name, stdin=b"eins\n"))
        assert says(message, f"--model {tmp_path / name}", "a run directory", problem)
