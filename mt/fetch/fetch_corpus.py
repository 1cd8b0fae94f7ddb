"""Fetch a corpus by its name: files, citation and SHA-256 in one folder."""

from __future__ import annotations

import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from mt.data.reading.corpus_record import RECORD, CorpusRecord, files_in, read_record
from mt.errors import ConfigError, DataError
from mt.fetch.mtdata_index import DOWNLOADS, fetch_entry, find_entry, search_mtdata
from mt.terminal import say

# The folder inside the new one in which files are until all are there.
PARTIAL = ".partial"


def language_pair(langs: str) -> tuple[str, str]:
    """Source and target of `de-en`. Raises ConfigError."""
    codes = langs.split("-")
    if len(codes) != 2 or codes[0] == codes[1] or not all(re.fullmatch(r"\w+", c) for c in codes):
        raise ConfigError(
            f"--langs {langs}: must be two different language codes, such as de-en or en-pt_BR"
        )
    return codes[0], codes[1]


def list_corpora(query: str, langs: str) -> list[str]:
    """The names of corpora that contain `query`. Raises ConfigError if mtdata cannot be asked."""
    names = (f"mtdata:{entry.did}" for entry in search_mtdata(language_pair(langs)))
    return sorted((name for name in names if query.lower() in name.lower()), key=str.lower)


def fetch_corpus(source: str, langs: str, folder: Path, overwrite: bool) -> None:
    """Fetch `mtdata:...` into `folder`; nothing to do where it is there already.

    A record without its files is a request for exactly these: what comes must have their SHA-256.
    Raises ConfigError and DataError; then `folder` is as it was, except that `.partial` keeps the
    files that were received whole.
    """
    languages = language_pair(langs)
    if not source.startswith("mtdata:"):
        raise ConfigError(
            f"{source}: must begin with mtdata:, such as mtdata:OPUS-europarl-v8-deu-eng; mt data "
            f"get --list TEXT --langs {langs} lists what there is"
        )
    known = None if overwrite else _known(source, languages, folder)
    if known and all((folder / name).is_file() for name in known.files):  # `_known` has read them
        say(f"{folder}: nothing to do: {len(known.files)} files are as they were fetched")
        return
    entry, languages_of_entry = find_entry(source, languages)
    partial = folder / PARTIAL
    try:
        partial.mkdir(parents=True, exist_ok=True)
        _drop_unpacked(partial)  # of an attempt that was killed
        record = fetch_entry(entry, source, languages_of_entry, partial)
        record.languages, record.fetched = list(languages), time.strftime("%Y-%m-%d")
        shutil.rmtree(partial / DOWNLOADS)
        record.files = files_in(partial)
        if known:
            _require_same(known, record, folder)
        for name in record.files:
            (partial / name).replace(folder / name)
        (known or record).write(folder)
        partial.rmdir()
    except OSError as error:
        raise DataError(
            f"-o {folder}: cannot be written: {error.strerror or error}; give a folder that you "
            "may write to, on a disk with enough room"
        ) from None
    finally:
        _drop_unpacked(partial)
    sizes = ", ".join(f"{name} ({file.bytes:,} bytes)" for name, file in record.files.items())
    say(f"{folder}: {sizes}; licence: {record.licence}; see {RECORD}")


def _drop_unpacked(partial: Path) -> None:
    """Remove the files that were unpacked; the folder of downloads stays."""
    with suppress(OSError):
        for path in filter(Path.is_file, partial.iterdir()):
            path.unlink()


def _known(source: str, languages: tuple[str, str], folder: Path) -> CorpusRecord | None:
    """The record in `folder`; ConfigError if the folder holds anything that would be lost."""
    known = read_record(folder)
    if known is None:
        if folder.is_dir() and any(path.name != PARTIAL for path in folder.iterdir()):
            raise ConfigError(
                f"-o {folder}: holds files, but no {RECORD} of mt data get; give a new folder, or "
                "--overwrite to replace files of the same names"
            )
    elif (known.source, known.languages) != (source, list(languages)):
        raise ConfigError(
            f"{folder / RECORD}: is that of {known.source}, {'-'.join(known.languages)}, not of "
            f"{source}, {'-'.join(languages)}; give another -o, or --overwrite to replace it"
        )
    elif changed := [n for n, state in known.differing(folder).items() if state == "changed"]:
        raise DataError(
            f"{folder / changed[0]}: has changed since it was fetched ({known.fetched}); give "
            "another -o, or --overwrite to replace it"
        )
    return known


def _require_same(known: CorpusRecord, record: CorpusRecord, folder: Path) -> None:
    """Raise DataError if the files that have come are not those of the record."""
    for name, file in known.files.items():
        now = record.files[name].sha256 if name in record.files else "none"
        if now != file.sha256:
            raise DataError(
                f"{record.source}: {name} is not what it was on {known.fetched}: its SHA-256 is "
                f"{now}, in {folder / RECORD} it is {file.sha256}; --overwrite takes the new files"
            )
