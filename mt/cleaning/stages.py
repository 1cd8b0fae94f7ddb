"""The stages of a cleaning: score the pairs of each shard; then drop duplicates, and write.

Each result is an artefact, so a killed cleaning continues, and the bytes are the same however many
processes work. A stage needs all results of the one before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mt.artefacts import is_made, make
from mt.cleaning.leaks import Found
from mt.cleaning.plan import BYTES_PER_SHARD, CleaningPlan, Shard, pairs_in, read_artefact
from mt.cleaning.report import DUPLICATE, LEAK, ShardFindings, tab_free
from mt.cleaning.rules import decide
from mt.data.reading.text_files import Damage, FileRecords
from mt.data.tokens.duplicates import Flags, Hashes, hashes, joined_keys, normalised, repeated
from mt.files import save_array

PAIRS_AT_A_TIME = 10_000  # pairs that are scored at a time


class Task(NamedTuple):
    """A task of a stage: the artefact that it makes."""

    number: int  # that it always has
    folder: Path
    key: str
    arguments: tuple[Any, ...] = ()  # of the stage's `build`

    def run(self, plan: CleaningPlan, build: Callable[..., None]) -> None:
        make(self.folder, self.key, partial(build, plan, *self.arguments))


class CleaningStage(NamedTuple):
    """A stage: its tasks, of which many processes can take a part, and how one is done."""

    tasks: Callable[[CleaningPlan], Iterator[Task]]
    build: Callable[..., None]  # gets the plan, a task's arguments, and an empty folder
    n_tasks: Callable[[CleaningPlan], int | None]  # of all; None: not known before

    def tasks_left(self, plan: CleaningPlan) -> Iterator[Task]:
        return (task for task in self.tasks(plan) if not is_made(task.folder, task.key))


# --- scoring ----------------------------------------------------------------------------------


def shards_to_score(plan: CleaningPlan) -> Iterator[Task]:
    """Read the parts that are not scored, by shards; write the index of each at its end."""
    total = 0
    for number, part in enumerate(plan.parts):
        folder = plan.scored / f"{number:05}"
        if is_made(folder, plan.scoring_key) and all(
            is_made(plan.scored / shard.name, plan.scoring_key) for shard in plan.shards_of(number)
        ):
            total += len(plan.index(number)["pairs"])
            continue
        records: FileRecords = {}
        damage = Damage()
        counts: list[int] = []
        for text, pairs in _shards(plan.pairs_of(part, damage, records), plan.pairs_per_shard):
            shard = Shard(number, len(counts), sum(counts), pairs, part.corpus)
            yield Task(total, plan.scored / shard.name, plan.scoring_key, (shard, text))
            counts.append(pairs)
            total += 1
        content = json.dumps({"pairs": counts, "records": records, "damage": damage.messages()})

        def write(folder: Path, content: str = content) -> None:
            (folder / "index.json").write_text(content, encoding="utf-8")

        make(folder, plan.scoring_key, write)


def _shards(pairs: Iterator[tuple[str, str]], limit: int) -> Iterator[tuple[bytes, int]]:
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


def score_shard(plan: CleaningPlan, shard: Shard, text: bytes, folder: Path) -> None:
    """Write scores, flags and leaks, the pairs and what was repaired; keys in their own order."""
    scorer = plan.scorers[shard.corpus]
    fix = scorer.fix
    pairs = pairs_in(text)
    scores: list[npt.NDArray[np.float32]] = []  # (n, rules) each
    flags: list[npt.NDArray[np.uint8]] = []  # (n,), of `LeakIndex`
    keys: list[Hashes] = []  # (n, 2), of pairs
    leaking = Found()
    repaired: dict[int, tuple[str, str]] = {}
    for start in range(0, len(pairs), PAIRS_AT_A_TIME):
        raw = pairs[start : start + PAIRS_AT_A_TIME]
        chunk = [(fix(src), fix(tgt)) for src, tgt in raw]
        repaired |= {start + i: pair for i, pair in enumerate(chunk) if pair != raw[i]}
        scores.append(scorer.scores(chunk))
        src, tgt = ([normalised(pair[side]) for pair in chunk] for side in (0, 1))
        keys.append(joined_keys(zip(src, tgt, strict=True)))
        if (leaks := plan.evaluation_index) is None:
            flags.append(np.zeros(len(chunk), np.uint8))
        else:
            sides = hashes(src), hashes(tgt)
            flags.append(leaks.flags(*sides))
            leaking += leaks.found(*sides, flags[-1])
    np.savez(
        folder / "scores.npz",
        allow_pickle=False,
        scores=np.concatenate(scores),
        flags=np.concatenate(flags),
        repaired=np.array(list(repaired), np.int64),
        **vars(leaking),
    )
    (folder / "pairs.txt").write_bytes(text)
    lines = "\n".join(chain.from_iterable(repaired.values()))
    (folder / "repaired.txt").write_bytes(lines.encode())
    every = np.concatenate(keys) ^ plan.language_key(shard.corpus)
    order = np.argsort(every[:, 0], kind="stable")
    save_array(folder / "keys.npy", every[order])
    save_array(folder / "order.npy", order.astype(np.uint32))


# --- deciding and writing ---------------------------------------------------------------------


def decide_shard(plan: CleaningPlan, shard: Shard) -> npt.NDArray[np.int8]:
    """(n,) By scores and leaks, the number of the reason for which a pair goes, or -1."""
    result = read_artefact(plan.scored / shard.name / "scores.npz")
    decisions = decide(result["scores"], plan.clean)
    if plan.clean.leaks is not None:
        decisions[(decisions < 0) & (result["flags"] > 0)] = LEAK
    return decisions


def find_duplicates(plan: CleaningPlan, folder: Path) -> None:
    """Write the numbers of pairs, ordered by shard, and where those of each shard start."""
    shards = plan.shards
    found = [np.zeros((0, 2), np.uint32)]
    if plan.clean.duplicates is not None:
        stays = [decide_shard(plan, shard) < 0 for shard in shards]
        n_buckets = -(-sum(shard.pairs for shard in shards) // plan.pairs_per_bucket)
        edges = np.array([n * 2**64 // n_buckets for n in range(1, n_buckets)], np.uint64)
        keys = [read_artefact(plan.scored / shard.name / "keys.npy") for shard in shards]
        cuts = [[0, *np.searchsorted(own[:, 0], edges).tolist(), len(own)] for own in keys]
        for bucket in range(n_buckets):
            slices = [slice(*own[bucket : bucket + 2]) for own in cuts]
            found.append(_duplicates(plan, keys, slices, stays))
    dropped = np.concatenate(found)
    dropped = dropped[np.lexsort((dropped[:, 1], dropped[:, 0]))]
    save_array(folder / "starts.npy", np.searchsorted(dropped[:, 0], np.arange(len(shards) + 1)))
    save_array(folder / "dropped.npy", dropped[:, 1])


def _duplicates(
    plan: CleaningPlan, keys: Sequence[Hashes], slices: Sequence[slice], stays: Sequence[Flags]
) -> npt.NDArray[np.uint32]:
    """(n, 2) Shard and pair of those that go, of a slice of the keys of each shard.

    Of equal pairs the first one stays: that of the corpus with the highest weight, else of the
    first. Pairs that a rule rejects do not count. Pairs in other languages have other keys, and are
    not compared.
    """
    weights = [corpus.weight for corpus in plan.corpora]
    by_weight = sorted(range(len(keys)), key=lambda n: -weights[plan.shards[n].corpus])
    own_keys, places = [np.zeros((0, 2), np.uint64)], [np.zeros((0, 2), np.uint32)]
    for number in by_weight:
        order = read_artefact(plan.scored / plan.shards[number].name / "order.npy")
        rows = np.array(order[slices[number]])
        is_kept = stays[number][rows]
        own_keys.append(keys[number][slices[number]][is_kept])
        places.append(np.column_stack([np.full(len(rows), number, np.uint32), rows])[is_kept])
    return np.concatenate(places)[repeated(np.concatenate(own_keys))]


def write_shard(plan: CleaningPlan, number: int, folder: Path) -> None:
    """Write what is kept and rejected of a shard, and the counts."""
    shard = plan.shards[number]
    scored = plan.scored / shard.name
    pairs = read_artefact(scored / "pairs.txt")
    decisions = all_decisions(plan, number)
    arrays = read_artefact(scored / "scores.npz")
    values = [arrays[name] for name in ("scores", "flags", "repaired")]
    findings = ShardFindings(plan, shard, pairs, decisions, *values)
    (folder / "rejected").write_bytes("".join(findings.rejected_rows()).encode())
    (folder / "counts.json").write_text(json.dumps(findings.counts()), encoding="utf-8")
    repaired = read_artefact(scored / "repaired.txt")
    for row, pair in zip(arrays["repaired"].tolist(), repaired, strict=True):
        pairs[row] = pair
    kept = [pairs[row] for row in np.flatnonzero(decisions < 0).tolist()]
    texts = {"src": [src for src, _ in kept], "tgt": [tgt for _, tgt in kept]}
    if plan.is_table:
        texts = {"pairs": [f"{tab_free(src)}\t{tab_free(tgt)}" for src, tgt in kept]}
    for name, lines in texts.items():
        (folder / name).write_bytes("".join([line + "\n" for line in lines]).encode())


def all_decisions(plan: CleaningPlan, number: int) -> npt.NDArray[np.int8]:
    """(n,) The reason of each pair of a shard, duplicates included; -1: it stays."""
    decisions = decide_shard(plan, plan.shards[number])
    start, end = read_artefact(plan.dropped / "starts.npy")[number : number + 2]
    decisions[read_artefact(plan.dropped / "dropped.npy")[start:end]] = DUPLICATE
    return decisions


def shards_to_write(plan: CleaningPlan) -> Iterator[Task]:
    for number, shard in enumerate(plan.shards):
        yield Task(number, plan.kept / shard.name, plan.writing_key, (number,))


def duplicates_to_find(plan: CleaningPlan) -> Iterator[Task]:
    yield Task(0, plan.dropped, plan.writing_key)


STAGES = {
    "scoring": CleaningStage(shards_to_score, score_shard, lambda _: None),
    "finding duplicates": CleaningStage(duplicates_to_find, find_duplicates, lambda _: 1),
    "writing": CleaningStage(shards_to_write, write_shard, lambda plan: len(plan.shards)),
}
