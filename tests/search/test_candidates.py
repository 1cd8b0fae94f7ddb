"""The choice of next tokens: the best of many with ties in order, and random draws by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from faults import raising
from scripted_stepper import A
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from mt.data.tokens.tokenizer import BOS, PAD, UNK
from mt.search import candidates
from mt.search.candidates import (
    BLOCK,
    best_candidates,
    compile_candidates,
    compile_for,
    draw_tokens,
    fused_candidates,
    log_normaliser,
)
from mt.search.options import Sampling
from mt.search.search import BeamState, next_candidates, start_beams


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileCounterWithBackend]:
    """Compiles on the CPU, and counts the graphs."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(candidates, "BACKEND", counter)
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


def test_rounding_lifts_no_log_probability_above_zero() -> None:
    """A sum above 0 counts as 0, which is above all others: in a block's peak and inside it."""
    logits = torch.full((1, 1, 2 * BLOCK), -9.0)
    logits[0, 0, A] = -0.25
    logits[0, 0, BLOCK + A] = 0.5
    best = best_candidates(logits, torch.zeros(1, 1), 1)
    assert (best.tokens.item(), best.log_probs.item()) == (BLOCK + A, 0.0)


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
    compiled = compile_candidates()
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


def test_a_choice_that_cannot_be_compiled_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "BACKEND", raising(RuntimeError("no kernel\nand a long trace")))
    said: list[str] = []
    assert compile_for(torch.device("cpu"), 4, 100, said.append) is None
    torch._dynamo.reset()
    assert len(said) == 1
    assert "cannot be compiled, so decoding is slower (" in said[0]
    assert "long trace" not in said[0]


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
