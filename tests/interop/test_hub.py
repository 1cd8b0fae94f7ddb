"""Models of the Hugging Face hub by name, from and to a hub that the tests serve themselves."""

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
from conftest import Mt, mt_command, refused
from hub_server import PUSHED, TOKEN, Hub, serve
from marian_models import KINDS, SAVED, write_marian
from messages import raises_saying, says
from safetensors.torch import load_file, save_file

from mt.errors import MtError
from mt.files import read_json
from mt.interop.hub import push
from mt.interop.huggingface_import import import_model
from mt.interop.model_card import model_card
from mt.model.checkpoint import load_model
from mt.runs.manifest import read_manifest
from mt.runs.model_folder import read_folder, read_meta

NAME = "Owner/opus"
# Files of a model on the hub that mt has no use for.
OTHER_FILES = "tf_model.h5", "pytorch_model.bin"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of mt."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mt" / "models"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[Hub]:
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
    from_hub = {"hub": NAME, "commit": commit}
    assert metas[0]["imported"] == metas[1]["imported"] | from_hub
    card = model_card(load_model(tmp_path / "by-name"), "usage")
    assert says(card, f"Imported from {NAME}, commit {commit}")


def test_nothing_is_fetched_to_complete_a_word(
    hub: Hub, mt: Mt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_MT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"mt translate --model hf:{NAME} --to ")
    monkeypatch.setenv("COMP_CWORD", "5")
    assert mt().out.strip() == b""
    assert hub.asked == []


def test_commands_take_the_name(
    hub: Hub, cache: Path, tmp_path: Path, tiny_corpus: Path, mt: Mt, monkeypatch: Any
) -> None:
    to = ["--model", f"hf:{NAME}", "--to", "deu"]
    first = mt("translate", *to, stdin=b"Die kleine Katze\n")
    assert says(first.err, f"hf:{NAME}", hub.commit_of(NAME), f"kept in {cache / 'Owner--opus'}")
    n_asked = len(hub.asked)
    shutil.rmtree(hub.models.pop(NAME))
    again = mt("translate", *to, "--engine", "torch", stdin=b"Die kleine Katze\n")
    assert (again.code, again.out) == (0, first.out)
    text = ["--src", tiny_corpus / "test.src"]
    assert mt("evaluate", *to, *text, "--ref", tiny_corpus / "test.tgt").code == 0
    assert mt("score", "--model", f"hf:{NAME}", *text, "--tgt", tiny_corpus / "test.tgt").code == 0
    config = tmp_path / "config.yaml"
    # The imported folder has a config to fine-tune it.
    config.write_bytes((cache / "Owner--opus" / "config.yaml").read_bytes())
    train = {side: str(tiny_corpus / f"train.{side}") for side in ("src", "tgt")}
    settings = [
        f"train.init_from=hf:{NAME}",
        "train.max_steps=1",
        f"data.train={json.dumps(train)}",
    ]
    settings += ["train.precision=fp32", "train.compile=false"]
    given = [word for setting in settings for word in ("--set", setting)]
    assert mt("train", "--config", config, "--run-dir", tmp_path / "run", *given).code == 0
    origin = read_manifest(tmp_path / "run")["init_from"]
    assert (origin["imported"]["hub"], len(origin["imported"]["commit"])) == (NAME, 40)
    assert len(hub.asked) == n_asked


