"""The engine that decodes with CTranslate2 on a CPU: several times faster than torch there.

Its search is `beam_search` but for these points:

- CTranslate2 takes one length limit for a batch. Ours is per sentence. So a batch gets the largest
  limit, and a sentence for which that could matter is searched again, on its own limit. What has
  not ended there is cut, and not made to end. Greedy search has only to be cut.
- It divides by the length without eos, unless the eos is returned.
- With length penalty 0 it continues after `beam_size` finished hypotheses. A penalty too small to
  change a score makes it stop.
- What no output contains (pad, unk, bos, and eos as the first token) gets no probability, and the
  other tokens share it: all scores of a sentence are higher by about -log(1 - p), where p is the
  probability of an empty output.

Its prefixes mean something else: their tokens have no score, and only the most probable hypothesis
may end right after one. So it takes none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from mt.config.schema import DecodeConfig
from mt.data.tokens.tokenizer import BOS, EOS, PAD, Tokenizer
from mt.search.engine_contract import (
    Engine,
    Hypotheses,
    Hypothesis,
    Ids,
    Job,
    memory_error,
)
from mt.search.options import DEFAULT_SEARCH, SearchOptions

# Padded source tokens x beam of a batch, by precision: of 512 to 6144 the fastest.
BATCH_TOKENS = {"fp32": 4096, "bf16": 4096, "int8": 2048}
# Batches that wait in the queue for each thread, so that none is idle.
QUEUED = 2
# Stands for a length penalty of 0; length^this is 1 to the last bit of a float.
NO_PENALTY = 1e-9


class Decoded(NamedTuple):
    """A hypothesis as CTranslate2 returns it."""

    tokens: tuple[int, ...]  # without eos
    finished: bool  # ended by eos, not by the limit
    log_prob: float  # eos included where it is finished; NaN where no score was asked for


@dataclass(frozen=True)
class CTranslate2Engine(Engine):
    """A converted model with everything else that the search of a batch depends on.

    Raises ConfigError for an n-best list longer than the beam.
    """

    translator: Any  # ctranslate2.Translator
    tokenizer: Tokenizer
    decode: DecodeConfig
    max_positions: int  # of the longest source or target, eos or bos counted
    precision: str = "fp32"
    threads: int = 1
    options: SearchOptions = DEFAULT_SEARCH
    shortlist: bool = False  # choose among the target tokens that the vocabulary map allows

    @property
    def max_length(self) -> int:
        return self.max_positions - 1

    @property
    def batch_tokens(self) -> int:
        return BATCH_TOKENS[self.precision]

    @property
    def n_parallel(self) -> int:
        return self.threads

    def search(self, sources: Sequence[Ids], prefixes: Sequence[Ids] | None = None) -> Hypotheses:
        job = (sources, [()] * len(sources) if prefixes is None else prefixes)
        return next(self.search_batches([job]))[1]

    def search_batches(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Hypotheses]]:
        """Yield (index of the job, `search(*job)`); the next are decoded meanwhile.

        Jobs with sources to search again come last and together: a search that is waited for would
        stand in the queue behind the batches, and leave it empty.
        """
        incomplete: dict[int, list[list[Hypothesis] | None]] = {}
        for number, rows in self._first_search(jobs):
            if None in rows:
                incomplete[number] = rows
            else:
                yield number, Hypotheses.of([row or [] for row in rows])
        again = [
            (number, place)
            for number, rows in incomplete.items()
            for place, row in enumerate(rows)
            if row is None
        ]
        sources = [jobs[number][0][place] for number, place in again]
        for (number, place), row in zip(again, self._on_own_limits(sources), strict=True):
            incomplete[number][place] = row
        for number, rows in incomplete.items():
            yield number, Hypotheses.of([row or [] for row in rows])

    def _first_search(
        self, jobs: Sequence[Job]
    ) -> Iterator[tuple[int, list[list[Hypothesis] | None]]]:
        """Yield (index of the job, the hypotheses of each source); None: on its own limit."""
        waiting: deque[tuple[int, list[int], Any]] = deque()
        for number, (sources, prefixes) in enumerate(jobs):
            assert not any(prefixes), "prefixes are for torch"
            limits = self.limits(sources, prefixes).tolist()
            waiting.append((number, limits, self._translate(sources, max(limits, default=0))))
            if len(waiting) > (1 + QUEUED) * self.threads:
                yield self._collect(*waiting.popleft())
        while waiting:
            yield self._collect(*waiting.popleft())

    def _translate(self, sources: Sequence[Ids], limit: int, **options: Any) -> Any:
        """Start a search with CTranslate2, for at most `limit` tokens and eos. Returns futures."""
        if not sources:
            return []
        beam_size = self.decode.beam_size
        settings = {
            "beam_size": beam_size,
            "num_hypotheses": beam_size,
            "length_penalty": self.decode.length_penalty or NO_PENALTY,
            "max_input_length": 0,
            "max_decoding_length": limit + 1,
            "min_decoding_length": 1,
            "disable_unk": True,
            "suppress_sequences": _pieces(self._tgt_texts, [[PAD], [BOS]]),
            "no_repeat_ngram_size": self.options.no_repeat_ngram,
            "return_end_token": True,
            "return_scores": self.options.with_scores or beam_size > 1,
            "use_vmap": self.shortlist,
            "asynchronous": True,
        }
        pieces = _pieces(self._src_texts, sources)
        return self.translator.translate_batch(pieces, **settings | options)

    def _collect(
        self, number: int, limits: Sequence[int], futures: Sequence[Any]
    ) -> tuple[int, list[list[Hypothesis] | None]]:
        """Wait for the search of a batch, whose limit was the largest of these."""
        most = max(limits, default=0)
        beams = zip(self._results(futures), limits, strict=True)
        return number, [
            self._best(beam, limit) if self._holds(beam, limit, most) else None
            for beam, limit in beams
        ]

    def _holds(self, beam: list[Decoded], limit: int, searched: int) -> bool:
        """Whether a search up to `limit` tokens finds the same as this one up to `searched`.

        It does if the search has ended before its last step, which takes what has not ended too;
        all hypotheses of the beam show that. What a greedy search chooses does not depend on the
        limit: only the end does.
        """
        if limit == searched or (self.decode.beam_size == 1 and not self.options.with_scores):
            return True
        return all(finished and len(tokens) < limit for tokens, finished, _ in beam)

    def _best(self, beam: list[Decoded], limit: int) -> list[Hypothesis]:
        """Return the best hypotheses of a beam, cut at the limit; those that have ended first."""
        ended = sorted(beam, key=lambda decoded: not decoded.finished)[: self.options.n_best]
        penalty = self.decode.length_penalty
        rows = [(tokens[:limit], log_prob) for tokens, _, log_prob in ended]
        return [
            Hypothesis(tokens, log_prob, log_prob / (len(tokens) + 1) ** penalty)
            for tokens, log_prob in rows
        ]

    def _results(self, futures: Sequence[Any]) -> list[list[Decoded]]:
        """Wait for the searches of a batch. Raises ConfigError if the memory is too small."""
        try:
            return [self._read(future.result()) for future in futures]
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "alloc" not in str(error):
                raise
            raise memory_error(len(futures), self.decode.beam_size, "CPU") from error

    def _on_own_limits(self, sources: Sequence[Ids]) -> list[list[Hypothesis]]:
        """Search for each source up to its own limit; those of the same limit in batches."""
        limits = self.limits(sources, [()] * len(sources)).tolist()
        size = max(1, self.batch_tokens // self.decode.beam_size)
        futures: list[Any] = [None] * len(sources)
        for limit in sorted(set(limits)):
            places = [place for place, each in enumerate(limits) if each == limit]
            started = self._translate(
                [sources[place] for place in places],
                limit,
                max_batch_size=size,
                batch_type="tokens",
            )
            for place, future in zip(places, started, strict=True):
                futures[place] = future
        return list(map(self._best, self._results(futures), limits))

    def _read(self, result: Any) -> list[Decoded]:
        """Read the hypotheses of one source, best first."""
        beam = []
        hypotheses, ids_of = result.hypotheses, self._tgt_ids
        scores = result.scores or [float("nan")] * len(hypotheses)
        penalty = self.decode.length_penalty or NO_PENALTY
        for pieces, score in zip(hypotheses, scores, strict=True):
            ids = tuple([ids_of[piece] for piece in pieces])
            finished = ids[-1:] == (EOS,)
            tokens = ids[:-1] if finished else ids
            beam.append(Decoded(tokens, finished, score * max(1, len(ids)) ** penalty))
        return beam

    @cached_property
    def _src_texts(self) -> list[str]:
        return self.tokenizer.src.all_pieces()

    @cached_property
    def _tgt_texts(self) -> list[str]:
        return self.tokenizer.tgt.all_pieces()

    @cached_property
    def _tgt_ids(self) -> Mapping[str, int]:
        return {text: number for number, text in enumerate(self._tgt_texts)}


def _pieces(texts: Sequence[str], rows: Sequence[Ids]) -> list[list[str]]:
    return [[texts[number] for number in ids] for ids in rows]
