"""`mt data get`: from a local index and a server on 127.0.0.1; no other network is asked."""

from __future__ import annotations

import importlib
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from conftest import mt_command
from messages import says
from typer.testing import CliRunner, Result

from mt.cli.main import app
from mt.config.schema import Source
from mt.data.reading.corpus import read_pairs
from mt.errors import MtError
from mt.files import sha256_of

DE, EN = "eins\nzwei\n" * 500, "one\ntwo\n" * 500
TMX = "<tmx><body><tu><tuv xml:lang='de'><seg>a <b/> b</seg></tuv></tu></body></tmx>"
DIGITS = "mtdata:Test-digits-1-eng-deu"


class Server(ThreadingHTTPServer):
    """Files, of which some answers are cut."""

    files: dict[str, bytes]
    cut: dict[str, int]  # bytes after which the next answer for a path ends
    asked: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = urlsplit(self.path).path  # a proxy is asked for a whole URL
        body = self.server.files.get(path, b"")
        self.server.asked.append(path)
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut.pop(path, len(body))])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    english = EN.encode() + b"caf\xe9 a\xe2\x80\xa8b\n"  # Latin-1, and a U+2028
    with Server(("127.0.0.1", 0), Handler) as server:
        server.files = {
            "/d.de": (DE + "x\n").encode(), "/d.en": english, "/memory.tmx": TMX.encode(),
        }  # fmt: skip
        server.cut, server.asked = {}, []
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        monkeypatch.delenv("http_proxy", raising=False)
        monkeypatch.chdir(tmp_path)
        index_of(f"http://127.0.0.1:{server.server_port}", tmp_path, monkeypatch)
        yield server
        server.shutdown()


