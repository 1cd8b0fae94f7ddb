"""Where a page goes: never over a file that is no such page."""

from __future__ import annotations

import os
from pathlib import Path

from mt.errors import DataError
from mt.files import write_whole
from mt.runs.run_dir import REPORT

# Stands in the head of every page.
GENERATOR = b'<meta name="generator" content="mt report">'


def check_output(output: str) -> None:
    """Raise DataError, before any work is done, if `output` cannot be written or replaced.

    Only an earlier page is replaced: a typing error must not cost a corpus or a file of a run.
    """
    if output == "-":
        return
    path = Path(output)
    if path.is_dir():
        raise DataError(f"-o {output}: is a folder; name a file in it, such as {REPORT}")
    if path.is_file() and not _is_page(path):
        raise DataError(
            f"-o {output}: exists and was not written by mt report, so it is not replaced; name "
            "another file, or remove it first"
        )
    folder = path.parent
    if not path.exists() and not folder.is_dir():
        problem = "does not exist; create it, or correct the name"
        raise DataError(f"-o {output}: the folder {folder} {problem}")
    is_file = path.is_file() or not path.exists()  # a device or pipe is written to directly
    if is_file and not os.access(os.path.realpath(folder), os.W_OK):
        raise DataError(
            f"-o {output}: the folder {folder} cannot be written; name a file elsewhere with -o"
        )


def write_page(output: str, page: str) -> None:
    """Write the page completely or not at all. Raises DataError if that fails."""
    try:
        write_whole(Path(output), page)
    except OSError as error:
        raise DataError(
            f"-o {output}: cannot be written: {error.strerror}; name a file elsewhere with -o"
        ) from error


def _is_page(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return GENERATOR in file.read(1000)
    except OSError:
        return False
