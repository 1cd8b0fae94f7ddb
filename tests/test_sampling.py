"""Subword regularisation: the same text in other tokens, drawn as the papers say, and the same in any process."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, merged, metrics_of

from mt.config.load import config_from_mapping
from mt.config.schema import BatchConfig, Config, TokenizerConfig
from mt.data import sampling as module
from mt.data.batches import Plan, collate
from mt.data.loader import Prefetcher
from mt.data.sampling import BpeDropout, Sampling, Segmenter, UnigramSampling
from mt.data.store import Store
from mt.data.tokenizer import UNK, Tokenizer, normalize_line, train_tokenizer
from mt.model import checkpoint
from mt.runtime.devices import choose_device
from mt.runtime.distributed import World
from mt.training.launch import train
from mt.training.runlog import RunLog
from mt.training.signals import Signals
from mt.training.trainer import Trainer
from mt.training.update import Updater

Mapped = Mapping[str, Any]
# An alpha that changes most words.
STRONG = {"bpe": 0.4, "unigram": 0.05}
WORDS = "der Hund Hunde Häuser Hausboot schläft schlafen Schlaf laufen läuft Lauf 1987 12 nicht , . the houses hound"
NASTY = [
    "👨\u200d👩 😀😀",
    "水水 漢字かな交じり文",
    "a\u0323\u0307 e\u0301\u0302\u0303 ก็",  # combining marks with no composed form, Thai
    "1987 0.5 ½ ²",
    "<s> </s> <0x41> <unk> ⁇",
    "\0 \u00ad\ufeff \u200b",
    "ß" * 50 + "Hunde" * 30,
    "x",
    "▁▁ a▁b",
    "Schlaf\u00a0Hausboot\u2028Lauf",
]


def made_lines(n: int = 400) -> list[str]:
    draw = random.Random(5)
    return [" ".join(draw.choices(WORDS.split(), k=draw.randint(1, 12))) for _ in range(n)]


def trained(kind: str, joint: bool = True, byte_fallback: bool = True) -> Tokenizer:
    keys = {
        "type": kind,
        "joint": joint,
        "byte_fallback": byte_fallback,
        "vocab_size": 340 if byte_fallback else 80,
    }
    pairs = [(line, line.upper()) for line in made_lines()]
    return train_tokenizer(TokenizerConfig.model_validate(keys), pairs, 1, lambda _: None)


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(kind: str) -> Tokenizer:
    return trained(kind)


def store_of(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> Store:
    sides = (
        tokenizer.encode_src([src for src, _ in pairs]),
        tokenizer.encode_tgt([tgt for _, tgt in pairs]),
    )
    lengths = np.array([[len(row) for row in rows] for rows in sides], np.int64)
    starts = lengths.cumsum(axis=1) - lengths
    src, tgt = (np.array(list(chain.from_iterable(rows)), "<u2") for rows in sides)
    return Store(src, tgt, *lengths, *starts, (len(pairs),), "", "")


def sampling_of(
    store: Store, tokenizer: Tokenizer, kind: str, alpha: float, seed: int = 1, **data: int
) -> Sampling:
    tree = {
        "run": {"seed": seed},
        "data": data,
        "tokenizer": {"type": kind, "sampling_alpha": alpha},
    }
    return Sampling(store, tokenizer, config_from_mapping(tree, "test"))


def rows(store: Store) -> tuple[list[list[int]], list[list[int]]]:
    src, tgt = zip(*(store.pair(i) for i in range(len(store))), strict=True)
    return [row.tolist() for row in src], [row.tolist() for row in tgt]


def digest(store: Store) -> str:
    parts = (store.src, store.tgt, store.src_lengths, store.tgt_lengths)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


# --- the same text ------------------------------------------------------------------------------


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("factor", [0.1, 1, 2])
def test_sampled_tokens_are_other_tokens_for_the_same_text(
    kind: str, joint: bool, factor: float
) -> None:
    tokenizer = trained(kind, joint)
    lines = NASTY + made_lines(200)
    # One way round and the other, so that both vocabularies meet what they have never seen.
    pairs = [*zip(lines, lines, strict=True), *zip(reversed(lines), lines, strict=True)]
    store = store_of(tokenizer, pairs)
    sampled = sampling_of(store, tokenizer, kind, factor * STRONG[kind], max_tokens=1000)(0)
    src, tgt = rows(sampled)
    src_model = Tokenizer(tokenizer._models[0])  # decodes source ids
    assert src_model.decode_tgt(src) == [normalize_line(line) for line, _ in pairs]
    assert tokenizer.decode_tgt(tgt) == [normalize_line(line) for _, line in pairs]
    assert sum(a != b for a, b in zip(src + tgt, chain(*rows(store)), strict=True)) > 100
    assert (sampled.src.dtype, sampled.kept, len(sampled)) == (
        store.src.dtype,
        store.kept,
        len(store),
    )


def test_without_chance_it_is_the_best_segmentation(kind: str, tokenizer: Tokenizer) -> None:
    """BPE that skips nothing, and unigram that takes the best of all, are what SentencePiece encodes."""
    lines = NASTY + made_lines(300)
    store = store_of(tokenizer, [(line, line) for line in lines])
    alpha = 1e-300 if kind == "bpe" else 1e300
    assert rows(sampling_of(store, tokenizer, kind, alpha, max_tokens=1000)(0)) == rows(store)


def test_bpe_that_skips_nearly_all_spells_characters() -> None:
    tokenizer = trained("bpe")
    store = store_of(tokenizer, [("Hunde schlafen", "Häuser")])
    ((src,), _) = rows(sampling_of(store, tokenizer, "bpe", 1 - 1e-12)(0))
    assert tokenizer.src_pieces_of(src) == list("▁Hunde▁schlafen")


def test_unknown_characters_stay_unknown_and_the_rest_is_sampled(kind: str) -> None:
    tokenizer = trained(kind, byte_fallback=False)
    store = store_of(tokenizer, [("Hunde 水 schlafen", "HUNDE")] * 50)
    seen = {tuple(row) for row in rows(sampling_of(store, tokenizer, kind, STRONG[kind])(0))[0]}
    assert len(seen) > 3
    assert all(row.count(UNK) == 1 for row in seen)
    assert {"".join(tokenizer.src_pieces_of([i for i in row if i != UNK])) for row in seen} == {
        "▁Hunde▁▁schlafen"
    }


def test_rows_that_would_become_too_long_keep_their_tokens(kind: str, tokenizer: Tokenizer) -> None:
    store = store_of(tokenizer, [(line, line) for line in made_lines(300)])
    longest = int(np.median(store.src_lengths))
    sampled = sampling_of(store, tokenizer, kind, STRONG[kind], max_tokens=longest)(0)
    before, after = rows(store)[0], rows(sampled)[0]
    assert all(len(new) <= longest or new == old for old, new in zip(before, after, strict=True))
    assert all(new == old for old, new in zip(before, after, strict=True) if len(old) > longest)
    assert sum(new != old for old, new in zip(before, after, strict=True)) > 20
    assert tokenizer.decode_tgt(after) == tokenizer.decode_tgt(before)


# --- drawn as the papers say --------------------------------------------------------------------


def drawn(segmenter: Segmenter, row: Sequence[int], n: int) -> Counter[tuple[int, ...]]:
    """How often each segmentation of a row came in `n` draws."""
    ids, lengths = segmenter.sample(np.tile(row, n), np.full(n, len(row)), np.random.default_rng(3))
    return Counter(tuple(part.tolist()) for part in np.split(ids, lengths.cumsum()[:-1]))


def check_shares(seen: Counter[tuple[int, ...]], expected: Mapping[tuple[int, ...], float]) -> None:
    """Within 4.5 standard deviations of what is expected, each; and nothing else."""
    n = seen.total()
    assert sum(expected.values()) == pytest.approx(1)
    assert seen.keys() <= expected.keys()
    for tokens, share in expected.items():
        assert abs(seen[tokens] - n * share) <= 4.5 * (n * share) ** 0.5 + 1, tokens


def dropout(world: Mapping[str, int], word: str, alpha: float) -> dict[tuple[str, ...], float]:
    """The probability of each outcome of BPE-dropout, by following both fates of every merge."""
    ended: dict[tuple[str, ...], float] = {}

    def go_on(tokens: tuple[str, ...], passed: frozenset[int], probability: float) -> None:
        """`passed`: number of the left token of the merges that were passed over."""
        merges = [
            (world[a + b], i)
            for i, (a, b) in enumerate(pairwise(tokens))
            if a + b in world and i not in passed
        ]
        if not merges:
            ended[tokens] = ended.get(tokens, 0.0) + probability
            return
        _, i = min(merges)
        go_on(tokens, passed | {i}, probability * alpha)
        joined = (*tokens[:i], tokens[i] + tokens[i + 1], *tokens[i + 2 :])
        # The merges of its neighbours with it are new ones.
        kept = frozenset(j if j < i else j - 1 for j in passed if j not in (i - 1, i, i + 1))
        go_on(joined, kept, probability * (1 - alpha))

    go_on(tuple(word), frozenset(), 1.0)
    return ended


@pytest.mark.parametrize("word", ["▁Hunde", "▁schläft", "▁12", "▁Häuser"])
@pytest.mark.parametrize("alpha", [0.1, 0.6])
def test_each_merge_is_skipped_with_probability_alpha(word: str, alpha: float) -> None:
    tokenizer = trained("bpe")
    vocabulary = tokenizer.src_vocabulary()
    ids = {text: number for number, (text, _) in enumerate(vocabulary)}
    best_first = sorted(
        (text for text, _ in vocabulary if len(text) > 1),
        key=lambda text: -vocabulary[ids[text]][1],
    )
    outcomes = dropout({text: rank for rank, text in enumerate(best_first)}, word, alpha)
    expected = {tuple(ids[text] for text in tokens): share for tokens, share in outcomes.items()}
    row = tokenizer.encode_src([word.removeprefix("▁")])[0]
    check_shares(drawn(BpeDropout(vocabulary, alpha), row, 20_000), expected)


def segmentations(word: str, known: Mapping[str, int]) -> list[tuple[str, ...]]:
    if not word:
        return [()]
    cuts = [cut for cut in range(1, len(word) + 1) if word[:cut] in known]
    return [(word[:cut], *rest) for cut in cuts for rest in segmentations(word[cut:], known)]


@pytest.mark.parametrize("word", ["▁Hunde", "▁schläft", "▁x12"])
@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_segmentations_come_as_often_as_their_smoothed_probability_says(
    word: str, alpha: float
) -> None:
    tokenizer = trained("unigram")
    vocabulary = tokenizer.src_vocabulary()
    ids = {text: number for number, (text, _) in enumerate(vocabulary)}
    byte = tokenizer.src_pieces("x")[-1]  # never seen: spelled as a byte, which has no other form
    spelled = tokenizer.tgt_piece_id(byte)
    all_of = [tuple(ids[text] for text in way) for way in segmentations(word.replace("x", ""), ids)]
    if "x" in word:
        all_of = [(way[0], spelled, *way[1:]) for way in all_of if vocabulary[way[0]][0] == "▁"]
    mass = np.exp([alpha * sum(vocabulary[i][1] for i in way if i != spelled) for way in all_of])
    expected = dict(zip(all_of, (mass / mass.sum()).tolist(), strict=True))
    row = tokenizer.encode_src([word.removeprefix("▁")])[0]
    check_shares(drawn(UnigramSampling(vocabulary, alpha), row, 20_000), expected)


def test_words_of_a_line_and_lines_of_a_text_are_drawn_apart(
    kind: str, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No draw is that of its neighbour, of the other side, or of the chunk before."""
    monkeypatch.setattr(module, "CHUNK", 20)
    store = store_of(tokenizer, [("schlafen schlafen", "schlafen schlafen")] * 100)
    src, tgt = (
        [" ".join(tokenizer.src_pieces_of(row)).removeprefix("▁").split("▁") for row in side]
        for side in rows(sampling_of(store, tokenizer, kind, STRONG[kind])(0))
    )
    assert sum(a.strip() != b.strip() for a, b in src) > 30
    assert sum(a != b for a, b in zip(src, tgt, strict=True)) > 30
    assert sum(a != b for a, b in zip(src, src[20:], strict=False)) > 30
    assert sum(a != b for a, b in pairwise(src)) > 30


