"""Corpora of the index of the package mtdata: 291,000 of them, read by its parsers.

mtdata is kept at a distance:

- Its index takes 19 s and 780 MB to build, 3 s to load, and 140 MB in ~/.mtdata or $MTDATA (0.5.1;
  two cores of an AMD EPYC Zen 4, 23 Nov 2026). Building it imports every mtdata*.py of the working
  folder, so a process in an empty folder does that.
- Its logger would become that of the whole program.
- Its download checks no size and, where a certificate is wrong, goes on without: ours replaces it.
- Its TMX parser loses the text after an inline tag, so TMX files stay as they are.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from mt.data.reading.corpus_record import CorpusRecord
from mt.data.reading.download import DOWNLOADS, download
from mt.errors import ConfigError, DataError, MtError, first_line
from mt.terminal import say


def load_index() -> Any:
    """The index of mtdata. Raises ConfigError where it is not installed or cannot be built."""
    logging.getLogger().addHandler(logging.NullHandler())  # keeps mtdata from adding its own
    try:
        import mtdata
    except ImportError as error:
        raise ConfigError(
            f"mtdata: cannot be imported ({error}); run: pip install 'mt[corpora]'"
        ) from None
    if not mtdata.cached_index_file.exists():
        say(f"mtdata: building its index in {mtdata.cache_dir}, once; this takes about 20 s")
        with tempfile.TemporaryDirectory() as empty:
            ended = subprocess.run(
                [sys.executable, "-c", "import mtdata.index"],
                cwd=empty,
                env=os.environ | {"MTDATA": str(mtdata.cache_dir.absolute())},
                capture_output=True,
                text=True,
                check=False,
            )
        if ended.returncode:
            reason = (ended.stderr.strip() or "no reason given").splitlines()[-1]
            raise ConfigError(
                f"mtdata: cannot build its index in {mtdata.cache_dir}: {reason}; set MTDATA to a "
                "folder that you may write to"
            )
    from mtdata.index import INDEX

    return INDEX


def search_mtdata(languages: tuple[str, str]) -> Iterator[Any]:
    """The entries of the index for a language pair, in either direction."""
    load_index()
    from mtdata.entry import Langs
    from mtdata.index import get_entries

    try:
        yield from get_entries(langs=Langs("-".join(languages)))
    except Exception as error:  # mtdata raises plain ones
        raise ConfigError(f"mtdata: --langs {'-'.join(languages)}: {first_line(error)}") from None


def fetch_mtdata(source: str, languages: tuple[str, str], folder: Path) -> CorpusRecord:
    """Fetch `mtdata:GROUP-NAME-VERSION-LANGS` into `folder`; ConfigError, DataError or OSError."""
    index = load_index()
    from mtdata.entry import DatasetId, Langs
    from mtdata.iso.bcp47 import BCP47Tag

    try:
        wanted = DatasetId.parse(source.removeprefix("mtdata:"))
        pair = Langs("-".join(languages))
    except Exception as error:  # mtdata raises plain ones
        raise ConfigError(
            f"{source}: must be mtdata:GROUP-NAME-VERSION-LANGS ({first_line(error)})"
        ) from None
    if wanted not in index:
        names = [str(entry.did) for entry in search_mtdata(languages)]
        similar = difflib.get_close_matches(str(wanted), names, n=3, cutoff=0.3)
        raise ConfigError(
            f"{source}: mtdata has no such corpus for {'-'.join(languages)}; similar names: "
            f"{', '.join(similar) or 'none'}. List them: mt data get --list TEXT"
        )
    entry = index[wanted]
    fits = swapped = False
    if len(entry.did.langs) == 2:  # not of one language alone
        fits, swapped = BCP47Tag.check_compat_swap(pair, entry.did.langs)
    if not fits:
        raise ConfigError(f"--langs {'-'.join(languages)}: {source} is {entry.did.lang_str}")
    try:
        urls = _read(entry, languages[::-1] if swapped else languages, folder, source)
        keys = [entry.cite] if isinstance(entry.cite, str) else entry.cite or []
        citation = "\n".join(index.ref_db.get_bibtex(key) for key in keys)
    except MtError:
        raise
    except Exception as error:  # mtdata and its parsers raise plain ones
        if isinstance(error, OSError) and error.errno:  # of the disk; those of requests have none
            raise
        raise DataError(f"{source}: mtdata cannot read it: {first_line(error)}") from None
    return CorpusRecord(
        source=source,
        name=f"{entry.did.group}-{entry.did.name}",
        version=entry.did.version,
        languages=list(languages),
        url=urls,
        licence="not stated by mtdata",
        citation=citation or "not stated by mtdata",
    )


def _read(entry: Any, languages: tuple[str, ...], folder: Path, what: str) -> list[str]:
    """Write the pairs of an entry to corpus.LANGUAGE files, or its TMX files; return the URLs."""
    from mtdata.cache import Cache
    from mtdata.parser import Parser

    urls: list[str] = []

    class Downloads(Cache):  # type: ignore[misc]
        """mtdata's cache, filled by our download."""

        def download(self, url: str, save_at: Path, **_: object) -> Path:
            """Fetch a file, unless an earlier attempt has."""
            urls.append(url)
            if not save_at.exists():
                download(url, save_at, what)
            return save_at

    cache = folder / DOWNLOADS
    paths = Downloads(cache).get_entry(entry)
    if "tmx" in (entry.in_ext or entry.ext):
        for number, path in enumerate(paths if isinstance(paths, list) else [paths]):
            name = "corpus.tmx" if number == 0 else f"corpus-{number}.tmx"
            with path.open("rb") as packed, (folder / name).open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
    else:
        parser = Parser(paths, ext=entry.in_ext or None, ent=entry)
        written = replaced = 0
        with ExitStack() as stack:
            files = [
                stack.enter_context((folder / f"corpus.{one}").open("w", encoding="utf-8"))
                for one in languages
            ]
            for row in parser.read_segs(show_pbar=False):
                texts = [re.sub(r"[\r\n]+", " ", text or "") for text in row[:2]]
                for file, text in zip(files, texts, strict=True):
                    file.write(f"{text}\n")
                written += 1
                replaced += any("\ufffd" in text for text in texts)
        if not written:
            raise DataError(f"{what}: mtdata has read no pair out of it")
        if replaced:  # which mtdata does without a word
            say(f"{what}: in {replaced:,} of {written:,} pairs U+FFFD stands for invalid UTF-8")
    shutil.rmtree(cache)
    return urls or [entry.url]
