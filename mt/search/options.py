"""The settings of the search and of the engine, each declared once; see `mt.settings`.

Needs no torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mt.errors import ConfigError
from mt.settings import Setting, check

if TYPE_CHECKING:
    from mt.config.schema import Config, DecodeConfig
    from mt.runs.model_folder import ModelFolder
else:
    ModelFolder = Any  # evaluated with the other types of a field, and slow to import

EngineName = Literal["auto", "torch", "ctranslate2"]
PrecisionName = Literal["auto", "fp32", "bf16", "fp16", "int8"]
WhenToSplit = Literal["auto", "always", "never"]
# More processes for each core are a mistake: each has its own batches in memory.
WORKERS_PER_CORE = 16

# Panels of --help.
INPUT, SEARCH, LIMITS = "Input", "Search", "Constraints on outputs"
SAMPLING, EXECUTION = "Sampling", "Execution"

# Settings that commands also have by themselves.
BeamSize = Annotated[int | None, Setting(
    "hypotheses kept per sentence; 1 is greedy search (default: the model's config)",
    SEARCH, "N", min=1,
)]  # fmt: skip
LengthPenalty = Annotated[float | None, Setting(
    "divide log-probabilities by length^A; higher favours longer outputs (default: the model's "
    "config)",
    SEARCH, "A", min=0, max=10,
)]  # fmt: skip
ToLanguage = Annotated[str | None, Setting(
    "language to translate into, such as fr, of a model that knows several", INPUT, "CODE"
)]  # fmt: skip
FromLanguage = Annotated[str | None, Setting(
    "language of the source, such as de, of a model that knows several: to write lines in capitals "
    "or without a final stop as its training text would, and to find sentences",
    INPUT, "CODE",
)]  # fmt: skip
BatchTokens = Annotated[int | None, Setting(
    "batch size: source tokens, padding included, times beam size (default: chosen for the device)",
    EXECUTION, "N", min=1,
)]  # fmt: skip
Precision = Annotated[PrecisionName, Setting(
    "auto, fp32, bf16, fp16 (GPU only) or int8 (CTranslate2 only)", EXECUTION, "NAME"
)]  # fmt: skip
DeviceName = Annotated[str, Setting("auto, cpu, cuda or cuda:N", EXECUTION, "NAME")]


@dataclass(frozen=True)
class Sampling:
    """Draw outputs at random instead of searching for the best; see `sampling_search`."""

    # Beyond these temperatures, logits divided by them may leave the range of floats.
    temperature: Annotated[float, Setting(
        "divide logits by T: below 1 is less random, above 1 more; 1 is off",
        SAMPLING, "T", min=1e-3, max=1e3,
        off="1 leaves the model's distribution as it is, --top-k 1 takes the best token",
    )] = 1.0  # fmt: skip
    top_k: Annotated[int, Setting(
        "draw from the K most probable tokens; 0 is off",
        SAMPLING, "K", min=0, off="0 allows all tokens",
    )] = 0  # fmt: skip
    top_p: Annotated[float, Setting(
        "draw from the most probable tokens that together reach P; 1 is off",
        SAMPLING, "P", above=0, max=1, off="1 allows all tokens",
    )] = 1.0  # fmt: skip
    seed: Annotated[int, Setting("seed of the random draws; 1 if not given", SAMPLING, "N")] = 1

    def __post_init__(self) -> None:
        check(self)

    def seed_of(self, source: Sequence[int], number: int) -> int:
        """Return the seed of sample `number` of a source, which depends on nothing but its ids."""
        text = f"{self.seed} {number} {' '.join(map(str, source))}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


# A command's parameter that asks for it.
Sample = Annotated[bool, Setting(
    "draw outputs at random instead of searching for the best", SAMPLING
)]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search. None: as the model's config says; the other defaults change nothing."""

    from_: FromLanguage = None
    beam_size: BeamSize = None
    length_penalty: LengthPenalty = None
    to: ToLanguage = None
    split_sentences: Annotated[WhenToSplit, Setting(
        "translate the sentences of a line one by one and join them: always, never, or auto: if "
        "the model learnt from lines of one sentence",
        SEARCH, "WHEN",
    )] = "auto"  # fmt: skip
    as_written: Annotated[bool, Setting(
        "give the model lines in capitals, Title Case or lower case, without a final stop or with "
        "emoji as they are, instead of as its training text would write them",
        SEARCH,
    )] = False  # fmt: skip
    no_repeat_ngram: Annotated[int, Setting(
        "never repeat N tokens in a row; 0 is off",
        LIMITS, "N", min=0, off="0 switches it off", torch_only=True,
    )] = 0  # fmt: skip
    # Commands ask for these in ways of their own.
    n_best: Annotated[int, Setting("hypotheses of each line", min=1, is_option=False)] = 1
    sample: Annotated[Sampling | None, Setting(
        "draw outputs at random", is_option=False, torch_only=True
    )] = None  # fmt: skip
    alignments: Annotated[bool, Setting("align words", is_option=False, torch_only=True)] = False
    # Whether the scores of hypotheses are needed; without them a greedy search may be faster.
    with_scores: bool = True
    prefixes: bool = False  # each output begins with a text of its own

    def __post_init__(self) -> None:
        check(self)
        if self.sample is not None and self.beam_size is not None:
            raise ConfigError(
                "--sample: draws one output at a time, without a beam; "
                "leave out --sample or --beam-size"
            )

    def decode_config(self, config: Config) -> DecodeConfig:
        values = {"beam_size": self.beam_size, "length_penalty": self.length_penalty}
        given = {key: value for key, value in values.items() if value is not None}
        return config.decode.model_copy(update=given)


DEFAULT_SEARCH = SearchOptions()


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Which engine translates, with which models, and on what."""

    models: Sequence[Path | ModelFolder] = ()  # several make an ensemble
    engine: Annotated[EngineName, Setting(
        "torch, ctranslate2 (CPU only, faster), or auto: ctranslate2 where it is installed and "
        "supports all options",
        EXECUTION, "NAME",
    )] = "auto"  # fmt: skip
    workers: Annotated[int | None, Setting(
        "threads on a CPU, or processes, each on a GPU (default: one per core; a GPU, or all for a "
        "large file)",
        EXECUTION, "N", min=1,
    )] = None  # fmt: skip
    batch_tokens: BatchTokens = None
    precision: Precision = "auto"
    device: DeviceName = "auto"
    shortlist: Annotated[Path | None, Setting(
        "faster: only the likely target pieces in this vmap.txt, which mt export ctranslate2 "
        "--shortlist writes; for --engine ctranslate2",
        EXECUTION, "FILE",
    )] = None  # fmt: skip

    @property
    def folders(self) -> list[Path]:
        return [model if isinstance(model, Path) else model.folder for model in self.models]

    def __post_init__(self) -> None:
        check(self)
        most = WORKERS_PER_CORE * (os.cpu_count() or 1)
        if (self.workers or 1) > most:
            raise ConfigError(
                f"--workers: must be at most {most} on this machine, {WORKERS_PER_CORE} for each "
                f"core, found {self.workers:,}; one for each core is fastest"
            )
        if self.engine == "torch" and self.shortlist is not None:
            raise ConfigError("--shortlist: only with --engine ctranslate2, which can use one")
