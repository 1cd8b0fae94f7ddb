"""The plan of a cleaning: corpora and settings, and work folders keyed by their content."""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zipfile import BadZipFile

import numpy as np

from mt.cleaning.leaks import LeakIndex
from mt.cleaning.rules import RULES, SCORES_VERSION, PairScorer
from mt.data.reading.columns import NoRowsError
from mt.data.reading.compression import suffix_of
from mt.data.reading.corpus import local_files, read_pairs
from mt.data.reading.formats import SUFFIXES, aligned_files, format_of, require_one_format
from mt.data.reading.text_files import existing_path, is_pattern, matching_files, read_lines, under
from mt.data.tokens.duplicates import hashes
from mt.errors import DataError
from mt.files import read_json, write_whole

if TYPE_CHECKING:
    from mt.config.plan import Corpus, DataPlan, Direction
    from mt.config.schema import Clean, Source
    from mt.data.reading.text_files import Damage, FileRecords

FORMAT = 2
WORK_FILE = "cleaning.json"
# A shard ends where either is reached, so that one fits into the memory of a process.
PAIRS_PER_SHARD = 250_000
BYTES_PER_SHARD = 64 << 20
# Pairs whose keys are sorted at a time: 100 MB.
PAIRS_PER_BUCKET = 1_000_000
MAX_BUCKETS = 256

AGAINST = "data.clean.against"  # in messages
Packing = Literal["", ".gz", ".zst"]


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
        """Name of its folder or file, in every stage."""
        return f"{self.part:05}-{self.number:05}"


@dataclass(frozen=True)
class OutputForm:
    """The form of cleaned pairs: two aligned text files, or TSV; and how they are packed."""

    is_table: bool = False
    packing: Packing = ""
    rejected_packing: Packing = ""


