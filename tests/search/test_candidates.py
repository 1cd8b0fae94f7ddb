"""The choice of next tokens: the best of many, random draws by hand, and constraints."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from scripted_stepper import A, B, C, ScriptedStepper, random_model
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from mt.data.tokens.tokenizer import BOS, EOS, PAD, UNK
from mt.model.gpu_ops import compile_rows
from mt.search import candidates
from mt.search.candidates import (
    BLOCK,
    Constraint,
    Past,
    best_candidates,
    draw_tokens,
    force_prefixes,
    fused_candidates,
    log_normaliser,
    no_repeat_ngram,
)
from mt.search.options import Sampling
from mt.search.search import BeamState, beam_search, greedy_search, next_candidates, start_beams


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileCounterWithBackend]:
    """Compiles on the CPU, and counts the graphs."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr("mt.model.gpu_ops.BACKEND", counter)
    yield counter
    torch._dynamo.reset()


@pytest.mark.parametrize("vocab", [5, 63, 64, 65, 130, 256])
@pytest.mark.parametrize("n_hyps", [1, 3])
def test_best_candidates_are_those_of_a_stable_sort(n_hyps: int, vocab: int) -> None:
    """Logits rounded to quarters are full of equals, some are forbidden, one hypothesis is dead."""
    generator = torch.Generator().manual_seed(vocab + n_hyps)
    logits = torch.randn(50, n_hyps, vocab, generator=generator).mul(4).round().div(4) - 20.0
    logits[torch.rand(logits.shape, generator=generator) < 0.2] = -torch.inf
    offsets = -torch.randint(0, 3, (50, n_hyps), generator=generator).float()
    offsets[:10, -1] = -torch.inf
    best = best_candidates(logits, offsets, 2 * n_hyps)

    flat = (logits + offsets.unsqueeze(-1)).flatten(1)
    values, places = (x[:, : 2 * n_hyps] for x in flat.sort(dim=1, descending=True, stable=True))
    assert torch.equal(best.log_probs, values)
    real = values > -torch.inf
    assert torch.equal((best.parents * vocab + best.tokens)[real], places[real])


def test_bf16_logits_give_fp32_log_probabilities() -> None:
    logits = torch.randn(4, 2, 900, generator=torch.Generator().manual_seed(1)).bfloat16() * 3
    exact = logits.double().logsumexp(-1)
    assert log_normaliser(logits).dtype == torch.float32
    torch.testing.assert_close(log_normaliser(logits).double(), exact, rtol=0, atol=1e-5)
    best = best_candidates(logits, -log_normaliser(logits), 4)
    expected = logits.double().log_softmax(-1).flatten(1).topk(4).values
    torch.testing.assert_close(best.log_probs.double(), expected, rtol=0, atol=1e-5)


def test_the_normaliser_does_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(2)) * 10
    logits[0] += 500.0
    logits[1] -= 500.0
    logits[2, :, 7] = -torch.inf
    whole = log_normaliser(logits)
    torch.testing.assert_close(whole, logits.logsumexp(-1), rtol=1e-6, atol=1e-5)
    monkeypatch.setattr(candidates, "SLICE", 100)  # two rows of 40 at a time
    assert torch.equal(log_normaliser(logits), whole)


# --- all in one pass, as on a GPU ---------------------------------------------------------------


# Sentences, hypotheses, tokens of the vocabulary.
SHAPES = [(2, 3, 130), (3, 3, 130), (17, 3, 130), (1, 3, 130), (64, 3, 130), (2, 3, 130)]


def step_of(n_rows: int, n_hyps: int, vocab: int, dtype: torch.dtype) -> tuple[Tensor, BeamState]:
    """Logits and a state as they may be after three tokens: every third sentence is full."""
    generator = torch.Generator().manual_seed(n_rows + vocab)
    logits = torch.randn(n_rows, n_hyps, vocab, generator=generator).mul(4)
    # Special tokens would be the best, and a whole block has no probability.
    logits[..., [PAD, UNK, BOS]] += 20
    if vocab > BLOCK:
        logits[..., BLOCK : 2 * BLOCK] = -torch.inf
    state = start_beams(torch.arange(n_rows) % 3 + 3, n_hyps)
    state.tokens = torch.full((n_rows, n_hyps, 4), A)
    state.log_probs = -torch.rand(n_rows, n_hyps, generator=generator).sort(1).values * 9
    state.log_probs[::5, -1] = -torch.inf  # an empty place
    return logits.to(dtype), state


