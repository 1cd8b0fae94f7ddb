"""The stages of a cleaning, each a function of (plan, rank, world) that many processes can run.

Rank r of w works on every w-th part, shard or bucket. Each result is a folder that is renamed into
place once complete, and one that is there is not made again: a killed rank is run again, with any
rank and world, and the bytes are the same. A stage needs all results of the one before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_never

from mt.artefacts import whole_folder
from mt.cleaning.leaks import PAIR, Found
from mt.cleaning.plan import BYTES_PER_SHARD, CleaningPlan, Shard, read_result, read_texts
from mt.cleaning.rejected import (
    DUPLICATE,
    LEAK,
    MANY_TARGETS,
    ShardFindings,
    tab_free,
    write_packed,
)
from mt.cleaning.rules import PairScorer, decide
from mt.data.reading.text_files import Damage, FileRecords
from mt.data.tokens.duplicates import Hashes, hashes, joined_keys, normalised, pair_keys, repeated
from mt.files import save_array

Pairs: TypeAlias = list[tuple[str, str]]
Duplicates: TypeAlias = Literal["exact", "normalised"] | None

# Pairs that are scored at a time.
PAIRS_AT_A_TIME = 10_000
# Segments under so many characters are counted apart: they are what cleaning loses most.
SHORT_CHARACTERS = 25


@dataclass(frozen=True)
class CleaningStage:
    """A stage: the folders of all its results, and how the one with a number is made."""

    results: Callable[[CleaningPlan], list[Path]]
    make: Callable[[CleaningPlan, int, Path], None]

    def __call__(self, plan: CleaningPlan, rank: int, world: int) -> None:
        """Make the results of a rank that are missing."""
        results = self.results(plan)
        for number in range(rank, len(results), world):
            if not results[number].is_dir():
                with whole_folder(results[number], "stays") as folder:
                    self.make(plan, number, folder)


def read_part(plan: CleaningPlan, number: int, folder: Path) -> None:
    """Copy the pairs of a part into shards. Raises DataError for a text that is damaged."""
    records: FileRecords = {}
    damage = Damage()
    pairs = plan.pairs_of(plan.parts[number], damage, records)
    counts: list[int] = []
    for text, count in _shard_texts(pairs, plan.pairs_per_shard):
        (folder / f"{len(counts):05}").write_bytes(text)
        counts.append(count)
    index = {"pairs": counts, "records": records, "damage": damage.messages()}
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")


def _shard_texts(pairs: Iterator[tuple[str, str]], limit: int) -> Iterator[tuple[bytes, int]]:
    """The text of each shard, a source and its target in turn; its pairs, `limit` at most."""
    lines: list[str] = []
    size = 0
    for src, tgt in pairs:
        lines += (src, tgt)
        size += len(src) + len(tgt)
        if len(lines) >= 2 * limit or size >= BYTES_PER_SHARD:
            yield "\n".join(lines).encode(), len(lines) // 2
            lines, size = [], 0
    if lines:
        yield "\n".join(lines).encode(), len(lines) // 2


def shard_pairs(plan: CleaningPlan, shard: Shard) -> Pairs:
    """The pairs of a shard as they were read."""
    return read_texts(plan.texts / f"{shard.part:05}" / f"{shard.number:05}", shard.pairs)


def score_shard(plan: CleaningPlan, number: int, folder: Path) -> None:
    """Repair and score the pairs of a shard, make their keys, and look for leaks.

    Writes `_columns`, with the keys ordered by bucket so that a bucket is one piece, and repairs.
    """
    shard = plan.shards[number]
    scorer = plan.scorers[shard.corpus]
    fix = scorer.fix
    pairs = shard_pairs(plan, shard)
    parts = []
    leaking = Found()
    repaired: dict[int, tuple[str, str]] = {}
    for start in range(0, len(pairs), PAIRS_AT_A_TIME):
        raw = pairs[start : start + PAIRS_AT_A_TIME]
        chunk = [(fix(src), fix(tgt)) for src, tgt in raw]
        repaired |= {start + i: pair for i, pair in enumerate(chunk) if pair != raw[i]}
        columns, own_found = _columns(plan, chunk, scorer)
        parts.append(columns)
        leaking += own_found
    every = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    keys = every.pop("keys") ^ plan.language_key(shard.corpus)
    rows = np.array(list(repaired), np.int64)
    every |= {"repaired": rows, **vars(leaking)}
    np.savez(folder / "scores.npz", allow_pickle=False, **every)
    lines = "\n".join([text for pair in repaired.values() for text in pair])
    (folder / "repaired.txt").write_bytes(lines.encode())
    bucket = (keys[:, 0] >> np.uint64(32)) * np.uint64(plan.buckets) >> np.uint64(32)
    order = np.argsort(bucket, kind="stable")
    save_array(folder / "keys.npy", keys[order])
    save_array(folder / "order.npy", order.astype(np.uint32))
    save_array(folder / "starts.npy", np.searchsorted(bucket[order], np.arange(plan.buckets + 1)))


def _columns(
    plan: CleaningPlan, pairs: Pairs, scorer: PairScorer
) -> tuple[dict[str, npt.NDArray[Any]], Found]:
    """Measure n repaired pairs, n rows each; also return the sentences that leak.

    scores (n, rules); is_short; keys (n, 3) of the source, and of the pair in two halves; flags of
    `LeakIndex`; near: share of letter runs that evaluation sets have too.
    """
    n = len(pairs)
    columns: dict[str, npt.NDArray[Any]] = {
        "scores": scorer.scores(pairs),
        "is_short": np.array([len(src) < SHORT_CHARACTERS for src, _ in pairs]),
        "keys": np.zeros((n, 3), np.uint64),
        "flags": np.zeros(n, np.uint8),
        "near": np.zeros(n, np.float32),
    }
    leaking = Found()
    leaks = plan.evaluation_index
    if leaks is not None or plan.finds_duplicates:
        src, tgt = ([normalised(pair[side]) for pair in pairs] for side in (0, 1))
        sides = hashes(src), hashes(tgt)
        keys = keys_of(pairs, src, tgt, plan.clean.duplicates)
        columns["keys"] = np.column_stack([sides[0], keys])
        if leaks is not None:
            columns["flags"] = leaks.flags(*sides)
            columns["near"] = leaks.near(src, tgt)
            leaking = leaks.found(*sides, columns["flags"])
    return columns, leaking


def keys_of(
    pairs: Pairs, src: Sequence[bytes], tgt: Sequence[bytes], duplicates: Duplicates
) -> Hashes:
    """(n, 2) The keys by which pairs are compared, or 0; `src` and `tgt` are normalised."""
    match duplicates:
        case "exact":
            return pair_keys(pairs)
        case "normalised":
            return joined_keys(zip(src, tgt, strict=True))
        case None:
            return np.zeros((len(pairs), 2), np.uint64)
        case _:
            assert_never(duplicates)


def decide_shard(plan: CleaningPlan, number: int, folder: Path) -> None:
    """Decide by scores and leaks which pairs of a shard go: the number of a reason, or -1."""
    result = read_result(plan.scores / plan.shards[number].name / "scores.npz")
    decisions = decide(result["scores"], plan.clean)
    is_leak = leaks_go(result["flags"], plan.clean.leaks)
    decisions[(decisions < 0) & is_leak] = LEAK
    save_array(folder / "decisions.npy", decisions)


def leaks_go(
    flags: npt.NDArray[np.uint8], leaks: Literal["sides", "pairs"] | None
) -> npt.NDArray[np.bool_]:
    """(n,) Whether a pair with these flags of `LeakIndex` goes."""
    match leaks:
        case "sides":
            return flags > 0
        case "pairs":
            return (flags & PAIR) > 0
        case None:
            return np.zeros(len(flags), np.bool_)
        case _:
            assert_never(leaks)


def find_duplicates(plan: CleaningPlan, bucket: int, folder: Path) -> None:
    """Find the pairs of a bucket that equal another one, or whose source has too many targets.

    Writes rows of pair and reason, ordered by shard, and where those of each shard start. Of equal
    pairs, and of those with one source, the first ones stay: those of the corpus with the highest
    weight, else of the first. Pairs that a rule rejects do not count. Pairs in other languages have
    other keys, and are not compared.
    """
    shards = plan.shards
    weights = [corpus.weight for corpus in plan.corpora]
    by_priority = sorted(range(len(shards)), key=lambda number: -weights[shards[number].corpus])
    keys, places = [np.zeros((0, 3), np.uint64)], [np.zeros((0, 2), np.uint32)]
    for number in by_priority:
        scored = plan.scores / shards[number].name
        start, end = read_result(scored / "starts.npy")[bucket : bucket + 2]
        rows = read_result(scored / "order.npy")[start:end]
        own_keys = read_result(scored / "keys.npy")[start:end]
        is_kept = read_result(plan.decisions / shards[number].name / "decisions.npy")[rows] < 0
        keys.append(own_keys[is_kept])
        own_places = np.column_stack([np.full(len(rows), number, np.uint32), rows])
        places.append(own_places[is_kept])
    key, place = np.concatenate(keys), np.concatenate(places)
    reasons = np.full(len(key), -1, np.int64)
    if plan.clean.duplicates is not None:
        reasons[repeated(key[:, 1:])] = DUPLICATE
    if plan.clean.max_targets is not None:
        left = np.flatnonzero(reasons < 0)
        reasons[left[_number_in_group(key[left, 0]) >= plan.clean.max_targets]] = MANY_TARGETS
    dropped = np.column_stack([place, reasons.astype(np.uint32)])[reasons >= 0]
    dropped = dropped[np.lexsort((dropped[:, 1], dropped[:, 0]))]
    save_array(folder / "starts.npy", np.searchsorted(dropped[:, 0], np.arange(len(shards) + 1)))
    save_array(folder / "dropped.npy", dropped[:, 1:])


def _number_in_group(values: Hashes) -> npt.NDArray[np.int64]:
    """(n,) How many equal values come before each value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(values)]
    group_starts = np.flatnonzero(is_first)
    numbers = np.empty(len(values), np.int64)
    numbers[order] = np.arange(len(values)) - group_starts[is_first.cumsum() - 1]
    return numbers


