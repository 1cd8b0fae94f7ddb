"""Check the data of a config before training: faults that forbid it, and warnings."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from mt.config.plan import Corpus, DataPlan
from mt.data.reading.corpus import AlignedText, local_files, open_text, read_pairs
from mt.data.reading.languages import base_code, other_language
from mt.data.reading.misaligned import AlignmentCheck
from mt.data.reading.text import Pairs
from mt.data.reading.text_files import Damage, FileRecords
from mt.data.reading.words import has_visible
from mt.errors import DataError

Pair: TypeAlias = tuple[str, str]
Watch: TypeAlias = Callable[[Pairs], Pairs]
# Pairs of a training source that are read: of local files and of a stream from the hub; and right
# before training, which reads all of them next.
MAX_PAIRS = 1_000_000
MAX_STREAMED_PAIRS = 1_000
MAX_PAIRS_BEFORE_TRAINING = 100_000

# Share of the pairs of a validation or test set from which on it is said that training has them.
LEAST_LEAKED = 0.01
# Lines of each side whose language is identified, and the characters that they have at least.
IDENTIFIED, LONG = 200, 40
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
    data: DataPlan, before_training: bool = False, known: FileRecords | None = None,
    watch: Watch | None = None,
) -> DataCheck:  # fmt: skip
    """Read the data as far as possible and say what is wrong with it.

    Text files are read whole, unless unchanged since they became `known`, and validation and test
    sets of every kind; of other training data the first `MAX_PAIRS`, streamed from the hub unless
    `before_training`. `watch` gets all pairs of each training text, and passes them on.
    """
    records = dict(known or {})
    held_out = defaultdict[str, set[Pair]](set)  # the pairs of each validation and test set
    checks: dict[str, DataCheck] = {}
    leaks: list[tuple[str, str, int]] = []  # set, training text, pairs that both have
    for text in (*data.held_out, *data.corpora):
        is_training = text in data.corpora
        sample = _Sample(text, is_training, held_out)
        watch_of_text = watch if is_training else None
        limit = None
        if is_training and watch is None:
            limit = MAX_PAIRS_BEFORE_TRAINING
            if not before_training:
                limit = MAX_PAIRS if local_files(text.source, data.root) else MAX_STREAMED_PAIRS
        checks[text.name] = _check_text(sample, data.root, watch_of_text, limit, records)
        leaks += [(name, text.name, len(pairs)) for name, pairs in sample.leaked.items()]
        is_whole = not checks[text.name].faults and (limit is None or sample.pairs < limit)
        if text in data.corpora[:1] and is_whole and 2 * data.to_hold_out > sample.pairs:
            checks[text.name].faults.append(
                f"{text.name}: has {sample.pairs:,} pairs, and {data.to_hold_out:,} are to be held "
                "out for data.valid and data.test; at most half may. Hold out fewer, or name files"
            )
    every = [checks[text.name] for text in data.named]
    warnings = [warning for check in every for warning in check.warnings]
    for name, corpus, count in leaks:
        total = len(held_out[name])
        if count >= LEAST_LEAKED * total and not (data.clean and data.clean.leaks):
            warnings.append(
                f"{name}: {count:,} of its {total:,} different pairs are in {corpus} too, so its "
                "score says little about new text. Hold out others ({split: N}), or let data.clean "
                "drop them from the training text"
            )
    return DataCheck(
        faults=[*dict.fromkeys(fault for check in every for fault in check.faults)],
        warnings=warnings, unread=[line for check in every for line in check.unread],
        records=records, n_pairs=sum(check.n_pairs for check in every),
    )  # fmt: skip


def _check_text(
    sample: _Sample, root: Path, watch: Watch | None, limit: int | None, records: FileRecords
) -> DataCheck:
    """Read a text, of training text at most `limit` pairs; `watch` gets those that are read."""
    where, source = sample.text.name, sample.text.source
    check = DataCheck()
    opened = open_text(source, root, where)
    aligned = opened if isinstance(opened, AlignedText) else None
    sample.unit = "line" if aligned else "pair"
    is_streamed = limit == MAX_STREAMED_PAIRS
    damage = Damage()
    try:
        if limit and aligned and (faults := aligned.faults(records)):
            return DataCheck(faults)
        rest = read_pairs(source, root, where, is_streamed, None if limit else records, damage)
        pairs = sample.watch(rest)
        deque(islice(watch(pairs) if watch else pairs, limit), maxlen=0)
        if limit and not aligned and next(rest, None) is not None:
            check.unread.append(
                f"{where}: the first {limit:,} rows of {source.path} are good; the others "
                "were not read"
            )
    except DataError as error:
        # A single pass ends at the first fault.
        check.faults += (aligned and aligned.faults(records)) or str(error).split("\n")
        return check
    check.n_pairs = sample.pairs * sample.is_training
    check.warnings += sample.warnings()
    left_out = damage.messages()
    if left_out and not sample.pairs:
        check.faults.append(f"{where}: no pair is left: {'; '.join(left_out)}")
    else:
        check.warnings += [f"{where}: {message}" for message in left_out]
        check.faults += sample.faults()
    return check


@dataclass
class _Sample:
    """Counts the pairs of a text that look wrong, and keeps the first of each kind."""

    text: Corpus
    is_training: bool
    held_out: defaultdict[str, set[Pair]]  # gets the pairs of a validation or test set, by name
    leaked: dict[str, set[Pair]] = field(default_factory=dict)  # of those, what is here too
    unit: str = "line"  # what `pairs` counts: rows may be on several lines
    pairs: int = 0
    with_text: int = 0  # on both sides
    odd: Damage = field(default_factory=Damage)
    lines: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))  # long ones
    alignment: AlignmentCheck = field(default_factory=AlignmentCheck)

    def watch(self, pairs: Pairs) -> Pairs:
        """Pass the pairs on, count them, and remember those of validation and test sets."""
        for src, tgt in pairs:
            self.pairs += 1
            pair = min((src, tgt), (tgt, src))  # a text may be stored the other way round
            if self.is_training:
                for name, known in self.held_out.items():
                    if pair in known:
                        self.leaked.setdefault(name, set()).add(pair)
            elif src and tgt:
                self.held_out[self.text.name].add(pair)
            if not has_visible(tgt):
                self.odd.add("no reference", f"{self.pairs:,}")
            elif has_visible(src):
                self.with_text += 1
                self.alignment.add(self.pairs, src, tgt)
            if src == tgt and src.strip():
                self.odd.add("identical", src)
            for cell, lines in zip((src, tgt), self.lines, strict=True):
                if len(lines) < IDENTIFIED and len(cell) >= LONG:
                    lines.append(cell)
            yield src, tgt

    def faults(self) -> Iterator[str]:
        """Yield what makes all of these pairs useless."""
        where = self.text.name
        if self.is_training and not self.with_text:
            yield f"{where}: all of {self.pairs:,} pairs have an empty side. Both must contain text"
        elif not self.is_training and self.odd.count("no reference") == self.pairs:
            yield (
                f"{where}: none of the {self.pairs:,} {self.unit}s has a reference, and each that "
                "is to be scored needs one. Name the file of the translations"
            )

    def warnings(self) -> Iterator[str]:
        """Yield warnings about these pairs."""
        where = self.text.name
        empty, first = self.odd.kinds.get("no reference", (0, ""))
        if empty and not self.is_training:
            yield (
                f"{where}: {empty:,} of {self.pairs:,} {self.unit}s have no reference, the first "
                f"is {self.unit} {first}; they are not scored"
            )
        codes = map(base_code, self.text.direction)
        for side, code, sample in zip(("src", "tgt"), codes, self.lines, strict=True):
            if other := other_language(sample, code):
                yield (
                    f"{where}.{side}: is mostly in {other}, not in {code}. Name a file in {code}, "
                    f"or set {side}_lang to {other}"
                )
        if runs := self.alignment.finish():
            shown = ", ".join(map(str, runs[:SHOWN_RUNS]))
            more = f", and {len(runs) - SHOWN_RUNS:,} more runs" if len(runs) > SHOWN_RUNS else ""
            yield (
                f"{where}: about {self.unit}s {shown}{more} look misaligned: lengths and numbers "
                "do not go together there as in the others. Look at the first ones: a line may be "
                "missing on one side"
            )
        if 2 * self.odd.count("identical") > self.pairs:
            identical, copied = self.odd.kinds["identical"]
            yield (
                f"{where}: source and target are the same in {identical:,} of {self.pairs:,} "
                f"pairs, such as {copied[:60]!r}, so the model would learn to copy. Check "
                "that tgt is the translation"
            )