# --- a pure function ------------------------------------------------------------------------------


def epochs(kind: str, wanted: Sequence[int], seed: int = 1) -> list[str]:
    tokenizer = trained(kind)
    store = store_of(tokenizer, [(line, line.upper()) for line in NASTY + made_lines(200)])
    sampling = sampling_of(store, tokenizer, kind, STRONG[kind], seed)
    return [digest(sampling(epoch)) for epoch in wanted]


def test_an_epoch_is_the_same_in_another_process_and_without_those_before_it(kind: str) -> None:
    code = f"import sys; sys.path.insert(0, 'tests'); from test_sampling import epochs; print(*epochs({kind!r}, [3, 0]))"
    there = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=90,
    )
    here = epochs(kind, range(4))
    assert there.stdout.split() == [here[3], here[0]]
    assert len({*here, *epochs(kind, [0, 1], seed=2)}) == 6


# --- the plan and the feed ------------------------------------------------------------------------


def plan_of(tokenizer: Tokenizer, kind: str, sampled: bool = True) -> Plan:
    store = store_of(tokenizer, [(line, line.upper()) for line in made_lines(600)])
    sampling = (
        sampling_of(store, tokenizer, kind, STRONG[kind], max_tokens=100) if sampled else None
    )
    return Plan(
        store, [1.0], BatchConfig(tokens_per_update=1500, tokens_per_batch=400), 1, sampling
    )


