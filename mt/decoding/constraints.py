"""What a translation must or must not hold, as small callables on log-probabilities.

A constraint changes, in place, the log-probabilities (B, N, V) of what may follow each hypothesis. What it forbids
becomes -inf; the rest keeps the model's probability, nothing is shared out. The search applies constraints before it
ends a sentence at its limit, so that none of them can keep one from ending there. All but `prefixed` can be handed
to another process.

Shapes: B sentences in the batch, N hypotheses of each, V tokens of the vocabulary, t tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from mt.data.tokenizer import EOS


class Past(NamedTuple):
    """The sentences still in the batch and what stands of their hypotheses."""

    rows: Tensor  # (B,) place of the sentence in the call of the search
    tokens: Tensor  # (B, N, t) without bos


Constraint = Callable[[Tensor, Past], None]


def forbid(pieces: Sequence[int]) -> Constraint:
    """None of these pieces, anywhere."""
    return partial(_forbid, list(pieces))


def _forbid(pieces: list[int], log_probs: Tensor, past: Past) -> None:
    log_probs[..., pieces] = -torch.inf


def min_length(least: int) -> Constraint:
    """No eos before `least` tokens."""
    return partial(_min_length, least)


def _min_length(least: int, log_probs: Tensor, past: Past) -> None:
    if past.tokens.shape[2] < least:
        log_probs[..., EOS] = -torch.inf


def repetition_penalty(penalty: float) -> Constraint:
    """The log-probability of a piece that the hypothesis holds already, times `penalty`: above 1 to avoid it.

    Keskar et al., 2019 (CTRL), section 4.1, on log-probabilities, which are never positive.
    """
    return partial(_repetition_penalty, penalty)


def _repetition_penalty(penalty: float, log_probs: Tensor, past: Past) -> None:
    if past.tokens.shape[2]:
        used = log_probs.gather(2, past.tokens)  # (B, N, t)
        log_probs.scatter_(2, past.tokens, used * penalty)  # a piece used twice is penalised once


def no_repeat_ngram(n: int) -> Constraint:
    """No n pieces in a row that the hypothesis holds already (Paulus et al., 2017, section 2.5)."""
    return partial(_no_repeat_ngram, n)


def _no_repeat_ngram(n: int, log_probs: Tensor, past: Past) -> None:
    if past.tokens.shape[2] < n:
        return
    grams = past.tokens.unfold(2, n, 1)  # (B, N, t - n + 1, n)
    newest = past.tokens[:, :, past.tokens.shape[2] - n + 1 :].unsqueeze(2)  # (B, N, 1, n - 1)
    again = (grams[..., :-1] == newest).all(-1)  # (B, N, t - n + 1)
    last = grams[..., -1]
    # A gram that is not begun again forbids nothing: it writes back what is there already.
    # amin: one piece may end several grams, and one that forbids it is enough.
    log_probs.scatter_reduce_(
        2, last, log_probs.gather(2, last).masked_fill(again, -torch.inf), "amin"
    )


def prefixed(prefixes: Sequence[Sequence[int]], others: Sequence[Constraint] = ()) -> Constraint:
    """Hypotheses of sentence i of the call begin with the pieces `prefixes[i]`; `others` rule what comes after."""
    lengths = torch.tensor([len(prefix) for prefix in prefixes], dtype=torch.long)
    padded = torch.full((len(prefixes), int(max(lengths, default=0))), EOS)
    for row, prefix in zip(padded, prefixes, strict=True):
        row[: len(prefix)] = torch.tensor(prefix, dtype=torch.long)

    def constrain(log_probs: Tensor, past: Past) -> None:
        step = past.tokens.shape[2]
        if step >= padded.shape[1]:
            apply(others, log_probs, past)
            return
        rows = past.rows.to(padded.device)
        forced = padded[rows, step].to(log_probs.device)  # (B,)
        within = (lengths[rows] > step).to(log_probs.device)  # (B,)
        pieces = forced[:, None, None].expand(-1, log_probs.shape[1], 1)  # (B, N, 1)
        own = log_probs.gather(2, pieces)
        apply(others, log_probs, past)
        only = torch.full_like(log_probs, -torch.inf).scatter_(2, pieces, own)
        log_probs.copy_(torch.where(within[:, None, None], only, log_probs))

    return constrain


def apply(constraints: Sequence[Constraint], log_probs: Tensor, past: Past) -> None:
    """All of them, in order."""
    for constrain in constraints:
        constrain(log_probs, past)
