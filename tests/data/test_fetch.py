"""`mt data get`: from a local index and a server on 127.0.0.1; no other network is asked."""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
import threading
import zipfile
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
from mt.data.reading import download
from mt.data.reading.corpus import read_pairs
from mt.data.reading.corpus_record import read_record
from mt.errors import MtError
from mt.files import sha256_of

README = """Corpus Name: Digits
     Package: Digits in Moses format
     License: CC-BY-4.0

Please cite the following article if you use any part of the corpus:
A. Author, 2012, Digits. In Proceedings.

More.
"""
DE, EN = "eins\nzwei\n" * 500, "one\ntwo\n" * 500
MEMBERS = {
    "Digits.de-en.de": DE, "Digits.de-en.en": EN, "README": README, "LICENSE": "\nFree\n",
    "Digits.de-en.ids": "x",
}  # fmt: skip


class Server(ThreadingHTTPServer):
    """Files, of which some answers are cut or refused."""

    files: dict[str, bytes]
    cut: list[int]  # bytes after which the next answers end
    codes: list[int]  # of the next answers
    asked: list[tuple[str, str]]  # path and Range of each request for a file
    tag = '"1"'

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = urlsplit(self.path).path  # a proxy is asked for a whole URL
        body = self.server.files.get(path, b"")
        wanted = self.headers["Range"] or ""
        if of_file := path != "/api":
            self.server.asked.append((path, wanted))
        code = self.server.codes.pop(0) if self.server.codes and of_file else 200 if body else 404
        continued = wanted and code == 200 and self.headers["If-Range"] in (None, self.server.tag)
        self.send_response(206 if continued else code)
        self.send_header("ETag", self.server.tag)
        if continued:
            start = int(wanted[len("bytes=") : -1])
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            body = body[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.server.cut and of_file
        self.wfile.write(body[: self.server.cut.pop(0)] if cut else body)

    def log_message(self, *_: object) -> None:
        pass


def archive(members: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, text in members.items():
            zipped.writestr(name, text)
    return packed.getvalue()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        entry = {"corpus": "Digits", "source": "de", "target": "en", "preprocessing": "moses"}
        entry |= {"url": f"{server.url}digits.zip", "size": 3000, "alignment_pairs": 1000}  # type: ignore[dict-item]
        versions = [entry | {"version": "v1", "latest": "False"}]
        versions += [entry | {"version": "v2", "latest": "True"}]
        index = json.dumps({"corpora": [*versions, entry | {"version": "v2", "target": ""}]})
        server.files = {"/api": index.encode(), "/digits.zip": archive(MEMBERS)}
        server.cut, server.codes, server.asked = [], [], []
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        monkeypatch.setenv("MT_OPUS_API", f"{server.url}api")
        monkeypatch.setattr(download, "WAIT", 0.0)
        monkeypatch.setattr("urllib.request._opener", None)  # which knows the proxies of before
        monkeypatch.delenv("http_proxy", raising=False)
        monkeypatch.chdir(tmp_path)
        yield server
        server.shutdown()


def get(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["data", "get", "--langs", "de-en", *arguments])
    assert isinstance(result.exception, MtError | SystemExit | None), result.exception
    return result


def get_digits(*arguments: str, version: str = "v2") -> Result:
    return get(f"opus:Digits/{version}", "-o", "digits", *arguments)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def test_a_corpus_comes_with_licence_citation_and_digests(server: Server, tmp_path: Path) -> None:
    result = get_digits(version="latest")
    assert result.exit_code == 0, result.stderr
    folder = tmp_path / "digits"
    files = {"corpus.de": DE, "corpus.en": EN, "README": README, "LICENSE": "\nFree\n"}
    record = yaml.safe_load((folder / "corpus.yaml").read_text())
    assert {name: text for name, text in contents(folder).items() if name in files} == files
    assert {*contents(folder)} == {*files, "corpus.yaml"}
    assert record["files"]["corpus.de"] == {
        "bytes": len(DE), "sha256": sha256_of(folder / "corpus.de"),
    }  # fmt: skip
    assert record.keys() >= {"fetched"}
    assert {key: record[key] for key in ("name", "version", "languages", "url", "licence")} == {
        "name": "Digits", "version": "v2", "languages": ["de", "en"],
        "url": [f"{server.url}digits.zip"], "licence": "CC-BY-4.0",
    }  # fmt: skip
    assert says(record["citation"], "Please cite", "A. Author, 2012", "Proceedings.")
    assert "More" not in record["citation"]
    source = Source(path="digits", src="de", tgt="en")  # what is beside the texts is no hindrance
    pairs = list(read_pairs(source, tmp_path, "data.train"))
    assert pairs == list(zip(DE.splitlines(), EN.splitlines(), strict=True))

    server.asked.clear()
    server.files.clear()  # nothing is asked for the second time
    assert says(get_digits(version="latest").stderr, "nothing to do", "4 files")


def test_a_record_alone_brings_back_the_same_files_or_none(server: Server, tmp_path: Path) -> None:
    get_digits(version="latest")
    folder = tmp_path / "digits"
    before = contents(folder)
    (folder / "corpus.en").unlink()
    (folder / "README").unlink()
    index = server.files["/api"]  # by now another version is the latest
    server.files["/api"] = index.replace(b'"latest": "True"', b'"latest": "False"')
    assert get_digits(version="latest").exit_code == 0
    assert contents(folder) == before
    server.files["/api"] = index
    (folder / "corpus.en").unlink()
    without = contents(folder)
    server.files["/digits.zip"] = archive(MEMBERS | {"Digits.de-en.de": DE.upper()})
    result = get_digits(version="latest")
    assert result.exit_code == 2
    assert says(result.stderr, "corpus.de is not what it was", "SHA-256", "--overwrite")
    assert {name: text for name, text in contents(folder).items() if name in before} == without
    assert get_digits("--overwrite", version="latest").exit_code == 0
    assert contents(folder)["corpus.de"] == DE.upper()


@pytest.mark.parametrize("same", [True, False], ids=["the same file", "another file by then"])
def test_a_download_that_breaks_off_is_continued(
    same: bool, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    server.codes, server.cut = [200, 503], [100]
    result = get_digits()
    assert result.exit_code == 2
    size = len(server.files["/digits.zip"])
    assert says(result.stderr, f"only 100 of {size:,} bytes", "trying again", "503")
    assert [path.name for path in (tmp_path / "digits").iterdir()] == [".partial"]
    if not same:
        server.tag = '"2"'
        server.files["/digits.zip"] = archive(MEMBERS | {"Digits.de-en.de": DE.upper()})
    result = get_digits()
    assert result.exit_code == 0
    assert ("continued after 100" in result.stderr) == same
    assert [wanted for _, wanted in server.asked] == ["", "bytes=100-", "bytes=100-"]
    assert contents(tmp_path / "digits")["corpus.de"] == (DE if same else DE.upper())


def test_a_part_that_is_longer_than_the_file_is_fetched_anew(
    server: Server, tmp_path: Path
) -> None:
    server.codes, server.cut = [200, 404], [100]
    get_digits()
    (part,) = tmp_path.rglob("*.part")
    part.write_bytes(b"x" * 5000)
    server.codes = [416]
    assert get_digits().exit_code == 0
    assert [wanted for _, wanted in server.asked][2:] == ["bytes=5000-", ""]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["opus:Digits", "-o", "new"], ["opus:Digits", "version", "opus:Europarl/v8"]),
        (["opus:Digits/v3", "-o", "new"], ["no version 'v3' of Digits", "v1, v2"]),
        (["opus:digitz/v2", "-o", "new"], ["no corpus 'digitz'", "similar names: Digits"]),
        (["Digits", "-o", "new"], ["Digits", "must begin with opus: or mtdata:"]),
        (["opus:Digits/v2"], ["a corpus and a folder", "-o FOLDER"]),
        (["opus:Digits/v2", "-o", "new", "--langs", "de"], ["--langs de", "two", "de-en"]),
        (["opus:Digits/v2", "-o", "mine"], ["-o mine", "holds files", "--overwrite"]),
        (["opus:Digits/v1", "-o", "digits"], ["corpus.yaml", "opus:Digits/v2", "v1", "another -o"]),
        (["opus:Digits/v2", "-o", "changed"], ["corpus.de", "has changed", "--overwrite"]),
        (["opus:Digits/v2", "-o", "other"], ["corpus.yaml", "not a record", "rename"]),
        (["opus:Digits/v2", "-o", "mine/a.txt"], ["-o mine/a.txt", "cannot be written"]),
    ],
)
def test_a_wrong_request_is_refused_with_a_remedy(
    arguments: list[str], said: list[str], server: Server, tmp_path: Path
) -> None:
    for name in ("digits", "changed"):
        get("opus:Digits/v2", "-o", name)
    (tmp_path / "changed" / "corpus.de").write_text(DE.upper())  # as long as before
    for name, text in (("mine/a.txt", "a"), ("other/corpus.yaml", "a: 1")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    result = get(*arguments)
    assert result.exit_code == 2
    assert says(result.stderr, *said)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert not (tmp_path / "new").exists()


def damaged() -> bytes:
    packed = bytearray(archive(MEMBERS))
    packed[60] ^= 255
    return bytes(packed)


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (b"<html>", ["digits.zip", "no sound zip file", "run"]),
        (damaged(), ["digits.zip", "no sound zip file", "run"]),
        (archive({"a.de": DE}), [".en", "found 0 among a.de", "--langs"]),
        (archive({"a.de": "x" * 4_000_000, "a.en": EN}), ["4,004,000", "too much for text"]),
    ],
    ids=["a page", "damaged", "one side", "bomb"],
)
def test_an_archive_that_cannot_be_right_is_refused(
    packed: bytes, said: list[str], server: Server, tmp_path: Path
) -> None:
    server.files["/digits.zip"] = packed
    result = get_digits()
    assert result.exit_code == 2
    assert says(result.stderr, *said)
    assert not list((tmp_path / "digits").glob("*.*")) or contents(tmp_path / "digits") == {}


