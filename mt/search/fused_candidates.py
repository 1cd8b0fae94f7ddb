"""Normaliser and best candidates in one pass over the logits, for torch.compile on a GPU.

A step of the search reads its logits, (B, N, V), several times: for the normaliser, for the blocks
that may hold a candidate, and to forbid tokens. `fused_candidates` says the same so that the
compiler makes one kernel of it, which reads low-precision logits once and writes two numbers for
each block. Without compilation it is slower than the parts (`log_normaliser`, `best_candidates`),
so a CPU keeps to those. Shapes: see `candidates`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mt.data.tokens.tokenizer import BOS, EOS, PAD, UNK
from mt.errors import first_line
from mt.runtime.memory import is_out_of_memory
from mt.search.candidates import BLOCK, Candidates, best_in_blocks

# (logits, log_probs, full, count) -> the best continuations: `fused_candidates`.
FusedCandidates = Callable[[Tensor, Tensor, Tensor, int], Candidates]
# What torch.compile generates code with; tests replace it.
BACKEND: Any = "inductor"


def fused_candidates(logits: Tensor, log_probs: Tensor, full: Tensor, count: int) -> Candidates:
    """Return the `count` best continuations of each sentence, after the first step.

    `logits` (B, N, V) of any dtype, `log_probs` (B, N) fp32 of the hypotheses so far, `full` (B,)
    bool: the sentence has reached its limit and can only end. Finds what `search.mask_logits` and
    `best_candidates` find without constraints.
    """
    vocab = logits.shape[-1]
    padded = pad(logits, (0, -vocab % BLOCK), value=-torch.inf)
    blocks = padded.unflatten(-1, (-1, BLOCK)).float()  # (B, N, V / BLOCK, BLOCK)
    # 1. the normaliser, from the highest logit and the sum of exp of each block
    # Finite, as -inf - -inf would be NaN in a block without any probability.
    highest = blocks.amax(-1).clamp(min=torch.finfo(torch.float32).min)  # (B, N, V / BLOCK)
    sums = (blocks - highest.unsqueeze(-1)).exp().sum(-1)
    top = highest.amax(-1, keepdim=True)
    normaliser = (sums * (highest - top).exp()).sum(-1).log() + top.squeeze(-1)  # (B, N)
    # 2. the highest logit of each block that may follow
    tokens = torch.arange(padded.shape[-1], device=logits.device).view(-1, BLOCK)
    allowed = blocks.masked_fill(forbidden(tokens, full), -torch.inf)
    # 3. the best candidates, in the blocks with the highest ones
    return best_in_blocks(
        logits,
        allowed.amax(-1),
        log_probs - normaliser,
        count,
        lambda found: forbidden(found.unsqueeze(1), full).squeeze(1),
    )


def forbidden(tokens: Tensor, full: Tensor) -> Tensor:
    """Which tokens must not follow: pad, bos and unk never, others not where a sentence is full.

    `tokens` (K, L) or (B, 1, K, L), `full` (B,) -> (B, 1, K, L) bool.
    """
    special = (tokens == PAD) | (tokens == BOS) | (tokens == UNK)
    return special | (full[:, None, None, None] & (tokens != EOS))


def compile_candidates() -> FusedCandidates:
    """Compile `fused_candidates` into one graph for batches of any number of sentences."""
    compiled = torch.compile(fused_candidates, backend=BACKEND)

    def candidates(logits: Tensor, log_probs: Tensor, full: Tensor, count: int) -> Candidates:
        if len(logits) == 1:  # torch.compile makes a graph of its own for one row
            return fused_candidates(logits, log_probs, full, count)
        for part in (logits, log_probs, full):
            torch._dynamo.maybe_mark_dynamic(part, 0)
        found: Candidates = compiled(logits, log_probs, full, count)
        return found

    return candidates


@torch.inference_mode()
def compile_for(
    device: torch.device,
    dtype: torch.dtype,
    beam_size: int,
    vocab_size: int,
    say: Callable[[str], None],
) -> FusedCandidates | None:
    """Compile `fused_candidates` and try it; None if that fails, and `say` why.

    It takes some seconds, so it pays only for a large text.
    """
    candidates = compile_candidates()
    # In the layout that the search has them, or the compiler would start again.
    logits = torch.zeros(2, beam_size, vocab_size, dtype=dtype, device=device)
    log_probs = torch.zeros(2, beam_size, device=device)
    full = torch.zeros(2, dtype=torch.bool, device=device)
    try:
        candidates(logits, log_probs, full, 1 if beam_size == 1 else 2 * beam_size)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = first_line(error)
        say(f"the choice of tokens cannot be compiled, so decoding is slower ({reason})")
        return None
    return candidates