def test_without_a_network_takes_what_was_fetched_before(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants, snapshot_download

    snapshot_download(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    n_asked = len(hub.asked)
    assert read_folder(Path(f"hf:{NAME}")).meta["imported"]["commit"] == hub.commit_of(NAME)
    assert len(hub.asked) == n_asked


def test_messages(hub: Hub, tmp_path: Path, mt: Mt) -> None:
    for model in ("gated", "t5", "tf"):
        hub.models[f"Owner/{model}"] = shutil.copytree(hub.models[NAME], tmp_path / model)
    hub.gated.add("Owner/gated")
    config = read_json(tmp_path / "t5" / "config.json") | {"model_type": "t5"}
    (tmp_path / "t5" / "config.json").write_text(json.dumps(config))
    for weights in ("model.safetensors", "pytorch_model.bin"):
        (tmp_path / "tf" / weights).unlink()
    for name, fragments in [
        ("hf:opus", ["--model hf:opus", "must be hf:OWNER/NAME"]),
        ("hf:../..", ["hf:../..: cannot be fetched", "'../..'; correct the name"]),
        ("hf:Owner/opuss", ["hf:Owner/opuss", "no http", "Owner/opuss", "private", "HF_TOKEN"]),
        ("hf:Other/opus", ["hf:Other/opus", "did you mean Owner/opus?"]),
        (f"hf:{NAME}@v9", [f"hf:{NAME}@v9", "no such revision", "branch, tag or commit"]),
        ("hf:Owner/gated", ["hf:Owner/gated", "is gated", "licence at http", "HF_TOKEN"]),
        ("hf:Owner/t5", ["hf:Owner/t5: config.json", "must be marian, found t5"]),
        ("hf:Owner/tf", ["hf:Owner/tf: needs weights", "found neither"]),
    ]:
        message = refused(mt("translate", "--model", name)).splitlines()
        assert says(message[-1].removeprefix("mt: "), *fragments)
        assert "model.safetensors" not in hub.fetched()


def test_messages_without_a_network_or_a_cache(
    hub: Hub, mt: Mt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    (tmp_path / "file").touch()
    place = tmp_path / "file" / "folder"  # which nobody can make
    elsewhere = f"hf download {NAME} --local-dir FOLDER", "mt import huggingface FOLDER"
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        message = refused(mt("translate", "--model", f"hf:{NAME}"))
        assert says(message, f"hf:{NAME}", "HF_HUB_OFFLINE is set; unset it", *elsewhere)
    with monkeypatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
        message = refused(mt("translate", "--model", f"hf:{NAME}"))
        assert says(message, "http://127.0.0.1:9", "refused", "network", *elsewhere)
    with monkeypatch.context() as patch:
        patch.setattr(constants, "HF_HUB_CACHE", str(place))
        message = refused(mt("translate", "--model", f"hf:{NAME}"))
        assert says(message, tmp_path / "file", "set HF_HOME to a folder of yours")
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place))
        message = refused(mt("translate", "--model", f"hf:{NAME}"))
        parts = f"--model hf:{NAME}", place, "XDG_CACHE_HOME", f"mt import huggingface hf:{NAME}"
        assert says(message, *parts)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "mt.interop.hub", cast("Any", None))
        message = refused(mt("translate", "--model", f"hf:{NAME}"))
        assert says(message, f"--model hf:{NAME}", "mt.interop.hub", "install")
    importing = "import", "huggingface"
    assert says(refused(mt(*importing, SAVED, "--revision", "v1", "-o", "x")), "--revision", SAVED)
    two = mt(*importing, f"hf:{NAME}@v1", "--revision", "v2", "-o", "x")
    assert says(refused(two), f"hf:{NAME}@v1", "--revision v2", "leave one out")
    assert says(refused(mt(*importing, NAME, "-o", SAVED)), SAVED, "already exists")
    message = refused(mt(*importing, "models/opus", "-o", "x"))
    assert says(message, "there is no folder models/opus here; hf:models/opus", "Owner/opus?")
    assert "folder" not in refused(mt(*importing, "hf:models/opus", "-o", "x"))


# --- push -------------------------------------------------------------------------------------


