"""Forced decoding: how probable a model finds given targets, and whether a program agrees with mt.

One pass over both sides instead of a search. Shapes: B pairs, S source length, T target length,
N real target tokens of a batch, V vocabulary.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mt.data.tokens.batches import Batch, collate
from mt.data.tokens.plan import batch_ends
from mt.data.tokens.tokenizer import EOS
from mt.errors import CheckpointError, ConfigError
from mt.model.checkpoint import LoadedModel
from mt.runtime.devices import Device
from mt.runtime.memory import in_halves, peak_memory_mb
from mt.search.alignment import cross_attention
from mt.search.inference import Inference, fp32_logits

# Padded tokens of a batch. On a CPU the logits, (tokens, V) in fp32, need most of the memory.
BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}
# `prove` has this many pairs of at most this many tokens scored by both programs in float32. No
# log-probability of a token may differ by more than the tolerance, in nats.
PAIRS = 64
MAX_TOKENS = 20
TOLERANCE = 1e-3

T = TypeVar("T")
# Source and target ids, without bos and eos.
Pair = tuple[Sequence[int], Sequence[int]]
# For each pair of token ids, the log-probability of each target token and of eos.
LogProbs = Callable[[Sequence[Pair]], Iterable[Sequence[float]]]


class ForcedDecoder:
    """Scores pairs of ids in batches, or halves of them; ConfigError for one that does not fit."""

    def __init__(self, inference: Inference, batch_tokens: int | None = None) -> None:
        self.inference = inference
        self.batch_tokens = batch_tokens or BATCH_TOKENS[inference.device.type]

    def log_probs(self, pairs: Sequence[Pair]) -> list[list[float]]:
        """ln p of each target token given those before it, eos included; none of too long pairs."""
        model = self.inference.model

        @torch.inference_mode()
        def score(batch: Batch, pairs: Sequence[Pair]) -> Iterable[list[float]]:
            hidden = model(batch.src, batch.tgt_in, batch.src_mask).flatten(0, 1)  # (B * T, D)
            logits = fp32_logits(model, hidden[batch.tgt_positions])  # (N, V)
            rows = -F.cross_entropy(logits, batch.tgt_out, reduction="none").cpu()  # (N,)
            return map(Tensor.tolist, rows.split([len(tgt) + 1 for _, tgt in pairs]))

        return [found or [] for found in self._in_batches(score, pairs)]

    def attention(self, pairs: Sequence[Pair]) -> list[Tensor | None]:
        """Cross-attention, (T, S) with eos on both sides, of each pair; None if it is too long.

        The mean of the heads of the second-to-last decoder layer, which align best on average
        (Garg et al., 2019, section 3.1).
        """
        model = self.inference.model
        layer = max(0, model.config.n_decoder_layers - 2)

        def score(batch: Batch, pairs: Sequence[Pair]) -> Iterable[Tensor]:
            heads = next(itertools.islice(cross_attention(model, batch), layer, None))
            means = zip(heads.mean(1).cpu(), pairs, strict=True)
            # Copies: a view would keep the whole padded batch in memory.
            return [mean[: len(tgt) + 1, : len(src) + 1].clone() for mean, (src, tgt) in means]

        return self._in_batches(score, pairs)

    def _in_batches(
        self, score: Callable[[Batch, Sequence[Pair]], Iterable[T]], pairs: Sequence[Pair]
    ) -> list[T | None]:
        """The result for each pair, in order; None for one too long for the model."""
        device = self.inference.device

        def scored(pairs: Sequence[Pair]) -> list[T]:
            ids = [(np.asarray(src, np.int64), np.asarray(tgt, np.int64)) for src, tgt in pairs]
            return [*score(collate(ids).to(device), pairs)]

        lengths = np.array([max(len(src), len(tgt)) + 1 for src, tgt in pairs], np.int64)
        order = np.argsort(-lengths, kind="stable")
        order = order[lengths[order] <= self.inference.max_tokens]
        found: list[T | None] = [None] * len(pairs)
        for rows in np.split(order, batch_ends(lengths[order], self.batch_tokens)[:-1]):
            if len(rows):
                parts = in_halves(scored, [pairs[row] for row in rows], device, self._too_large)
                for row, one in zip(rows, itertools.chain(*parts), strict=True):
                    found[row] = one
        return found

    def _too_large(self, pair: Pair) -> ConfigError:
        device = self.inference.device
        used = f"{device.type.upper()}: {peak_memory_mb(device):,.0f} MB were in use"
        return ConfigError(
            f"scoring: a pair of {len(pair[0]):,} and {len(pair[1]):,} tokens does not fit into "
            f"the memory of {used}. Shorten the line"
        )


# --- the proof that another program finds the same probabilities --------------------------------


@dataclass(frozen=True)
class Parity:
    """How closely the log-probabilities of another program agree with ours, in nats a token."""

    tokens: int
    max_difference: float
    mean_difference: float
    quantization: str = "fp32"  # our weights were rounded to this precision, too
    change: float = 0.0  # mean difference to our model with weights in float32

    def __str__(self) -> str:
        """The report of `mt export`."""
        same = f"{self.tokens:,} tokens of {PAIRS} pairs have the same log-probability"
        text = f"{same}, within {self.max_difference:.1e}"
        if self.quantization == "fp32":
            return text
        rounded = f"as in mt with weights rounded to {self.quantization}"
        return f"{text}, {rounded}; rounding changes it by {self.change:.1e} nats on average"


def prove(
    loaded: LoadedModel, program: str, log_probs: LogProbs, tolerance: float = TOLERANCE,
    first_ids: Sequence[int] = (),
) -> Parity:  # fmt: skip
    """Score the same random pairs with mt and with the exported model.

    `program`: as in `mt export PROGRAM`. `first_ids`: what it puts before a source. Raises
    CheckpointError if the log-probability of a token differs by more than `tolerance`.
    """
    pairs = random_pairs(loaded, len(first_ids))
    forced = ForcedDecoder(Inference(loaded.model, Device(torch.device("cpu"), "fp32")))
    ours = forced.log_probs([([*first_ids, *src], tgt) for src, tgt in pairs])
    by_pair = zip(ours, log_probs(pairs), strict=True)
    by_token = (tokens for pair in by_pair for tokens in zip(*pair, strict=True))
    differences = np.abs([our - their for our, their in by_token])
    worst = float(differences.max())  # NaN if there is one
    if not worst <= tolerance:
        raise CheckpointError(
            f"export {program}: the converted model gives other probabilities than mt, by up to "
            f"{worst:.4f} nats a token where {tolerance} is allowed, so nothing was written; "
            "please report it with the run's config.yaml"
        )
    return Parity(len(differences), worst, float(differences.mean()))


def random_pairs(loaded: LoadedModel, n_first: int = 0) -> list[Pair]:
    """Pairs of random token ids of all lengths up to `MAX_TOKENS`; `n_first` more fit the model."""
    draw = random.Random(1)
    longest = min(MAX_TOKENS, loaded.model.config.max_positions - 1 - n_first)

    def random_ids(vocab_size: int) -> list[int]:
        return [draw.randrange(EOS + 1, vocab_size) for _ in range(draw.randint(1, longest))]

    sizes = loaded.tokenizer.src.size, loaded.tokenizer.tgt.size
    return [(random_ids(sizes[0]), random_ids(sizes[1])) for _ in range(PAIRS)]
