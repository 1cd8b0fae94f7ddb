"""The two values that travel whole from the command line to the work: how to search, which engine.

Needs no torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from mt.errors import ConfigError

if TYPE_CHECKING:
    from mt.config.schema import Config, DecodeConfig

EngineName = Literal["auto", "torch", "ctranslate2"]
PrecisionName = Literal["auto", "fp32", "bf16", "fp16", "int8"]
WhenToSplit = Literal["auto", "always", "never"]
# More processes for each core are a mistake: each has its own batches in memory.
WORKERS_PER_CORE = 16
# Beyond these, logits divided by the temperature may leave the range of floats.
TEMPERATURES = (1e-3, 1e3)


@dataclass(frozen=True)
class Sampling:
    """Draw outputs at random instead of searching for the best; see `sampling_search`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        """Raise ConfigError for a value out of range."""
        low, high = TEMPERATURES
        if not low <= self.temperature <= high:
            raise ConfigError(
                f"--temperature: must be from {low:g} to {high:g}, found {self.temperature:g}; "
                "1 leaves the model's distribution as it is, --top-k 1 takes the best token"
            )
        if self.top_k < 0:
            raise ConfigError(
                f"--top-k: must be at least 0, found {self.top_k}; 0 allows all tokens"
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(
                f"--top-p: must be above 0 and at most 1, found {self.top_p:g}; 1 allows all tokens"
            )

    def seed_of(self, source: Sequence[int], number: int) -> int:
        """Return the seed of sample `number` of a source, which depends on nothing but its ids."""
        text = f"{self.seed} {number} {' '.join(map(str, source))}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search: a field for each option of the command line, by its name.

    None: as the model's config says; the other defaults change nothing.
    """

    beam_size: int | None = None
    length_penalty: float | None = None
    n_best: int = 1
    # Whether the scores of hypotheses are needed; without them a greedy search may be faster.
    with_scores: bool = True
    prefixes: bool = False  # each output begins with a text of its own
    no_repeat_ngram: int = 0  # 0: any n-gram may repeat
    sample: Sampling | None = None
    # The heads whose mean gives word alignments, as for `parse_heads`; None: no alignments.
    alignments: str | None = None
    # The language to translate into, for a model that knows several.
    to: str | None = None
    # The language of the source, for a model that knows several; None: as the target tells.
    from_: str | None = None
    # Whether the sentences of a line are translated one by one: auto, always or never.
    split_sentences: str = "auto"
    # Whether the model sees all lines as they are, also in capitals or without a final stop.
    as_written: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for a value out of range, and for values that do not go together."""
        if self.split_sentences not in ("auto", "always", "never"):
            raise ConfigError(
                f"--split-sentences: must be auto, always or never, found {self.split_sentences!r}"
            )
        if self.no_repeat_ngram < 0:
            raise ConfigError(
                f"--no-repeat-ngram: must be at least 0, found {self.no_repeat_ngram}; 0 switches "
                "it off"
            )
        if self.sample is not None and self.beam_size is not None:
            raise ConfigError(
                "--sample: draws one output at a time, without a beam; "
                "leave out --sample or --beam-size"
            )

    def decode_config(self, config: Config) -> DecodeConfig:
        """Return the model's decoding settings with the beam size and length penalty given here."""
        from mt.config.load import config_from_mapping

        values = {"beam_size": self.beam_size, "length_penalty": self.length_penalty}
        given = {key: value for key, value in values.items() if value is not None}
        decode = config.decode.model_dump() | given
        return config_from_mapping({"decode": decode}, "command line").decode


DEFAULT_SEARCH = SearchOptions()


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Which engine translates, with which models, and on what."""

    models: Sequence[Path]  # several make an ensemble
    ensemble: str | None = None  # what is averaged; None: probabilities
    engine: EngineName = "auto"
    precision: str = "auto"
    device: str = "auto"
    # Processes or threads on a CPU, None: one per core; GPUs, None: one, or all for a large text.
    workers: int | None = None
    batch_tokens: int | None = None  # padded source tokens x beam; None: as suits the device
    shortlist: Path | None = None  # a vocabulary map: the only target pieces to choose from

    def __post_init__(self) -> None:
        """Raise ConfigError for a value out of range, and for values that do not go together."""
        known = get_args(EngineName)
        if self.engine not in known:
            raise ConfigError(f"--engine: must be {', '.join(known)}, found {self.engine!r}")
        most = WORKERS_PER_CORE * (os.cpu_count() or 1)
        if (self.workers or 1) > most:
            raise ConfigError(
                f"--workers: must be at most {most} on this machine, {WORKERS_PER_CORE} for each "
                f"core, found {self.workers:,}; one for each core is fastest"
            )
        if self.ensemble is not None and len(self.models) == 1:
            raise ConfigError(
                "--ensemble: takes several models, found one; give --model again, or leave it out"
            )
        if self.engine == "torch" and self.shortlist is not None:
            raise ConfigError("--shortlist: only with --engine ctranslate2, which can use one")
