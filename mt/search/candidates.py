"""Choose the next tokens from logits: the best that may follow in a beam, or a random draw.

Shapes: B sentences in the batch, N hypotheses of each, V tokens of the vocabulary, K candidates,
L tokens of a block of the vocabulary, t tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from mt.data.tokens.tokenizer import EOS
from mt.errors import first_line
from mt.model.gpu_ops import compile_rows
from mt.runtime.memory import failure_kind, raise_unless_out_of_memory
from mt.search.engine_contract import FORBIDDEN
from mt.search.options import Sampling
from mt.terminal import Say

# Width of the blocks of the vocabulary in the two-stage choice of `best_candidates`.
BLOCK = 64
# Logits per slice of `log_normaliser`: 1 MB in fp32, so that intermediate values stay in the cache.
SLICE = 1 << 18
# Logits that `draw_tokens` handles at a time: several copies in float64, 0.5 GB each at most.
DRAWN = 1 << 26


class Candidates(NamedTuple):
    """The best continuations of each sentence, best first."""

    log_probs: Tensor  # (B, K) fp32, of the whole hypothesis
    parents: Tensor  # (B, K) the hypothesis continued
    tokens: Tensor  # (B, K) the token it is continued with


# (logits, log_probs, full, count) -> the best continuations; see `fused_candidates`.
FusedCandidates = Callable[[Tensor, Tensor, Tensor, int], Candidates]


def log_normaliser(logits: Tensor) -> Tensor:
    """Return the log of the sum of exp over the whole vocabulary: (B, N, V) -> (B, N) fp32."""
    flat = logits.flatten(0, 1)  # (B * N, V)
    if logits.device.type != "cpu":
        return flat.float().logsumexp(dim=-1).view(logits.shape[:2])
    # torch's CPU log_softmax has a faster exp than its logsumexp, and x - log_softmax(x) is the
    # normaliser at any finite x, here at the highest of the first tokens.
    slices = map(Tensor.float, torch.split(flat, max(1, SLICE // flat.shape[-1])))
    parts = [x[:, :BLOCK].amax(-1) - x.log_softmax(-1)[:, :BLOCK].amax(-1) for x in slices]
    return torch.cat(parts).view(logits.shape[:2])


def best_candidates(logits: Tensor, offsets: Tensor, count: int) -> Candidates:
    """Return the `count` continuations of each sentence with the highest logits + offsets.

    `logits` (B, N, V), `offsets` (B, N) fp32. Ties: by rank of the parent, then by token id.
    """
    vocab = logits.shape[-1]
    whole = vocab // BLOCK * BLOCK
    blocks = logits[..., :whole].reshape(*logits.shape[:2], whole // BLOCK, BLOCK)  # (B, N, V/L, L)
    peaks = blocks.amax(-1)  # (B, N, V/L)
    if whole < vocab:
        peaks = torch.cat([peaks, logits[..., whole:].amax(-1, keepdim=True)], dim=-1)
    return best_in_blocks(logits, peaks, offsets, count)


def best_in_blocks(
    logits: Tensor, peaks: Tensor, offsets: Tensor, count: int, full: Tensor | None = None
) -> Candidates:
    """Do the work of `best_candidates`, given the highest logit of each block of the vocabulary.

    `peaks` (B, N, V/L), with V/L rounded up: the highest logit of a block that may follow. With
    `full` (B,), logits of tokens that must not follow are masked here; see `forbidden`.
    """
    # First choose the blocks with the highest peaks, then the best tokens inside those blocks. No
    # candidate is lost: a block left out has `count` blocks with better candidates before it.
    n_hyps, vocab = logits.shape[1:]
    n_blocks = peaks.shape[-1]
    peak_log_probs = (peaks.float() + offsets.unsqueeze(-1)).clamp(max=0).flatten(1)  # (B, N*V/L)
    blocks = top_indices(peak_log_probs, min(count, n_hyps * n_blocks))  # (B, K)
    # Ascending again, so that the index among all members of the blocks orders ties.
    blocks = blocks.sort(dim=-1).values

    hyps = blocks // n_blocks  # (B, K)
    first = blocks % n_blocks * BLOCK  # (B, K)
    tokens = first.unsqueeze(-1) + torch.arange(BLOCK, device=logits.device)  # (B, K, L)
    # Indices into the N*V logits of a sentence.
    places = (hyps.unsqueeze(-1) * vocab + tokens.clamp(max=vocab - 1)).flatten(1)  # (B, K*L)
    members = logits.flatten(1).gather(1, places).float()  # (B, K*L)
    # Rounding must not lift a log-probability above 0: `top_indices` and `beam_search` need it.
    log_probs = (members.view_as(tokens) + offsets.gather(1, hyps).unsqueeze(-1)).clamp(max=0)
    if vocab % BLOCK:
        log_probs = log_probs.masked_fill(tokens >= vocab, -torch.inf)
    if full is not None:
        log_probs = log_probs.masked_fill(
            forbidden(tokens.unsqueeze(1), full).squeeze(1), -torch.inf
        )
    log_probs = log_probs.flatten(1)  # (B, K*L)
    missing = count - log_probs.shape[1]
    if missing > 0:  # the first step of a wide beam over a small vocabulary
        log_probs = pad(log_probs, (0, missing), value=-torch.inf)
        places = pad(places, (0, missing))
    best = top_indices(log_probs, count)  # (B, count)
    places = places.gather(1, best)
    return Candidates(log_probs.gather(1, best), places // vocab, places % vocab)


def top_indices(log_probs: Tensor, count: int) -> Tensor:
    """Indices of each row's `count` highest of (B, M) fp32 <= 0; ties: the lowest; NaN last."""
    # topk leaves the order of ties open, and bf16 logits are full of ties. Without the sign, the
    # bits of fp32 numbers sort as the numbers do; the index in the low half makes all keys differ.
    magnitude = log_probs.abs().view(torch.int32).long()
    keys = (magnitude << 32) + torch.arange(log_probs.shape[1], device=log_probs.device)
    if count == 1:  # one pass
        return keys.amin(1, keepdim=True) & 0xFFFF_FFFF
    return keys.topk(count, dim=1, largest=False).indices


