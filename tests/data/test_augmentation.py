"""data.augment: shares and sides; other draws each epoch, the same ones on resume."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import numpy as np
import pytest
from conftest import Mapped, MonkeyPatch, log_of, merged, weights_of
from messages import says
from subwords import digest, made_lines, pairs_of, rows
from token_stores import tokenizer_of

from mt.config.data_schema import Augment
from mt.config.load import config_from_mapping
from mt.config.plan import plan_data
from mt.config.schema import BatchConfig, Config, TokenizerConfig
from mt.data.tokens.augmentation import Augmentation
from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.plan import Plan
from mt.data.tokens.tokenizer import Tokenizer
from mt.training import settle
from mt.training.launch import train

NONE = dict.fromkeys(Augment.model_fields, 0.0)
N = 6000
PAIRS = [
    (f"Zeile {i}: {line} Ende.", f"line {i}: {line.lower()} End.")
    for i, line in enumerate(made_lines(N))
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_of(TokenizerConfig(vocab_size=400, user_defined_symbols=["<x>"]), PAIRS[:500])


@pytest.fixture(scope="module")
def pairs(tokenizer: Tokenizer) -> DirectedPairs:
    return pairs_of(tokenizer, PAIRS, kept=(1000, N - 1000))


def config_of(max_tokens: int = 250, seed: int = 1, **shares: float) -> Config:
    train = [{"src": "0.de", "tgt": "0.en"}, {"src": "1.de", "tgt": "1.en"}]
    data = {"augment": NONE | shares, "max_tokens": max_tokens, "train": train}
    return config_from_mapping({"run": {"seed": seed}, "data": data}, "test")


def augmentation_of(pairs: DirectedPairs, tokenizer: Tokenizer, config: Config) -> Augmentation:
    stage = plan_data(config.data).stages[0]
    return Augmentation(pairs, stage, tokenizer, config.run.seed, config.data.max_tokens)


def epoch_of(
    pairs: DirectedPairs, tokenizer: Tokenizer, config: Config, epoch: int = 0
) -> tuple[DirectedPairs, list[tuple[str, str]]]:
    """The pairs of an epoch, and their text."""
    made = augmentation_of(pairs, tokenizer, config)(epoch)
    return made, list(zip(*map(tokenizer.src.decode, rows(made)), strict=True))


def plan_of(pairs: DirectedPairs, tokenizer: Tokenizer, config: Config) -> Plan:
    batch = BatchConfig(tokens_per_update=3000, tokens_per_batch=900)
    return Plan(pairs, [1.0, 1.0], batch, 1, augmentation_of(pairs, tokenizer, config))


def test_an_epoch_depends_on_seed_and_number_and_a_corpus_on_no_other(
    tokenizer: Tokenizer, pairs: DirectedPairs
) -> None:
    config = config_of(typos=0.3, noise=0.2)
    augment = augmentation_of(pairs, tokenizer, config)
    first, second = augment(0), augment(1)
    assert digest(augmentation_of(pairs, tokenizer, config)(1)) == digest(second)
    other_seed = augmentation_of(pairs, tokenizer, config_of(seed=2, typos=0.3))(0)
    assert len({digest(made) for made in (first, second, other_seed, pairs)}) == 4
    other = pairs_of(tokenizer, [PAIRS[0]] * 1000 + PAIRS[1000:], kept=pairs.kept)
    made = augmentation_of(other, tokenizer, config)(0)
    ours, theirs = (rows(each)[0][each.kept[0] :] for each in (first, made))
    assert ours == theirs
    stopped = Event()
    stopped.set()
    with pytest.raises(InterruptedError):
        augment(0, stopped)


def test_typos_and_noise_have_their_shares(tokenizer: Tokenizer, pairs: DirectedPairs) -> None:
    def added(typos: float = 0.0, noise: float = 0.0) -> list[set[str]]:
        made, texts = epoch_of(pairs, tokenizer, config_of(typos=typos, noise=noise))
        assert rows(made)[1] == rows(pairs)[1]
        found = [
            {*new.split()} - {*old.split()} for (new, _), (old, _) in zip(texts, PAIRS, strict=True)
        ]
        assert f"{sum(map(bool, found)):,} of {N:,} sources" in made.store.augmented
        return found

    # A share gets 5 to 20 % of noise, which short lines may escape.
    assert 0.25 < sum(map(bool, added(noise=0.5))) / N < 0.5
    assert {len(sign) for signs in added(noise=0.5) for sign in signs} == {1}
    assert 0.4 < sum(map(bool, added(typos=0.9, noise=0.3))) / N < 0.95
    too_short, _ = epoch_of(pairs, tokenizer, config_of(max_tokens=2, typos=0.9))
    assert rows(too_short) == rows(pairs)


def test_texts_outside_a_stage_are_not_counted(tokenizer: Tokenizer, pairs: DirectedPairs) -> None:
    config = config_of()
    texts = [text.model_copy(update={"weight": n}) for n, text in enumerate(config.data.train)]
    data = config.data.model_copy(update={"train": texts})
    made, _ = epoch_of(pairs, tokenizer, config.model_copy(update={"data": data}))
    assert made.kept == (0, N - 1000)
    assert says(made.store.augmented, f"0 of {N - 1000:,} sources")


def test_pairs_with_a_symbol_stay(tokenizer: Tokenizer) -> None:
    pairs = [("Hallo <x> Freunde", "Hello <x>."), ("Hallo liebe Freunde", "Bye.")] * 50
    _, texts = epoch_of(pairs_of(tokenizer, pairs, kept=(50, 50)), tokenizer, config_of(noise=0.99))
    assert {pair for pair in texts if "<x>" in pair[1]} == {pairs[0]}
    assert len({*texts}) > 2


def test_the_plan_knows_the_new_lengths(tokenizer: Tokenizer, pairs: DirectedPairs) -> None:
    made = plan_of(pairs, tokenizer, config_of(typos=0.4, noise=0.9)).for_epoch(3, Event())
    batches = [batch for update in made.updates(3) for batch in update]
    longest = np.maximum(made.pairs.src_lengths, made.pairs.tgt_lengths) + 1
    assert max(longest[batch].max() * len(batch) for batch in batches) <= 900
    assert sorted(np.concatenate(batches)) == list(range(len(made.pairs)))
    assert made.pairs.src_lengths.sum() > pairs.src_lengths.sum()


def test_a_run_resumed_in_an_epoch_ends_with_the_same_weights(
    interruptible: Mapped, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "SECONDS_OF_TIMING", 0)

    def run(name: str, *steps: int) -> Path:
        for max_steps in steps:
            changes = {
                "data": {"augment": {"typos": 0.2, "noise": 0.3}, "valid": None},
                "tokenizer": {"vocab_size": 400},
                "train": {"max_steps": max_steps, "valid_every": 100},
            }
            config = config_from_mapping(merged(interruptible, changes), "test")
            assert train(config, tmp_path / name, "cpu").exit_code == 0
        return tmp_path / name

    whole, resumed = run("whole", 12), run("resumed", 11, 12)
    assert weights_of(whole) == weights_of(resumed)
    assert [log_of(whole).count(f"data.augment: epoch {n}: ") for n in range(2)] == [1, 1]
