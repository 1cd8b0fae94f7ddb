"""Models of the Hugging Face hub, imported by name from a hub that the tests serve themselves."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from conftest import MonkeyPatch, Mt, mt_command, refused
from hub_server import Hub, serve
from marian_models import KINDS, SAVED, write_marian
from messages import says
from safetensors.torch import load_file, save_file

from mt.files import read_json
from mt.interop.exporter import model_card
from mt.interop.huggingface_import import import_model
from mt.model.checkpoint import load_model
from mt.runs.model_folder import open_model, read_meta

NAME = "Owner/opus"
# Files of a model on the hub that mt has no use for.
OTHER_FILES = "tf_model.h5", "pytorch_model.bin"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: MonkeyPatch) -> Iterator[Hub]:
    """A hub with one model, which huggingface_hub takes for the hub; without transformers."""
    from huggingface_hub import constants

    folder = shutil.copytree(SAVED, tmp_path / "opus")
    for name in OTHER_FILES:
        (folder / name).write_bytes(b"not needed")
    monkeypatch.setitem(sys.modules, "transformers", cast("Any", None))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serve(Hub(models={NAME: folder})) as hub:
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        for constant, value in {
            "ENDPOINT": hub.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": template,
            "HF_HUB_CACHE": str(tmp_path / "hf"),
            "HF_TOKEN_PATH": str(tmp_path / "token"),
            "HF_HUB_OFFLINE": False,
            "DOWNLOAD_CHUNK_SIZE": 1000,  # bytes at a time
            "HF_HUB_DISABLE_XET": True,
        }.items():
            monkeypatch.setattr(constants, constant, value)
        yield hub


# --- import -----------------------------------------------------------------------------------


def test_imports_a_model_by_its_name(hub: Hub, tmp_path: Path, mt: Mt) -> None:
    (hub.models[NAME] / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    hub.cuts = 1  # the connection breaks once in the middle of the weights
    commit = hub.commit_of(NAME)
    ended = mt("import", "huggingface", NAME, "--revision", "v1", "-o", tmp_path / "by-name")
    assert ended.code == 0
    assert says(ended.err, "fetching the weights", commit, "10,026 parameters", NAME, commit)
    assert not {*OTHER_FILES} & {*hub.fetched()}
    assert any("model.safetensors bytes=23000-" in line for line in hub.asked)
    weights = [line for line in hub.asked if "/resolve/" in line and "model.safetensors" in line]
    assert all(f"/resolve/{commit}/" in line for line in weights)  # not of a newer commit
    assert not list(tmp_path.rglob("*.incomplete"))
    import_model(hub.models[NAME], tmp_path / "by-folder")
    metas = [read_meta(tmp_path / name, []) for name in ("by-name", "by-folder")]
    assert metas[0]["sha256"]["model.safetensors"] == metas[1]["sha256"]["model.safetensors"]
    assert metas[0]["history"] == metas[1]["history"]
    (corpus,) = metas[0]["history"][0]["corpora"]
    stated = "unknown: the model's card states cc-by-4.0"
    assert (corpus["name"], corpus["licence"]) == ("training data of opus", stated)
    assert metas[0]["imported"] == metas[1]["imported"] | {"hub": NAME, "commit": commit}
    card = model_card(load_model(tmp_path / "by-name"), "usage")
    assert says(card, f"Imported from {NAME}, commit {commit}")


def test_without_a_network_takes_what_was_fetched_before(
    hub: Hub, tmp_path: Path, mt: Mt, monkeypatch: MonkeyPatch
) -> None:
    from huggingface_hub import constants, snapshot_download

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    importing = "import", "huggingface", NAME, "-o", tmp_path / "imported"
    elsewhere = f"hf download {NAME} --local-dir FOLDER", "import FOLDER"
    assert says(refused(mt(*importing)), NAME, *elsewhere, "outgoing traffic has been disabled")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    snapshot_download(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    n_asked = len(hub.asked)
    assert mt(*importing).code == 0
    assert open_model(tmp_path / "imported").meta["imported"]["commit"] == hub.commit_of(NAME)
    assert len(hub.asked) == n_asked


def test_other_commands_say_how_to_import_it(tmp_path: Path, mt: Mt) -> None:
    remedy = f"mt import huggingface {NAME} -o FOLDER"
    assert says(refused(mt("translate", "--model", f"hf:{NAME}")), "--model hf:", remedy)
    text = {"src": "a", "tgt": "b"}
    (tmp_path / "config.yaml").write_text(
        json.dumps({"data": {"train": text}, "train": {"init_from": f"hf:{NAME}"}})
    )
    ended = mt("train", "--config", tmp_path / "config.yaml", "--run-dir", tmp_path / "run")
    assert says(refused(ended), "train.init_from hf:", remedy)


def test_messages(hub: Hub, tmp_path: Path, mt: Mt, monkeypatch: MonkeyPatch) -> None:
    from huggingface_hub import constants

    for model in ("gated", "t5", "tf"):
        hub.models[f"Owner/{model}"] = shutil.copytree(hub.models[NAME], tmp_path / model)
    hub.gated.add("Owner/gated")
    config = read_json(tmp_path / "t5" / "config.json") | {"model_type": "t5"}
    (tmp_path / "t5" / "config.json").write_text(json.dumps(config))
    for weights in ("model.safetensors", "pytorch_model.bin"):
        (tmp_path / "tf" / weights).unlink()
    cases: list[tuple[list[Any], list[str]]] = [
        (["hf:../.."], ["../..", "Repo id must use"]),
        (["Owner/opuss"], ["Owner/opuss", "no folder Owner/opuss here", "authenticated"]),
        ([NAME, "--revision", "v9"], [NAME, "Revision Not Found"]),
        (["Owner/gated"], ["Owner/gated", "gated repo"]),
        (["hf:Owner/t5"], ["Owner/t5: config.json", "must be marian, found t5"]),
        (["Owner/tf"], ["Owner/tf: needs weights", "found neither"]),
        ([SAVED, "--revision", "v1"], ["--revision", str(SAVED)]),
    ]
    for given, fragments in cases:
        message = refused(mt("import", "huggingface", *given, "-o", tmp_path / "x"))
        assert says(message.splitlines()[-1].removeprefix("mt: "), *fragments)
        assert "model.safetensors" not in hub.fetched()
    assert says(refused(mt("import", "huggingface", NAME, "-o", SAVED)), SAVED, "already exists")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    message = refused(mt("import", "huggingface", NAME, "-o", tmp_path / "x"))
    assert says(message, NAME, "a machine with a network", "refused")


# --- with transformers, and as a user would ---------------------------------------------------


@pytest.fixture
def real(tmp_path: Path) -> Iterator[tuple[Hub, dict[str, str]]]:
    """A hub, and the environment of commands that take it for the hub."""
    with serve(Hub()) as hub:
        home = str(tmp_path / "hf")
        yield hub, {"HF_HOME": home, "HF_HUB_DISABLE_XET": "1", "HF_ENDPOINT": hub.url}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[-1]])
def test_models_as_transformers_saves_them(
    real: tuple[Hub, dict[str, str]], kind: dict[str, Any], tmp_path: Path
) -> None:
    hub, environment = real
    write_marian(tmp_path / "marian", **kind)
    hub.models[NAME] = tmp_path / "marian"
    command, paths = mt_command("import", "huggingface", NAME, "-o", tmp_path / "named")
    ended = subprocess.run(
        command, env=environment | paths, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert says(ended.stderr, "compared with transformers", hub.commit_of(NAME))
    import_model(tmp_path / "marian", tmp_path / "local")
    assert [open_model(tmp_path / name).weights_hash for name in ("named", "local")] == [
        open_model(tmp_path / "local").weights_hash
    ] * 2


@pytest.mark.slow
def test_ctrl_c_ends_a_download_at_once(real: tuple[Hub, dict[str, str]], tmp_path: Path) -> None:
    hub, environment = real
    hub.models[NAME] = shutil.copytree(SAVED, tmp_path / "opus")
    weights = load_file(SAVED / "model.safetensors") | {"unused": torch.zeros(8_000_000)}
    save_file(weights, tmp_path / "opus" / "model.safetensors", {"format": "pt"})
    hub.stalls = True
    command, paths = mt_command("import", "huggingface", NAME, "-o", tmp_path / "imported")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment | paths, text=True, stderr=pipe) as process:
        while not any("GET /Owner" in line and "model.s" in line for line in hub.asked):
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert says(process.communicate(timeout=60)[1], "interrupted")
    assert process.returncode == 130
    hub.stalls = False
    again = subprocess.run(
        command, env=environment | paths, text=True, capture_output=True, check=False
    )
    assert again.returncode == 0, again.stderr
    assert (hub.fetched().count("source.spm"), hub.fetched().count("model.safetensors")) == (1, 2)
    assert not list(tmp_path.rglob("*.incomplete"))
