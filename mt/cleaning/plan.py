"""The plan of a cleaning: corpora and settings, and the keys of what the stages make of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from mt.artefacts import content_key
from mt.cleaning.leaks import LeakIndex
from mt.cleaning.rules import RULES, SCORES_VERSION, PairScorer
from mt.config.plan import Corpus, DataPlan, Direction
from mt.config.schema import Clean, Source
from mt.data.reading.compression import suffix_of
from mt.data.reading.corpus import AlignedText, local_files, open_text, read_pairs
from mt.data.reading.text import SUFFIXES, NoRowsError, Pairs
from mt.data.reading.text_files import (
    Damage,
    FileRecords,
    existing_path,
    is_pattern,
    matching_files,
    read_lines,
)
from mt.data.tokens.duplicates import hashes
from mt.errors import DataError
from mt.files import read_json

# A shard ends where either is reached, so that one fits into the memory of a process.
PAIRS_PER_SHARD = 250_000
BYTES_PER_SHARD = 64 << 20
PAIRS_PER_BUCKET = 1_000_000  # pairs whose keys are compared at a time: 100 MB

AGAINST = "data.clean.against"  # in messages


@dataclass(frozen=True)
class Part:
    """One file, or pair of files, of a corpus; the whole of a data set that is not files."""

    corpus: int
    source: Source
    name: str
    has_lines: bool  # pair n of it is in line n

    def place(self, number: int) -> str:
        """Where a pair, counted from 0, is: `train.de:17`, or `rows.jsonl, pair 17`."""
        return f"{self.name}:{number + 1}" if self.has_lines else f"{self.name}, pair {number + 1}"


@dataclass(frozen=True)
class Shard:
    """Consecutive pairs of a part."""

    part: int
    number: int
    start: int  # of its first pair within the part
    pairs: int
    corpus: int

    @property
    def name(self) -> str:
        return f"{self.part:05}-{self.number:05}"


@dataclass(frozen=True)
class CleaningPlan:
    """All that the stages of a cleaning need to know; each process gets it whole."""

    work: Path
    root: Path
    corpora: tuple[Corpus, ...]
    clean: Clean
    usual: Direction  # languages of corpora that do not say theirs
    evaluation: tuple[Corpus, ...] = ()  # validation and test sets
    is_table: bool = False  # TSV, not two aligned text files
    pairs_per_shard: int = PAIRS_PER_SHARD
    pairs_per_bucket: int = PAIRS_PER_BUCKET

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        parts = (_parts(number, corpus, self.root) for number, corpus in enumerate(self.corpora))
        return tuple(chain.from_iterable(parts))

    def pairs_of(self, part: Part, damage: Damage, records: FileRecords) -> Pairs:
        """Read the pairs of a part. Raises DataError; of several files one may have no rows."""
        where = self.corpora[part.corpus].name
        try:
            yield from read_pairs(part.source, self.root, where, records=records, damage=damage)
        except NoRowsError:
            if [other.corpus for other in self.parts].count(part.corpus) == 1:
                raise

    @cached_property
    def scored_as(self) -> Clean:
        """The settings that scoring has: they do not tell at which limits a pair goes."""
        rules = [rule.key for rule in RULES if rule.key and rule.limit(self.clean) is not None]
        limits = {key: getattr(Clean(), key) for key in rules}
        return self.clean.model_copy(update={**limits, "duplicates": None, "leaks": None})

    @cached_property
    def scoring_key(self) -> str:
        """Stands for all that scores, keys and leaks depend on: an artefact's key."""
        files = [path for part in self.parts for path in local_files(part.source, self.root)]
        sets = [path for text in self.evaluation for path in local_files(text.source, self.root)]
        against = files_against(self.clean, self.root)
        texts = [
            [text.name, text.direction, text.source.model_dump(mode="json", exclude={"weight"})]
            for text in (*self.corpora, *self.evaluation)
        ]
        states = [_file_state(path) for path in (*files, *sets, *against)]
        settings = self.scored_as.model_dump(mode="json")
        return content_key(
            [SCORES_VERSION, self.pairs_per_shard, self.usual, texts, settings, states]
        )

    @cached_property
    def writing_key(self) -> str:
        """Stands for all that the cleaned text depends on."""
        weights = [corpus.weight for corpus in self.corpora]
        names = [self.title(number) for number in range(len(self.corpora))]
        settings = self.clean.model_dump(mode="json")
        return content_key([self.scoring_key, settings, weights, names, self.is_table])

    @property
    def scored(self) -> Path:
        return self.work / "scored"

    @property
    def dropped(self) -> Path:
        return self.work / "dropped"

    @property
    def kept(self) -> Path:
        return self.work / "kept"

    @cached_property
    def evaluation_index(self) -> LeakIndex | None:
        """The validation and test sets, and the files of `clean.against`; None without any."""
        sets = {}
        stored = {corpus.direction for corpus in self.corpora}
        for text in self.evaluation:
            pairs = list(read_pairs(text.source, self.root, text.name))
            # Corpora may be stored the other way round, or both ways.
            is_turned = text.direction.turned in stored
            if not is_turned or text.direction in stored:
                sets[text.name] = pairs
            if is_turned:
                sets[f"{text.name} (reversed)"] = [(tgt, src) for src, tgt in pairs]
        against = files_against(self.clean, self.root)
        for path in against:
            # A line may be either side, and so may each cell of a table.
            cells = [cell for line in read_lines(path, AGAINST) for cell in line.split("\t")]
            sets[str(path)] = [(cell, cell) for cell in cells]
        return LeakIndex(sets, lines=[*map(str, against)]) if sets else None

    def title(self, number: int) -> str:
        corpus = self.corpora[number]
        several = len({other.direction for other in self.corpora}) > 1
        return corpus.file + f" {corpus.direction}" * several

    def index(self, part: int) -> dict[str, Any]:
        """The index of a part: pairs of its shards, records of its files, damage."""
        return dict(read_artefact(self.scored / f"{part:05}" / "index.json"))

    def shards_of(self, part: int) -> Iterator[Shard]:
        """The shards of a part that has been read."""
        start = 0
        for number, pairs in enumerate(self.index(part)["pairs"]):
            yield Shard(part, number, start, pairs, self.parts[part].corpus)
            start += pairs

    @cached_property
    def shards(self) -> list[Shard]:
        return [shard for part in range(len(self.parts)) for shard in self.shards_of(part)]

    @cached_property
    def scorers(self) -> list[PairScorer]:
        """The scorer of each corpus, shared in a direction. DataError without its packages."""
        directions = [corpus.direction for corpus in self.corpora]
        scorers = {pair: PairScorer(self.scored_as, *pair) for pair in dict.fromkeys(directions)}
        return [scorers[pair] for pair in directions]

    def language_key(self, corpus: int) -> np.uint64:
        """The number to XOR a corpus's keys with: only pairs in the same languages are equal."""
        direction = self.corpora[corpus].direction
        is_usual = direction == self.usual
        return np.uint64(0) if is_usual else hashes(["\n".join(direction).encode()])[0]


