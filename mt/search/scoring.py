"""Forced decoding: how probable a model finds given targets.

One pass over both sides instead of a search. Shapes: B pairs, S source length, T target length,
N real target tokens of a batch, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mt.data.tokens.batches import Batch, collate
from mt.data.tokens.plan import batch_ends
from mt.errors import ConfigError
from mt.model.transformer import Transformer
from mt.runtime.memory import in_halves, peak_memory_mb
from mt.search.alignment import cross_attention, parse_heads
from mt.search.inference import Inference, fp32_logits

# Padded tokens of a batch. On a CPU the logits, (tokens, V) in fp32, need most of the memory.
BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}

# Source and target ids, without bos and eos.
Pair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class ForcedScores:
    """Log-probabilities and attention of one target given its source."""

    # ln p of each token given those before it, eos included; empty if the pair is too long.
    log_probs: tuple[float, ...] = ()
    # (T, S), the mean of the chosen heads' cross-attention, eos included on both sides.
    attention: Tensor | None = None


class ForcedDecoder:
    """A model that scores pairs of token ids in batches."""

    def __init__(
        self, inference: Inference, heads: str | None = None, batch_tokens: int | None = None
    ) -> None:
        """Prepare to score; `heads` (see `parse_heads`) asks for the attention too.

        Raises ConfigError for heads that the model does not have.
        """
        self.inference = inference
        self.batch_tokens = batch_tokens or BATCH_TOKENS[inference.device.type]
        config = inference.model.config
        self.heads: list[tuple[int, int]] = []
        if heads is not None:
            self.heads = parse_heads(heads, config.n_decoder_layers, config.n_heads)

    def score(self, pairs: Sequence[Pair], log_probs: bool = True) -> list[ForcedScores]:
        """Score each pair, in order.

        Without `log_probs` only the attention is computed: the two take a pass each. A batch that
        does not fit into the memory is scored in two halves. Raises ConfigError if a pair does not.
        """
        lengths = np.array([max(len(src), len(tgt)) + 1 for src, tgt in pairs], np.int64)
        order = np.argsort(-lengths, kind="stable")
        order = order[lengths[order] <= self.inference.max_tokens]
        scores = [ForcedScores() for _ in pairs]
        if len(order):
            for rows in np.split(order, batch_ends(lengths[order], self.batch_tokens)[:-1]):
                batch = [pairs[row] for row in rows]
                work = partial(self._score_batch, log_probs=log_probs)
                parts = in_halves(work, batch, self.inference.device, self._too_large)
                for row, score in zip(rows, itertools.chain(*parts), strict=True):
                    scores[row] = score
        return scores

    def _too_large(self, pair: Pair) -> ConfigError:
        device = self.inference.device
        return ConfigError(
            f"scoring: a pair of {len(pair[0]):,} and {len(pair[1]):,} tokens does "
            f"not fit into the memory of {device.type.upper()}: "
            f"{peak_memory_mb(device):,.0f} MB were in use. Shorten the line"
        )

    def _score_batch(self, pairs: Sequence[Pair], log_probs: bool) -> list[ForcedScores]:
        ids = [(np.asarray(src, np.int64), np.asarray(tgt, np.int64)) for src, tgt in pairs]
        batch = collate(ids).to(self.inference.device)
        model = self.inference.model
        scores: list[tuple[float, ...]] = [()] * len(pairs)
        if log_probs:
            sizes = [len(tgt) + 1 for _, tgt in pairs]
            rows = token_log_probs(model, batch).cpu().split(sizes)
            scores = [tuple(row.tolist()) for row in rows]
        attention: list[Tensor | None] = [None] * len(pairs)
        if self.heads:
            means = mean_attention(model, batch, self.heads).cpu()  # (B, T, S)
            # Copies: a view would keep the whole padded batch in memory.
            attention = [
                mean[: len(tgt) + 1, : len(src) + 1].clone()
                for mean, (src, tgt) in zip(means, pairs, strict=True)
            ]
        return [ForcedScores(*both) for both in zip(scores, attention, strict=True)]


def mean_attention(model: Transformer, batch: Batch, heads: Sequence[tuple[int, int]]) -> Tensor:
    """Return the mean of the cross-attention of these heads, (layer, head) from 0: (B, T, S)."""
    n_layers = max(layer for layer, _ in heads) + 1
    chosen = [
        # A copy: a view would keep the weights of all heads of the layer in memory.
        weights[:, [head for its_layer, head in heads if its_layer == layer]]
        for layer, weights in enumerate(itertools.islice(cross_attention(model, batch), n_layers))
    ]
    return torch.cat(chosen, dim=1).mean(1)


@torch.inference_mode()
def token_log_probs(model: Transformer, batch: Batch) -> Tensor:
    """Return ln p of each real target token, eos included, given those before it: (N,)."""
    hidden = model(batch.src, batch.tgt_in, batch.src_mask).flatten(0, 1)  # (B * T, D)
    logits = fp32_logits(model, hidden[batch.tgt_positions])  # (N, V)
    return -F.cross_entropy(logits, batch.tgt_out, reduction="none")