def apply(plan: CleaningPlan, number: int, folder: Path) -> None:
    """Write the pairs of a shard that stay, those that go, and the counts of both."""
    shard, form = plan.shards[number], plan.form
    scored = plan.scores / shard.name
    pairs = shard_pairs(plan, shard)
    decisions = all_decisions(plan, number)
    columns = ("scores", "is_short", "flags", "near", "repaired")
    arrays = read_result(scored / "scores.npz")
    values = {name: arrays[name] for name in columns}
    findings = ShardFindings(plan, shard, pairs, decisions, **values)
    write_packed(folder / "rejected", "".join(findings.rejected_rows()), form.rejected_packing)
    (folder / "counts.json").write_text(json.dumps(findings.counts()), encoding="utf-8")

    rows = values["repaired"].tolist()
    for row, pair in zip(rows, read_texts(scored / "repaired.txt", len(rows)), strict=True):
        pairs[row] = pair
    kept = [pairs[row] for row in np.flatnonzero(decisions < 0).tolist()]
    if form.is_table:
        rows = [f"{tab_free(src)}\t{tab_free(tgt)}\n" for src, tgt in kept]
        write_packed(folder / "pairs", "".join(rows), form.packing)
        return
    for side, name in enumerate(("src", "tgt")):
        write_packed(folder / name, "".join([pair[side] + "\n" for pair in kept]), form.packing)


