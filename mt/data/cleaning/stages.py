"""The stages of a cleaning: functions of (plan, rank, world) that many processes can run.

Rank r of w works on every w-th part, shard or bucket. Each result is a folder that is renamed into
place once complete, and one that is there is not made again: a killed rank is run again, with any
rank and world, and the bytes are the same. A stage needs all results of the one before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_never

from mt.data.cleaning.duplicates import joined_keys, pair_keys, repeated
from mt.data.cleaning.keys import Hashes, hashes, normalised
from mt.data.cleaning.leaks import PAIR, Found, LeakIndex
from mt.data.cleaning.plan import (
    BYTES_PER_SHARD,
    CleaningPlan,
    Shard,
    new_result,
)
from mt.data.cleaning.rejected import (
    DUPLICATE,
    LEAK,
    MANY_TARGETS,
    ShardFindings,
    tab_free,
    write_packed,
)
from mt.data.cleaning.rules import RULES, PairScorer, decide
from mt.data.reading.corpus import read_pairs
from mt.data.reading.text_files import Damage, FileRecords

Pairs: TypeAlias = list[tuple[str, str]]
Stage: TypeAlias = Callable[[CleaningPlan, int, int], None]
Rows: TypeAlias = npt.NDArray[np.uint32]

# Pairs that are scored at a time.
PAIRS_AT_A_TIME = 10_000
# Segments under so many characters are counted apart: they are what cleaning loses most.
SHORT_CHARACTERS = 25

# --- 1: read ----------------------------------------------------------------------------------


def read(plan: CleaningPlan, rank: int, world: int) -> None:
    """Copy the pairs of each part into shards. Raises DataError for a text that is damaged."""
    for number in range(rank, len(plan.parts), world):
        folder = plan.texts / f"{number:05}"
        if folder.is_dir():
            continue
        part = plan.parts[number]
        records: FileRecords = {}
        where = plan.corpora[part.corpus].where
        damage = Damage()
        pairs = read_pairs(part.source, plan.root, where, records=records, damage=damage)
        with new_result(folder) as partial:
            counts: list[int] = []
            for text, count in _shard_texts(pairs, plan.pairs_per_shard):
                (partial / f"{len(counts):05}").write_bytes(text)
                counts.append(count)
            index = {"pairs": counts, "records": records, "damage": damage.messages()}
            (partial / "index.json").write_text(json.dumps(index), encoding="utf-8")


def _shard_texts(pairs: Iterator[tuple[str, str]], limit: int) -> Iterator[tuple[bytes, int]]:
    """The text of each shard, source and target in turn, a line each; and its number of pairs.

    `limit` is the largest number of pairs.
    """
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
    lines = _lines(plan.texts / f"{shard.part:05}" / f"{shard.number:05}")
    return list(zip(lines[::2], lines[1::2], strict=True))


def _lines(path: Path) -> list[str]:
    return path.read_bytes().decode("utf-8").split("\n")


# --- 2: score ---------------------------------------------------------------------------------


def score(plan: CleaningPlan, rank: int, world: int) -> None:
    """Repair and score the pairs of each shard, make their keys, and look for leaks."""
    shards = plan.shards()
    scorer = None
    for shard in shards[rank::world]:
        if not (plan.scores / shard.name).is_dir():
            scorer = scorer or PairScorer(plan.clean, plan.src_lang, plan.tgt_lang)
            scored = _scored(plan, shard, scorer, plan.evaluation_index)
            with new_result(plan.scores / shard.name) as partial:
                scored.save(partial, plan.buckets(shards))


@dataclass
class _Scored:
    """What the second stage finds out about n pairs."""

    scores: npt.NDArray[np.float32]  # (n, rules)
    keys: Hashes  # (n, 3): source, and the pair in two halves
    leaks: npt.NDArray[np.uint8]  # (n,) flags of `LeakIndex`
    near: npt.NDArray[np.float32]  # (n,) share of letter runs that evaluation sets have too
    is_short: npt.NDArray[np.bool_]  # (n,)
    repaired: npt.NDArray[np.int64]  # (m,) numbers of the pairs that were repaired
    repaired_pairs: Pairs
    found: Found

    def save(self, folder: Path, n_buckets: int) -> None:
        """Write all into a folder; the keys ordered by bucket, so that a bucket is one piece."""
        np.save(folder / "scores.npy", self.scores)
        np.savez(folder / "leaks.npz", flags=self.leaks, near=self.near, **vars(self.found))
        np.save(folder / "short.npy", self.is_short)
        np.save(folder / "repaired.npy", self.repaired)
        lines = [line for pair in self.repaired_pairs for line in pair]
        (folder / "repaired.txt").write_bytes("\n".join(lines).encode())
        bucket = (self.keys[:, 0] >> np.uint64(32)) * np.uint64(n_buckets) >> np.uint64(32)
        order = np.argsort(bucket, kind="stable")
        ends = np.bincount(bucket.astype(np.int64), minlength=n_buckets).cumsum()
        np.save(folder / "keys.npy", self.keys[order])
        np.save(folder / "order.npy", order.astype(np.uint32))
        np.save(folder / "starts.npy", np.concatenate([[0], ends]))


def _scored(
    plan: CleaningPlan, shard: Shard, scorer: PairScorer, leaks: LeakIndex | None
) -> _Scored:
    """Score a shard, some pairs at a time."""
    pairs = shard_pairs(plan, shard)
    n = len(pairs)
    out = _Scored(
        np.empty((n, len(RULES)), np.float32), np.zeros((n, 3), np.uint64),
        np.zeros(n, np.uint8), np.zeros(n, np.float32), np.empty(n, np.bool_),
        np.zeros(0, np.int64), [], Found(),
    )  # fmt: skip
    fix = scorer.fix
    repaired: list[int] = []
    for start in range(0, n, PAIRS_AT_A_TIME):
        raw = pairs[start : start + PAIRS_AT_A_TIME]
        rows = slice(start, start + len(raw))
        chunk = [(fix(src), fix(tgt)) for src, tgt in raw]
        if chunk != raw:
            changed = [i for i in range(len(raw)) if chunk[i] != raw[i]]
            repaired += [start + i for i in changed]
            out.repaired_pairs += [chunk[i] for i in changed]
        out.scores[rows] = scorer.scores(chunk)
        out.is_short[rows] = [len(src) < SHORT_CHARACTERS for src, _ in chunk]
        _add_keys(plan, out, rows, chunk, leaks)
    out.repaired = np.array(repaired, np.int64)
    return out


def _add_keys(
    plan: CleaningPlan, out: _Scored, rows: slice, chunk: Pairs, leaks: LeakIndex | None
) -> None:
    """Fill in what comes of the normalised texts."""
    if not plan.finds_duplicates and leaks is None:
        return
    src = [normalised(pair[0]) for pair in chunk]
    tgt = [normalised(pair[1]) for pair in chunk]
    src_hashes = hashes(src)
    out.keys[rows, 0] = src_hashes
    out.keys[rows, 1:] = keys_of(chunk, src, tgt, plan.clean.duplicates)
    if leaks is not None:
        tgt_hashes = hashes(tgt)
        out.leaks[rows] = flags = leaks.flags(src_hashes, tgt_hashes)
        out.near[rows] = leaks.near(src, tgt)
        out.found += leaks.found(src_hashes, tgt_hashes, flags)


def keys_of(
    pairs: Pairs,
    src: Sequence[bytes],
    tgt: Sequence[bytes],
    duplicates: Literal["exact", "normalised"] | None,
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


# --- 3: decide --------------------------------------------------------------------------------


def decide_all(plan: CleaningPlan, rank: int, world: int) -> None:
    """Decide by scores and leaks which pairs of each shard go: the number of a reason, or -1."""
    for shard in plan.shards()[rank::world]:
        folder = plan.decisions / shard.name
        if folder.is_dir():
            continue
        decisions = decide(np.load(plan.scores / shard.name / "scores.npy"), plan.clean)
        with np.load(plan.scores / shard.name / "leaks.npz") as leaks:
            is_leak = leaks_go(leaks["flags"], plan.clean.leaks)
        decisions[(decisions < 0) & is_leak] = LEAK
        with new_result(folder) as partial:
            np.save(partial / "decisions.npy", decisions)


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


# --- 4: duplicates ----------------------------------------------------------------------------


def find_duplicates(plan: CleaningPlan, rank: int, world: int) -> None:
    """Find in each bucket of keys which pairs go: duplicates, and sources with many targets."""
    shards = plan.shards()
    for bucket in range(rank, plan.buckets(shards), world):
        folder = plan.decisions / f"bucket-{bucket:03}"
        if folder.is_dir():
            continue
        with new_result(folder) as partial:
            found = _dropped_in_bucket(plan, shards, bucket)
            starts = np.searchsorted(found[:, 0], np.arange(len(shards) + 1))
            np.save(partial / "starts.npy", starts)
            np.save(partial / "dropped.npy", found[:, 1:])


def _dropped_in_bucket(plan: CleaningPlan, shards: Sequence[Shard], bucket: int) -> Rows:
    """(n, 3) Shard, pair and reason of all pairs of a bucket that go, ordered by these.

    Of pairs with equal keys, and of those with the same source, the first ones stay: those of the
    corpus with the highest weight, else of the first. Pairs that a rule rejects do not count.
    """
    weights = [corpus.source.weight for corpus in plan.corpora]
    by_priority = sorted(range(len(shards)), key=lambda number: -weights[shards[number].corpus])
    keys, places = [np.zeros((0, 3), np.uint64)], [np.zeros((0, 2), np.uint32)]
    for number in by_priority:
        folder = plan.scores / shards[number].name
        start, end = np.load(folder / "starts.npy")[bucket : bucket + 2]
        own = np.load(folder / "order.npy", mmap_mode="r")[start:end]
        own_keys = np.load(folder / "keys.npy", mmap_mode="r")[start:end]
        is_kept = np.load(plan.decisions / shards[number].name / "decisions.npy")[own] < 0
        keys.append(own_keys[is_kept])
        own_places = np.column_stack([np.full(len(own), number, np.uint32), own])
        places.append(own_places[is_kept])
    key, place = np.concatenate(keys), np.concatenate(places)
    reasons = np.full(len(key), -1, np.int64)
    if plan.clean.duplicates is not None:
        reasons[repeated(key[:, 1:])] = DUPLICATE
    if plan.clean.max_targets is not None:
        left = np.flatnonzero(reasons < 0)
        reasons[left[_number_in_group(key[left, 0]) >= plan.clean.max_targets]] = MANY_TARGETS
    found = np.column_stack([place, reasons.astype(np.uint32)])[reasons >= 0]
    return found[np.lexsort((found[:, 1], found[:, 0]))]


def _number_in_group(values: Hashes) -> npt.NDArray[np.int64]:
    """(n,) How many equal values come before each value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(values)]
    group_starts = np.flatnonzero(is_first)
    numbers = np.empty(len(values), np.int64)
    numbers[order] = np.arange(len(values)) - group_starts[is_first.cumsum() - 1]
    return numbers