def test_budgets_hold_for_the_sampled_lengths(kind: str, tokenizer: Tokenizer) -> None:
    plan = plan_of(tokenizer, kind)
    sampled = plan.for_epoch(2, threading.Event())
    assert sampled.store.tgt_lengths.sum() > 1.1 * plan.store.tgt_lengths.sum()
    updates = sampled.updates(2)
    areas, sizes = [], []
    for update in updates:
        batches = [collate([sampled.store.pair(i) for i in batch]) for batch in update]
        areas += [max(batch.src.numel(), batch.tgt_in.numel()) for batch in batches]
        sizes.append(sum(batch.n_tgt for batch in batches))
    assert max(areas) <= 400
    assert np.mean(areas) > 300
    assert np.mean(sizes) == pytest.approx(1500, rel=0.1)
    assert sorted(np.concatenate(list(chain.from_iterable(updates)))) == list(range(600))


def test_the_feed_goes_from_one_sampled_epoch_into_the_next(
    tokenizer: Tokenizer, kind: str
) -> None:
    plan, running = plan_of(tokenizer, kind), threading.Event()
    first, second = (plan.for_epoch(epoch, running) for epoch in (4, 5))
    n = len(first.updates(4))
    places = [(first, 4, number) for number in range(2, n)] + [(second, 5, 0), (second, 5, 1)]
    with Prefetcher(plan, 4, 2) as feed:
        for (sampled, epoch, number), update in zip(places, feed, strict=False):
            assert (update.epoch, update.number, update.last) == (
                epoch,
                number,
                epoch == 4 and number == n - 1,
            )
            batches = [
                collate([sampled.store.pair(i) for i in batch])
                for batch in sampled.updates(epoch)[number]
            ]
            assert all(
                torch.equal(a.src, b.src) for a, b in zip(update.batches, batches, strict=True)
            )
            assert all(
                torch.equal(a.tgt_in, b.tgt_in)
                for a, b in zip(update.batches, batches, strict=True)
            )


