"""Sampling over scripted models: frequencies, independence of the batch, limits and constraints."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from scripted_stepper import A, B, C, Model, ScriptedStepper, random_model, scripted

from mt.data.tokens.tokenizer import BOS, EOS, PAD, UNK
from mt.search.constraints import forbid, min_length
from mt.search.search import greedy_search, sampling_search


def sample(
    models: list[Model], limits: list[int], seeds: list[int], **options: float
) -> list[tuple[int, ...]]:
    stepper = ScriptedStepper(models, 1)
    return [one.tokens for one in sampling_search(stepper, torch.tensor(limits), seeds, **options)]  # type: ignore[arg-type]


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
        ScriptedStepper([model] * 50, 1), torch.tensor([3] * 50), range(50), temperature=2.0
    )
    for one in found:
        assert one.log_prob == pytest.approx(math.log(shares[one.tokens]), abs=1e-4)


def test_a_sentence_gives_the_same_sample_in_any_batch() -> None:
    models = [random_model(f"sampled {i}") for i in range(8)]
    limits, seeds = [3, 8, 1, 6, 8, 2, 7, 5], [11, 12, 13, 14, 11, 15, 16, 17]
    together = sample(models, limits, seeds, temperature=1.3)
    for i in range(8):
        assert sample([models[i]], [limits[i]], [seeds[i]], temperature=1.3) == [together[i]]
    order = [5, 2, 7, 0, 1, 6, 4, 3]
    shuffled: list[Any] = [[values[i] for i in order] for values in (models, limits, seeds)]
    assert sample(*shuffled, temperature=1.3) == [together[i] for i in order]
    assert sample(models, limits, [seed + 100 for seed in seeds], temperature=1.3) != together


def test_samples_obey_limits_and_constraints_and_hold_no_specials() -> None:
    model = random_model("obedient")
    options: dict[str, Any] = {"constraints": [min_length(2), forbid([B])]}
    for tokens in sample([model] * 200, [4] * 200, list(range(200)), **options):
        assert 2 <= len(tokens) <= 4
        assert not {PAD, UNK, BOS, EOS, B} & set(tokens)
    assert sample([], [], []) == []


def test_a_sample_of_the_one_best_token_is_greedy_search() -> None:
    models: list[Model] = [random_model(f"one {i}") for i in range(5)]
    limits = torch.tensor([2, 5, 3, 6, 4])
    greedy = greedy_search(ScriptedStepper(models, 1), limits, length_penalty=1.0)
    sampled = sampling_search(
        ScriptedStepper(models, 1), limits, range(5), top_k=1, length_penalty=1.0
    )
    assert [one.tokens for one in sampled] == [one.tokens for one in greedy]
    assert [one.score for one in sampled] == pytest.approx([one.score for one in greedy], abs=1e-5)
