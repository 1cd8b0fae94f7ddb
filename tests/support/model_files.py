"""The files of a model folder: copied, changed, and damaged in several ways."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mt.runs.model_folder import META, find_model


def copy_model(run: Path, folder: Path) -> Path:
    """Copy the best checkpoint of a run and its tokenizer to a new folder, and return that."""
    shutil.copytree(find_model(run), folder)
    shutil.copy(run / "tokenizer.model", folder)
    return folder


@contextmanager
def changed_meta(folder: Path) -> Iterator[Any]:
    """The content of meta.json, which is written back as the block leaves it."""
    path = folder / META
    meta = json.loads(path.read_bytes())
    yield meta
    path.write_text(json.dumps(meta), encoding="utf-8")


def content_of(folder: Path) -> dict[str, bytes]:
    """File name -> content."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flip(path: Path) -> None:
    """Flip one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    """Cut off the last 7 bytes."""
    path.write_bytes(path.read_bytes()[:-7])


def drop(path: Path) -> None:
    """Delete a file."""
    path.unlink()


def empty(path: Path) -> None:
    """Leave a file of 0 bytes."""
    path.write_bytes(b"")


def fill(path: Path) -> None:
    """Replace the content by 1000 other bytes."""
    path.write_bytes(b"0123456789" * 100)
