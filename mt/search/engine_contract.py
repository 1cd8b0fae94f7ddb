"""The contract of every engine: a batch of source ids in, hypotheses out. Needs no torch."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mt.config.schema import DecodeConfig
from mt.data.tokens.tokenizer import BOS, EOS, PAD, UNK
from mt.errors import ConfigError
from mt.search.options import SearchOptions

# Lines that a CPU translates at a time. More would take more memory, and sort hardly better.
WINDOW = 20_000
# Tokens in a row that `without_loops` does not repeat.
LOOP = 3
# A shorter source counts as this many tokens: in logits, a row of V for each hypothesis, it costs
# as much as a longer one.
LEAST_SIZE = 8
# Tokens that no output contains, with any engine.
FORBIDDEN = (PAD, UNK, BOS)

Ids = Sequence[int]
# The sources of a batch and what their outputs must begin with.
Job = tuple[Sequence[Ids], Sequence[Ids]]


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation: token ids without bos and eos; `log_prob` includes the eos."""

    tokens: tuple[int, ...]
    log_prob: float
    score: float  # log_prob / (len(tokens) + 1) ** length_penalty


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """The hypotheses of B sources as arrays: R rows, those of a source together.

    Best first; samples in the order in which they were drawn. Iterating gives the list of
    `Hypothesis` of each source; an object for each would take longer than most of a line's work.
    """

    counts: npt.NDArray[np.int64]  # (B,) hypotheses of each source
    tokens: npt.NDArray[np.int32]  # (R, T) without bos; eos ends each row, and fills it up
    lengths: npt.NDArray[np.int64]  # (R,) tokens before the eos
    log_probs: npt.NDArray[np.float64]  # (R,) eos included
    scores: npt.NDArray[np.float64]  # (R,) log_prob / (length + 1) ** length_penalty
    n_halved: int = 0  # batches that did not fit into the memory, searched in halves

    @classmethod
    def of(cls, rows: Sequence[Sequence[Hypothesis]], n_halved: int = 0) -> Hypotheses:
        """Make the arrays of the hypotheses of each source."""
        flat = list(itertools.chain.from_iterable(rows))
        lengths = np.array([len(hypothesis.tokens) for hypothesis in flat], np.int64)
        tokens = np.full((len(flat), int(lengths.max(initial=0)) + 1), EOS, np.int32)
        ids = itertools.chain.from_iterable(hypothesis.tokens for hypothesis in flat)
        tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = np.fromiter(ids, np.int32)
        log_probs = np.array([hypothesis.log_prob for hypothesis in flat])
        scores = np.array([hypothesis.score for hypothesis in flat])
        counts = np.array([len(row) for row in rows], np.int64)
        return cls(counts, tokens, lengths, log_probs, scores, n_halved)

    def __iter__(self) -> Iterator[list[Hypothesis]]:
        columns = (self.ids(), self.log_probs.tolist(), self.scores.tolist())
        rows = (Hypothesis(tuple(ids), *values) for ids, *values in zip(*columns, strict=True))
        return (list(itertools.islice(rows, count)) for count in self.counts.tolist())

    def ids(self) -> list[list[int]]:
        pairs = zip(self.tokens.tolist(), self.lengths.tolist(), strict=True)
        return [row[:length] for row, length in pairs]


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
    def n_parallel(self) -> int:
        """Batches that `search_batches` decodes at a time."""
        return 1

    def limits(self, sources: Sequence[Ids], prefixes: Sequence[Ids]) -> npt.NDArray[np.int64]:
        """Return the maximum number of output tokens of each source, eos not counted. (B,)"""
        lengths = np.array([len(source) for source in sources], np.int64)
        extra = self.decode.max_len_factor * lengths + self.decode.max_len_extra
        before = np.array([len(prefix) for prefix in prefixes], np.int64)
        return np.minimum(self.max_length, before + np.maximum(1, extra.astype(np.int64)))

    @abstractmethod
    def search_batches(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Hypotheses]]:
        """Yield (index of the job, `search(*job)`) for all jobs, in any order."""

    def search(self, sources: Sequence[Ids], prefixes: Sequence[Ids] | None = None) -> Hypotheses:
        """The `n_best` hypotheses of each source, from its prefix on. ConfigError: no memory."""
        job = (sources, [()] * len(sources) if prefixes is None else prefixes)
        ((_, found),) = self.search_batches([job])
        return found

    def with_n_best(self, n: int) -> Engine:
        return replace(self, options=replace(self.options, n_best=n))  # type: ignore[type-var]

    def without_loops(self) -> Engine:
        """Return an engine that repeats no `LOOP` tokens; greedy, so that all find the same."""
        greedy = self.decode.model_copy(update={"beam_size": 1})
        n = min(LOOP, self.options.no_repeat_ngram or LOOP)
        options = replace(self.options, no_repeat_ngram=n)
        return replace(self, decode=greedy, options=options)  # type: ignore[type-var]


def memory_error(n_sources: int, n_hypotheses: int, where: str) -> ConfigError:
    """Make the error of a batch that does not fit into the memory; `where`: what was in use."""
    sentences = "1 sentence" if n_sources == 1 else f"{n_sources:,} sentences"
    return ConfigError(
        f"decoding: a batch of {sentences} with {n_hypotheses:,} hypotheses each "
        f"does not fit into the memory of {where}. Lower --beam-size (decode.beam_size), "
        f"{'--batch-tokens, ' * (n_sources > 1)}decode.max_len_factor or decode.max_len_extra; "
        "with --sample lower --n-best"
    )
