"""The sentence pairs of a corpus: of line-aligned text files, files of pairs, or a data set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from mt.config.data_schema import Source, SourceFormat
from mt.config.plan import DataPlan
from mt.data.reading import text_files
from mt.data.reading.compression import unchanged
from mt.data.reading.datasets_source import DataSetText
from mt.data.reading.misaligned import LEAST_PAIRS, AlignmentCheck
from mt.data.reading.table_files import TableText
from mt.data.reading.text import OpenedText, Pairs, by_wildcards, files_ending, format_of
from mt.data.reading.text_files import MAX_LINE, Damage, FileRecords, count_lines, read_lines, under
from mt.data.reading.xml_files import UnitText
from mt.errors import DataError


@dataclass(frozen=True)
class AlignedText(OpenedText):
    """Text files by their names, wildcards or endings."""

    @property
    def files(self) -> list[Path]:
        """The files of the source, then those of the target."""
        source, names = self.source, (self.source.src, self.source.tgt)
        if source.path is None:
            return [path for name in names for path in text_files.matching_files(name, self.root)]
        return [file for name in names for file in files_ending(source, name, self.root).values()]

    def aligned(self) -> list[tuple[Path, Path]]:
        """(source, target) paths that belong together, as the rest of their names is the same."""
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
            return by_wildcards(name, text_files.existing_path(name, root, where), root)
        if files := files_ending(source, name, root):
            return files
        if not self.path.is_dir():
            text_files.existing_path(f"{source.path}.{name}", root, where)  # raises
        raise DataError(
            f"{where}: no file of the folder {self.path} ends in .{name}. Set {side} to the "
            "ending of its files."
        )

    def pairs(self) -> Pairs:
        self.require_split(under(self.root, self.source.path or self.source.src), ["train"])
        for paths in self.aligned():
            yield from self._pairs_of(paths)

    def _pairs_of(self, paths: tuple[Path, Path]) -> Pairs:
        places = [*zip(paths, (f"{self.where}.src", f"{self.where}.tgt"), strict=True)]
        errors, records, damage = self.source.errors, self.records, self.damage
        for place in places:
            text_files.require_text(*place)
        sides = (read_lines(*place, errors, records, damage, MAX_LINE) for place in places)
        src_lines, tgt_lines = sides
        n_pairs = src_surplus = 0
        with unchanged(*places[0]), unchanged(*places[1]):
            for src in src_lines:
                tgt = next(tgt_lines, None)
                if tgt is None:
                    src_surplus = 1 + sum(1 for _ in src_lines)
                    break
                n_pairs += 1
                if errors == "skip" and (text_files.is_damaged(src) or text_files.is_damaged(tgt)):
                    kind = "pairs left out that are not UTF-8 or have endless lines"
                    damage.add(kind, f"{paths[0]}, line {n_pairs:,}")
                    continue
                yield src, tgt
            tgt_surplus = sum(1 for _ in tgt_lines)
        if faults := self._line_count_faults(*paths, n_pairs + src_surplus, n_pairs + tgt_surplus):
            raise DataError("\n".join(faults))

    def faults(self, records: FileRecords) -> list[str]:
        """The faults of all files: existence, UTF-8, line ends, line counts; adds to `records`."""
        faults: list[str] = []
        lines: dict[Path, int] = {}
        errors = self.source.errors
        for side in ("src", "tgt"):
            field = f"{self.where}.{side}"
            try:
                for path in self._side(side).values():
                    text_files.require_text(path, field)
                    record = text_files.file_record(path, field, records, text=True, errors=errors)
                    records[str(path)] = record
                    lines[path] = record["lines"] or count_lines(path, field, errors=errors)
            except DataError as error:
                faults.append(str(error))
        try:
            pairs = [] if faults else self.aligned()
        except DataError as error:
            return [str(error)]
        for src, tgt in pairs:
            faults += self._line_count_faults(src, tgt, lines[src], lines[tgt])
        return faults

    def _line_count_faults(self, src: Path, tgt: Path, n_src: int, n_tgt: int) -> list[str]:
        faults = [
            f"{self.where}.{side}: {path} is empty, at least one line is required. Name the file "
            "that contains the text."
            for side, path, n_lines in (("src", src, n_src), ("tgt", tgt, n_tgt))
            if not n_lines
        ]
        if faults or n_src == n_tgt:
            return faults
        line = first_shifted_line(src, tgt)
        hint = f"; first pair that looks shifted: line {line:,}" if line else ""
        return [
            f"{self.where}.tgt: {tgt} has {n_tgt:,} lines, {src} has {n_src:,}{hint}. "
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
    "text": AlignedText, **dict.fromkeys(("tsv", "csv", "json", "jsonl"), TableText),
    **dict.fromkeys(("tmx", "xliff"), UnitText),
    **dict.fromkeys(("parquet", "dataset"), DataSetText),
}  # fmt: skip


def open_text(source: Source, root: Path, where: str = "") -> OpenedText:
    """Open a source of a config, whose paths start at `root`; `where` names it in messages."""
    kind = format_of(source, root)
    return KINDS[kind](source, root, where, kind)


def local_files(source: Source, root: Path) -> list[Path]:
    return open_text(source, root).files


def read_pairs(
    source: Source, root: Path, where: str, stream: bool = False,
    records: FileRecords | None = None, damage: Damage | None = None,
) -> Pairs:  # fmt: skip
    r"""The sentence pairs of a source, in order, in bounded memory; no side contains a `\n`.

    `where` names it in messages. With `stream` a hub data set is not downloaded whole. `records`
    gets those of text files that are read to their end, `damage` what was left out or replaced.
    Raises `DataError` for an unusable source; unequal line counts are found at the end.
    """
    text = open_text(source, root, where)
    text.check_format()
    yield from replace(text, stream=stream, records=records, damage=damage or Damage()).pairs()


def training_pairs(data: DataPlan) -> Pairs:
    for corpus in data.corpora:
        yield from read_pairs(corpus.source, data.root, corpus.name)