def test_without_alpha_the_plan_is_the_one_it_was(tokenizer: Tokenizer, kind: str) -> None:
    plan = plan_of(tokenizer, kind, sampled=False)
    assert plan.for_epoch(3, threading.Event()) is plan


def test_leaving_the_feed_does_not_wait_for_the_epoch_that_is_being_sampled(
    tokenizer: Tokenizer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 1)
    plan, asked = plan_of(tokenizer, kind), threading.Event()
    real = Segmenter.sample

    def slow(*arguments: Any) -> Any:
        asked.set()
        time.sleep(0.1)  # a minute for the whole store
        return real(*arguments)

    monkeypatch.setattr(Segmenter, "sample", slow)
    with Prefetcher(plan, 0, 0) as feed:
        assert asked.wait(10)
        thread, start = feed._thread, time.perf_counter()
    assert not thread.is_alive()
    assert time.perf_counter() - start < 5


# --- a run ----------------------------------------------------------------------------------------


def config_of(mapping: Mapped, kind: str, alpha: float | None, **changes: Any) -> Config:
    tree = merged(
        mapping,
        {
            "tokenizer": {"type": kind, "sampling_alpha": alpha},
            "batch": {"tokens_per_update": 4000, "tokens_per_batch": 700},
            "train": {"max_steps": 12, "valid_every": 4, "log_every": 2},
            "decode": {"beam_size": 1, "max_len_factor": 1.0, "max_len_extra": 1},
            "data": {"test": []},
        },
    )
    return config_from_mapping(merged(tree, changes), "test")