# --- one pass over the logits, for torch.compile on a GPU ---------------------------------------


def fused_candidates(logits: Tensor, log_probs: Tensor, full: Tensor, count: int) -> Candidates:
    """Return the `count` best continuations of each sentence, after the first step.

    They are those of `search.mask_logits` and `best_candidates` without constraints. The compiler
    makes one kernel of the first two parts. `logits` (B, N, V) of any dtype, `log_probs` (B, N)
    fp32 of the hypotheses so far, `full` (B,) bool: the sentence is at its limit and can only end.
    """
    vocab = logits.shape[-1]
    padded = pad(logits, (0, -vocab % BLOCK), value=-torch.inf)
    blocks = padded.unflatten(-1, (-1, BLOCK)).float()  # (B, N, V/L, L)
    # 1. the normaliser, from the highest logit and the sum of exp of each block
    # Finite, as -inf - -inf would be NaN in a block without any probability.
    highest = blocks.amax(-1).clamp(min=torch.finfo(torch.float32).min)  # (B, N, V/L)
    sums = (blocks - highest.unsqueeze(-1)).exp().sum(-1)  # (B, N, V/L)
    top = highest.amax(-1, keepdim=True)  # (B, N, 1)
    normaliser = (sums * (highest - top).exp()).sum(-1).log() + top.squeeze(-1)  # (B, N)
    # 2. the highest logit of each block among the tokens that may follow
    tokens = torch.arange(padded.shape[-1], device=logits.device).view(-1, BLOCK)  # (V/L, L)
    peaks = blocks.masked_fill(forbidden(tokens, full), -torch.inf).amax(-1)  # (B, N, V/L)
    # 3. the best candidates, in the blocks with the highest peaks
    return best_in_blocks(logits, peaks, log_probs - normaliser, count, full)


def forbidden(tokens: Tensor, full: Tensor) -> Tensor:
    """Return which tokens must not follow: pad, bos, unk, and where `full` all others but eos.

    `tokens` (K, L) or (B, 1, K, L), `full` (B,) -> (B, 1, K, L) bool.
    """
    never = reduce(torch.logical_or, (tokens == special for special in FORBIDDEN))
    return never | (full[:, None, None, None] & (tokens != EOS))


@torch.inference_mode()
def compile_for(
    device: torch.device, beam_size: int, vocab_size: int, say: Say
) -> FusedCandidates | None:
    """Compile `fused_candidates` and try it; if that fails, report why to `say` and return None."""
    candidates = compile_rows(fused_candidates)
    # In the same layout as in the search, or torch would compile once more.
    log_probs = torch.zeros(2, beam_size, device=device)
    logits = torch.zeros(2, beam_size, vocab_size, device=device)
    full = torch.zeros(2, dtype=torch.bool, device=device)
    try:
        candidates(logits, log_probs, full, 1 if beam_size == 1 else 2 * beam_size)
    except Exception as error:
        if failure_kind(error) in ("memory", "device"):
            raise_unless_out_of_memory(error)
            raise
        say(f"the choice of tokens cannot be compiled, so decoding is slower ({first_line(error)})")
        return None
    return candidates


# --- random draws -------------------------------------------------------------------------------


def draw_tokens(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """Return the token of each row that a uniform random number selects: (B,).

    `logits` (B, V), `uniform` (B,) float64 in [0, 1). The distribution is the softmax of the logits
    divided by `temperature`, cut to the `top_k` most probable tokens (0: all), and of these to the
    fewest that hold the share `top_p` of the probability (Holtzman et al., 2020, section 3.1). K
    tokens are left.
    """
    n_rows = max(1, DRAWN // logits.shape[1])
    if len(logits) > n_rows:
        parts = zip(logits.split(n_rows), uniform.split(n_rows), strict=True)
        return torch.cat([draw_tokens(*part, sampling) for part in parts])
    logits = logits.double() / sampling.temperature
    if sampling.top_k:
        logits, tokens = logits.topk(min(sampling.top_k, logits.shape[1]), dim=1)  # 2 x (B, K)
    elif sampling.top_p < 1:
        logits, tokens = logits.sort(dim=1, descending=True, stable=True)
    else:  # any order will do
        tokens = torch.arange(logits.shape[1], device=logits.device).expand_as(logits)
    probs = logits.softmax(1)  # (B, K)
    if sampling.top_p < 1:
        probs = probs.masked_fill(probs.cumsum(1) - probs >= sampling.top_p, 0.0)
    sums = probs.cumsum(1)  # (B, K)
    # The first sum above the number is that of a token with a probability above 0: `right` skips
    # sums equal to it, and as it is at most 1 - 2^-53, its product is below the last sum.
    places = torch.searchsorted(sums, uniform.unsqueeze(1) * sums[:, -1:], right=True)  # (B, 1)
    places = places.clamp(max=sums.shape[1] - 1)  # beyond all only if the logits are NaN
    return tokens.gather(1, places).squeeze(1)


# --- constraints --------------------------------------------------------------------------------

# A constraint changes, in place, the log-probabilities (B, N, V) of the tokens that may follow each
# hypothesis. Forbidden tokens get -inf; the others keep the model's probability. The search applies
# constraints before it ends a sentence at its length limit, so none can prevent that end.


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
    """Make the hypotheses of sentence i begin with `prefixes[i]`; `others` apply after it."""
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
