"""`mt export argos`: the package's layout, LibreTranslate itself, and all reasons at once."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest
from conftest import Mapped, Mt, TempPathFactory, config_of, refused
from messages import says
from sentencepiece import SentencePieceProcessor

from mt.data.tokens.tokenizer import Tokenizer
from mt.interop import argos
from mt.model.checkpoint import build_model, load_model, save_model_folder, weights_of

library = pytest.importorskip("ctranslate2")


@pytest.fixture(scope="module")
def package(tiny_run: Path, tmp_path_factory: TempPathFactory) -> Path:
    """A package made of the tiny run."""
    path = tmp_path_factory.mktemp("argos") / "de_en.argosmodel"
    argos.export(load_model(tiny_run), path, package_version="2.1")
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


WORD_XML = (
    '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>'
    "<w:p><w:r><w:t>drei fünf</w:t></w:r></w:p><w:p><w:r><w:t>acht</w:t></w:r></w:p>"
    "</w:body></w:document>"
)
OFFICE_XML = (
    '<office:document-content xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"><office:body><office:text>'
    "<text:p>drei fünf</text:p><text:p>acht</text:p></office:text></office:body>"
    "</office:document-content>"
)
# The program as it is, without the sentence splitter, whose model it would fetch.
SERVER = """
from argostranslate import sbd
sbd.MiniSBDSentencizer.split_sentences = lambda self, text: [text]
from libretranslate.main import main
main()
"""


def _post_file(url: str, name: str, content: bytes) -> bytes:
    """The server's translation of a document in German."""
    fields = "".join(
        f'--edge\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
        for key, value in (("source", "de"), ("target", "en"))
    )
    head = f'--edge\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    body = f"{fields}{head}".encode() + content + b"\r\n--edge--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=edge"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
        made = json.load(answer)["translatedFileUrl"]
    with urllib.request.urlopen(made, timeout=60) as answer:
        return bytes(answer.read())


@pytest.mark.slow
def test_libretranslate_translates_documents_with_it(package: Path, tmp_path: Path) -> None:
    """As mt/interop/README.md says, in an environment of its own."""
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    install = [python, "-m", "pip", "install", "-qq", "libretranslate==1.9.6"]
    if subprocess.run(install, timeout=400).returncode:
        pytest.skip("libretranslate cannot be installed here")
    home = {"HOME": str(tmp_path), "ARGOS_INTRA_THREADS": "1", "PYTHONPATH": ""}
    home |= {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("DATA", "CONFIG", "CACHE")}
    environment = os.environ | home
    put = f"from argostranslate import package; package.install_from_path({str(package)!r})"
    subprocess.run([python, "-c", put], env=environment, check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-c", SERVER, "--host", "127.0.0.1", "--port", str(port)]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log) as server,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 300
            while True:
                try:
                    urllib.request.urlopen(f"{url}/languages", timeout=5).close()
                    break
                except OSError:
                    assert server.poll() is None, (tmp_path / "log").read_text()[-2000:]
                    assert time.monotonic() < deadline, "the server does not answer"
                    time.sleep(0.5)
            for name, part, xml in (
                ("a.docx", "word/document.xml", WORD_XML),
                ("a.odt", "content.xml", OFFICE_XML),
            ):
                with zipfile.ZipFile(tmp_path / name, "w") as file:
                    file.writestr(part, xml)
                made = _post_file(f"{url}/translate_file", name, (tmp_path / name).read_bytes())
                with zipfile.ZipFile(io.BytesIO(made)) as file:
                    words = re.sub("<[^>]*>", "|", file.read(part).decode()).split("|")
                # With the server's length penalty, this small model says some words twice.
                assert [text.split()[0] for text in words if text.strip()] == ["three", "eight"]
        finally:
            server.terminate()
    shutil.rmtree(tmp_path / "venv")  # 600 MB


def test_all_reasons_at_once(mt: Mt, tiny_mapping: Mapped, tiny_run: Path, tmp_path: Path) -> None:
    model = Tokenizer.load(tiny_run).models[0]
    tokenizer = Tokenizer(model, model)
    config = config_of(
        tiny_mapping, tokenizer={"joint": False}, data={"src_lang": "en_GB", "tgt_lang": "en_GB"},
        model={"positions": "learned"},
    )  # fmt: skip
    weights = weights_of(build_model(config, tokenizer))
    meta = {"config": config.model_dump(mode="json"), "tokenizer": tokenizer.fingerprint, "step": 1}
    save_model_folder(tmp_path / "model", weights, meta, tokenizer=tokenizer)
    out = tmp_path / "de_en.zip"
    command = ("export", "argos", "-m", tmp_path / "model", "-o", out)
    same, suffix, version, joint, positions, source, target = refused(
        mt(*command, "--package-version", "new")
    ).split("\n")
    assert says(same, "--from-code", "another language", "'en_GB'")
    assert says(suffix, "--output", out, ".argosmodel")
    assert says(version, "--package-version", "1.0", "'new'")
    assert says(joint, "one SentencePiece model", "two", "tokenizer.joint: true")
    assert says(positions, "256 tokens", "64 learned positions", "sinusoidal")
    assert says(source, "--from-code", "language code", "'en_GB'", "data.src_lang")
    assert says(target, "--to-code", "language code", "'en_GB'", "data.tgt_lang")
    assert os.listdir(tmp_path) == ["model"]


def test_codes_that_contradict_the_model_and_a_package_that_exists(
    mt: Mt, tiny_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "de_en.argosmodel"
    command = ("export", "argos", "-m", tiny_run, "-o", out, "--from-code")
    message = refused(mt(*command, "en", "--to-code", "de"))
    assert says(message, "--from-code, --to-code", "(de to en)", "en to de", "leave the options")
    out.write_bytes(b"")
    assert says(refused(mt(*command[:-1])), "--output", out, "already exists", "remove it")
