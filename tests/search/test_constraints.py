"""Constraints one by one on small tables, then inside the searches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from scripted_stepper import A, B, C, ScriptedStepper, random_model, scripted
from torch import Tensor

from mt.data.tokens.tokenizer import EOS
from mt.search.candidates import (
    Constraint,
    Past,
    force_prefixes,
    no_repeat_ngram,
)
from mt.search.search import beam_search, greedy_search

VOCAB = 7
INF = math.inf


def changed(
    constrain: Constraint, tokens: list[list[int]], rows: list[int] | None = None
) -> list[list[float]]:
    """Apply a constraint to log-probabilities -1, -2, ..., -7 of the 7 tokens after each past.

    Each past is a sentence of its own.
    """
    past = torch.tensor(tokens, dtype=torch.long).view(len(tokens), 1, -1)
    log_probs = -torch.arange(1.0, VOCAB + 1).repeat(len(tokens), 1, 1)
    constrain(log_probs, Past(torch.tensor(rows or range(len(tokens))), past))
    return log_probs[:, 0].tolist()


def without(*tokens: int) -> list[float]:
    return [-INF if token in tokens else -1.0 - token for token in range(VOCAB)]


@pytest.mark.parametrize(
    ("n", "past", "forbidden"),
    [
        (1, [], []),
        (1, [A, B], [A, B]),
        (2, [A], []),
        (2, [A, A], [A]),  # A A is there, and A would make it again
        (2, [A, B, A], [B]),
        (2, [A, B, A, C, A], [B, C]),
        (2, [A, B, C], []),
        (2, [A, B, A, B], [A]),
        (3, [A, B], []),
        (3, [A, B, C, A, B], [C]),
        (3, [A, B, C, B, A], []),
        (3, [A, B, C, A, B, A, A, B], [C, A]),
        (3, [A, A, A, B, A, A], [A, B]),
    ],
)
def test_no_row_of_n_pieces_twice(n: int, past: list[int], forbidden: list[int]) -> None:
    assert changed(partial(no_repeat_ngram, n), [past]) == [without(*forbidden)]


def test_each_hypothesis_is_constrained_by_its_own_past() -> None:
    past = Past(torch.tensor([0]), torch.tensor([[[A, B, A], [A, A, B]]]))
    log_probs = -torch.arange(1.0, VOCAB + 1).repeat(1, 2, 1)
    no_repeat_ngram(2, log_probs, past)
    assert log_probs[0].tolist() == [without(B), without()]


def test_forced_prefixes() -> None:
    """A prefix belongs to the sentence's index in the search; what comes after it is free."""

    def only(token: int) -> list[float]:
        return without(*(set(range(VOCAB)) - {token}))

    constrain = force_prefixes([[A, B], [], [C]])
    assert changed(constrain, [[], [], []]) == [only(A), without(), only(C)]
    assert changed(constrain, [[A], [A], [C]]) == [only(B), without(), without()]
    assert changed(constrain, [[C], [A]], rows=[2, 0]) == [without(), only(B)]
    assert changed(constrain, [[A, B]], rows=[0]) == [without()]
    # A prefix takes precedence over other constraints, which apply after it.
    constrain = force_prefixes([[A], [B, B]], [partial(no_repeat_ngram, 1)])
    assert changed(constrain, [[], []]) == [only(A), only(B)]
    assert changed(constrain, [[A], [B]]) == [without(A), only(B)]
    assert changed(constrain, [[A, B], [B, B]]) == [without(A, B), without(B)]
    assert changed(force_prefixes([]), [[A]]) == [without()]


# --- in the searches --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["no_repeat", "prefix", "both"])
def test_a_wide_beam_finds_the_best_of_what_is_allowed(name: str, seed: int) -> None:
    """Compare with all sequences of up to 4 of 3 words; probabilities are not renormalised."""
    model, limit = random_model(f"constrained {seed}"), 4
    no_repeat: Constraint = partial(no_repeat_ngram, 1)
    chosen = {
        "no_repeat": no_repeat,
        "prefix": force_prefixes([[C, A]]),
        "both": force_prefixes([[C, A]], [no_repeat]),
    }[name]
    every = [s for n in range(1, limit + 1) for s in itertools.product((A, B, C), repeat=n)]
    rules: dict[str, Callable[[tuple[int, ...]], bool]] = {
        "no_repeat": lambda s: len(set(s)) == len(s),
        "prefix": lambda s: s[:2] == (C, A),
    }
    rules["both"] = lambda s: rules["prefix"](s) and rules["no_repeat"](s)

    def log_prob(sequence: tuple[int, ...]) -> float:
        steps = [(sequence[:i], token) for i, token in enumerate((*sequence, EOS))]
        return sum(math.log(model(past)[token]) for past, token in steps)

    expected = max(filter(rules[name], every), key=log_prob)
    stepper = ScriptedStepper([model], 81)
    ((found, *_),) = beam_search(
        stepper, torch.tensor([limit]), beam_size=81, length_penalty=0.0, constraints=[chosen]
    )
    assert found.tokens == expected
    assert found.log_prob == pytest.approx(log_prob(expected), abs=1e-4)


