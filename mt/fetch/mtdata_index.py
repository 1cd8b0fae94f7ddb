"""Corpora of the index of the package mtdata: 291,000 of them, read by its parsers.

mtdata is kept at a distance:

- Its index takes 19 s and 780 MB to build, 3 s to load, and 140 MB in ~/.mtdata or $MTDATA (0.5.1;
  two cores of an AMD EPYC Zen 4, 23 Nov 2026). Building it imports every mtdata*.py of the working
  folder, so a process in an empty folder does that.
- Its logger would become that of the whole program.
- Its download goes on without a certificate where one is wrong: here that is an error.
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
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mt.data.reading.corpus_record import CorpusRecord
from mt.errors import ConfigError, DataError, MtError, first_line
from mt.terminal import say

DOWNLOADS = "downloads"  # the folder of what is not unpacked yet
# Pages with the licences of a group's corpora. For another group it is the site of the files.
PAGES = {"OPUS": "https://opus.nlpl.eu"}


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


def find_entry(source: str, languages: tuple[str, str]) -> tuple[Any, tuple[str, ...]]:
    """The entry of `mtdata:GROUP-NAME-VERSION-LANGS`, and the languages in its order.

    Raises ConfigError for a name that mtdata does not have, or not in these languages.
    """
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
    return entry, languages[::-1] if swapped else languages


def fetch_entry(entry: Any, source: str, languages: tuple[str, ...], folder: Path) -> CorpusRecord:
    """Fetch an entry into `folder`. Raises DataError or OSError."""
    index = load_index()
    try:
        urls = _read(entry, languages, folder, source)
        keys = [entry.cite] if isinstance(entry.cite, str) else entry.cite or []
        citation = "\n".join(index.ref_db.get_bibtex(key) for key in keys)
    except MtError:
        raise
    except Exception as error:  # mtdata and its parsers raise plain ones
        if isinstance(error, OSError) and error.errno:  # of the disk; those of requests have none
            raise
        raise DataError(
            f"{source}: mtdata cannot fetch or read it: {type(error).__name__}: "
            f"{first_line(error)}. Is there a network here? Behind a proxy, set https_proxy. Files "
            "that came whole are kept; run the command again"
        ) from None
    page = PAGES.get(entry.did.group, f"https://{urlsplit(urls[0]).hostname}")
    return CorpusRecord(
        source=source,
        name=f"{entry.did.group}-{entry.did.name}",
        version=entry.did.version,
        languages=list(languages),
        url=urls,
        licence=f"not stated by mtdata; see {page}",
        citation=citation or "not stated by mtdata",
    )


def _read(entry: Any, languages: tuple[str, ...], folder: Path, what: str) -> list[str]:
    """Write the pairs of an entry to corpus.LANGUAGE files, or its TMX files; return the URLs."""
    from mtdata import pbar_man
    from mtdata.cache import Cache
    from mtdata.parser import Parser
    from urllib3.exceptions import InsecureRequestWarning

    urls: list[str] = []

    class Downloads(Cache):  # type: ignore[misc]
        """mtdata's cache, which trusts no server without a certificate."""

        def download(self, url: str, save_at: Path, **options: Any) -> Any:
            """Fetch a file, unless an earlier attempt has."""
            urls.append(url)
            with warnings.catch_warnings():
                warnings.simplefilter("error", InsecureRequestWarning)
                return super().download(url, save_at, **options)

    pbar_man.enabled = sys.stderr.isatty()
    paths = Downloads(folder / DOWNLOADS).get_entry(entry)
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
                stack.enter_context((folder / f"corpus.{language}").open("w", encoding="utf-8"))
                for language in languages
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
    return urls or [entry.url]