def all_decisions(plan: CleaningPlan, number: int) -> npt.NDArray[np.int8]:
    """(n,) The reason of each pair of a shard, duplicates included; -1: it stays."""
    folder = plan.decisions / plan.shards[number].name
    decisions: npt.NDArray[np.int8] = np.array(read_result(folder / "decisions.npy"))
    for folder in STAGES["finding duplicates"].results(plan):
        start, end = read_result(folder / "starts.npy")[number : number + 2]
        dropped = read_result(folder / "dropped.npy")[start:end]
        decisions[dropped[:, 0]] = dropped[:, 1]
    return decisions


def _of_shards(folder: str) -> Callable[[CleaningPlan], list[Path]]:
    return lambda plan: [getattr(plan, folder) / shard.name for shard in plan.shards]


STAGES = {
    "reading": CleaningStage(
        lambda plan: [plan.texts / f"{number:05}" for number in range(len(plan.parts))], read_part
    ),
    "scoring": CleaningStage(_of_shards("scores"), score_shard),
    "deciding": CleaningStage(_of_shards("decisions"), decide_shard),
    "finding duplicates": CleaningStage(
        lambda plan: [plan.decisions / f"bucket-{n:03}" for n in range(plan.buckets)],
        find_duplicates,
    ),
    "writing": CleaningStage(_of_shards("kept"), apply),
}