def test_greedy_search_under_constraints_is_worked_out_by_hand() -> None:
    model = scripted(
        {A: 0.6, B: 0.4},
        A={A: 0.7, B: 0.2, EOS: 0.1},
        AA={A: 0.9, EOS: 0.1},
        AB={EOS: 1.0},
        B={EOS: 1.0},
        AAA={EOS: 1.0},
    )

    def greedy(*constraints: Constraint) -> tuple[tuple[int, ...], float]:
        ((found,),) = greedy_search(
            ScriptedStepper([model], 1), torch.tensor([5]), constraints=constraints
        )
        return found.tokens, round(math.exp(found.log_prob), 6)

    assert greedy() == ((A, A, A), 0.378)  # 0.6 x 0.7 x 0.9
    assert greedy(partial(no_repeat_ngram, 1)) == ((A, B), 0.12)  # 0.6 x 0.2
    assert greedy(partial(no_repeat_ngram, 2)) == ((A, A), 0.042)  # 0.6 x 0.7 x 0.1
    assert greedy(force_prefixes([[B]])) == ((B,), 0.4)
    # What a prefix repeats, it may.
    assert greedy(force_prefixes([[A, A]], [partial(no_repeat_ngram, 1)])) == ((A, A), 0.042)


def test_no_constraint_keeps_a_sentence_from_ending_at_its_limit() -> None:
    model, limits = random_model("limit"), torch.tensor([2])

    def no_end(log_probs: Tensor, past: Past) -> None:
        log_probs[..., EOS] = -torch.inf

    rules: dict[str, Any] = {"constraints": [no_end, partial(no_repeat_ngram, 1)]}
    ((greedy,),) = greedy_search(ScriptedStepper([model], 1), limits, **rules)
    stepper = ScriptedStepper([model], 3)
    ((best, *_),) = beam_search(stepper, limits, beam_size=3, length_penalty=1.0, **rules)
    assert len(greedy.tokens) == len(best.tokens) == 2


def test_constraints_follow_sentences_that_stay_when_others_leave() -> None:
    """Six sentences of unlike limits and prefixes: each comes out as it does alone."""
    models = [random_model(f"leaving {i}") for i in range(6)]
    limits, prefixes = [1, 6, 2, 5, 3, 6], [[A], [B, C, A], [], [C], [A, A], [B]]

    def run(chosen: list[int], size: int) -> list[tuple[int, ...]]:
        stepper = ScriptedStepper([models[i] for i in chosen], size)
        others = [partial(no_repeat_ngram, 3)]
        rules = [force_prefixes([prefixes[i] for i in chosen], others)]
        options: dict[str, Any] = {"length_penalty": 1.0, "constraints": rules}
        most = torch.tensor([limits[i] for i in chosen])
        if size == 1:
            return [one.tokens for (one,) in greedy_search(stepper, most, **options)]
        return [best[0].tokens for best in beam_search(stepper, most, beam_size=size, **options)]

    for size in (1, 4):
        together = run(list(range(6)), size)
        assert together == [run([i], size)[0] for i in range(6)]
        for tokens, prefix in zip(together, prefixes, strict=True):
            assert list(tokens[: len(prefix)]) == prefix


def test_constraints_see_log_probabilities() -> None:
    """Whatever constant the logits carry."""
    seen: list[Tensor] = []

    def look(log_probs: Tensor, past: Past) -> None:
        seen.append(log_probs[0, 0, A].clone())

    model = scripted({A: 0.6, B: 0.4}, A={EOS: 0.75, A: 0.25}, AA={EOS: 1.0})
    greedy_search(ScriptedStepper([model], 1), torch.tensor([3]), constraints=[look])
    assert [math.exp(float(one)) for one in seen] == pytest.approx([0.6, 0.25], abs=1e-5)
