"""Constraints: what a translation must or must not contain, as callables on log-probabilities.

A constraint changes, in place, the log-probabilities (B, N, V) of the tokens that may follow each
hypothesis. Forbidden tokens get -inf; the others keep the model's probability, so nothing is
renormalised. The search applies constraints before it ends a sentence at its length limit, so no
constraint can prevent that end. `partial` makes one of `no_repeat_ngram`.

Shapes: B sentences in the batch, N hypotheses of each, V tokens of the vocabulary, t tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mt.data.tokens.tokenizer import EOS


class Past(NamedTuple):
    """The sentences still in the batch and the tokens of their hypotheses."""

    rows: Tensor  # (B,) index of the sentence in the whole search
    tokens: Tensor  # (B, N, t) without bos


Constraint = Callable[[Tensor, Past], None]


def no_repeat_ngram(n: int, log_probs: Tensor, past: Past) -> None:
    """Forbid an n-gram that the hypothesis already contains (Paulus et al., 2017, section 2.5)."""
    if past.tokens.shape[2] < n:
        return
    ngrams = past.tokens.unfold(2, n, 1)  # (B, N, t - n + 1, n)
    newest = past.tokens[:, :, past.tokens.shape[2] - n + 1 :].unsqueeze(2)  # (B, N, 1, n - 1)
    again = (ngrams[..., :-1] == newest).all(-1)  # (B, N, t - n + 1)
    last = ngrams[..., -1]  # (B, N, t - n + 1)
    # An n-gram that is not about to repeat writes back the value it has read, and forbids nothing.
    # amin, because a token may end several n-grams, and one that forbids it is enough.
    values = log_probs.gather(2, last).masked_fill(again, -torch.inf)
    log_probs.scatter_reduce_(2, last, values, "amin")


def force_prefixes(
    prefixes: Sequence[Sequence[int]], others: Sequence[Constraint] = ()
) -> Constraint:
    """Make the hypotheses of sentence i begin with the tokens `prefixes[i]`.

    The constraints `others` apply after the prefix.
    """
    lengths = torch.tensor([len(prefix) for prefix in prefixes], dtype=torch.long)
    padded = torch.full((len(prefixes), int(max(lengths, default=0))), EOS)  # (B, longest)
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
        tokens = forced[:, None, None].expand(-1, log_probs.shape[1], 1)  # (B, N, 1)
        kept = log_probs.gather(2, tokens)  # (B, N, 1)
        apply(others, log_probs, past)
        only = torch.full_like(log_probs, -torch.inf).scatter_(2, tokens, kept)
        log_probs.copy_(torch.where(within[:, None, None], only, log_probs))

    return constrain


def apply(constraints: Sequence[Constraint], log_probs: Tensor, past: Past) -> None:
    for constrain in constraints:
        constrain(log_probs, past)