def index_of(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give mtdata an index of four corpora, which its own code makes with a loader of ours."""
    mtdata = pytest.importorskip("mtdata")

    def load_all(index: Any) -> None:
        from mtdata.entry import Entry

        if not index.entries:
            urls, cite = (f"{url}/d.en", f"{url}/d.de"), ("tiedemann2012parallel",)
            index += Entry("Test-digits-1-eng-deu", urls, ext="txt", cite=cite)
            index += Entry("Test-one-1-deu", f"{url}/d.de", ext="txt")
            index += Entry("OPUS-memory-1-deu-eng", f"{url}/memory.tmx")
            index += Entry("Test-gone-1-deu-eng", f"{url}/gone.tmx")

    cached = folder / ".mtdata" / url.replace("/", "_")
    monkeypatch.setattr(mtdata, "cached_index_file", cached)
    for name in [name for name in sys.modules if name.startswith("mtdata.")]:
        monkeypatch.delitem(sys.modules, name)
    with monkeypatch.context() as patch:
        patch.setattr(
            importlib, "import_module", lambda *_, **__: SimpleNamespace(load_all=load_all)
        )
        importlib.__import__("mtdata.index")


def get(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["data", "get", "--langs", "de-en", *arguments])
    assert isinstance(result.exception, MtError | SystemExit | None), result.exception
    return result


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def test_a_corpus_comes_with_citation_and_digests(server: Server, tmp_path: Path) -> None:
    result = get(DIGITS, "-o", "digits")
    assert result.exit_code == 0, result.stderr
    assert says(result.stderr, "in 1 of 1,001 pairs", "not stated by mtdata; see https://127.0.0.1")
    assert "INFO" not in result.output
    folder = tmp_path / "digits"
    files = {"corpus.de": DE + "x\n", "corpus.en": EN + "caf\ufffd a\u2028b\n"}
    assert contents(folder).items() >= files.items()
    assert {path.name for path in folder.iterdir()} == {*files, "corpus.yaml"}
    record = yaml.safe_load((folder / "corpus.yaml").read_text())
    expected = {
        "source": DIGITS, "name": "Test-digits", "version": "1", "languages": ["de", "en"],
        "url": [f"http://127.0.0.1:{server.server_port}/d.{side}" for side in ("en", "de")],
    }  # fmt: skip
    assert record.items() >= expected.items()
    assert says(record["citation"], "@inproceedings{tiedemann2012parallel", "Parallel Data")
    assert record["files"]["corpus.de"] == {
        "bytes": len(files["corpus.de"]), "sha256": sha256_of(folder / "corpus.de"),
    }  # fmt: skip
    source = Source(path="digits", src="de", tgt="en")  # what is beside the texts is no hindrance
    assert len(list(read_pairs(source, tmp_path, "data.train"))) == 1001

    server.asked.clear()  # nothing is asked for the second time
    assert says(get(DIGITS, "-o", "digits").stderr, "nothing to do", "2 files")
    assert server.asked == []
    result = get("mtdata:OPUS-memory-1-deu-eng", "-o", "memory")
    assert says(result.stderr, "licence: not stated by mtdata; see https://opus.nlpl.eu")
    assert contents(tmp_path / "memory")["corpus.tmx"] == TMX  # not through mtdata's parser


def test_a_record_alone_brings_back_the_same_files_or_none(server: Server, tmp_path: Path) -> None:
    get(DIGITS, "-o", "digits")
    folder = tmp_path / "digits"
    before = contents(folder)
    (folder / "corpus.en").unlink()
    assert get(DIGITS, "-o", "digits").exit_code == 0
    assert contents(folder) == before
    (folder / "corpus.en").unlink()
    without = contents(folder)
    server.files["/d.de"] = server.files["/d.de"].upper()
    result = get(DIGITS, "-o", "digits")
    assert result.exit_code == 2
    assert says(result.stderr, "corpus.de is not what it was", "SHA-256", "--overwrite")
    assert contents(folder) == without
    assert get(DIGITS, "-o", "digits", "--overwrite").exit_code == 0
    assert contents(folder)["corpus.de"] == (DE + "x\n").upper()


def test_after_a_download_that_breaks_off_whole_files_are_kept(
    server: Server, tmp_path: Path
) -> None:
    server.cut["/d.de"] = 100
    result = get(DIGITS, "-o", "digits")
    assert result.exit_code == 2
    assert says(result.stderr, DIGITS, "cannot fetch or read it", "https_proxy", "run the command")
    assert [path.name for path in (tmp_path / "digits").iterdir()] == [".partial"]
    assert get(DIGITS, "-o", "digits").exit_code == 0
    assert server.asked == ["/d.en", "/d.de", "/d.de"]
    assert contents(tmp_path / "digits")["corpus.de"] == DE + "x\n"


@pytest.mark.usefixtures("server")
def test_a_wrong_request_is_refused_with_a_remedy(tmp_path: Path) -> None:
    for name in ("digits", "changed"):
        get(DIGITS, "-o", name)
    (tmp_path / "changed" / "corpus.de").write_text((DE + "x\n").upper())  # as long as before
    for name, text in (("mine/a.txt", "a"), ("other/corpus.yaml", "a: 1")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for arguments, said in [
        (["opus:Digits/v1", "-o", "new"], ["opus:Digits/v1", "must begin with mtdata:", "--list"]),
        ([DIGITS], ["a corpus and a folder", "-o FOLDER"]),
        ([DIGITS, "-o", "new", "--langs", "de"], ["--langs de", "two", "de-en"]),
        ([DIGITS, "-o", "new", "--langs", "fr-en"], ["--langs fr-en", "Test-digits-1-eng-deu is"]),
        (["mtdata:Test-one-1-deu", "-o", "new"], ["--langs de-en", "Test-one-1-deu is"]),
        (
            ["mtdata:Test-digit-1-eng-deu", "-o", "new"],
            ["no such corpus for de-en", "Test-digits-1-eng-deu", "--list"],
        ),
        (["mtdata:digits", "-o", "new"], ["must be mtdata:GROUP-NAME-VERSION-LANGS"]),
        (["mtdata:Test-gone-1-deu-eng", "-o", "gone"], ["cannot fetch or read it", "404"]),
        ([DIGITS, "-o", "mine"], ["-o mine", "holds files", "--overwrite"]),
        (
            ["mtdata:Test-one-1-deu", "-o", "digits"],
            ["corpus.yaml", DIGITS, "Test-one-1-deu", "another -o"],
        ),
        ([DIGITS, "-o", "changed"], ["corpus.de", "has changed", "--overwrite"]),
        ([DIGITS, "-o", "other"], ["corpus.yaml", "not a record", "rename"]),
        ([DIGITS, "-o", "mine/a.txt"], ["-o mine/a.txt", "cannot be written"]),
    ]:
        result = get(*arguments)
        assert result.exit_code == 2
        assert says(result.stderr, *said)
        after = {
            path: path.read_bytes()
            for path in tmp_path.rglob("*")
            if path.is_file() and ".partial" not in path.parts
        }
        assert after == before
        assert not (tmp_path / "new").exists()


def test_a_proxy_of_the_environment_is_used(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_of("http://digits.invalid", tmp_path, monkeypatch)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    assert get(DIGITS, "-o", "digits").exit_code == 0


def test_a_full_disk_keeps_the_download_and_nothing_else(
    server: Server, small_disk: Callable[[int], Path]
) -> None:
    folder = small_disk(64) / "digits"
    server.files["/d.en"] *= 4
    server.files["/d.de"] *= 4
    result = get(DIGITS, "-o", str(folder))
    assert result.exit_code == 2
    assert says(result.stderr, f"-o {folder}", "No space left", "enough room")
    assert [path.name for path in folder.iterdir()] == [".partial"]
    assert list((folder / ".partial").glob("corpus*")) == []


def test_a_server_without_a_valid_certificate_is_not_trusted(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mtdata alone would go on without."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    try:
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("there is no openssl here")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    index_of(f"https://127.0.0.1:{server.server_port}", tmp_path, monkeypatch)
    result = get(DIGITS, "-o", "digits")
    assert result.exit_code == 2
    assert says(result.stderr, "cannot fetch or read it", "InsecureRequestWarning")
    assert server.asked == []


@pytest.mark.usefixtures("server")
def test_corpora_are_listed_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    digits, gone = "mtdata:Test-digits-1-eng-deu", "mtdata:Test-gone-1-deu-eng"
    assert get("--list", "Digits").stdout.splitlines() == [digits]
    everything = ["mtdata:OPUS-memory-1-deu-eng", digits, gone]
    assert get("--list", "").stdout.splitlines() == everything
    monkeypatch.setitem(sys.modules, "mtdata", None)
    result = get("--list", "digits")
    assert result.exit_code == 2
    assert says(result.stderr, "mtdata", "pip install 'mt[corpora]'")


@pytest.mark.slow  # half a minute: mtdata builds its index
def test_mtdata_runs_no_code_of_the_working_folder_and_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mtdata")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MTDATA", "cache")
    (tmp_path / "mtdata_own.py").write_text("open('ran', 'w')\ndef load_all(index): pass\n")
    command, environment = mt_command("data", "get", "--list", "europarl", "--langs", "de-en")
    for said in (["mt: mtdata: building its index in cache"], []):  # once
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert "mtdata:Statmt-europarl-10-deu-eng\n" in ended.stdout
        assert "mtdata:OPUS-europarl-v8-deu-eng\n" in ended.stdout
        assert [line.partition(",")[0] for line in ended.stderr.splitlines()] == said
        assert not (tmp_path / "ran").exists()
