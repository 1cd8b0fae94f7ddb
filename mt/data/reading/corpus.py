"""The sentence pairs of a corpus: of line-aligned text files, where line n of the target is the
translation of line n of the source; of files of pairs, or of a data set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from mt.data.reading.compression import unchanged
from mt.data.reading.datasets_source import DataSetText
from mt.data.reading.misaligned import LEAST_PAIRS, AlignmentCheck
from mt.data.reading.table_files import TableText
from mt.data.reading.text import OpenedText, by_wildcards, files_ending, format_of
from mt.data.reading.text_files import (
    MAX_LINE,
    Damage,
    FileRecords,
    count_lines,
    existing_path,
    file_record,
    is_damaged,
    matching_files,
    read_lines,
    require_text,
    under,
)
from mt.data.reading.xml_files import UnitText
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.config.data_schema import SourceFormat
    from mt.config.plan import DataPlan
    from mt.config.schema import Source


@dataclass(frozen=True)
class AlignedText(OpenedText):
    """Text files by their names, wildcards or endings."""

    @property
    def files(self) -> list[Path]:
        """The files of the source, then those of the target."""
        source, names = self.source, (self.source.src, self.source.tgt)
        if source.path is None:
            return [path for name in names for path in matching_files(name, self.root)]
        sides = (files_ending(source, name, self.root) for name in names)
        return [*chain.from_iterable(side.values() for side in sides)]

    def aligned(self) -> list[tuple[Path, Path]]:
        """(source, target) paths that belong together. Raises `DataError` for one without another.

        In names with `*` or `?`, and in folders, those files belong together for which the rest of
        the name is the same.
        """
        src, tgt = map(self._side, ("src", "tgt"))
        for side, files, other in (("src", src, tgt), ("tgt", tgt, src)):
            if alone := sorted(other.keys() - files.keys()):
                raise DataError(
                    f"{self.where}.{side}: no file belongs to {other[alone[0]]}; with * and ? in a "
                    "name each source file needs a target file for which they stand for the same "
                    "text, in a folder one whose name differs in the ending only. Add the file, or "
                    "correct the name."
                )
        return [(src[key], tgt[key]) for key in sorted(src)]

    def _side(self, side: str) -> dict[tuple[str, ...], Path]:
        """The files of one side, by what tells them apart. Raises `DataError` without any."""
        source, root, where = self.source, self.root, f"{self.where}.{side}"
        name: str = getattr(source, side)
        if source.path is None:
            return by_wildcards(name, existing_path(name, root, where), root)
        files = files_ending(source, name, root)
        if not files:
            if not self.path.is_dir():
                existing_path(f"{source.path}.{name}", root, where)  # raises
            raise DataError(
                f"{where}: no file of the folder {self.path} ends in .{name}. Set {side} to the "
                "ending of its files."
            )
        return files

    def pairs(
        self, records: FileRecords | None, damage: Damage, stream: bool
    ) -> Iterator[tuple[str, str]]:
        self.require_split(under(self.root, self.source.path or self.source.src), ["train"])
        for src, tgt in self.aligned():
            yield from self._pairs_of(src, tgt, records, damage)

    def _pairs_of(
        self, src_path: Path, tgt_path: Path, records: FileRecords | None, damage: Damage
    ) -> Iterator[tuple[str, str]]:
        places = ((src_path, f"{self.where}.src"), (tgt_path, f"{self.where}.tgt"))
        errors = self.source.errors
        for place in places:
            require_text(*place)
        src_lines, tgt_lines = (
            read_lines(*place, errors, records, damage, MAX_LINE) for place in places
        )
        n_pairs = 0
        src_surplus = 0
        with unchanged(*places[0]), unchanged(*places[1]):
            for src in src_lines:
                tgt = next(tgt_lines, None)
                if tgt is None:
                    src_surplus = 1 + sum(1 for _ in src_lines)
                    break
                n_pairs += 1
                if errors == "skip" and (is_damaged(src) or is_damaged(tgt)):
                    kind = "pairs left out that are not UTF-8 or have endless lines"
                    damage.add(kind, f"{src_path}, line {n_pairs:,}")
                    continue
                yield src, tgt
            tgt_surplus = sum(1 for _ in tgt_lines)
        counted = (src_path, n_pairs + src_surplus), (tgt_path, n_pairs + tgt_surplus)
        if faults := self._line_count_faults(*counted):
            raise DataError("\n".join(faults))

    def faults(self, records: FileRecords) -> list[str]:
        """The faults of all files, read whole: existence, UTF-8, line ends, line counts.

        Files that have not changed since their `records` were taken are not read; those of others
        are added.
        """
        faults: list[str] = []
        lines: dict[Path, int] = {}
        errors = self.source.errors
        for side in ("src", "tgt"):
            field = f"{self.where}.{side}"
            try:
                for path in self._side(side).values():
                    require_text(path, field)
                    record = file_record(path, field, records, text=True, errors=errors)
                    records[str(path)] = record
                    lines[path] = record["lines"] or count_lines(path, field, errors=errors)
            except DataError as error:
                faults.append(str(error))
        if faults:
            return faults
        try:
            pairs = self.aligned()
        except DataError as error:
            return [str(error)]
        for src, tgt in pairs:
            faults += self._line_count_faults((src, lines[src]), (tgt, lines[tgt]))
        return faults

    def _line_count_faults(self, src: tuple[Path, int], tgt: tuple[Path, int]) -> list[str]:
        """Messages about the (path, number of lines) of the source and the target file."""
        faults = [
            f"{self.where}.{side}: {path} is empty, at least one line is required. Name the file "
            "that contains the text."
            for side, (path, lines) in (("src", src), ("tgt", tgt))
            if not lines
        ]
        (src_path, n_src), (tgt_path, n_tgt) = src, tgt
        if faults or n_src == n_tgt:
            return faults
        line = first_shifted_line(src_path, tgt_path)
        hint = f"; first pair that looks shifted: line {line:,}" if line else ""
        return [
            f"{self.where}.tgt: {tgt_path} has {n_tgt:,} lines, {src_path} has {n_src:,}{hint}. "
            "Line n of one file must be the translation of line n of the other: restore the "
            "missing line, or remove the surplus one."
        ]


def first_shifted_line(src: Path, tgt: Path) -> int | None:
    """The line, from 1, from which on two text files are out of step; None if that is not clear."""
    check = AlignmentCheck()
    number = 0
    sides = (read_lines(path, errors="replace") for path in (src, tgt))
    for number, pair in enumerate(zip(*sides, strict=False), start=1):
        if all(map(str.strip, pair)):
            check.add(number, *pair)
    runs = [run for run in check.finish() if run.last > number - LEAST_PAIRS]
    # Files that never matched are out of step from the beginning, and nowhere in step again.
    return runs[-1].first if runs and (runs[-1].shift or runs[-1].first > LEAST_PAIRS) else None


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
    for corpus in data.corpora:
        yield from read_pairs(corpus.source, data.root, corpus.name)
