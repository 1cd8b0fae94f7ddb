"""A stepper that answers from tables of probabilities, and searches over it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from mt.data.tokens.tokenizer import BOS
from mt.search.engine_contract import Hypothesis
from mt.search.search import beam_search, greedy_search

A, B, C = 4, 5, 6
Prefix = tuple[int, ...]
Row = Mapping[int, float]
Scored = tuple[float, float, Prefix]  # score, log-probability, tokens
Model = Callable[[Prefix], Row]  # the probability of every token after a prefix; 0 where not named


class ScriptedStepper:
    """Answers from a table per sentence, and notes the prefixes it was asked for."""

    def __init__(self, models: list[Model], n_hyps: int, vocab: int = 7) -> None:
        self.models = models
        self.vocab = vocab
        self.pasts: list[list[Prefix]] = [[()] * n_hyps for _ in models]  # with bos
        self.asked: list[list[list[Prefix]]] = []  # per step, per sentence
        self.kept: list[list[int]] = []

    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        self.pasts = [
            [hyps[p] + (t,) for t, p in zip(*row, strict=True)]
            for hyps, *row in zip(self.pasts, tokens.tolist(), parents.tolist(), strict=True)
        ]
        self.asked.append([[past[1:] for past in hyps] for hyps in self.pasts])
        logits = torch.full((*tokens.shape, self.vocab), -torch.inf)
        for b, (model, hyps) in enumerate(zip(self.models, self.pasts, strict=True)):
            for n, past in enumerate(hyps):
                assert past[0] == BOS
                for token, probability in model(past[1:]).items():
                    logits[b, n, token] = math.log(probability)
                logits[b, n] += 3.0 * n - 5.0  # a constant per hypothesis must not matter
        return logits.to(tokens.device)

    def keep(self, rows: Tensor) -> None:
        self.kept.append(rows.tolist())
        self.models = [self.models[row] for row in rows.tolist()]
        self.pasts = [self.pasts[row] for row in rows.tolist()]


Ran = tuple[list[list[Hypothesis]], ScriptedStepper]


def prefix(name: str) -> Prefix:
    return tuple("ABC".index(letter) + A for letter in name)


def scripted(bos: Row, **rows: Row) -> Model:
    """A model that knows these prefixes only, BA={...} after B A: another is a KeyError."""
    table = {(): bos} | {prefix(name): rows[name] for name in rows}
    for row in table.values():
        assert math.isclose(sum(row.values()), 1.0)
    return table.__getitem__


def random_model(seed: object, vocab: int = 7, spread: float = 1.5) -> Model:
    """A model that draws the row of every prefix, always the same one, specials included."""

    def row(past: Prefix) -> Row:
        draw = random.Random(f"{seed} {past}")
        weights = [math.exp(draw.gauss(0.0, spread)) for _ in range(vocab)]
        return {token: weight / sum(weights) for token, weight in enumerate(weights)}

    return row


def run_greedy(models: list[Model], limits: list[int], alpha: float = 0.0, vocab: int = 7) -> Ran:
    stepper = ScriptedStepper(models, 1, vocab)
    return list(greedy_search(stepper, torch.tensor(limits), length_penalty=alpha)), stepper


def run_beams(
    models: list[Model], limits: list[int], size: int, alpha: float, n_best: int, **more: Any
) -> Ran:
    stepper = ScriptedStepper(models, size, more.get("vocab", 7))
    options: dict[str, Any] = {"beam_size": size, "length_penalty": alpha, "n_best": n_best}
    found = beam_search(stepper, torch.tensor(limits, device=more.get("device")), **options)
    return list(found), stepper


def greedy(model: Model, limit: int, alpha: float = 0.0) -> list[Hypothesis]:
    return run_greedy([model], [limit], alpha)[0][0]


def beams(
    model: Model, limit: int, size: int, alpha: float = 0.0, n_best: int = 1, vocab: int = 7
) -> list[Hypothesis]:
    return run_beams([model], [limit], size, alpha, n_best, vocab=vocab)[0][0]


def assert_same(found: list[Hypothesis], expected: list[Scored]) -> None:
    assert [one.tokens for one in found] == [tokens for _, _, tokens in expected]
    for one, (score, log_prob, _) in zip(found, expected, strict=True):
        assert one.log_prob == pytest.approx(log_prob, abs=1e-4)
        assert one.score == pytest.approx(score, abs=1e-4)


def assert_found(found: list[Hypothesis], alpha: float = 0.0, **expected: float) -> None:
    """These translations in this order, BA=0.2 for B A with a probability of 0.2."""
    logs = [(math.log(expected[name]), prefix(name)) for name in expected]
    # The length counts eos.
    assert_same(found, [(log / (len(tokens) + 1) ** alpha, log, tokens) for log, tokens in logs])