# --- 5: apply ---------------------------------------------------------------------------------


def apply(plan: CleaningPlan, rank: int, world: int) -> None:
    """Write the pairs of each shard that stay, those that go, and the counts of both."""
    shards = plan.shards()
    for number in range(rank, len(shards), world):
        folder = plan.kept / shards[number].name
        if folder.is_dir():
            continue
        with new_result(folder) as partial:
            _apply(plan, shards, number, partial)


def _apply(plan: CleaningPlan, shards: Sequence[Shard], number: int, folder: Path) -> None:
    shard, form = shards[number], plan.form
    scored = plan.scores / shard.name
    pairs = shard_pairs(plan, shard)
    decisions = all_decisions(plan, shards, number)
    with np.load(scored / "leaks.npz") as leaks:
        flags, near = leaks["flags"], leaks["near"]
    scores, is_short = np.load(scored / "scores.npy"), np.load(scored / "short.npy")
    findings = ShardFindings(plan, shard, pairs, decisions, scores, is_short, flags, near)
    write_packed(folder / "rejected", "".join(findings.rejected_rows()), form.rejected_packing)
    counts = findings.counts()
    repaired = np.load(scored / "repaired.npy")
    counts["repaired"] = int((decisions[repaired] < 0).sum())
    (folder / "counts.json").write_text(json.dumps(counts), encoding="utf-8")

    lines = _lines(scored / "repaired.txt")
    for place, src, tgt in zip(repaired, lines[::2], lines[1::2], strict=False):
        pairs[place] = src, tgt
    kept = [pairs[row] for row in np.flatnonzero(decisions < 0).tolist()]
    if form.is_table:
        rows = [f"{tab_free(src)}\t{tab_free(tgt)}\n" for src, tgt in kept]
        write_packed(folder / "pairs", "".join(rows), form.packing)
    else:
        for side, name in enumerate(("src", "tgt")):
            text = "".join([pair[side] + "\n" for pair in kept])
            write_packed(folder / name, text, form.packing)


def all_decisions(plan: CleaningPlan, shards: Sequence[Shard], number: int) -> npt.NDArray[np.int8]:
    """(n,) The reason of each pair of a shard, duplicates included; -1: it stays."""
    decisions = np.load(plan.decisions / shards[number].name / "decisions.npy")
    if plan.finds_duplicates:
        for bucket in range(plan.buckets(shards)):
            folder = plan.decisions / f"bucket-{bucket:03}"
            start, end = np.load(folder / "starts.npy")[number : number + 2]
            dropped = np.load(folder / "dropped.npy", mmap_mode="r")[start:end]
            decisions[dropped[:, 0]] = dropped[:, 1]
    return decisions
