"""Small corpora for tests, and the ways to read them: what stands in several test files."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from mt.config.schema import DataConfig, Source
from mt.data.corpus import check_sources, read_pairs
from mt.errors import DataError

WHERE = "data.train[0]"


def write(path: Path, text: str | bytes, packed: bool = False) -> Path:
    """Write text or bytes to `path`, compressed with gzip where `packed`."""
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


def pairs_of(
    root: Path, src: str = "a.de", tgt: str = "a.en", **keys: Any
) -> list[tuple[str, str]]:
    """All pairs of the source with these keys below `root`."""
    return list(read_pairs(Source(src=src, tgt=tgt, **keys), root, WHERE))


def message_of(root: Path, src: str = "a.de", tgt: str = "a.en", **keys: Any) -> str:
    """The message that reading a source fails with; `check_sources` must find the same."""
    with pytest.raises(DataError) as caught:
        pairs_of(root, src, tgt, **keys)
    message = str(caught.value)
    data = DataConfig(root=str(root), train=[Source(src=src, tgt=tgt, **keys)])
    assert check_sources(data) == message.split("\n")
    return message


def multi30k() -> Path:
    """The folder of the Multi30k corpus; skips where it is not on this machine."""
    folder = Path(os.environ.get("MT_CORPORA", ROOT.parent / "shared" / "data")) / "multi30k"
    if not (folder / "train.de.gz").exists():
        pytest.skip(f"no train.de.gz in {folder}; set MT_CORPORA to the folder above multi30k")
    return folder
