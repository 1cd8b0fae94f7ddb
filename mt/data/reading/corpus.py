"""The sentence pairs of a corpus: from line-aligned text files, files of pairs or a data set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mt.data.reading.aligned_files import AlignedText
from mt.data.reading.datasets_source import DataSetText
from mt.data.reading.formats import format_of
from mt.data.reading.table_files import TableText
from mt.data.reading.text import OpenedText
from mt.data.reading.text_files import Damage, FileRecords
from mt.data.reading.xml_files import UnitText

if TYPE_CHECKING:
    from mt.config.data_schema import SourceFormat
    from mt.config.plan import DataPlan
    from mt.config.schema import Source

KINDS: dict[SourceFormat, type[OpenedText]] = {
    "text": AlignedText,
    **dict.fromkeys(("tsv", "csv", "json", "jsonl"), TableText),
    **dict.fromkeys(("tmx", "xliff"), UnitText),
    **dict.fromkeys(("parquet", "dataset"), DataSetText),
}


def open_text(source: Source, root: Path, where: str = "") -> OpenedText:
    """Open a source of a config, whose paths start at `root`; `where` names it in messages."""
    kind = format_of(source, root)
    return KINDS[kind](source, root, where, kind)


def local_files(source: Source, root: Path) -> list[Path]:
    """The files on this machine that a source is read from; none for a hub name."""
    return open_text(source, root).files


def read_pairs(
    source: Source,
    root: Path,
    where: str,
    stream: bool = False,
    records: FileRecords | None = None,
    damage: Damage | None = None,
) -> Iterator[tuple[str, str]]:
    r"""The sentence pairs of a source, in order, in bounded memory; no side contains a `\n`.

    `where` names the source in messages, such as `data.train[0]`. With `stream` a hub data set is
    not downloaded whole. `records` gets those of every text file that is read to its end, `damage`
    what was left out or replaced. Raises `DataError` for everything that makes the source unusable;
    unequal line counts are found at the end.
    """
    text = open_text(source, root, where)
    text.require_one_format()
    yield from text.pairs(records, Damage() if damage is None else damage, stream)


def training_pairs(data: DataPlan) -> Iterator[tuple[str, str]]:
    """(source, target) lines of all corpora, as they are stored."""
    for corpus in data.corpora:
        yield from read_pairs(corpus.source, data.root, corpus.name)
