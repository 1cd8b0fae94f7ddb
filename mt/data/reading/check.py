"""Check the data of a config before training: faults that forbid it, and warnings."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from mt.data.reading.corpus import aligned_files_faults, read_pairs
from mt.data.reading.formats import aligned_files, format_of, local_files
from mt.data.reading.misaligned import AlignmentCheck
from mt.data.reading.text_files import Damage, FileRecords
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.config.plan import Corpus, DataPlan
    from mt.config.schema import Source

Pair: TypeAlias = tuple[str, str]
# Pairs of a training source that are read: of local files and of a stream from the hub; and right
# before training, which reads all of them next.
MAX_PAIRS = 1_000_000
MAX_STREAMED_PAIRS = 1_000
MAX_PAIRS_BEFORE_TRAINING = 100_000

# Words that names of columns are made of, besides the codes of the two languages.
NAMES = frozenset(
    [
        *("source", "target", "src", "tgt", "trg", "ref", "reference", "original", "translation"),
        *("text", "sentence", "segment", "lang", "language", "german", "english", "french"),
        *("spanish", "italian", "chinese", "japanese", "russian"),
    ]
)
# A cell that CSV quotes, and one in which it doubles a quotation mark.
QUOTED = re.compile(r'"(?:[^"]|"")*"')
# Share of cells with doubled quotation marks above which they are taken for quoting.
MAX_DOUBLED = 0.001
# Runs of misaligned lines that a warning names.
SHOWN_RUNS = 3


@dataclass
class DataCheck:
    """Faults of the data of a config, and warnings about it, each as one message."""

    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # what was not read, and so not checked
    records: FileRecords = field(default_factory=dict)  # of the files that were read whole
    n_pairs: int = 0  # of training texts, as far as they were read


def check_data(
    data: DataPlan,
    before_training: bool = False,
    known: FileRecords | None = None,
    watch: Callable[[Iterator[Pair]], Iterator[Pair]] | None = None,
) -> DataCheck:
    """Read the data as far as possible and say what is wrong with it.

    Text files, and validation and test sets of every kind, are read whole; of other training data
    the first `MAX_PAIRS`. Training data on the hub is not downloaded for that, unless
    `before_training` says that it is needed anyway. Text files for training that have not changed
    since their records became `known` are not read whole again.

    `watch`, where given, gets all pairs of each training text, and passes them on.
    """
    root = data.root
    check = DataCheck(records=dict(known or {}))
    for text in data.named:
        where, source = text.name, text.source
        is_training = text in data.corpora
        is_text = format_of(source, root) == "text"
        is_streamed = is_training and not before_training and not local_files(source, root)
        limit: int | None = MAX_PAIRS_BEFORE_TRAINING if before_training else MAX_PAIRS
        limit = MAX_STREAMED_PAIRS if is_streamed else limit
        if watch is not None or not is_training:
            limit = None
        sample = _Sample()
        damage = Damage()
        try:
            if limit and is_text:
                faults = aligned_files_faults(source, root, where, check.records)
                if faults:
                    check.faults += faults
                    continue
            records = None if limit else check.records
            rest = read_pairs(source, root, where, is_streamed, records, damage)
            pairs = sample.watch(rest)
            for _ in islice(watch(pairs) if watch and is_training else pairs, limit):
                pass
            if limit and not is_text and next(rest, None) is not None:
                check.unread.append(
                    f"{where}: the first {limit:,} rows of {source.path} are good; the others "
                    "were not read"
                )
        except DataError as error:
            # A single pass ends at the first fault.
            has_files = is_text and source.test_set is None
            every = has_files and aligned_files_faults(source, root, where, check.records)
            check.faults += every or str(error).split("\n")
        else:
            check.n_pairs += sample.pairs * is_training
            check.warnings += sample.warnings(text, root)
            left_out = damage.messages()
            if left_out and not sample.pairs:
                check.faults.append(f"{where}: no pair is left: {'; '.join(left_out)}")
                continue
            check.warnings += [f"{where}: {message}" for message in left_out]
            check.faults += sample.faults(where)
    check.warnings += _trained_on(data, check.records)
    return check


def _trained_on(data: DataPlan, records: FileRecords) -> Iterator[str]:
    """Yield warnings about validation and test sets that are training text."""

    def content(source: Source) -> tuple[object, set[str]]:
        """A source without its files, and these by their content, or their paths."""
        files = local_files(source, data.root)
        known = (records.get(str(file), {}).get("sha256") for file in files)
        paths = (os.path.realpath(file) for file in files)
        names = [source.name, source.split, *([] if files else [source.path])]
        return names, {digest or path for digest, path in zip(known, paths, strict=True)}

    trained = [(corpus.name, content(corpus.source)) for corpus in data.corpora]
    for text in (*data.valid, *data.test):
        names, files = content(text.source)
        for other, (other_names, other_files) in trained:
            if names == other_names and files <= other_files:
                yield (
                    f"{text.name} is the text of {other} ({text.file}), so its score says nothing "
                    "about new text. Name text that is not trained on"
                )
                break


@dataclass
class _Sample:
    """Counts the pairs of a source that look wrong, and keeps the first of each kind."""

    pairs: int = 0
    first: Pair = ("", "")
    with_text: int = 0  # on both sides
    odd: Damage = field(default_factory=Damage)
    alignment: AlignmentCheck = field(default_factory=AlignmentCheck)

    def watch(self, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Pass the pairs on and count them."""
        for src, tgt in pairs:
            self.pairs += 1
            if self.pairs == 1:
                self.first = src, tgt
            if not tgt.strip():
                self.odd.add("no reference", f"{self.pairs:,}")
            elif src.strip():
                self.with_text += 1
                self.alignment.add(self.pairs, src, tgt)
            if src == tgt and src.strip():
                self.odd.add("identical", src)
            for cell in (src, tgt):
                if cell[:1] == '"' and len(cell) > 1 and QUOTED.fullmatch(cell):
                    self.odd.add("quoted", cell)
                    if '""' in cell[1:-1]:
                        self.odd.add("doubled", cell)
            yield src, tgt

    def faults(self, where: str) -> Iterator[str]:
        """Yield what makes all of these pairs useless."""
        if where.startswith("data.train") and not self.with_text:
            yield (
                f"{where}: all of {self.pairs:,} pairs have an empty side, so none can be trained "
                "on. Name files that contain text"
            )
        elif self.odd.count("no reference") == self.pairs and not where.startswith("data.train"):
            yield (
                f"{where}: none of the {self.pairs:,} lines has a reference, and one is "
                "needed for each line that is to be scored. Name the file of the translations"
            )

    def warnings(self, text: Corpus, root: Path) -> Iterator[str]:
        """Yield warnings about these pairs of a text."""
        where, source = text.name, text.source
        src, tgt = self.first
        names = NAMES | {code.casefold() for code in text.direction}
        words = [re.findall(r"\w[^\W_]*", cell.casefold().replace("_", " ")) for cell in self.first]
        are_names = src != tgt and all(cell and set(cell) <= names for cell in words)
        if source.path is not None and (source.src + source.tgt).isdecimal() and are_names:
            yield (
                f"{where}: the first line of {source.path} looks like names of columns, {src!r} "
                f"and {tgt!r}, and is read as text. Set src to {src!r} and tgt to {tgt!r}"
            )
        lines, first = self.odd.kinds.get("no reference", (0, ""))
        if lines and not where.startswith("data.train"):
            yield (
                f"{where}: {lines:,} of {self.pairs:,} lines have no reference, the first is line "
                f"{first}; they are not scored"
            )
        if runs := self.alignment.finish():
            shown = ", ".join(map(str, runs[:SHOWN_RUNS]))
            more = f", and {len(runs) - SHOWN_RUNS:,} more runs" if len(runs) > SHOWN_RUNS else ""
            yield (
                f"{where}: about lines {shown}{more} look misaligned: lengths and numbers do not "
                "go together there as in the other lines. Look at the first ones: a line may be "
                "missing on one side"
            )
        is_same_text = source.src == source.tgt or (
            format_of(source, root) == "text"
            and any(src.samefile(tgt) for src, tgt in aligned_files(source, root, ""))
        )
        if is_same_text:
            yield (
                f"{where}: src and tgt are the same ({source.src}), so the model would learn to "
                "copy. Set tgt to the translations"
            )
        elif 2 * self.odd.count("identical") > self.pairs:
            identical, copied = self.odd.kinds["identical"]
            yield (
                f"{where}: source and target are the same in {identical:,} of {self.pairs:,} "
                f"pairs, such as {copied[:60]!r}, so the model would learn to copy. Check "
                "that tgt is the translation"
            )
        quoted, cell = self.odd.kinds.get("quoted", (0, ""))
        doubled, cell = self.odd.kinds.get("doubled", (0, cell))
        if source.quoting is None and (
            doubled > max(1, MAX_DOUBLED * 2 * self.pairs) or quoted > self.pairs
        ):
            cell = cell if len(cell) <= 60 else f"{cell[:57]}..."
            remedy = (
                f"Set quoting to csv in {where} if the quotation marks are not part of the text, "
                "else to none"
                if format_of(source, root) == "tsv"
                else "If they are not part of the text, write the data without them"
            )
            yield (
                f"{where}: {quoted:,} of {2 * self.pairs:,} texts are in quotation marks as "
                f"CSV writes them, such as {cell}. {remedy}"
            )
