"""Prove that another program finds the same probabilities as mt, on random pairs of sentences."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mt.data.tokens.tokenizer import EOS
from mt.errors import CheckpointError
from mt.model.checkpoint import LoadedModel
from mt.runtime.devices import Device
from mt.search.inference import Inference
from mt.search.scoring import ForcedDecoder, Pair

# This many pairs of at most this many tokens are scored by both programs in float32. No
# log-probability of a token may differ by more than the tolerance, in nats.
PAIRS = 64
MAX_TOKENS = 20
TOLERANCE = 1e-3
# For each pair of token ids, the log-probability of each target token and of eos.
LogProbs = Callable[[Sequence[Pair]], Iterable[Sequence[float]]]


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
        same = (
            f"{self.tokens:,} tokens of {PAIRS} pairs have the same log-probability, "
            f"within {self.max_difference:.1e}"
        )
        if self.quantization == "fp32":
            return same
        return (
            f"{same}, as in mt with weights rounded to {self.quantization}; "
            f"rounding changes it by {self.change:.1e} nats on average"
        )


def prove(
    loaded: LoadedModel,
    program: str,
    log_probs: LogProbs,
    tolerance: float = TOLERANCE,
    first_ids: Sequence[int] = (),
) -> Parity:
    """Score the same random pairs with mt and with the exported model.

    `program`: as in `mt export PROGRAM`. `first_ids`: what it puts before a source. Raises
    CheckpointError if the log-probability of a token differs by more than `tolerance`.
    """
    pairs = random_pairs(loaded, len(first_ids))
    forced = ForcedDecoder(Inference(loaded.model, Device(torch.device("cpu"), "fp32")))
    ours = forced.score([([*first_ids, *src], tgt) for src, tgt in pairs])
    differences = np.abs(
        [
            our - their
            for score, theirs in zip(ours, log_probs(pairs), strict=True)
            for our, their in zip(score.log_probs, theirs, strict=True)
        ]
    )
    worst = float(differences.max())  # NaN if there is one
    if not worst <= tolerance:
        raise CheckpointError(
            f"export {program}: the converted model gives other probabilities than mt, by up to "
            f"{worst:.4f} nats a token where {tolerance} is allowed, so nothing was written; "
            "please report it with the run's config.yaml"
        )
    return Parity(len(differences), worst, float(differences.mean()))


def random_pairs(loaded: LoadedModel, n_first: int = 0) -> list[Pair]:
    """Pairs of random token ids of all lengths up to `MAX_TOKENS`; `n_first` more fit the model.

    They can reach every row of the embeddings, and an untrained model can be compared as well.
    """
    draw = random.Random(1)
    longest = min(MAX_TOKENS, loaded.model.config.max_positions - 1 - n_first)

    def random_ids(vocab_size: int) -> list[int]:
        return [draw.randrange(EOS + 1, vocab_size) for _ in range(draw.randint(1, longest))]

    sizes = loaded.tokenizer.src.size, loaded.tokenizer.tgt.size
    return [(random_ids(sizes[0]), random_ids(sizes[1])) for _ in range(PAIRS)]
