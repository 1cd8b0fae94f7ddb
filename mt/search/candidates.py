"""Choose the next tokens from logits: the best continuations of a beam, or a random draw.

Shapes: B sentences in the batch, N hypotheses of each, V tokens of the vocabulary, K candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

# Width of the blocks of the vocabulary in the two-stage choice of `best_candidates`.
BLOCK = 64
# Logits per slice of `log_normaliser`: 1 MB in fp32, so that intermediate values stay in the cache.
SLICE = 1 << 18


class Candidates(NamedTuple):
    """The best continuations of each sentence, best first."""

    log_probs: Tensor  # (B, K) fp32, of the whole hypothesis
    parents: Tensor  # (B, K) the hypothesis continued
    tokens: Tensor  # (B, K) the token it is continued with


def log_normaliser(logits: Tensor) -> Tensor:
    """Return the log of the sum of exp over the whole vocabulary: (B, N, V) -> (B, N) fp32."""
    flat = logits.flatten(0, 1)
    if logits.device.type != "cpu":
        return flat.float().logsumexp(dim=-1).view(logits.shape[:2])
    # torch's CPU log_softmax has a faster exp than its logsumexp, and x - log_softmax(x) is the
    # normaliser at any finite x; one is found among the first tokens. One Zen 5 thread, rows x V,
    # ms: 64 x 8,000: 0.26 against 0.43; 320 x 8,000: 1.4 against 2.8; 320 x 32,000: 5.7 against 29.
    slices = map(Tensor.float, torch.split(flat, max(1, SLICE // flat.shape[-1])))
    parts = [x[:, :BLOCK].amax(-1) - x.log_softmax(-1)[:, :BLOCK].amax(-1) for x in slices]
    return torch.cat(parts).view(logits.shape[:2])


def best_candidates(logits: Tensor, offsets: Tensor, count: int) -> Candidates:
    """Return the `count` continuations of each sentence with the highest logits + offsets.

    `logits` (B, N, V), `offsets` (B, N) fp32. Ties: by rank of the parent, then by token id.
    """
    vocab = logits.shape[-1]
    whole = vocab // BLOCK * BLOCK
    peaks = logits[..., :whole].reshape(*logits.shape[:2], whole // BLOCK, BLOCK).amax(-1)
    if whole < vocab:
        peaks = torch.cat([peaks, logits[..., whole:].amax(-1, keepdim=True)], dim=-1)
    return best_in_blocks(logits, peaks, offsets, count)


def best_in_blocks(
    logits: Tensor,
    peaks: Tensor,
    offsets: Tensor,
    count: int,
    forbidden: Callable[[Tensor], Tensor] | None = None,
) -> Candidates:
    """Do the work of `best_candidates`, given the highest logit of each block of the vocabulary.

    `peaks` (B, N, V / BLOCK), rounded up. `forbidden` tells of token ids (B, K, BLOCK) which must
    not follow; the peaks are those of the others.
    """
    # First choose the blocks of the vocabulary with the highest peaks, then the best inside those.
    # No candidate is lost: each of `count` better blocks holds a better candidate. One Zen 5
    # thread, V = 8,000, against topk over all N x V, ms: N = 1, 64 sentences (argmax) 0.2 against
    # 0.6; N = 5: 12 sentences 0.2 against 0.4, 64: 1.1 against 4.2, 120: 1.9 against 6.7.
    n_hyps, vocab = logits.shape[1:]
    n_blocks = peaks.shape[-1]
    peak_log_probs = (peaks.float() + offsets.unsqueeze(-1)).clamp(max=0).flatten(1)
    # Ascending again, so that the index among all members of the blocks orders ties.
    blocks = (
        top_indices(peak_log_probs, min(count, n_hyps * n_blocks)).sort(dim=-1).values
    )  # (B, K)

    hyps = blocks // n_blocks
    first = blocks % n_blocks * BLOCK
    columns = first.unsqueeze(-1) + torch.arange(BLOCK, device=logits.device)  # (B, K, BLOCK)
    places = (hyps.unsqueeze(-1) * vocab + columns.clamp(max=vocab - 1)).flatten(1)  # in N x V
    members = logits.flatten(1).gather(1, places).float()
    # Rounding must not lift a log-probability above 0: `top_indices` and `cannot_improve` need it.
    log_probs = (members.view_as(columns) + offsets.gather(1, hyps).unsqueeze(-1)).clamp(max=0)
    if vocab % BLOCK:
        log_probs = log_probs.masked_fill(columns >= vocab, -torch.inf)
    if forbidden is not None:
        log_probs = log_probs.masked_fill(forbidden(columns), -torch.inf)
    log_probs = log_probs.flatten(1)
    missing = count - log_probs.shape[1]
    if missing > 0:  # the first step of a wide beam over a small vocabulary
        log_probs = pad(log_probs, (0, missing), value=-torch.inf)
        places = pad(places, (0, missing))
    best = top_indices(log_probs, count)
    places = places.gather(1, best)
    return Candidates(log_probs.gather(1, best), places // vocab, places % vocab)


def top_indices(log_probs: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` highest of each row, best first; of ties the lowest index.

    `log_probs` (B, M) fp32, none above 0; NaN counts as lower than -inf.
    """
    # topk leaves the order of ties open, and bf16 logits are full of ties. Without the sign, the
    # bits of fp32 numbers sort as the numbers do; the index in the low half makes all keys differ.
    magnitude = log_probs.abs().view(torch.int32).long()
    keys = (magnitude << 32) + torch.arange(log_probs.shape[1], device=log_probs.device)
    return keys.topk(count, dim=1, largest=False).indices


def draw_tokens(
    logits: Tensor, uniform: Tensor, temperature: float, top_k: int, top_p: float
) -> Tensor:
    """Return the token of each row that a uniform random number selects: (B,).

    `logits` (B, V), `uniform` (B,) in [0, 1). The distribution is the softmax of the logits divided
    by `temperature`, cut to the `top_k` most probable tokens (0: all), and of these to the fewest
    that hold the share `top_p` of the probability.
    """
    logits = logits.double() / temperature
    if top_k:
        logits, tokens = logits.topk(min(top_k, logits.shape[1]), dim=1)
    elif top_p < 1:
        logits, tokens = logits.sort(dim=1, descending=True, stable=True)
    else:  # any order will do
        tokens = torch.arange(logits.shape[1], device=logits.device).expand_as(logits)
    probs = logits.softmax(1)  # (B, K)
    if top_p < 1:
        probs = probs.masked_fill(probs.cumsum(1) - probs >= top_p, 0.0)
    sums = probs.cumsum(1)
    total = sums[:, -1:].contiguous()
    # right: a number on a border selects the next token, so that probability 0 is never drawn.
    places = torch.searchsorted(sums, uniform.unsqueeze(1) * total, right=True)
    last = torch.searchsorted(sums, total)  # the last token above 0, where rounding overshoots
    # Beyond all of them only if the logits are NaN.
    places = torch.minimum(places, last).clamp(max=sums.shape[1] - 1)
    return tokens.gather(1, places).squeeze(1)
