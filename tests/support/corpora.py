"""Small corpora for tests, and the ways to read them: what stands in several test files."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from xopen import xopen

from mt.config.plan import plan_data
from mt.config.schema import DataConfig, Source, TextEntry
from mt.data.reading.check import check_data
from mt.data.reading.corpus import read_pairs
from mt.errors import DataError

WHERE = "data.train[0]"


# Cells that readers of tables like to turn into something else.
CELLS = [
    ("NA", "null"), ("007", "1.50"), ('er sagte "ja", gut', 'he said "yes", fine'),
    ("2020-01-01", "nan"), ("a\u2028b\x85c", "True"), (" leer ", "'tis"),
]  # fmt: skip


def write(path: Path, text: str | bytes, packed: bool = False) -> Path:
    """Write text or bytes to `path`, compressed with gzip where `packed`."""
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(content) if packed else content)
    return path


def pack(kind: str, text: str | bytes) -> bytes:
    """Text compressed as the suffix says: gz, xz, zst, bz2; or not, for an empty one."""
    content = text.encode() if isinstance(text, str) else text
    if not kind:
        return content
    packed = io.BytesIO()
    with xopen(packed, "wb", threads=0, format=kind) as file:
        file.write(content)
    return packed.getvalue()


def pairs_of(
    root: Path, src: str = "a.de", tgt: str = "a.en", **keys: Any
) -> list[tuple[str, str]]:
    """All pairs of the source with these keys below `root`."""
    return list(read_pairs(Source(src=src, tgt=tgt, **keys), root, WHERE))


def message_of(root: Path, src: str = "a.de", tgt: str = "a.en", **keys: Any) -> str:
    """The message that reading a source fails with; `check_data` must find the same."""
    with pytest.raises(DataError) as caught:
        pairs_of(root, src, tgt, **keys)
    message = str(caught.value)
    data = DataConfig(root=str(root), train=[TextEntry(src=src, tgt=tgt, **keys)])
    assert check_data(plan_data(data)).faults == message.split("\n")
    return message


def saved(tmp_path: Path, rows: list[dict[str, Any]], splits: bool = False) -> Path:
    """A folder that save_to_disk wrote: the rows, or two splits of them."""
    import datasets

    datasets.disable_progress_bars()
    data = datasets.Dataset.from_list(rows)
    folder = tmp_path / "saved"
    (datasets.DatasetDict(train=data, dev=data) if splits else data).save_to_disk(str(folder))
    return folder


def rows_file(tmp_path: Path, kind: str, pairs: list[tuple[str, str]]) -> str:
    """The pairs in a file of that kind, with a third column besides; its name."""
    import pyarrow.parquet

    path = tmp_path / f"rows{kind}"
    rows = [{"n": i, "de": de, "en": en} for i, (de, en) in enumerate(pairs)]
    packed = kind.endswith(".gz")
    match kind.removesuffix(".gz"):
        case ".jsonl":
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        case ".json":
            text = json.dumps(rows)
        case ".tsv":
            text = "n\tde\ten\n" + "".join(f"{i}\t{de}\t{en}\n" for i, (de, en) in enumerate(pairs))
        case ".csv":
            quoted = [[cell.replace('"', '""') for cell in pair] for pair in pairs]
            text = "n,de,en\n" + "".join(f'{i},"{a}","{b}"\n' for i, (a, b) in enumerate(quoted))
        case ".parquet":
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
            return path.name
        case "saved" | "splits":
            return saved(tmp_path, rows, kind == "splits").name
    return write(path, text, packed).name


def damaged(
    lines: Sequence[str], rows: Iterable[int], word: str = "else", seed: int = 1
) -> list[str]:
    """The lines; in those rows one word, drawn by the seed, is `word`."""
    draw = random.Random(seed)
    result = list(lines)
    for row in rows:
        words = result[row].split()
        words[draw.randrange(len(words))] = word
        result[row] = " ".join(words)
    return result