@dataclass(frozen=True)
class CleaningPlan:
    """All that the stages of a cleaning need to know; each process gets it whole."""

    work: Path
    root: Path
    corpora: tuple[Corpus, ...]
    clean: Clean
    usual: Direction  # languages of corpora that do not say theirs
    evaluation: tuple[Corpus, ...] = ()  # validation and test sets
    form: OutputForm = OutputForm()
    pairs_per_shard: int = PAIRS_PER_SHARD
    pairs_per_bucket: int = PAIRS_PER_BUCKET

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The files of all corpora. Raises DataError where a text file is missing."""
        parts = (_parts(number, corpus, self.root) for number, corpus in enumerate(self.corpora))
        return tuple(chain.from_iterable(parts))

    def pairs_of(
        self, part: Part, damage: Damage, records: FileRecords | None = None
    ) -> Iterator[tuple[str, str]]:
        """Read the pairs of a part. Raises DataError; of several files one may have no rows."""
        where = self.corpora[part.corpus].name
        try:
            yield from read_pairs(part.source, self.root, where, records=records, damage=damage)
        except NoRowsError:
            if [other.corpus for other in self.parts].count(part.corpus) == 1:
                raise

    @cached_property
    def texts(self) -> Path:
        """Folder of the pairs as they were read, in shards."""
        parts = [_state(part.source, self.root) for part in self.parts]
        return self._folder("texts", FORMAT, self.pairs_per_shard, parts)

    @cached_property
    def scores(self) -> Path:
        """Folder of scores, keys and leaks of each shard."""
        # A rule that is on has the same scores at every limit.
        rules = {rule.key for rule in RULES}
        settings = {
            key: value is not None if key in rules else value
            for key, value in self.clean.model_dump(mode="json").items()
            if key not in ("max_targets", "leaks")
        }
        settings["keys"] = self.finds_duplicates  # which max_targets decides too
        sets = [
            [text.name, *_state(text.source, self.root), self._ways(text)]
            for text in self.evaluation
        ]
        against = [_file_state(file) for file in files_against(self.clean, self.root)]
        directions = [corpus.direction for corpus in self.corpora]
        others: list[object] = [SCORES_VERSION, self.usual, directions, self.pairs_per_bucket]
        return self._folder("scores", self.texts.name, settings, others, sets, against)

    @cached_property
    def decisions(self) -> Path:
        """Folder of what the rules decide of each shard, and of the duplicates of each bucket."""
        weights = [corpus.weight for corpus in self.corpora]
        settings = self.clean.model_dump(mode="json")
        return self._folder("decisions", self.scores.name, settings, weights)

    @cached_property
    def kept(self) -> Path:
        """Folder of the cleaned pairs, the rejected ones and the counts of each shard."""
        names = [self.title(number) for number in range(len(self.corpora))]
        return self._folder("kept", self.decisions.name, names, astuple(self.form))

    @cached_property
    def evaluation_index(self) -> LeakIndex | None:
        """The validation and test sets, and the files of `clean.against`; None without any."""
        sets = {}
        for text in self.evaluation:
            pairs = list(read_pairs(text.source, self.root, text.name))
            for is_turned in self._ways(text):
                turned = [pair[::-1] for pair in pairs] if is_turned else pairs
                sets[text.name + " (reversed)" * is_turned] = turned
        against = files_against(self.clean, self.root)
        for path in against:
            # A line may be either side, and so may each cell of a table.
            cells = [cell for line in read_lines(path, AGAINST) for cell in line.split("\t")]
            sets[str(path)] = [(cell, cell) for cell in cells]
        return LeakIndex(sets, lines=[*map(str, against)]) if sets else None

    def _ways(self, text: Corpus) -> list[bool]:
        """Whether an evaluation set is turned round to be compared with corpora: both, if need be.

        Corpora may be stored the other way round.
        """
        stored = {corpus.direction for corpus in self.corpora}
        ways = {False: text.direction, True: text.direction.turned}
        return [is_turned for is_turned, pair in ways.items() if pair in stored] or [False]

    def title(self, number: int) -> str:
        """The name of a corpus in reports."""
        corpus = self.corpora[number]
        several = len({other.direction for other in self.corpora}) > 1
        return corpus.file + f" {corpus.direction}" * several

    def _folder(self, stage: str, *content: object) -> Path:
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return self.work / f"{stage}-{digest[:16]}"

    def index(self, part: int) -> dict[str, Any]:
        """The index of a part, by the first stage: pairs of its shards, records of its files."""
        return dict(read_result(self.texts / f"{part:05}" / "index.json"))

    @cached_property
    def shards(self) -> list[Shard]:
        """All shards, in the order of the corpora, once the first stage is done."""
        shards = []
        for number, part in enumerate(self.parts):
            start = 0
            for count, pairs in enumerate(self.index(number)["pairs"]):
                shards.append(Shard(number, count, start, pairs, part.corpus))
                start += pairs
        return shards

    @cached_property
    def buckets(self) -> int:
        """Into how many buckets the keys of all shards go; 0 if duplicates stay."""
        pairs = sum(shard.pairs for shard in self.shards) if self.finds_duplicates else 0
        return min(MAX_BUCKETS, -(-pairs // self.pairs_per_bucket))

    @cached_property
    def scorers(self) -> list[PairScorer]:
        """The scorer of each corpus; corpora in the same languages share one.

        Raises DataError where a package is missing.
        """
        directions = [corpus.direction for corpus in self.corpora]
        scorers = {pair: PairScorer(self.clean, *pair) for pair in dict.fromkeys(directions)}
        return [scorers[pair] for pair in directions]

    def language_key(self, corpus: int) -> np.uint64:
        """The number to XOR a corpus's keys with: only pairs in the same languages are equal."""
        direction = self.corpora[corpus].direction
        is_usual = direction == self.usual
        return np.uint64(0) if is_usual else hashes(["\n".join(direction).encode()])[0]

    @property
    def finds_duplicates(self) -> bool:
        """Whether keys are needed."""
        return self.clean.duplicates is not None or self.clean.max_targets is not None


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
    data: DataPlan, work: Path, form: OutputForm = OutputForm(), where: str = "data.train"
) -> CleaningPlan:
    """Plan the cleaning of the corpora of a config; `where` opens their names in messages."""
    assert data.clean is not None
    corpora = [
        replace(corpus, name=corpus.name.replace("data.train", where, 1)) for corpus in data.corpora
    ]
    sets = tuple(data.held_out)
    return CleaningPlan(work, data.root, tuple(corpora), data.clean, data.usual, sets, form)