def test_pushes_a_folder_as_one_commit(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for name, private in (("me/new", True), ("me/open", False)):
        report = push(SAVED, name, private)
        assert says(report, f"{hub.url}/{name}", "private" if private else "public", PUSHED)
        assert hub.pushed[name] == {path.name: path.read_bytes() for path in SAVED.iterdir()}
    hub.refuses_commits = True
    later = f"hf upload me/new {SAVED}"
    with raises_saying(MtError, "--push me/new", SAVED, "whole", "refuses", "HF_TOKEN", later):
        push(SAVED, "me/new", private=True)


def test_nothing_is_exported_that_cannot_be_pushed(
    hub: Hub, tiny_run: Path, tmp_path: Path, mt: Mt, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "exported"
    export = "export", "huggingface", "--model", tiny_run, "-o", output
    assert says(refused(mt(*export, "--public")), "--public: only with --push")
    assert says(refused(mt(*export, "--push", "me")), "--push me", "OWNER/NAME")
    message = refused(mt(*export, "--push", "me/new"))
    assert says(message, "--push me/new", "token", "found none", "HF_TOKEN", "hf auth login")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    message = refused(mt(*export, "--push", "me/new"))
    assert says(message, "--push me/new", "nothing was exported", "refuses", "HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    message = refused(mt(*export, "--push", "me/new"))  # the export itself fails
    assert says(message, "needs the package transformers")
    assert (output.exists(), hub.pushed, hub.private) == (False, {}, {})


# --- with transformers, and as a user would ---------------------------------------------------


@pytest.fixture
def real(tmp_path: Path, cache: Path) -> Iterator[tuple[Hub, dict[str, str]]]:
    """A hub, and the environment of commands that take it for the hub."""
    environment = {
        **{"HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(cache.parents[1])},
        **{"HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN},
    }
    with serve(Hub()) as hub:
        yield hub, environment | {"HF_ENDPOINT": hub.url}


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
    assert [read_folder(tmp_path / name).weights_hash for name in ("named", "local")] == [
        read_folder(tmp_path / "local").weights_hash
    ] * 2


@pytest.mark.slow
def test_ctrl_c_ends_a_download_at_once(real: tuple[Hub, dict[str, str]], tmp_path: Path) -> None:
    hub, environment = real
    hub.models[NAME] = shutil.copytree(SAVED, tmp_path / "opus")
    weights = load_file(SAVED / "model.safetensors") | {"unused": torch.zeros(8_000_000)}
    save_file(weights, tmp_path / "opus" / "model.safetensors", {"format": "pt"})
    hub.stalls = True
    command, paths = mt_command("translate", "--model", f"hf:{NAME}", "--to", "deu")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment | paths, text=True, stdin=pipe, stderr=pipe
    ) as process:
        while not any("GET /Owner" in line and "model.s" in line for line in hub.asked):
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert says(process.communicate(timeout=60)[1], "interrupted")
    assert process.returncode == 130
    hub.stalls = False
    again = subprocess.run(
        command, env=environment | paths, text=True, input="Nein\n", capture_output=True
    )
    assert (again.returncode, again.stdout.count("\n")) == (0, 1), again.stderr
    assert (hub.fetched().count("source.spm"), hub.fetched().count("model.safetensors")) == (1, 2)
    assert not list(tmp_path.rglob("*.incomplete"))


@pytest.mark.slow
def test_what_is_pushed_can_be_imported(
    real: tuple[Hub, dict[str, str]], tiny_run: Path, tmp_path: Path
) -> None:
    hub, environment = real
    given = "--model", tiny_run, "-o", tmp_path / "exported", "--push", "me/new"
    command, paths = mt_command("export", "huggingface", *given)
    ended = subprocess.run(
        command, env=environment | paths, text=True, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert says(ended.stderr, "pushed to", "me/new (private)", PUSHED)
    (tmp_path / "pushed").mkdir()
    for name, content in hub.pushed.pop("me/new").items():
        (tmp_path / "pushed" / name).write_bytes(content)
    assert "library_name: transformers" in (tmp_path / "pushed" / "README.md").read_text()
    hub.models["me/new"] = tmp_path / "pushed"
    command, paths = mt_command("import", "huggingface", "me/new", "-o", tmp_path / "back")
    ended = subprocess.run(
        command, env=environment | paths, text=True, capture_output=True, check=False
    )
    assert says(ended.stderr, "compared with transformers", "me/new"), ended.stderr
