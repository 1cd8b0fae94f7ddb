"""Test sets by their names, such as wmt20: files that sacreBLEU fetches once into its cache."""

from __future__ import annotations

import difflib
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mt.data.reading.language_codes import base_code
from mt.errors import DataError
from mt.terminal import say

if TYPE_CHECKING:
    from mt.config.schema import Source

# Names in a message that are like an unknown one.
SHOWN = 3


def language_pair(name: str, languages: tuple[str, str], where: str) -> str:
    """The language pair of a test set as sacreBLEU calls it, such as de-en.

    `where` names the set in messages. Raises DataError for an unknown set, or another pair.
    """
    from sacrebleu import DATASETS

    if name not in DATASETS:
        similar = difflib.get_close_matches(name.lower(), DATASETS, SHOWN, 0.5)
        hint = f"; did you mean {', '.join(similar)}?" if similar else ""
        raise DataError(
            f"{where}: sacreBLEU has no test set {name!r}{hint} (all of them: sacrebleu --list); "
            "correct the name, or name files"
        )
    known = DATASETS[name].langpairs
    pairs = ["-".join(languages), "-".join(map(base_code, languages))]
    if fitting := [pair for pair in pairs if pair in known]:
        return fitting[0]
    raise DataError(
        f"{where}: the test set {name} has no {pairs[0]}, it has {', '.join(known)}; name another "
        "set, or other languages"
    )


def named_set(source: Source, where: str) -> tuple[str, str] | None:
    """The name and the language pair of a source that is a test set of sacreBLEU."""
    if source.test_set is None:
        return None
    return source.test_set, language_pair(source.test_set, (source.src, source.tgt), where)


def fetched_files(name: str, languages: tuple[str, str]) -> list[Path]:
    """The source and the references of a test set; none, if they are not in the cache."""
    with suppress(DataError):
        _, _, is_here = _place(name, languages, "")
        return files_of_set(name, languages, "") if is_here else []
    return []


def files_of_set(name: str, languages: tuple[str, str], where: str) -> list[Path]:
    """The source and the references of a test set, fetched if need be; `where` as above.

    Raises DataError.
    """
    import sacrebleu

    pair, folder, is_here = _place(name, languages, where)
    if not is_here:
        say(f"{where}: sacreBLEU fetches {name} {pair} into {folder}")
    logging.getLogger("sacrebleu").setLevel(logging.CRITICAL)  # its reasons are in our message
    try:
        source = sacrebleu.get_source_file(name, pair)
        files = [source, *sacrebleu.get_reference_files(name, pair)]
    except (Exception, SystemExit) as error:  # the library ends the process where it gives up
        reason = " ".join(str(error).split())
        if isinstance(error, SystemExit):
            reason = "SSL fails, or the MD5 of what came is wrong"
        raise DataError(
            f"{where}: the test set {name} {pair} cannot be fetched ({reason}); without a network "
            f"copy {folder} from a machine where sacrebleu -t {name} -l {pair} --echo src has "
            "filled it (the variable SACREBLEU names the folder above), and remove it if it is "
            "damaged"
        ) from error
    return [Path(os.path.abspath(file)) for file in files]


def _place(name: str, languages: tuple[str, str], where: str) -> tuple[str, Path, bool]:
    """The pair of a test set, its folder in the cache, and whether its files are there."""
    from sacrebleu import SACREBLEU_DIR

    pair = language_pair(name, languages, where)
    folder = Path(SACREBLEU_DIR) / name
    return pair, folder, any(folder.glob(f"*.{pair}.src"))
