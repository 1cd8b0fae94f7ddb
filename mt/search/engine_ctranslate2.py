"""The engine that decodes with CTranslate2 on a CPU: several times faster than torch there.

Its search is `beam_search` but for these points:

- CTranslate2 takes one length limit for a batch. Ours is per sentence. So a batch gets the largest
  limit, and a sentence for which that could matter is searched again, on its own limit. What has
  not ended there is no hypothesis, unless nothing has: then it is cut, and not made to end, and its
  score counts the token after the cut. Greedy search has only to be cut.
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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mt.config.schema import DecodeConfig
from mt.data.tokens.tokenizer import BOS, EOS, PAD, Tokenizer
from mt.search.engine_contract import Engine, Hypotheses, Hypothesis, Ids, Job, memory_error
from mt.search.options import DEFAULT_SEARCH, SearchOptions

# Padded source tokens x beam of a batch, by precision: of 512 to 6144 the fastest.
BATCH_TOKENS = {"fp32": 4096, "bf16": 4096, "int8": 2048}
# Batches that wait in the queue for each thread, so that none is idle.
QUEUED = 2
# Stands for a length penalty of 0; length^this is 1 to the last bit of a float.
NO_PENALTY = 1e-9

# The hypotheses of each source of a batch; None: to be searched again, on its own limit.
Rows = list[list[Hypothesis] | None]


@dataclass(frozen=True)
class CTranslate2Engine(Engine):
    """A converted model with everything else that the search of a batch depends on."""

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

    def search_batches(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Hypotheses]]:
        """Yield (index of the job, its hypotheses); the next are decoded meanwhile.

        Jobs with sources to search again come last and together: a search that is waited for would
        stand in the queue behind the batches, and leave it empty.
        """
        limits = [self.limits(*job).tolist() for job in jobs]
        incomplete: dict[int, Rows] = {}
        for number, rows in self._first_search(jobs, limits):
            if None in rows:
                incomplete[number] = rows
            else:
                yield number, Hypotheses.of([row or [] for row in rows])
        self._search_again(jobs, limits, incomplete)
        for number, rows in incomplete.items():
            yield number, Hypotheses.of([row or [] for row in rows])

    def _first_search(
        self, jobs: Sequence[Job], limits: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, Rows]]:
        """Yield (index of the job, its hypotheses) of searches up to the largest limit of each."""
        ahead = (1 + QUEUED) * self.threads
        most = [max(each, default=0) for each in limits]
        started: dict[int, Any] = {}
        for number in range(len(jobs) + ahead):
            if number < len(jobs):
                sources, prefixes = jobs[number]
                assert not any(prefixes), "prefixes are for torch"
                started[number] = self._translate(sources, most[number])
            if (done := number - ahead) in started:
                yield done, self._found(started.pop(done), limits[done], most[done])

    def _search_again(
        self, jobs: Sequence[Job], limits: Sequence[Sequence[int]], incomplete: dict[int, Rows]
    ) -> None:
        """Complete the rows by searches of sources of the same limit."""
        places: dict[int, list[tuple[int, int]]] = {}  # of a limit: jobs and sources
        for number, rows in incomplete.items():
            for place, row in enumerate(rows):
                if row is None:
                    places.setdefault(limits[number][place], []).append((number, place))
        size = max(1, self.batch_tokens // self.decode.beam_size)
        options = {"max_batch_size": size, "batch_type": "tokens"}
        futures = {
            limit: self._translate([jobs[i][0][j] for i, j in places[limit]], limit, **options)
            for limit in sorted(places)
        }
        for limit, started in futures.items():
            found = self._found(started, [limit] * len(started), limit)
            for (number, place), row in zip(places[limit], found, strict=True):
                incomplete[number][place] = row

    def _translate(self, sources: Sequence[Ids], limit: int, **options: Any) -> Any:
        """Start a search with CTranslate2, for at most `limit` tokens and eos. Returns futures."""
        if not sources:
            return []
        beam_size = self.decode.beam_size
        src_pieces, tgt_pieces, _ = self._pieces
        settings = {
            "beam_size": beam_size,
            "num_hypotheses": beam_size,
            "length_penalty": self.decode.length_penalty or NO_PENALTY,
            "max_input_length": 0,
            "max_decoding_length": limit + 1,
            "min_decoding_length": 1,
            "disable_unk": True,
            "suppress_sequences": [[tgt_pieces[special]] for special in (PAD, BOS)],
            "no_repeat_ngram_size": self.options.no_repeat_ngram,
            "return_end_token": True,
            "return_scores": self.options.with_scores or beam_size > 1,
            "use_vmap": self.shortlist,
            "asynchronous": True,
        }
        rows = [[src_pieces[number] for number in ids] for ids in sources]
        return self.translator.translate_batch(rows, **settings | options)

    def _found(self, futures: Sequence[Any], limits: Sequence[int], searched: int) -> Rows:
        """Wait for a search up to `searched` tokens; ConfigError if the memory is too small."""
        try:
            results = [future.result() for future in futures]
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "alloc" not in str(error):
                raise
            raise memory_error(len(futures), self.decode.beam_size, "CPU") from error
        rows = zip(results, limits, strict=True)
        return [self._read(result, limit, limit == searched) for result, limit in rows]

    def _read(self, result: Any, limit: int, is_own_limit: bool) -> list[Hypothesis] | None:
        """Read the hypotheses of one source, best first; None if its own limit may change them.

        It does not if the search has ended before its last step, which all hypotheses of the beam
        show. What a greedy search chooses does not depend on the limit: only the end does.
        """
        is_certain = is_own_limit or (self.decode.beam_size == 1 and not self.options.with_scores)
        penalty, (_, _, ids_of) = self.decode.length_penalty, self._pieces
        ended, cut = list[Hypothesis](), list[Hypothesis]()
        # Without scores, none was asked for.
        scores = result.scores or [float("nan")] * len(result.hypotheses)
        for pieces, score in zip(result.hypotheses, scores, strict=True):
            ids = tuple([ids_of[piece] for piece in pieces])
            has_ended = ids[-1:] == (EOS,)
            tokens = ids[:-1] if has_ended else ids
            if not (is_certain or (has_ended and len(tokens) < limit)):
                return None
            tokens = tokens[:limit]
            log_prob = score * max(1, len(ids)) ** (penalty or NO_PENALTY)
            one = Hypothesis(tokens, log_prob, log_prob / (len(tokens) + 1) ** penalty)
            (ended if has_ended else cut).append(one)
        return (ended or cut)[: self.options.n_best]

    @cached_property
    def _pieces(self) -> tuple[list[str], list[str], dict[str, int]]:
        """Pieces of sources and of targets by id, and the ids of target pieces."""
        tgt = self.tokenizer.tgt.all_pieces()
        return self.tokenizer.src.all_pieces(), tgt, {piece: i for i, piece in enumerate(tgt)}
