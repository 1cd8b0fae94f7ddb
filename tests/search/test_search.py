"""Searches over scripted tables of probabilities: worked out by hand, brute force, sampling."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from scripted_stepper import (
    A,
    B,
    C,
    Model,
    Prefix,
    Scored,
    ScriptedStepper,
    assert_found,
    assert_same,
    beams,
    greedy,
    random_model,
    run_beams,
    run_greedy,
    scripted,
)

from mt.data.tokens.tokenizer import BOS, EOS, PAD, UNK
from mt.errors import NonFiniteError
from mt.search import search
from mt.search.candidates import BLOCK, Constraint, no_repeat_ngram
from mt.search.options import Sampling
from mt.search.search import sampling_search

# ---------------------------------------------------------------------------------- worked by hand

# Greedy takes A (0.6) and then its end:  A .        0.6 x 0.4         = 0.24
# A beam of two also follows B (0.4):     B .        0.4 x 0.9         = 0.36
GARDEN_PATH = scripted(
    bos={A: 0.6, B: 0.4},
    A={EOS: 0.4, A: 0.3, B: 0.3},
    B={EOS: 0.9, A: 0.05, B: 0.05},
    # What is left when B has ended is A A and A B, 0.18 each: below 0.36 for ever.
)


def test_greedy_takes_the_best_token_and_beam_the_best_path() -> None:
    assert_found(greedy(GARDEN_PATH, 5), A=0.24)
    assert_found(beams(GARDEN_PATH, 5, size=2), B=0.36)


def test_pad_unk_and_bos_are_never_produced_and_keep_their_probability() -> None:
    row = {PAD: 0.33, UNK: 0.33, BOS: 0.33, A: 0.007, EOS: 0.003}
    # A A . and A A A ., with the model's own 0.007 and 0.003: nothing is made up for the 0.99.
    for size in (1, 2, 5):
        for one in beams(lambda _: row, 3, size, n_best=size):
            assert set(one.tokens) == {A}
            expected = len(one.tokens) * math.log(0.007) + math.log(0.003)
            assert one.log_prob == pytest.approx(expected, abs=1e-4)
    assert greedy(lambda _: row, 3)[0].tokens == (A, A, A)


def test_eos_is_never_the_first_token() -> None:
    model = scripted(bos={EOS: 0.98, A: 0.02}, A={EOS: 1.0})
    assert_found(greedy(model, 4), A=0.02)
    assert_found(beams(model, 4, size=3, n_best=3), A=0.02)


# ------------------------------------------------------------------------------ against brute force


def all_translations(model: Model, limit: int, alpha: float) -> list[Scored]:
    """(score, log-probability, tokens) of all of 1 to `limit` words, best first."""
    found = []
    for length in range(1, limit + 1):
        for tokens in itertools.product((A, B, C), repeat=length):
            path = (*tokens, EOS)
            log_prob = sum(math.log(model(path[:i])[token]) for i, token in enumerate(path))
            found.append((log_prob / (length + 1) ** alpha, log_prob, tokens))
    return sorted(found, reverse=True)


def plain_beam_search(
    model: Model, vocab: int, limit: int, size: int, alpha: float, n_best: int
) -> list[Scored]:
    """The rules of `beam_search` once more, over Python lists, without the early end."""
    live: list[tuple[float, Prefix]] = [(0.0, ())]
    finished: list[Scored] = []
    for step in range(limit + 1):
        ways = []
        for log_prob, past in live:
            row = model(past)
            for token in range(EOS, vocab):
                if (token == EOS and step > 0) or (token != EOS and step < limit):
                    ways.append((log_prob + math.log(row[token]), (*past, token)))
        ways.sort(key=lambda way: -way[0])
        for log_prob, path in ways[:size]:
            if path[-1] == EOS:
                finished.append((log_prob / len(path) ** alpha, log_prob, path[:-1]))
        live = [way for way in ways if way[1][-1] != EOS][:size]
        if len(finished) >= size or not live:
            break
    return sorted(finished, reverse=True)[:n_best]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(6))
def test_a_wide_enough_beam_finds_the_best_of_all_translations(seed: int, alpha: float) -> None:
    # Three words and limit 3: 3 + 9 + 27 = 39 translations, at most 9 x 4 candidates in a step
    # before the last: a beam of 40 neither drops one nor counts 40 ends too early.
    model = random_model(seed)
    everything = all_translations(model, 3, alpha)
    assert_same(beams(model, 3, 40, alpha, n_best=40), everything)
    for size in (1, 2, 3, 5):  # a narrow one finds at most as much, and reports it rightly
        for one in beams(model, 3, size, alpha, n_best=size):
            assert one.score <= everything[0][0] + 1e-4
            true = next(entry for entry in everything if entry[2] == one.tokens)
            assert (one.score, one.log_prob) == pytest.approx(true[:2], abs=1e-4)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("vocab", [6, 9, 70])
def test_any_beam_equals_the_same_rules_over_plain_lists(size: int, vocab: int) -> None:
    for seed in range(8):
        alpha = (0.0, 0.6, 1.0, 2.0)[seed % 4]
        model = random_model((seed, vocab), vocab)
        for n_best in {1, size}:
            expected = plain_beam_search(model, vocab, 1 + seed, size, alpha, n_best)
            assert_same(beams(model, 1 + seed, size, alpha, n_best, vocab), expected)


def test_a_beam_of_one_is_greedy_search() -> None:
    for seed, alpha in itertools.product(range(40), (0.0, 1.0)):
        model, limit = random_model(seed, spread=1.0), 1 + seed % 9
        assert beams(model, limit, 1, alpha) == greedy(model, limit, alpha)


def a_batch(n_rows: int) -> tuple[list[Model], list[int]]:
    """Models of different spread and limits from 1 to 12: they end at very different steps."""
    models = [random_model(("batch", row), spread=1.0 + row % 3) for row in range(n_rows)]
    return models, [1 + 5 * row % 12 for row in range(n_rows)]


@pytest.mark.parametrize("live_share", [0.0, 0.75, 1.0])
@pytest.mark.parametrize("size", [1, 3])
def test_a_batch_gives_what_each_sentence_gives_alone(
    size: int, live_share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a share of 0 no sentence leaves before the last, with 1 each leaves at once."""
    models, limits = a_batch(13)
    one_by_one = list(zip(models, limits, strict=True))
    alone = [beams(model, limit, size, 1.0, size) for model, limit in one_by_one]
    greedy_alone = [greedy(model, limit) for model, limit in one_by_one]

    monkeypatch.setattr(search, "LIVE_SHARE", live_share)
    assert run_beams(models, limits, size, alpha=1.0, n_best=size)[0] == alone
    assert run_greedy(models, limits)[0] == greedy_alone


