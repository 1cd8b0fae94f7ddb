"""The engine that decodes with PyTorch, on every device and with every option of the search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from mt.config.schema import DecodeConfig
from mt.data.tokens.batches import pad_rows
from mt.data.tokens.tokenizer import EOS, PAD
from mt.errors import ConfigError
from mt.runtime.memory import in_halves, peak_memory_mb, unused_memory_mb
from mt.search.candidates import Constraint, FusedCandidates, force_prefixes, no_repeat_ngram
from mt.search.engine_contract import WINDOW, Engine, Hypotheses, Ids, Job, memory_error
from mt.search.inference import Ensemble, Inference
from mt.search.options import DEFAULT_SEARCH, SearchOptions
from mt.search.search import beam_search, greedy_search, sampling_search

# Padded source tokens x beam of a batch on a CPU: more gains nothing on two cores.
BATCH_TOKENS = 8192
# On a GPU as many as fit into half of the free memory, at most so many.
MOST_BATCH_TOKENS = 524_288
# Lines that a GPU translates at a time: enough for several such batches.
WINDOW_ON_GPU = 100_000


@dataclass(frozen=True)
class TorchEngine(Engine):
    """A model with everything else that the search of a batch depends on."""

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
        """Of a GPU as many as fit into half of its free memory."""
        if self.device.type == "cpu":
            return BATCH_TOKENS
        half = unused_memory_mb(self.device) * 1e6 / 2
        return max(1, min(MOST_BATCH_TOKENS, int(half / self.model.bytes_per_token())))

    @property
    def window(self) -> int:
        return WINDOW if self.device.type == "cpu" else WINDOW_ON_GPU

    def search_batches(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Hypotheses]]:
        """Search one after the other; a batch that does not fit into the memory in two halves."""
        for number, job in enumerate(jobs):
            pairs = list(zip(*job, strict=True))
            parts = in_halves(self._search, pairs, self.device, self._memory_error)
            found = parts[0]
            if len(parts) > 1:
                found = Hypotheses.of([row for part in parts for row in part], len(parts) - 1)
            yield number, found

    def _memory_error(self, _: tuple[Ids, Ids]) -> ConfigError:
        used = f"{peak_memory_mb(self.device):,.0f} MB were in use"
        where = f"{self.device.type.upper()}: {used}"
        return memory_error(1, self.hypotheses_per_source, where)

    def _search(self, jobs: Sequence[tuple[Ids, Ids]]) -> Hypotheses:
        """Search for sources, each with the prefix of its outputs."""
        sampling, count = self.options.sample, self.options.n_best
        if sampling is not None:  # each sample as if it were alone
            jobs = [job for job in jobs for _ in range(count)]
        sources, prefixes = zip(*jobs, strict=True)
        src = torch.from_numpy(pad_rows([np.asarray(ids) for ids in sources], None, EOS))  # (B, S)
        limits = torch.from_numpy(self.limits(sources, prefixes)).to(self.device)  # (B,)
        n = self.options.no_repeat_ngram
        constraints: list[Constraint] = [partial(no_repeat_ngram, n)] if n else []
        if any(prefixes):
            constraints = [force_prefixes(prefixes, constraints)]
        beam_size = 1 if sampling is not None else self.decode.beam_size
        stepper = self.model.start(src, src != PAD, beam_size)
        penalty = self.decode.length_penalty
        rules: dict[str, Any] = {"length_penalty": penalty, "constraints": constraints}
        if sampling is not None:
            seeds = [sampling.seed_of(ids, number % count) for number, ids in enumerate(sources)]
            samples = sampling_search(stepper, limits, seeds, sampling, **rules)
            return replace(samples, counts=np.full(len(sources) // count, count))
        rules["fused"] = self.fused
        if beam_size == 1:
            return greedy_search(stepper, limits, **rules)
        return beam_search(stepper, limits, beam_size=beam_size, n_best=count, **rules)
