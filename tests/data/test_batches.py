"""Plans, padding and the prefetcher, on lengths made up here."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from messages import raises_saying
from token_stores import store_of_lengths

from mt.config.schema import BatchConfig
from mt.data.tokens import plan as plans
from mt.data.tokens.batches import Prefetcher, Update, collate, gather_batch
from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.plan import Plan, Updates, batch_ends, bucket, micro_batches, shard_batches


def random_pairs(n: int, kept: Sequence[int] = ()) -> DirectedPairs:
    """Lengths as in text: a few to some dozens of tokens, both sides alike."""
    draw = np.random.default_rng(n)
    src = draw.gamma(4.0, 4.0, n).astype(int) + 1
    return store_of_lengths(src, np.maximum(1, src + draw.integers(-3, 4, n)), kept)


def plan_of(
    pairs: DirectedPairs, weights: Sequence[float] = (1.0,), update: int = 4000, batch: int = 1000,
    seed: int = 1,
) -> Plan:  # fmt: skip
    return Plan(pairs, weights, BatchConfig(tokens_per_update=update, tokens_per_batch=batch), seed)


def flat(updates: Iterable[list[np.ndarray]]) -> list[list[list[int]]]:
    return [[batch.tolist() for batch in update] for update in updates]


def sentences(updates: Iterable[list[np.ndarray]]) -> Counter[int]:
    return Counter(int(i) for i in np.concatenate(list(chain.from_iterable(updates))))


# --- the plan ---------------------------------------------------------------------------------


def test_a_plan_depends_on_seed_and_epoch_alone() -> None:
    """Not on the epochs made before: a resumed run starts in the middle."""
    pairs = random_pairs(2000)
    first, second = plan_of(pairs), plan_of(pairs)
    epochs = [flat(first.updates(epoch)) for epoch in range(3)]
    assert [flat(second.updates(epoch)) for epoch in (2, 0)] == [epochs[2], epochs[0]]
    assert epochs[0] != epochs[1] != epochs[2]
    assert flat(plan_of(pairs, seed=2).updates(0)) != epochs[0]
    # Neither may an epoch of one seed be that of another: (1, 2) is not (2, 1).
    assert flat(plan_of(pairs, seed=2).updates(1)) != epochs[2]


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=150),
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.integers(1, 5),
)
def test_every_sentence_comes_once_in_an_epoch(
    lengths: list[tuple[int, int]], update: int, budget: int, ranks: int
) -> None:
    """Whatever the lengths, the budgets and the number of ranks; no batch exceeds the budget.

    Only a sentence longer than that does, alone.
    """
    src, tgt = np.array(lengths).T
    pairs = store_of_lengths(src, tgt)
    updates = plan_of(pairs, update=update, batch=budget).updates(0)
    assert sentences(updates) == Counter(range(len(src)))
    longest = np.maximum(src, tgt) + 1
    for micro in updates:
        assert all(len(b) * longest[b].max() <= budget or len(b) == 1 for b in micro)
        shards = shard_batches(pairs.src_lengths, pairs.tgt_lengths, micro, ranks)
        assert len({len(shard) for shard in shards}) == 1
        dealt = np.concatenate(list(chain.from_iterable(shards)))
        assert sorted(dealt) == sorted(np.concatenate(micro))


def test_the_budget_of_a_batch_does_not_change_which_sentences_form_an_update() -> None:
    """`auto` takes it from the memory of the machine; training must be the same on all."""
    pairs = random_pairs(5000)
    whole = [sorted(np.concatenate(update)) for update in plan_of(pairs, batch=8192).updates(3)]
    assert len(whole) > 10
    for budget in (100, 900, 4000):
        cut = plan_of(pairs, batch=budget).updates(3)
        assert [sorted(np.concatenate(update)) for update in cut] == whole
        assert sum(map(len, cut)) >= len(cut) * 4000 / budget


@pytest.mark.parametrize(("update", "shares"), [(8191, 1), (8192, 4), (40_000, 4)])
def test_a_large_update_has_sentences_of_all_lengths(update: int, shares: int) -> None:
    """Its share of tokens in sentences up to any length is that of the text, within a quarter.

    A smaller one is of fewer lengths and fewer batches.
    """
    pairs = random_pairs(40_000)
    sizes = pairs.tgt_lengths + 1

    def up_to_each_length(sentences: np.ndarray) -> np.ndarray:
        tokens = np.bincount(sizes[sentences], sizes[sentences], sizes.max() + 1)
        return np.asarray(tokens.cumsum() / tokens.sum())

    text = up_to_each_length(np.arange(40_000))
    updates = plan_of(pairs, update=update, batch=10 * update).updates(0)
    apart = [abs(up_to_each_length(np.concatenate(update)) - text).max() for update in updates]
    assert 0.5 / shares < max(apart) < 1.08 / shares
    assert max(map(len, updates)) <= shares


def test_the_order_of_an_epoch_is_random_over_the_whole_corpus() -> None:
    """Place in the corpus and update are independent, as are the lengths of neighbours.

    A correlation of n independent pairs has a standard deviation of 1/√n; 5 of them are allowed.
    """
    n = 40_000
    pairs = random_pairs(n)
    updates = plan_of(pairs, update=1000).updates(1)
    number_of = np.empty(n)
    for number, update in enumerate(updates):
        number_of[np.concatenate(update)] = number
    assert abs(np.corrcoef(np.arange(n), number_of)[0, 1]) < 5 / np.sqrt(n)
    assert abs(np.corrcoef(number_of[:-1], number_of[1:])[0, 1]) < 5 / np.sqrt(n)
    # Pairs that were in one update meet again as often as chance has it: one in len(updates).
    after = np.empty(n)
    for number, update in enumerate(plan_of(pairs, update=1000).updates(2)):
        after[np.concatenate(update)] = number
    mean = [pairs.tgt_lengths[np.concatenate(update)].mean() for update in updates]
    assert abs(np.corrcoef(mean[:-1], mean[1:])[0, 1]) < 5 / np.sqrt(len(mean))
    assert abs(np.corrcoef(number_of, after)[0, 1]) < 5 / np.sqrt(n)


@pytest.mark.parametrize(
    ("shares", "budget", "ends"),
    [
        ([[10] * 9, [11] * 9], 1000, [18]),  # 9 tokens of padding are less than a batch
        ([[10] * 99, [60] * 9], 9000, [99, 108]),  # 4,950 are more
        ([[10] * 99, [12] * 9, [60] * 9], 9000, [108, 117]),
        ([[10] * 9] * 4, 90, [9, 18, 27, 36]),
        ([[10] * 9] * 4, 50, [4, 9, 13, 18, 22, 27, 31, 36]),  # 4 and 5, not 5 and 4
        ([[10, 10, 100]], 100, [2, 3]),
        ([[100, 10, 10]], 30, [1, 3]),  # too long for any batch: alone
    ],
)
def test_micro_batches_by_hand(shares: list[list[int]], budget: int, ends: list[int]) -> None:
    assert micro_batches([np.array(share) for share in shares], budget) == ends


@pytest.mark.parametrize("weights", [(1.0, 2.0), (0.3, 0.6), (5.0, 10.0)])
def test_twice_the_weight_is_twice_as_often(weights: tuple[float, float]) -> None:
    seen = sentences(plan_of(random_pairs(700, (500, 200)), weights).updates(0))
    assert seen == Counter(range(500)) + Counter(dict.fromkeys(range(500, 700), 2))


def test_a_part_of_a_weight_takes_other_sentences_each_epoch() -> None:
    """Weight 2.25: all twice, and a quarter of them, drawn by the seed, once more."""
    pairs = random_pairs(600, (200, 400))
    plan = plan_of(pairs, (1.0, 2.25))
    extra = []
    for epoch in (0, 1):
        seen = sentences(plan.updates(epoch))
        assert all(seen[i] == 1 for i in range(200))
        assert Counter(seen[i] for i in range(200, 600)) == {2: 300, 3: 100}
        extra.append({i for i in seen if seen[i] == 3})
    assert extra[0] != extra[1]
    assert sentences(plan_of(pairs, (1.0, 2.25)).updates(0)) == sentences(plan.updates(0))
    assert sentences(plan_of(pairs, (1.0, 2.25), seed=2).updates(0)) != sentences(plan.updates(0))


# --- budgets ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("longest", "ends"),
    [
        ([5, 5, 5, 5], [2, 4]),  # 2 x 5 = 10
        ([3, 5, 2], [2, 3]),  # 2 x 5 = 10, 3 x 5 = 15
        ([5, 4, 1, 1], [2, 4]),  # the first is the longest
        ([3, 3, 3, 1], [3, 4]),  # 3 x 3 = 9, 4 x 3 = 12
        ([12, 3, 3], [1, 3]),  # too long for any batch: alone
        ([3, 12, 12, 3], [1, 2, 3, 4]),
        ([10], [1]),
        ([], []),
    ],
)
def test_cuts_for_a_budget_of_ten_by_hand(longest: list[int], ends: list[int]) -> None:
    assert batch_ends(np.array(longest, np.int64), 10) == ends


def test_neighbours_are_alike_on_both_sides() -> None:
    """By target length; sources rise within one target length, fall within the next."""
    src, tgt = np.array([5, 1, 1, 5, 5, 1]), np.array([2, 2, 3, 3, 4, 4])
    (batch,) = bucket(src, tgt, np.arange(6), 1000)
    assert batch.tolist() == [1, 0, 3, 2, 5, 4]


@pytest.mark.parametrize("batch", [500, 1500, 4000, 6000, 8000])
def test_updates_are_of_equal_size(batch: int) -> None:
    """Within 5 %, also where a batch is about as large as an update; they share no batch."""
    pairs = random_pairs(20_000)
    plan = plan_of(pairs, update=4000, batch=batch)
    for epoch in (0, 1):
        updates = plan.updates(epoch)
        sizes = [sum(int((pairs.tgt_lengths[b] + 1).sum()) for b in update) for update in updates]
        assert np.mean(sizes) == pytest.approx(4000, rel=0.01)
        assert min(sizes) > 0.95 * 4000
        assert max(sizes) < 1.05 * 4000
        assert sentences(updates) == Counter(range(20_000))
    if batch == 8000:  # with room for padding and longer sources: a batch a share at most
        assert sum(map(len, updates)) <= 4 * len(updates)


@pytest.mark.parametrize(
    ("sizes", "n_parts", "ends"),
    [
        ([1, 1, 1, 1, 1, 1], 3, [2, 4, 6]),
        ([2, 2, 2, 2, 2], 2, [3, 5]),  # 4 and 6 are as far from 5: the cut is after
        ([9, 1, 1, 1], 2, [1, 4]),
        ([1, 1, 1, 9], 4, [1, 2, 3, 4]),  # none is empty
        ([9, 1, 1, 1], 4, [1, 2, 3, 4]),
        ([1, 1, 9, 1, 1], 3, [2, 3, 5]),
        ([5], 1, [1]),
    ],
)
def test_equal_shares_by_hand(sizes: list[int], n_parts: int, ends: list[int]) -> None:
    assert plans.equal_ends(np.array(sizes, np.int64), n_parts).tolist() == ends


# --- padding ----------------------------------------------------------------------------------


def test_a_padded_batch_by_hand() -> None:
    """Pairs (7 8 9 -> 5) and (6 -> 8 9): pad is 0, bos 2, eos 3."""
    batch = collate([(np.array([7, 8, 9]), np.array([5])), (np.array([6]), np.array([8, 9]))])
    assert batch.src.tolist() == [[7, 8, 9, 3], [6, 3, 0, 0]]
    assert batch.src_mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.tgt_in.tolist() == [[2, 5, 0], [2, 8, 9]]
    # What tgt_in is to be followed by: 5 eos; 8 9 eos. Padding is no target.
    assert batch.tgt_out.tolist() == [5, 3, 8, 9, 3]
    assert batch.tgt_positions.tolist() == [0, 1, 3, 4, 5]
    assert (batch.n_src, batch.n_tgt, batch.n_padded) == (4 + 2, 2 + 3, 8 + 6)
    ids = (batch.src, batch.tgt_in, batch.tgt_out, batch.tgt_positions)
    assert {tensor.dtype for tensor in ids} == {torch.int64}


def test_a_packed_batch_by_hand() -> None:
    """The same pairs, end to end: no padding is left, and where each sentence is stands beside."""
    pairs = [(np.array([7, 8, 9]), np.array([5])), (np.array([6]), np.array([8, 9]))]
    padded = collate(pairs)
    batch = padded.pack()
    assert batch.src.tolist() == [[7, 8, 9, 3, 6, 3]]
    assert batch.tgt_in.tolist() == [[2, 5, 2, 8, 9]]
    assert batch.tgt_out.tolist() == padded.tgt_out.tolist() == [5, 3, 8, 9, 3]
    assert batch.src_mask.tolist() == [[True] * 6]
    assert batch.tgt_positions.tolist() == [0, 1, 2, 3, 4]
    assert batch.packed is not None
    src, tgt = batch.packed
    assert [src.places.tolist(), src.starts.tolist()] == [[0, 1, 2, 3, 0, 1], [0, 4, 6]]
    assert [tgt.places.tolist(), tgt.starts.tolist()] == [[0, 1, 0, 1, 2], [0, 2, 5]]
    assert (src.longest, tgt.longest) == (4, 3)
    assert src.starts.dtype == tgt.starts.dtype == torch.int32  # `varlen_attn` takes no other
    assert batch.shape == padded.shape == (2, 4, 3)
    assert (batch.n_src, batch.n_tgt, batch.n_padded) == (6, 5, 11)


def test_a_batch_gathered_from_a_store_is_that_of_its_pairs(tmp_path: Path) -> None:
    """Also from a memory map of the store's types, and with the last sentence of the store."""
    pairs = random_pairs(300)
    pairs.store.ids.astype("<u2").tofile(tmp_path / "ids")
    ids = np.memmap(tmp_path / "ids", dtype="<u2", mode="r")
    mapped = replace(pairs, store=replace(pairs.store, ids=ids))
    draw = np.random.default_rng(1)
    for rows in (1, 2, 7, 300):
        indices = np.append(draw.choice(299, rows - 1, replace=False), 299)
        expected = collate(pairs.pairs(indices))
        found = vars(gather_batch(mapped, indices))
        for name, value in vars(expected).items():
            if value is not None:
                torch.testing.assert_close(found[name], value, rtol=0, atol=0)


