"""Several models of one vocabulary that decide each token together.

To the search an ensemble is a stepper like any other (`Stepper`): every member is asked about the same hypotheses,
and what they say is averaged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mt.decoding.inference import Decoding, Inference
from mt.errors import ConfigError

# How the members' distributions become one.
MEANS = ("probability", "log")


class Ensemble:
    """Several `Inference` on one device, used as if they were one."""

    def __init__(self, members: Sequence[Inference], mean: str = "probability") -> None:
        """`mean`: of the probabilities (a token that one member is sure of stays likely), or of their logarithms
        (it takes all of them).

        Raises ConfigError for another word.
        """
        if mean not in MEANS:
            raise ConfigError(f"--ensemble: must be {' or '.join(MEANS)}, found {mean!r}")
        self.members, self.mean = list(members), mean
        self.device = self.members[0].device
        self.max_tokens = min(member.max_tokens for member in self.members)

    def start(self, src: Tensor, src_mask: Tensor, n_hypotheses: int) -> EnsembleDecoding:
        """A batch as for `Inference.start`."""
        return EnsembleDecoding(
            [one.start(src, src_mask, n_hypotheses) for one in self.members], self.mean
        )


class EnsembleDecoding:
    """One batch being decoded by every member: a `Stepper`."""

    def __init__(self, members: Sequence[Decoding], mean: str) -> None:
        self.members, self.mean = list(members), mean

    @torch.inference_mode()
    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """tokens (B, N), parents (B, N) -> logits (B, N, V), fp32: log-probabilities up to a constant."""
        total, *others = (
            member.step(tokens, parents).float().log_softmax(-1) for member in self.members
        )
        for log_probs in others:
            total = (
                total.add_(log_probs)
                if self.mean == "log"
                else torch.logaddexp(total, log_probs, out=total)
            )
        # Divided by their number: a constant for probabilities, but the very mean for logarithms.
        return total.div_(len(self.members)) if self.mean == "log" else total

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences only; rows (B',)."""
        for member in self.members:
            member.keep(rows)