def claim_work(folder: Path) -> None:
    """Make the work folder, or check that it is one of this version. Raises DataError."""
    path = folder / WORK_FILE
    try:
        # A partial file is that of a process which makes the folder now, or was killed then.
        if folder.exists() and any(path.suffix != ".partial" for path in folder.iterdir()):
            if (version := read_json(path)["format"]) != FORMAT:
                raise DataError(
                    f"{folder}: is the work folder of another version of mt (format {version}, "
                    f"{FORMAT} is required). Remove it, or name another with --work."
                )
            return
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"format": FORMAT}) + "\n")
    except (ValueError, KeyError, TypeError, FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{folder}: is no work folder of a cleaning, because it has no {WORK_FILE}, and is not "
            "empty. Name another folder with --work."
        ) from None


class DamagedResultError(DataError):
    """A result of a stage could not be read, and is removed, so that it is made again."""


def read_result(path: Path) -> Any:
    """A JSON file or arrays that a stage wrote. Raises DamagedResultError."""
    with _damage_removed(path):
        match path.suffix:
            case ".json":
                return dict(read_json(path))
            case ".npz":
                with path.open("rb") as file, np.load(file) as arrays:
                    return dict(arrays)
            case _:
                return np.load(path, mmap_mode="r")


def read_texts(path: Path, n_pairs: int) -> list[tuple[str, str]]:
    """Pairs that a stage wrote, a source and its target in turn. Raises DamagedResultError."""
    with _damage_removed(path):
        lines = path.read_bytes().decode("utf-8").split("\n") if n_pairs else []
        if len(lines) != 2 * n_pairs:
            raise ValueError(f"{len(lines):,} lines, {2 * n_pairs:,} are required")
        return list(zip(lines[::2], lines[1::2], strict=True))


@contextmanager
def _damage_removed(path: Path) -> Iterator[None]:
    """Remove the result that `path` belongs to if it cannot be read in here."""
    try:
        yield
    except (ValueError, TypeError, EOFError, BadZipFile, zlib.error, FileNotFoundError) as error:
        shutil.rmtree(path.parent, ignore_errors=True)
        raise DamagedResultError(
            f"{path}: was damaged ({error}), perhaps when the machine stopped, and is removed. The "
            "same command makes it again."
        ) from None


def _parts(number: int, corpus: Corpus, root: Path) -> Iterator[Part]:
    source = corpus.source
    require_one_format(source, root, corpus.name)
    if source.path is None or format_of(source, root) == "text":
        for src, tgt in aligned_files(source, root, corpus.name):
            paths = {"src": str(src.absolute()), "tgt": str(tgt.absolute())}
            own_files = source.model_copy(update={**paths, "path": None, "format": None})
            yield Part(number, own_files, str(src), source.errors != "skip")
    elif is_pattern(source.path) and (files := local_files(source, root)):
        for file in files:
            paths = {"path": str(file.absolute())}
            yield Part(number, source.model_copy(update=paths), str(file), False)
    else:
        yield Part(number, source, str(under(root, source.path)), False)


def _state(source: Source, root: Path) -> list[Any]:
    """The keys of a source, and its files with size and time: another state is another text."""
    states = [_file_state(path) for path in local_files(source, root)]
    return [source.model_dump(mode="json"), states]


def _file_state(path: Path) -> list[Any]:
    try:
        stat = path.stat()
    except OSError:
        return [str(path.absolute())]  # reading it tells what is wrong
    return [str(path.absolute()), stat.st_size, stat.st_mtime_ns]