def read_artefact(path: Path) -> Any:
    """Read pairs, JSON, an array, or arrays by name. Raises DataError where they are damaged."""
    try:
        match path.suffix:
            case ".json":
                return read_json(path)
            case ".npy":
                return np.load(path, mmap_mode="r")
            case ".npz":
                with np.load(path) as arrays:
                    return dict(arrays)
            case _:
                return pairs_in(path.read_bytes())
    except (ValueError, EOFError, KeyError, BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path}: is damaged ({error}). Remove {path.parent}, and give the same command again."
        ) from error


def pairs_in(text: bytes) -> list[tuple[str, str]]:
    """The pairs of a text in which the sides of each follow each other as lines."""
    lines = text.decode("utf-8").split("\n") if text else []
    return list(zip(lines[::2], lines[1::2], strict=True))


def files_against(clean: Clean, root: Path) -> list[Path]:
    """The files of `clean.against`: no line may be in the corpora. Raises DataError."""
    files = []
    for name in clean.against:
        existing_path(name, root, AGAINST)
        files += matching_files(name, root)
    for path in files:
        if (kind := SUFFIXES.get(suffix_of(path), "tsv")) != "tsv":
            raise DataError(
                f"{AGAINST}: {path} is {kind}, in which lines are no sentences; lines of text, "
                "with or without tabs, are required. Name it in data.test of a config instead."
            )
    return files


def plan_of(
    data: DataPlan, work: Path, is_table: bool = False, where: str = "data.train"
) -> CleaningPlan:
    """Plan the cleaning of the corpora of a config; `where` opens their names in messages."""
    assert data.clean is not None
    corpora = tuple(
        replace(text, name=text.name.replace("data.train", where, 1)) for text in data.corpora
    )
    sets = tuple(data.held_out)
    return CleaningPlan(work, data.root, corpora, data.clean, data.usual, sets, is_table)


def _parts(number: int, corpus: Corpus, root: Path) -> Iterator[Part]:
    source = corpus.source
    text = open_text(source, root, corpus.name)
    text.check_format()
    if isinstance(text, AlignedText):
        for src, tgt in text.aligned():
            paths = {"src": str(src.absolute()), "tgt": str(tgt.absolute())}
            own_files = source.model_copy(update={**paths, "path": None, "format": None})
            yield Part(number, own_files, str(src), source.errors != "skip")
    elif is_pattern(str(source.path)) and (files := text.files):
        for file in files:
            paths = {"path": str(file.absolute())}
            yield Part(number, source.model_copy(update=paths), str(file), False)
    else:
        yield Part(number, source, str(text.path), False)


def _file_state(path: Path) -> list[Any]:
    try:
        stat = path.stat()
    except OSError:
        return [str(path.absolute())]  # reading it tells what is wrong
    return [str(path.absolute()), stat.st_size, stat.st_mtime_ns]