def test_checking_every_few_steps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator finished sentences stay for some steps: they must be frozen."""
    models, limits = a_batch(13)
    limits[3] = 21  # more steps than one interval
    expected = run_beams(models, limits, 4, 0.6, 4)[0]
    expected_greedy = run_greedy(models, limits)[0]

    is_time = search.is_time_to_check
    monkeypatch.setattr(search, "is_time_to_check", lambda _, *steps: is_time("cuda", *steps))
    assert run_beams(models, limits, 4, 0.6, 4)[0] == expected
    assert run_greedy(models, limits)[0] == expected_greedy


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_accelerator_gives_the_same() -> None:
    models, limits = a_batch(13)
    limits[3] = 21
    expected = run_beams(models, limits, 4, 1.0, 4)[0]
    found = run_beams(models, limits, 4, 1.0, 4, device="cuda")[0]
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, [(one.score, one.log_prob, one.tokens) for one in theirs])


@pytest.mark.parametrize("vocab", [7, BLOCK])
@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_non_finite_logits_are_an_error_with_its_sentence(bad: float | None, vocab: int) -> None:
    row = {} if bad is None else dict.fromkeys(range(vocab), bad)  # nothing named: -inf
    models, limits = [random_model(1), lambda _: row], [3, 5]
    for run in (
        lambda: run_beams(models, limits, 3, 1.0, 1, vocab=vocab),
        lambda: run_greedy(models, limits, vocab=vocab),
    ):
        with pytest.raises(NonFiniteError, match=r"sentence 1 of the batch.* precision fp32"):
            run()


# ----------------------------------------------------------------------------------------- sampling


PLAIN = Sampling()


def sample(
    models: list[Model], limits: list[int], seeds: list[int], sampling: Sampling = PLAIN,
    constraints: Sequence[Constraint] = (),
) -> list[tuple[int, ...]]:  # fmt: skip
    found = sampling_search(
        ScriptedStepper(models, 1), torch.tensor(limits), seeds, sampling, constraints=constraints
    )
    return [one.tokens for (one,) in found]


def test_samples_come_as_often_as_the_model_says() -> None:
    """10,000 draws: each count within 5 standard errors. The temperature leaves scores alone."""
    model = scripted(
        {A: 0.5, B: 0.3, C: 0.2}, A={A: 0.9, EOS: 0.1}, AA={EOS: 1.0}, B={EOS: 1.0}, C={EOS: 1.0}
    )
    n = 10_000
    counts = Counter(sample([model] * n, [3] * n, list(range(n))))
    shares = {(A, A): 0.45, (A,): 0.05, (B,): 0.3, (C,): 0.2}
    assert counts.keys() == shares.keys()
    for tokens, share in shares.items():
        assert abs(counts[tokens] / n - share) < 5 * math.sqrt(share * (1 - share) / n)
    found = sampling_search(
        ScriptedStepper([model] * 50, 1), torch.tensor([3] * 50), range(50), Sampling(2.0)
    )
    for (one,) in found:
        assert one.log_prob == pytest.approx(math.log(shares[one.tokens]), abs=1e-4)


def test_a_sentence_gives_the_same_sample_in_any_batch() -> None:
    models = [random_model(f"sampled {i}") for i in range(8)]
    limits, seeds = [3, 8, 1, 6, 8, 2, 7, 5], [11, 12, 13, 14, 11, 15, 16, 17]
    together = sample(models, limits, seeds, Sampling(1.3))
    for i in range(8):
        assert sample([models[i]], [limits[i]], [seeds[i]], Sampling(1.3)) == [together[i]]
    order = [5, 2, 7, 0, 1, 6, 4, 3]
    assert sample(
        [models[i] for i in order],
        [limits[i] for i in order],
        [seeds[i] for i in order],
        Sampling(1.3),
    ) == [together[i] for i in order]
    assert sample(models, limits, [seed + 100 for seed in seeds], Sampling(1.3)) != together


def test_samples_obey_limits_and_constraints_and_hold_no_specials() -> None:
    model = random_model("obedient")
    options: dict[str, Any] = {"constraints": [partial(no_repeat_ngram, 1)]}
    for tokens in sample([model] * 200, [4] * 200, list(range(200)), **options):
        assert 1 <= len(set(tokens)) == len(tokens) <= 4
        assert not {PAD, UNK, BOS, EOS} & set(tokens)
