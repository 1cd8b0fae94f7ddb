"""What every engine takes and gives: a batch of source ids in, hypotheses out.

Code above an engine (lines, windows, order, formats) relies on nothing else. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from mt.config.schema import DecodeConfig
from mt.errors import ConfigError

# Lines that a CPU translates at a time. More would take more memory, and sort hardly better.
WINDOW = 20_000
# A shorter source counts as this many tokens: in logits, a row of V for each hypothesis, it costs
# as much as a longer one.
LEAST_SIZE = 8

Ids = Sequence[int]
# The sources of a batch and what their outputs must begin with.
Job = tuple[Sequence[Ids], Sequence[Ids]]


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation: token ids without bos and eos; `log_prob` includes the eos."""

    tokens: tuple[int, ...]
    log_prob: float
    score: float  # log_prob / (len(tokens) + 1) ** length_penalty


class Engine(Protocol):
    """A model, or several, with everything else that the search of a batch depends on."""

    @property
    def n_best(self) -> int:
        """Hypotheses of each source that a search returns."""
        ...

    @property
    def max_source(self) -> int:
        """Number of tokens of the longest source, eos not counted."""
        ...

    @property
    def max_target(self) -> int:
        """Number of tokens of the longest target, eos not counted."""
        ...

    @property
    def decode(self) -> DecodeConfig:
        """Beam size, length penalty and length limits."""
        ...

    @property
    def hypotheses_per_source(self) -> int:
        """Hypotheses of a source that are in memory at a time."""
        ...

    @property
    def batch_tokens(self) -> int:
        """Padded source tokens x beam of a batch that decodes fast."""
        ...

    @property
    def window(self) -> int:
        """Lines to sort by length and translate at a time; they are in memory together."""
        ...

    @property
    def n_halved(self) -> int:
        """Batches that did not fit into the memory so far, and were searched in halves."""
        ...

    @property
    def threads(self) -> int:
        """Batches that `search_batches` decodes at a time."""
        ...

    def limit(self, source: Ids, prefix: Ids) -> int:
        """Return the maximum number of output tokens for a source, eos not counted."""
        ...

    def search(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids] | None = None
    ) -> list[list[Hypothesis]]:
        """Return the `n_best` hypotheses of each source, best first.

        Those of source i begin with the tokens `prefixes[i]`. Raises ConfigError if the memory is
        too small.
        """
        ...

    def search_batches(self, jobs: Sequence[Job]) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """Yield (index of the job, `search(*job)`) for all jobs, in any order."""
        ...


def search_in_worker(
    engine: Engine, sources: Sequence[Ids], prefixes: Sequence[Ids]
) -> tuple[list[list[Hypothesis]], int]:
    """Return `engine.search(sources, prefixes)`, and how many batches it searched in halves."""
    before = engine.n_halved
    found = engine.search(sources, prefixes)
    return found, engine.n_halved - before


def output_limit(decode: DecodeConfig, source: Ids, prefix: Ids, max_target: int) -> int:
    """Return the maximum number of output tokens for a source, eos not counted."""
    extra = int(decode.max_len_factor * len(source) + decode.max_len_extra)
    return min(max_target, len(prefix) + max(1, extra))


def check_n_best(n_best: int, beam_size: int) -> None:
    """Raise ConfigError for an n-best list longer than the beam."""
    if n_best > beam_size:
        raise ConfigError(
            f"--n-best: must be at most the beam size, {beam_size}, found {n_best}; "
            f"lower it, or give --beam-size {n_best}"
        )


def memory_error(n_sources: int, n_hypotheses: int, where: str) -> ConfigError:
    """Make the error of a batch that does not fit into the memory; `where`: what was in use."""
    sentences = "1 sentence" if n_sources == 1 else f"{n_sources:,} sentences"
    return ConfigError(
        f"decoding: a batch of {sentences} with {n_hypotheses:,} hypotheses each "
        f"does not fit into the memory of {where}. Lower --beam-size "
        "(decode.beam_size), --batch-tokens, decode.max_len_factor or decode.max_len_extra; "
        "with --sample lower --n-best"
    )
