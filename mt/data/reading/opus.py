"""OPUS, the collection of parallel corpora: its index, and its archives of Moses files.

The index answers `?source=de&target=en&preprocessing=moses` with `{"corpora": [...]}`. Each entry
has corpus, version, source, target, url, size in KiB, alignment_pairs and latest ("True" or
"False"); the two languages are in alphabetical order. An archive holds CORPUS.de-en.de and
CORPUS.de-en.en, line-aligned, and mostly README and LICENSE.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shutil
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlencode

from mt.data.reading.corpus_record import CorpusRecord
from mt.data.reading.download import DOWNLOADS, download, fetch_json
from mt.errors import ConfigError, DataError

API = "https://opus.nlpl.eu/opusapi/"
API_VARIABLE = "MT_OPUS_API"  # the environment variable with another index
# An archive that claims to hold more bytes than this times its own holds no text: deflate makes
# data/demo 4 times smaller, and one repeated byte 1,000 times.
MOST_UNPACKED = 200


def search_opus(languages: tuple[str, str], what: str) -> list[dict[str, Any]]:
    """The entries of the index for a language pair. Raises DataError, opening with `what`."""
    query = {"source": languages[0], "target": languages[1], "preprocessing": "moses"}
    url = f"{os.environ.get(API_VARIABLE, API)}?{urlencode(query)}"
    answer = fetch_json(url, what)
    try:
        return [
            entry
            for entry in answer["corpora"]
            if {entry["source"], entry["target"]} == {*languages}
            and entry["preprocessing"] == "moses"
            and all(isinstance(entry[key], str) for key in ("corpus", "version", "url"))
        ]
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{what}: {url} answers in another form than the index of OPUS ({error!r}); check "
            f"{API_VARIABLE}, or look for a newer mt"
        ) from None


def fetch_opus(source: str, languages: tuple[str, str], folder: Path) -> CorpusRecord:
    """Fetch `opus:CORPUS/VERSION` into `folder`. Raises ConfigError, DataError and OSError."""
    name, _, version = source.removeprefix("opus:").partition("/")
    if not name or not version:
        raise ConfigError(
            f"{source}: a version is required, such as opus:Europarl/v8, or latest; "
            f"mt data get --list {name or 'NAME'} --langs {'-'.join(languages)} lists them"
        )
    entries = search_opus(languages, source)
    entry = _entry(entries, name, version, f"{source}: for {'-'.join(languages)}")
    archive = folder / DOWNLOADS / f"{hashlib.sha256(entry['url'].encode()).hexdigest()[:16]}.zip"
    if not archive.exists():  # as after a full disk
        download(entry["url"], archive, source)
    try:
        _unpack(archive, languages, folder, source)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        archive.unlink()
        raise DataError(
            f"{source}: {entry['url']} is no sound zip file ({error}). It has been removed; run "
            "the command again"
        ) from None
    licence, citation = _terms(folder)
    return CorpusRecord(
        source=source,
        name=entry["corpus"],
        version=entry["version"],
        languages=list(languages),
        url=[entry["url"]],
        licence=licence or "not stated by OPUS",
        citation=citation or "not stated by OPUS",
    )


def _entry(entries: list[dict[str, Any]], name: str, version: str, what: str) -> dict[str, Any]:
    """The entry of a corpus; ConfigError, with what there is instead, where there is none."""
    versions = [entry for entry in entries if entry["corpus"] == name]
    for entry in versions:
        if entry["version"] == version or (version == "latest" and entry.get("latest") == "True"):
            return entry
    if versions:
        there = ", ".join(entry["version"] for entry in versions)
        raise ConfigError(f"{what} OPUS has no version {version!r} of {name}, but {there}")
    names = {entry["corpus"].lower(): entry["corpus"] for entry in entries}
    similar = [names[key] for key in difflib.get_close_matches(name.lower(), names, n=3)]
    there = f"; similar names: {', '.join(similar)}" if similar else ""
    raise ConfigError(
        f"{what} OPUS has no corpus {name!r} among {len(names):,}{there}. List them: mt data get "
        "--list TEXT"
    )


def _unpack(archive: Path, languages: tuple[str, str], folder: Path, what: str) -> None:
    """Write corpus.SRC and corpus.TGT, README and LICENSE, whatever the paths in the archive are.

    `zipfile` checks the CRC-32 of each, and gives no more bytes than the archive claims.
    """
    with zipfile.ZipFile(archive) as zipped:
        members = [member for member in zipped.infolist() if not member.is_dir()]
        wanted = {}
        for language in languages:
            found = [one for one in members if one.filename.endswith(f".{language}")]
            if len(found) != 1:
                there = ", ".join(member.filename for member in members[:8])
                raise DataError(
                    f"{what}: the archive must have one file whose name ends in .{language}, found "
                    f"{len(found)} among {there}; check --langs"
                )
            wanted[f"corpus.{language}"] = found[0]
        for member in members:
            if (name := PurePosixPath(member.filename).name) in ("README", "LICENSE"):
                wanted[name] = member
        size = sum(member.file_size for member in wanted.values())
        if size > MOST_UNPACKED * archive.stat().st_size + 10**6:
            raise DataError(
                f"{what}: {archive} has {archive.stat().st_size:,} bytes and claims to hold "
                f"{size:,}, too much for text. Unpack it yourself if you trust it"
            )
        for name, member in wanted.items():
            with zipped.open(member) as packed, (folder / name).open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)


def _terms(folder: Path) -> tuple[str, str]:
    """Licence and citation, by what README and LICENSE say; empty where they do not."""
    readme, licence = (
        path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        for path in (folder / "README", folder / "LICENSE")
    )
    stated = re.search(r"^\s*Licen[cs]e:[ \t]*(\S.*)", readme, re.MULTILINE | re.IGNORECASE)
    cited = re.search(r"^.*\bcite\b(?:.+\n?)*", readme, re.MULTILINE | re.IGNORECASE)
    first = next((line.strip() for line in licence.splitlines() if line.strip()), "")
    terms = stated[1].strip() if stated else f"{first} (see LICENSE)" if first else ""
    return terms, " ".join(cited[0].split()) if cited else ""