# --- the prefetcher ---------------------------------------------------------------------------


def rows(batches: Sequence[object]) -> list[list[list[int]]]:
    return [batch.tgt_in.tolist() for batch in batches]  # type: ignore[attr-defined]


def planned(plan: Plan, epoch: int, number: int) -> list[list[list[int]]]:
    return rows([collate(plan.pairs.pairs(batch)) for batch in plan.updates(epoch)[number]])


@pytest.mark.parametrize("start", [0, 2, "end"])
def test_updates_come_in_the_order_of_the_plan_from_any_position(start: int | str) -> None:
    plan = plan_of(random_pairs(300), update=1000, batch=300)
    n = len(plan.updates(4))
    first = n if start == "end" else int(start)
    places = [(4, number) for number in range(first, n)] + [(5, 0), (5, 1)]
    with Prefetcher(plan, 4, first) as prefetcher:
        for (epoch, number), update in zip(places, prefetcher, strict=False):
            is_last = (epoch, number) == (4, n - 1)
            assert (update.epoch, update.number, update.last) == (epoch, number, is_last)
            assert rows(update.batches) == planned(plan, epoch, number)
            assert update.n_tgt == sum(len(batch.tgt_out) for batch in update.batches)


def test_an_error_in_the_thread_is_raised_after_the_updates_before_it() -> None:
    class Failing(Plan):
        def updates(self, epoch: int) -> Updates:
            if epoch == 1:
                raise MemoryError("out of memory in epoch 1")
            return super().updates(epoch)

    batch = BatchConfig(tokens_per_update=400, tokens_per_batch=400)
    plan = Failing(random_pairs(50), [1.0], batch, 1)
    seen: list[Update] = []
    with Prefetcher(plan, 0, 0) as feed, raises_saying(MemoryError, "out of memory in epoch 1"):
        seen.extend(feed)
    assert [update.number for update in seen] == list(range(len(plan.updates(0))))


@pytest.mark.parametrize("taken", [0, 1])
def test_leaving_ends_the_thread_although_its_queue_is_full(taken: int) -> None:
    plan = plan_of(random_pairs(3000), update=300, batch=300)
    with Prefetcher(plan, 0, 0) as prefetcher:
        for _, _ in zip(range(taken), prefetcher, strict=False):
            pass
        while not prefetcher._queue.full():
            time.sleep(0.001)
        thread, start = prefetcher._thread, time.perf_counter()
        assert thread.is_alive()
    assert not thread.is_alive()
    assert time.perf_counter() - start < 2
    for outside in (prefetcher, Prefetcher(plan, 0, 0)):
        with pytest.raises(RuntimeError, match="with"):
            next(iter(outside))
