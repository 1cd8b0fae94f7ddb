"""What every engine takes and gives: a batch of source ids in, hypotheses out.

Code above an engine (lines, windows, order, formats) relies on nothing else. Needs no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mt.config.schema import DecodeConfig
from mt.errors import ConfigError
from mt.search.options import SearchOptions

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


class Engine(ABC):
    """A model, or several, with everything else that the search of a batch depends on."""

    decode: DecodeConfig  # beam size and length penalty of this search, and length limits
    options: SearchOptions

    def __post_init__(self) -> None:
        """Raise ConfigError for an n-best list longer than the beam."""
        n_best, beam_size = self.options.n_best, self.decode.beam_size
        if self.options.sample is None and n_best > beam_size:
            raise ConfigError(
                f"--n-best: must be at most the beam size, {beam_size}, found {n_best}; "
                f"lower it, or give --beam-size {n_best}"
            )

    @property
    @abstractmethod
    def max_length(self) -> int:
        """Number of tokens of the longest source, and target; eos and bos are not counted."""

    @property
    @abstractmethod
    def batch_tokens(self) -> int:
        """Padded source tokens x beam of a batch that decodes fast."""

    @property
    def hypotheses_per_source(self) -> int:
        """Hypotheses of a source that are in memory at a time."""
        return self.decode.beam_size if self.options.sample is None else self.options.n_best

    @property
    def window(self) -> int:
        """Lines to sort by length and translate at a time; they are in memory together."""
        return WINDOW

    @property
    def n_halved(self) -> int:
        """Batches that did not fit into the memory so far, and were searched in halves."""
        return 0

    @property
    def n_parallel(self) -> int:
        """Batches that `search_batches` decodes at a time."""
        return 1

    def limit(self, source: Ids, prefix: Ids) -> int:
        """Return the maximum number of output tokens for a source, eos not counted."""
        extra = int(self.decode.max_len_factor * len(source) + self.decode.max_len_extra)
        return min(self.max_length, len(prefix) + max(1, extra))

    @abstractmethod
    def search(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids] | None = None
    ) -> list[list[Hypothesis]]:
        """Return the `n_best` hypotheses of each source, best first.

        Those of source i begin with the tokens `prefixes[i]`. Raises ConfigError if the memory is
        too small.
        """

    @abstractmethod
    def search_batches(self, jobs: Sequence[Job]) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """Yield (index of the job, `search(*job)`) for all jobs, in any order."""


def search_in_worker(
    engine: Engine, sources: Sequence[Ids], prefixes: Sequence[Ids]
) -> tuple[list[list[Hypothesis]], int]:
    """Return `engine.search(sources, prefixes)`, and how many batches it searched in halves."""
    before = engine.n_halved
    hypotheses = engine.search(sources, prefixes)
    return hypotheses, engine.n_halved - before


def memory_error(n_sources: int, n_hypotheses: int, where: str) -> ConfigError:
    """Make the error of a batch that does not fit into the memory; `where`: what was in use."""
    sentences = "1 sentence" if n_sources == 1 else f"{n_sources:,} sentences"
    return ConfigError(
        f"decoding: a batch of {sentences} with {n_hypotheses:,} hypotheses each "
        f"does not fit into the memory of {where}. Lower --beam-size "
        "(decode.beam_size), --batch-tokens, decode.max_len_factor or decode.max_len_extra; "
        "with --sample lower --n-best"
    )