@pytest.fixture(scope="module")
def undisturbed(tiny_mapping: Mapped, kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("sampling") / "run"
    assert train(config_of(tiny_mapping, kind, STRONG[kind]), run, "cpu").exit_code == 0
    return run


@pytest.mark.parametrize(
    "updates", [6, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 11))]
)
def test_a_run_broken_off_ends_with_the_same_weights(
    updates: int,
    kind: str,
    undisturbed: Path,
    tiny_mapping: Mapped,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle of the first epoch and between two checkpoints; before the first of them, and after the last."""
    done, learn = [0], Updater.update

    def watched(*arguments: Any) -> Any:
        if done[0] == updates:
            raise KeyboardInterrupt
        done[0] += 1
        return learn(*arguments)

    monkeypatch.setattr(Updater, "update", watched)
    with pytest.raises(KeyboardInterrupt):
        train(config_of(tiny_mapping, kind, STRONG[kind]), tmp_path, "cpu")
    monkeypatch.undo()
    assert train(config_of(tiny_mapping, kind, STRONG[kind]), tmp_path, "cpu").exit_code == 0
    last = [run / "checkpoints" / "last" for run in (tmp_path, undisturbed)]
    assert (last[0] / "model.safetensors").read_bytes() == (
        last[1] / "model.safetensors"
    ).read_bytes()
    positions = [checkpoint.load_state(folder)["train"] for folder in last]
    assert [positions[0][key] for key in ("epoch", "update", "tokens", "plan")] == [
        positions[1][key] for key in ("epoch", "update", "tokens", "plan")
    ]
    assert positions[0]["epoch"] == 1
    assert [line["nll"] for line in metrics_of(tmp_path, "valid")] == [
        line["nll"] for line in metrics_of(undisturbed, "valid")
    ]


def test_validation_and_stores_are_not_sampled(
    kind: str, undisturbed: Path, tiny_mapping: Mapped, tmp_path: Path, tiny_corpus: Path
) -> None:
    """A run without sampling, given the weights of one with it, finds the same loss and BLEU."""
    assert train(config_of(tiny_mapping, kind, None), tmp_path, "cpu").exit_code == 0
    for name in ("train", "valid"):
        for side in ("src", "tgt"):
            ours, theirs = (
                run / "store" / name / f"{side}.tokens" for run in (tmp_path, undisturbed)
            )
            assert ours.read_bytes() == theirs.read_bytes()
    weights = [
        (run / "checkpoints" / "last" / "model.safetensors").read_bytes()
        for run in (tmp_path, undisturbed)
    ]
    assert weights[0] != weights[1]
    device = choose_device("cpu", "fp32")
    with RunLog(tmp_path, 1) as log:
        trainer = Trainer(config_of(tiny_mapping, kind, None), tmp_path, device, log)
        folder = undisturbed / "checkpoints" / "last"
        checkpoint.put_weights(trainer.updater.model, checkpoint.load_weights(folder), str(folder))
        assert trainer.validation is not None
        verdict = trainer.validation.evaluate(
            trainer.updater.model.eval(), device, World(), Signals()
        )
    recorded = metrics_of(undisturbed, "valid")[-1]
    assert (verdict.nll, verdict.bleu.value) == (recorded["nll"], recorded["bleu"])


def test_sampling_may_begin_and_change_in_a_run_that_goes_on(
    tiny_mapping: Mapped, kind: str, tmp_path: Path
) -> None:
    places = []
    for steps, alpha in ((4, None), (5, 0.3), (6, 0.5), (7, None), (8, None)):
        changes = {
            "batch": {"tokens_per_update": 1000},
            "train": {"max_steps": steps, "valid_every": 100},
            "data": {"valid": None},
        }
        assert (
            train(config_of(tiny_mapping, kind, alpha, **changes), tmp_path, "cpu").exit_code == 0
        )
        state = checkpoint.load_state(tmp_path / "checkpoints" / "last")["train"]
        places.append((state["epoch"], state["update"]))
    assert places == [(0, 4), (1, 1), (2, 1), (3, 1), (3, 2)]
    log = (tmp_path / "train.log").read_text(encoding="utf-8")
    assert (
        "config changed since this run was started: tokenizer.sampling_alpha: was 0.3, now 0.5"
        in log
    )
    assert (
        log.count("data, batch sizes, sampling or seed have changed: going on with a new epoch")
        == 3
    )
