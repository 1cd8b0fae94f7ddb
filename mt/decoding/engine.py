"""A batch of source ids → the hypotheses found for each, in the way that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mt.config.schema import DecodeConfig
from mt.data.batches import pad_rows
from mt.data.tokenizer import EOS, PAD
from mt.decoding.constraints import Constraint
from mt.decoding.options import Sampling, with_prefixes
from mt.decoding.search import Hypothesis, Stepper, beam_search, greedy_search, sampling_search

Ids = Sequence[int]


class Engine(Protocol):
    """A model made ready to decode, or several (`Inference`, `Ensemble`)."""

    @property
    def device(self) -> torch.device: ...

    @property
    def max_tokens(self) -> int:
        """The longest source or target, eos or bos counted."""
        ...

    def start(self, src: Tensor, src_mask: Tensor, n_hypotheses: int) -> Stepper:
        """Encode a batch: src ids (B, S), src_mask (B, S) True at real tokens."""
        ...


@dataclass(frozen=True)
class Searcher:
    """Everything that the search of a batch depends on; it can be handed to another process."""

    engine: Engine
    decode: DecodeConfig
    n_best: int
    sampling: Sampling | None
    constraints: list[Constraint]
    exact: bool = False

    @property
    def width(self) -> int:
        """Hypotheses of a source that are in the works at one time."""
        return self.decode.beam_size if self.sampling is None else self.n_best

    def limit(self, source: Ids, prefix: Ids) -> int:
        """Most tokens of a source's output, eos not counted."""
        decode, longest = self.decode, self.engine.max_tokens - 1  # bos takes the first position
        return min(
            longest,
            len(prefix) + max(1, int(decode.max_len_factor * len(source) + decode.max_len_extra)),
        )

    def __call__(self, sources: Sequence[Ids], prefixes: Sequence[Ids]) -> list[list[Hypothesis]]:
        """The `n_best` hypotheses of each source, best first; those of source i begin with `prefixes[i]`."""
        decode, sampling, penalty = self.decode, self.sampling, self.decode.length_penalty
        if sampling is not None:  # samples of a source are drawn side by side, each as if alone
            seeds = [
                sampling.seed_of(ids, number) for ids in sources for number in range(self.n_best)
            ]
            sources, prefixes = (
                [ids for ids in rows for _ in range(self.n_best)] for rows in (sources, prefixes)
            )
        src = torch.from_numpy(pad_rows([np.asarray(ids) for ids in sources], None, EOS))  # (B, S)
        limits = torch.tensor(
            [self.limit(ids, prefix) for ids, prefix in zip(sources, prefixes, strict=True)],
            device=self.engine.device,
        )
        rules = with_prefixes(prefixes, self.constraints)
        stepper = self.engine.start(src, src != PAD, 1 if sampling else decode.beam_size)
        if sampling is not None:
            drawn = sampling_search(
                stepper,
                limits,
                seeds,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
                length_penalty=penalty,
                constraints=rules,
            )
            return [drawn[i : i + self.n_best] for i in range(0, len(drawn), self.n_best)]
        if decode.beam_size == 1:
            return [
                [one]
                for one in greedy_search(stepper, limits, length_penalty=penalty, constraints=rules)
            ]
        return beam_search(
            stepper,
            limits,
            beam_size=decode.beam_size,
            length_penalty=penalty,
            n_best=self.n_best,
            exact=self.exact,
            constraints=rules,
        )
