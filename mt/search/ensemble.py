"""Ensembles: several models of one vocabulary, whose distributions are averaged at every step.

All members extend the same hypotheses, so the search drives an ensemble like a single model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast, get_args

import torch
from torch import Tensor
from typing_extensions import assert_never

from mt.errors import ConfigError
from mt.search.inference import Decoding, Inference

# What is averaged: probabilities, or their logarithms.
Mean = Literal["probability", "log"]
MEANS = get_args(Mean)


class Ensemble:
    """Several models on one device, with the interface of `Inference`."""

    def __init__(self, members: Sequence[Inference], mean: str = "probability") -> None:
        """Choose what is averaged.

        With `probability` one confident member suffices; with `log`, the mean of log-probabilities,
        all must agree. Raises ConfigError for any other `mean`.
        """
        if mean not in MEANS:
            raise ConfigError(f"--ensemble: must be {' or '.join(MEANS)}, found {mean!r}")
        self.members = list(members)
        self.mean = cast("Mean", mean)
        self.device = self.members[0].device
        self.max_tokens = min(member.max_tokens for member in self.members)

    def bytes_per_token(self) -> float:
        return sum(member.bytes_per_token() for member in self.members)

    def start(self, src: Tensor, src_mask: Tensor, n_hypotheses: int) -> EnsembleDecoding:
        members = [member.start(src, src_mask, n_hypotheses) for member in self.members]
        return EnsembleDecoding(members, self.mean)


class EnsembleDecoding:
    """The state of one batch that every member decodes: a `Stepper`."""

    def __init__(self, members: Sequence[Decoding], mean: Mean) -> None:
        self.members = list(members)
        self.mean = mean

    @torch.inference_mode()
    def step(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """tokens (B, N), parents (B, N) -> log-probabilities up to a constant, (B, N, V) fp32."""
        total, *others = (
            member.step(tokens, parents).float().log_softmax(-1) for member in self.members
        )
        match self.mean:
            case "log":
                for log_probs in others:
                    total.add_(log_probs)
                return total.div_(len(self.members))
            case "probability":
                for log_probs in others:
                    torch.logaddexp(total, log_probs, out=total)
                return total  # not divided by the number of members, which is a constant
            case _:
                assert_never(self.mean)

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        for member in self.members:
            member.keep(rows)
