"""`mt export argos`: the package's layout, Argos Translate itself, and all reasons at once."""

from __future__ import annotations

import json
import os
import re
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Mt, config_of, refused
from messages import says
from sentencepiece import SentencePieceProcessor

from mt.data.tokens.tokenizer import Tokenizer
from mt.interop import argos
from mt.model.checkpoint import build_model, load_model, save_model_folder, weights_of
from mt.runtime.devices import cpu_has

library = pytest.importorskip("ctranslate2")


@pytest.fixture(scope="module")
def package(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package made of the tiny run."""
    path = tmp_path_factory.mktemp("argos") / "de_en.argosmodel"
    said: list[str] = []
    names = argos.Names(version="2.1")
    # Without VNNI the sums of int8 products saturate, and this small model notices.
    quantization = "int8" if cpu_has("vnni") else "float32"
    argos.export_package(load_model(tiny_run), path, names, quantization, said.append)
    parity, compared = said
    assert "have the same log-probability, within " in parity
    same = re.search(r"first 40 lines of data.valid: (\d+) translations are the same", compared)
    assert same is not None
    assert int(same[1]) >= 36
    return path


def test_a_package_has_what_the_loader_reads(package: Path, tmp_path: Path) -> None:
    """The rules of argostranslate 1.11: `package.Package` and `translate.PackageTranslation`."""
    with zipfile.ZipFile(package) as zipped:
        zipped.extractall(tmp_path)
    (folder,) = tmp_path.iterdir()
    assert folder.name == "translate-de_en-2_1"
    metadata = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    assert metadata == {
        "package_version": "2.1", "argos_version": "1.9",
        "from_code": "de", "from_name": "German", "to_code": "en", "to_name": "English",
    }  # fmt: skip
    names = {"README.md", "metadata.json", "sentencepiece.model", "model"}
    assert {path.name for path in folder.iterdir()} == names
    assert not list((folder / "model").glob("*.model"))
    assert "German to English" in (folder / "README.md").read_text(encoding="utf-8")
    # No eos is added to the source and no prefix is given, so the model must do without.
    assert json.loads((folder / "model" / "config.json").read_text())["add_source_eos"] is True
    processor = SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    translator = library.Translator(str(folder / "model"), compute_type="auto")
    (result,) = translator.translate_batch(
        [processor.encode("drei fünf", out_type=str)], target_prefix=None, replace_unknowns=True,
        max_batch_size=32, batch_type="tokens", beam_size=4, num_hypotheses=4,
        length_penalty=0.2, return_scores=True,
    )  # fmt: skip
    assert len(result.hypotheses) == 4
    texts = [processor.decode_pieces(pieces) for pieces in result.hypotheses]
    assert "three five" in texts  # first or not: with a length penalty of 0.2, and a small model


def test_argos_translate_installs_it_and_translates(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    pytest.importorskip("argostranslate")
    from argostranslate import package as packages
    from argostranslate import translate

    packages.install_from_path(package)
    (installed,) = packages.get_installed_packages()
    assert str(installed) == "German → English"
    translation: Any = translate.get_translation_from_codes("de", "en")
    # It would fetch the model of its sentence splitter.
    translation.underlying.sentencizer.split_sentences = lambda text: [text]
    assert translation.translate("drei fünf\nacht") == "three five\neight"


def test_all_reasons_at_once(
    mt: Mt, tiny_mapping: Mapping[str, Any], tiny_run: Path, tmp_path: Path
) -> None:
    model = Tokenizer.load(tiny_run).models[0]
    tokenizer = Tokenizer(model, model)
    config = config_of(
        tiny_mapping,
        tokenizer={"joint": False},
        data={"src_lang": "src", "tgt_lang": "en_GB"},
        model={"positions": "learned"},
    )
    weights = weights_of(build_model(config, tokenizer))
    meta = {"config": config.model_dump(mode="json"), "tokenizer": tokenizer.fingerprint, "step": 1}
    save_model_folder(tmp_path / "model", weights, meta, tokenizer=tokenizer)
    out = tmp_path / "de_en.zip"
    command = ("export", "argos", "-m", tmp_path / "model", "-o", out)
    suffix, version, joint, positions, source, target = refused(
        mt(*command, "--package-version", "new")
    ).split("\n")
    assert says(suffix, "--output", out, ".argosmodel")
    assert says(version, "--package-version", "1.0", "'new'")
    assert says(joint, "one SentencePiece model", "two", "tokenizer.joint: true")
    assert says(positions, "256 tokens", "64 learned positions", "sinusoidal")
    assert says(source, "--from-code", "language code", "'src'", "data.src_lang")
    assert says(target, "--to-code", "language code", "'en_GB'", "data.tgt_lang")
    assert os.listdir(tmp_path) == ["model"]


def test_a_full_temporary_folder_and_a_package_that_exists(
    mt: Mt, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(argos, "model_card", full)
    out = tmp_path / "de_en.argosmodel"
    command = ("export", "argos", "-m", tiny_run, "-o", out)
    message = refused(mt(*command, "--from-code", "de", "--to-code", "en"))
    assert says(message, "--output", out, "No space left on device", tempfile.gettempdir())
    assert list(tmp_path.iterdir()) == []
    out.write_bytes(b"")
    assert says(refused(mt(*command)), "--output", out, "already exists", "remove it")