def test_one_pass_finds_the_same_candidates(graphs: CompileCounterWithBackend) -> None:
    """As the passes of a CPU; compiled, in one graph for any number of sentences."""
    compiled = compile_rows(fused_candidates)
    for number, shape in enumerate([*SHAPES, (4, 1, 40), (3, 4, 256)]):
        logits, state = step_of(*shape, torch.bfloat16 if number % 2 else torch.float32)
        count = 1 if shape[1] == 1 else 2 * shape[1]
        forms = [fused_candidates, compiled] if shape in SHAPES else [fused_candidates]
        expected = next_candidates(logits.clone(), state, True, (), count, None)
        real = expected.log_probs > -torch.inf
        for form in forms:
            before = logits.clone()
            with torch.inference_mode():
                found = next_candidates(logits, state, True, (), count, form)
            assert torch.equal(logits, before)
            torch.testing.assert_close(found.log_probs, expected.log_probs, rtol=1e-6, atol=1e-5)
            assert torch.equal(found.tokens[real], expected.tokens[real])
            assert torch.equal(found.parents[real], expected.parents[real])
    assert graphs.frame_count == 2  # of fp32 and of bf16


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_one_pass_keeps_non_finite_logits_apart(bad: float) -> None:
    """Their sentence gets no candidate, as `collect` expects; the others do not change."""
    logits, state = step_of(3, 2, 130, torch.float32)
    full = torch.zeros(3, dtype=torch.bool)
    expected = fused_candidates(logits, state.log_probs, full, 4)
    logits[1, :, 100] = bad
    found = fused_candidates(logits, state.log_probs, full, 4)
    assert not (found.log_probs[1] > -torch.inf).any()
    assert torch.equal(found.log_probs[::2], expected.log_probs[::2])


# --- random draws ----------------------------------------------------------------------------


def drawn(
    numbers: list[float], probs: Sequence[float] = (0.0, 0.5, 0.2, 0.3), **options: Any
) -> list[int]:
    logits = (torch.tensor(probs).log() + 7).repeat(len(numbers), 1)
    uniform = torch.tensor(numbers, dtype=torch.float64)
    whole = draw_tokens(logits, uniform, Sampling(**options)).tolist()
    with mock.patch.object(candidates, "DRAWN", 2 * logits.shape[1]):  # two rows at a time
        assert draw_tokens(logits, uniform, Sampling(**options)).tolist() == whole
    return whole


def test_a_number_picks_the_token_whose_share_it_falls_into() -> None:
    assert drawn([0.0, 0.49, 0.51, 0.69, 0.71, 0.999999]) == [1, 1, 2, 2, 3, 3]  # borders 0.5, 0.7
    assert drawn([0.0, 0.62, 0.63, 0.999], top_k=2) == [1, 1, 3, 3]  # 0.5 and 0.3: border 0.625
    assert drawn([0.0, 0.999], top_k=1) == [1, 1]
    assert drawn([0.49, 0.51, 0.81, 0.999], top_k=99) == [1, 3, 2, 2]
    assert drawn([0.0, 0.999], top_p=0.499) == [1, 1]
    assert drawn([0.62, 0.63, 0.999], top_p=0.6) == [1, 3, 3]
    assert drawn([0.79, 0.81], top_p=0.85) == [3, 2]  # 0.8 is not enough yet: all three
    assert drawn([0.62, 0.63], top_k=2, top_p=0.9) == [1, 3]
    # 0.25, 0.04 and 0.09 of 0.38: borders 0.658 and 0.763
    assert drawn([0.65, 0.66, 0.76, 0.77], temperature=0.5) == [1, 2, 2, 3]
    assert drawn([0.0, 0.5, 0.9999], temperature=0.01) == [1, 1, 1]
    # The first two hold the share exactly. The largest number below 1 draws no token of share 0.
    assert drawn([0.49, 0.5, 1 - 2**-53], top_p=0.5, probs=[0.25] * 4) == [0, 1, 1]
    assert drawn([1 - 2**-53] * 2, probs=[0.3, 0.6, 0.1, 0.0, 0.0]) == [2, 2]


# --- constraints ----------------------------------------------------------------------------------


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
        (3, [A, B], []),
        (3, [A, B, C, B, A], []),
        (3, [A, B, C, A, B, A, A, B], [C, A]),
        (3, [A, A, A, B, A, A], [A, B]),
    ],
)
def test_no_row_of_n_pieces_twice(n: int, past: list[int], forbidden: list[int]) -> None:
    assert changed(partial(no_repeat_ngram, n), [past]) == [without(*forbidden)]


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