def test_a_proxy_of_the_environment_is_used(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("MT_OPUS_API", "http://opus.invalid/api")
    assert get_digits().exit_code == 0


def test_a_full_disk_keeps_the_archive_and_nothing_else(
    server: Server, small_disk: Callable[[int], Path]
) -> None:
    folder = small_disk(64) / "digits"
    server.files["/digits.zip"] = archive(MEMBERS | {"Digits.de-en.en": EN * 20})
    for _ in range(2):
        result = get("opus:Digits/v2", "-o", str(folder))
        assert result.exit_code == 2
        assert says(result.stderr, f"-o {folder}", "No space left", "enough room")
        (left,) = filter(Path.is_file, folder.rglob("*"))
        assert zipfile.is_zipfile(left)
    assert len(server.asked) == 1  # the second time the archive is there


def test_no_name_in_an_archive_leads_out_of_the_folder(server: Server, tmp_path: Path) -> None:
    members = {"../../x.de": DE, "/y.en": EN, "../LICENSE": "Free", "../evil": "x"}
    server.files["/digits.zip"] = archive(members)
    assert get_digits().exit_code == 0
    here = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert here == {"corpus.de", "corpus.en", "LICENSE", "corpus.yaml"}
    record = read_record(tmp_path / "digits")
    assert record is not None
    assert record.licence == "Free (see LICENSE)"
    assert record.citation == "not stated by OPUS"


@pytest.mark.parametrize(
    ("api", "said"),
    [
        ("http://opus.invalid/", ["opus:Digits/v2", "cannot be reached", "network", "https_proxy"]),
        ("file:///etc/hostname", ["file:", "must begin with https://"]),
        ("{}page", ["opus:Digits/v2", "no JSON", "log in"]),
        ("{}other", ["opus:Digits/v2", "another form", "MT_OPUS_API"]),
        ("{}none", ["404", "Is the name right"]),
    ],
)
def test_an_index_that_does_not_answer_is_one_message(
    api: str, said: list[str], server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.files |= {"/page": b"<html>", "/other": b"[1]"}
    monkeypatch.setenv("MT_OPUS_API", api.format(server.url))
    result = get_digits()
    assert result.exit_code == 2
    assert says(result.stderr, *said)
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "digits").exists()


# --- mtdata -----------------------------------------------------------------------------------

TMX = "<tmx><body><tu><tuv xml:lang='de'><seg>a <b/> b</seg></tuv></tu></body></tmx>"


@pytest.fixture
def own_mtdata(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mtdata with an index of two corpora, which its own code makes with a loader of ours."""
    mtdata = pytest.importorskip("mtdata")

    def load_all(index: Any) -> None:
        from mtdata.entry import Entry

        if not index.entries:
            urls = (f"{server.url}d.en", f"{server.url}d.de")
            cite = ("tiedemann2012parallel",)
            index += Entry("Test-digits-1-eng-deu", urls, ext="txt", cite=cite)
            index += Entry("Test-memory-1-deu-eng", f"{server.url}memory.tmx")
            index += Entry("Test-one-1-deu", f"{server.url}d.de", ext="txt")
            index += Entry("OPUS-digits-1-deu-eng", f"{server.url}memory.tmx")

    english = EN.encode() + b"caf\xe9 a\xe2\x80\xa8b\n"  # Latin-1, and a U+2028
    server.files |= {"/d.de": (DE + "x\n").encode(), "/d.en": english, "/memory.tmx": TMX.encode()}
    monkeypatch.setattr(mtdata, "cached_index_file", tmp_path / ".mtdata" / "index.pkl")
    for name in [name for name in sys.modules if name.startswith("mtdata.")]:
        monkeypatch.delitem(sys.modules, name)
    with monkeypatch.context() as patch:
        loader = SimpleNamespace(load_all=load_all)
        patch.setattr(importlib, "import_module", lambda *_, **__: loader)
        importlib.__import__("mtdata.index")


def test_corpora_of_mtdata_have_its_citation_and_our_digests(
    own_mtdata: None, server: Server, tmp_path: Path
) -> None:
    server.cut = [100]  # our download is the one that continues
    result = get("mtdata:Test-digits-1-eng-deu", "-o", "digits")
    assert result.exit_code == 0, result.stderr
    assert says(result.stderr, "only 100 of", "trying again", "in 1 of 1,001 pairs", "not stated")
    assert "INFO" not in result.output
    record = read_record(tmp_path / "digits")
    assert record is not None
    assert record.url == [f"{server.url}d.en", f"{server.url}d.de"]
    assert says(record.citation, "@inproceedings{tiedemann2012parallel", "Parallel Data")
    assert contents(tmp_path / "digits")["corpus.de"] == DE + "x\n"
    assert contents(tmp_path / "digits")["corpus.en"] == EN + "caf\ufffd a\u2028b\n"
    assert record.files.keys() == {"corpus.de", "corpus.en"}
    assert record.differing(tmp_path / "digits") == {}
    assert get("mtdata:Test-memory-1-deu-eng", "-o", "memory").exit_code == 0
    assert contents(tmp_path / "memory")["corpus.tmx"] == TMX  # not through mtdata's parser


def test_what_mtdata_does_not_have_is_refused(own_mtdata: None, tmp_path: Path) -> None:
    for name, *said in (
        ("Test-digit-1-eng-deu", "no such corpus for de-en", "Test-digits-1-eng-deu", "--list"),
        ("Test-digits-1-fra-deu", "no such corpus", "similar"),
        ("digits", "must be mtdata:GROUP-NAME-VERSION-LANGS"),
    ):
        result = get(f"mtdata:{name}", "-o", "new")
        assert result.exit_code == 2
        assert says(result.stderr, name, *said)
        assert not (tmp_path / "new").exists()
    for name, langs in (("digits-1-eng-deu", "fr-en"), ("one-1-deu", "de-en")):
        result = get(f"mtdata:Test-{name}", "-o", "new", "--langs", langs)
        assert says(result.stderr, f"--langs {langs}", f"Test-{name} is", name[-3:])


def test_both_indexes_are_listed_and_one_may_be_missing(
    own_mtdata: None, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [f"opus:Digits/{version}\t1,000 pairs\t3.1 MB" for version in ("v1", "v2")]
    digits, memory = "mtdata:Test-digits-1-eng-deu", "mtdata:Test-memory-1-deu-eng"
    assert get("--list", "digits").stdout.splitlines() == [digits, *listed]
    assert get("--list", "").stdout.splitlines() == [digits, memory, *listed]
    monkeypatch.setenv("MT_OPUS_API", "http://opus.invalid/")
    result = get("--list", "digits")
    assert result.stdout.splitlines() == ["mtdata:OPUS-digits-1-deu-eng", digits]
    assert says(result.stderr, "warning: OPUS", "cannot be reached")
    monkeypatch.setitem(sys.modules, "mtdata", None)
    result = get("--list", "digits")
    assert result.exit_code == 2
    assert says(result.stderr, "OPUS", "cannot be reached", "mtdata", "pip install 'mt[corpora]'")


@pytest.mark.slow  # half a minute: mtdata builds its index
def test_mtdata_runs_no_code_of_the_working_folder_and_prints_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mtdata")
    monkeypatch.setenv("MTDATA", "cache")
    (tmp_path / "mtdata_own.py").write_text("open('ran', 'w')\ndef load_all(index): pass\n")
    command, environment = mt_command("data", "get", "--list", "europarl", "--langs", "de-en")
    for said in (["mt: mtdata: building its index in cache"], []):  # once
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert "mtdata:Statmt-europarl-10-deu-eng\n" in ended.stdout
        assert [line.partition(",")[0] for line in ended.stderr.splitlines()] == said
        assert not (tmp_path / "ran").exists()
