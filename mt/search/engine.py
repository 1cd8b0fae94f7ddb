"""The engine: a batch of source ids in, hypotheses out.

`TorchEngine` decodes with PyTorch on every device and supports every option of the search. Code
above it (lines, windows, order, formats) only relies on `engine_contract.Engine`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mt.config.schema import DecodeConfig
from mt.data.tokens.batches import pad_rows
from mt.data.tokens.tokenizer import EOS, PAD
from mt.errors import ConfigError
from mt.runtime.memory import in_halves, peak_memory_mb, unused_memory_mb
from mt.search.candidates import FusedCandidates
from mt.search.constraints import Constraint, force_prefixes, no_repeat_ngram
from mt.search.engine_contract import WINDOW, Engine, Hypotheses, Ids, Job, memory_error
from mt.search.ensemble import Ensemble
from mt.search.inference import Inference
from mt.search.options import DEFAULT_SEARCH, Sampling, SearchOptions
from mt.search.search import Stepper, beam_search, greedy_search, sampling_search

# Padded source tokens x beam of a batch on a CPU: more gains nothing on two cores.
BATCH_TOKENS = 8192
# On a GPU as many as fit into half of the free memory, at most so many.
MOST_BATCH_TOKENS = 524_288
# Lines that a GPU translates at a time: enough for several such batches.
WINDOW_ON_GPU = 100_000


@dataclass(frozen=True)
class TorchEngine(Engine):
    """A model with everything else that the search of a batch depends on.

    Raises ConfigError for an n-best list longer than the beam.
    """

    model: Inference | Ensemble
    decode: DecodeConfig
    options: SearchOptions = DEFAULT_SEARCH
    fused: FusedCandidates | None = field(default=None, compare=False)  # see `next_candidates`

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def max_length(self) -> int:
        return self.model.max_tokens - 1

    @property
    def batch_tokens(self) -> int:
        """Padded source tokens x beam of a batch that decodes fast."""
        if self.device.type == "cpu":
            return BATCH_TOKENS
        half = unused_memory_mb(self.device) * 1e6 / 2
        return max(1, min(MOST_BATCH_TOKENS, int(half / self.model.bytes_per_token())))

    @property
    def window(self) -> int:
        return WINDOW if self.device.type == "cpu" else WINDOW_ON_GPU

    def search(self, sources: Sequence[Ids], prefixes: Sequence[Ids] | None = None) -> Hypotheses:
        """Return the `n_best` hypotheses of each source, as `Hypotheses` says.

        Those of source i begin with the tokens `prefixes[i]`. A batch that does not fit into the
        memory is searched in two halves. Raises ConfigError if a single source does not fit.
        """
        if prefixes is None:
            prefixes = [()] * len(sources)
        jobs = list(zip(sources, prefixes, strict=True))
        parts = in_halves(self._search, jobs, self.device, lambda _: self._memory_error())
        if len(parts) == 1:
            return parts[0]
        rows = [row for part in parts for row in part]
        return Hypotheses.of(rows, n_halved=len(parts) - 1)

    def search_batches(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Hypotheses]]:
        return enumerate(itertools.starmap(self.search, jobs))

    def _memory_error(self) -> ConfigError:
        used = peak_memory_mb(self.device)
        where = f"{self.device.type.upper()}: {used:,.0f} MB were in use"
        return memory_error(1, self.hypotheses_per_source, where)

    def _search(self, jobs: Sequence[tuple[Ids, Ids]]) -> Hypotheses:
        sources, prefixes = zip(*jobs, strict=True)
        if self.options.sample is not None:
            return self._sample(self.options.sample, sources, prefixes)
        beam_size = self.decode.beam_size
        stepper, limits, constraints = self._start(sources, prefixes, beam_size)
        if beam_size == 1:
            return greedy_search(
                stepper,
                limits,
                length_penalty=self.decode.length_penalty,
                constraints=constraints,
                fused=self.fused,
            )
        return beam_search(
            stepper,
            limits,
            beam_size=beam_size,
            length_penalty=self.decode.length_penalty,
            n_best=self.options.n_best,
            constraints=constraints,
            fused=self.fused,
        )

    def _sample(
        self, sampling: Sampling, sources: Sequence[Ids], prefixes: Sequence[Ids]
    ) -> Hypotheses:
        """Draw `n_best` samples of each source, each as if it were alone."""
        count = self.options.n_best
        seeds = [sampling.seed_of(source, number) for source in sources for number in range(count)]
        stepper, limits, constraints = self._start(
            [source for source in sources for _ in range(count)],
            [prefix for prefix in prefixes for _ in range(count)],
            1,
        )
        samples = sampling_search(
            stepper,
            limits,
            seeds,
            sampling,
            length_penalty=self.decode.length_penalty,
            constraints=constraints,
        )
        return replace(samples, counts=np.full(len(sources), count))

    def _start(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids], n_hypotheses: int
    ) -> tuple[Stepper, Tensor, Sequence[Constraint]]:
        """Encode the sources; return the stepper, the length limits (B,) and the constraints."""
        src = torch.from_numpy(pad_rows([np.asarray(ids) for ids in sources], None, EOS))  # (B, S)
        limits = torch.from_numpy(self.limits(sources, prefixes)).to(self.device)
        n = self.options.no_repeat_ngram
        constraints: list[Constraint] = [partial(no_repeat_ngram, n)] if n else []
        if any(prefixes):
            constraints = [force_prefixes(prefixes, constraints)]
        return self.model.start(src, src != PAD, n_hypotheses), limits, constraints
