"""The engine that decodes with CTranslate2 on a CPU: several times faster than torch there.

Its search is `beam_search` but for these points:

- CTranslate2 takes one length limit for a batch. Ours is per sentence, and a hypothesis that
  reaches it is made to end. So a batch gets the largest limit, and a sentence for which that could
  matter is searched again, on its own limit. Greedy search has only to be cut.
- It divides by the length without eos, unless the eos is returned.
- With length penalty 0 it continues after `beam_size` finished hypotheses. A penalty too small to
  change a score makes it stop.
- What it is told to suppress gets no probability, and the other tokens share it. So nothing is
  suppressed. A sentence with pad, unk, bos or nothing in its beam is searched again without them;
  where it was nothing, that is known to have changed all scores by one number.

Its prefixes mean something else: their tokens have no score, and only the most probable hypothesis
may end right after one. So it takes none.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from mt.config.schema import DecodeConfig
from mt.data.tokens.tokenizer import BOS, EOS, PAD, Tokenizer
from mt.search.engine_contract import (
    FORBIDDEN,
    LOOP,
    Engine,
    Hypotheses,
    Hypothesis,
    Ids,
    Job,
    memory_error,
)
from mt.search.options import DEFAULT_SEARCH, SearchOptions

# Padded source tokens x beam of a batch, by precision. Of 512 to 6144 the fastest, or within a
# twentieth of it, for d_model 128 and 256 on Zen 3, greedy and beam 5; with 2048 (fp32) and 1024
# (int8) beam 5 is up to an eighth slower.
BATCH_TOKENS = {"fp32": 4096, "bf16": 4096, "int8": 2048}
# Batches that wait in the queue for each thread, so that none is idle.
QUEUED = 2
# Stands for a length penalty of 0; length^this is 1 to the last bit of a float.
NO_PENALTY = 1e-9
# Of an empty output: what is above is too probable to be left out of other scores exactly.
LIKELY = math.log(0.5)


class Decoded(NamedTuple):
    """A hypothesis as CTranslate2 returns it."""

    tokens: tuple[int, ...]  # without eos
    finished: bool  # ended by eos, not by the limit
    log_prob: float  # eos included where it is finished; NaN where no score was asked for


class Searched(NamedTuple):
    """A source after the first search."""

    row: list[Hypothesis] | None  # its hypotheses; None: it must be searched again
    empty: float = math.nan  # log-probability of the empty output, if that is in the beam


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
    no_repeat: int = 0  # tokens in a row that are not repeated; 0: all may be

    @property
    def max_length(self) -> int:
        """Number of tokens of the longest source, and target; eos and bos are not counted."""
        return self.max_positions - 1

    @property
    def batch_tokens(self) -> int:
        """Padded source tokens x beam of a batch that decodes fast."""
        return BATCH_TOKENS[self.precision]

    @property
    def n_parallel(self) -> int:
        """Batches that `search_batches` decodes at a time."""
        return self.threads

    def search(self, sources: Sequence[Ids], prefixes: Sequence[Ids] | None = None) -> Hypotheses:
        """Return the `n_best` hypotheses of each source, best first."""
        job = (sources, [()] * len(sources) if prefixes is None else prefixes)
        return next(self.search_batches([job]))[1]

    def search_batches(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Hypotheses]]:
        """Yield (index of the job, `search(*job)`); the next are decoded meanwhile.

        Jobs with sources to search again come last and together: a search that is waited for would
        stand in the queue behind the batches, and leave it empty.
        """
        incomplete: dict[int, list[list[Hypothesis] | None]] = {}
        again = list[tuple[int, int, float]]()  # job, place, empty
        for number, found in self._first_search(jobs):
            rows = [row for row, _ in found]
            if None not in rows:
                yield number, self._best(rows)
                continue
            incomplete[number] = rows
            again += [(number, i, empty) for i, (row, empty) in enumerate(found) if row is None]
        sources = [jobs[number][0][place] for number, place, _ in again]
        rows = self._search_again(sources, [empty for *_, empty in again])
        for (number, place, _), row in zip(again, rows, strict=True):
            incomplete[number][place] = row
        for number, rows in incomplete.items():
            yield number, self._best(rows)

    def with_n_best(self, n: int) -> CTranslate2Engine:
        """Return an engine that finds `n` hypotheses of each source."""
        return replace(self, options=replace(self.options, n_best=n))

    def without_loops(self) -> CTranslate2Engine:
        """Return an engine whose search is greedy and repeats no `LOOP` tokens in a row."""
        greedy = self.decode.model_copy(update={"beam_size": 1})
        return replace(self, decode=greedy, no_repeat=LOOP)

    def _best(self, rows: Sequence[list[Hypothesis] | None]) -> Hypotheses:
        return Hypotheses.of([(row or [])[: self.options.n_best] for row in rows])

    def _first_search(self, jobs: Sequence[Job]) -> Iterator[tuple[int, list[Searched]]]:
        """Yield (index of the job, what was found for each of its sources)."""
        waiting: deque[tuple[int, list[int], Any]] = deque()
        for number, (sources, prefixes) in enumerate(jobs):
            assert not any(prefixes), "prefixes are for torch"
            if self.no_repeat:  # only the second search scores without what is forbidden
                yield number, [Searched(None)] * len(sources)
                continue
            limits = self.limits(sources, prefixes).tolist()
            futures = self._translate(sources, max(limits, default=0) + 1)
            waiting.append((number, limits, futures))
            if len(waiting) > (1 + QUEUED) * self.threads:
                yield self._collect(*waiting.popleft())
        while waiting:
            yield self._collect(*waiting.popleft())

    def _translate(self, sources: Sequence[Ids], max_length: int, **options: Any) -> Any:
        """Start a search with CTranslate2; `max_length` counts the eos. Returns futures."""
        if not sources:
            return []
        beam_size = self.decode.beam_size
        settings = {
            "beam_size": beam_size,
            "num_hypotheses": beam_size,
            "length_penalty": self.decode.length_penalty or NO_PENALTY,
            "max_input_length": 0,
            "max_decoding_length": max_length,
            "min_decoding_length": 0,
            "return_end_token": True,
            "return_scores": self.options.with_scores or beam_size > 1,
            "use_vmap": self.shortlist,
            "asynchronous": True,
        }
        pieces = _pieces(self._src_texts, sources)
        return self.translator.translate_batch(pieces, **settings | options)

    def _collect(
        self, number: int, limits: Sequence[int], futures: Sequence[Any]
    ) -> tuple[int, list[Searched]]:
        """Wait for the search of a batch, whose limit was the largest of these."""
        most = max(limits, default=0)
        found = []
        for beam, limit in zip(self._results(futures), limits, strict=True):
            shown = self.options.n_best if limit == most else len(beam)
            empty = next((each.log_prob for each in beam if not each.tokens), math.nan)
            found.append(Searched(self._accepted(beam, limit, shown), empty))
        return number, found

    def _results(self, futures: Sequence[Any]) -> list[list[Decoded]]:
        """Wait for the searches of a batch. Raises ConfigError if the memory is too small."""
        try:
            return [self._read(future.result()) for future in futures]
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "alloc" not in str(error):
                raise
            raise memory_error(len(futures), self.decode.beam_size, "CPU") from error

    def _accepted(self, beam: list[Decoded], limit: int, shown: int) -> list[Hypothesis] | None:
        """Return the hypotheses if a search with this limit finds the same, else None.

        It does if the search has ended by then; all hypotheses of the beam show that. If the search
        was made with this limit, the `shown` best need only be finished: what is unfinished has a
        score above all that would still be made to end.
        """
        if self.decode.beam_size == 1 and not self.options.with_scores:
            # What a greedy search chooses does not depend on the limit: only the end does.
            beam = [Decoded(beam[0].tokens[:limit], True, beam[0].log_prob)]
        if any(not tokens or not set(FORBIDDEN).isdisjoint(tokens) for tokens, _, _ in beam):
            return None
        if any(not finished or len(tokens) > limit for tokens, finished, _ in beam[:shown]):
            return None
        return [self._hypothesis(tokens, log_prob) for tokens, _, log_prob in beam[:shown]]

    def _search_again(
        self, sources: Sequence[Ids], empty: Sequence[float]
    ) -> list[list[Hypothesis] | None]:
        """Search for each source; `empty`: as in `Searched`."""
        rows = self._search_without_empty(sources, empty)
        left = [place for place, row in enumerate(rows) if row is None]
        found = self._search_on_own_limits([sources[place] for place in left])
        for place, row in zip(left, found, strict=True):
            rows[place] = row
        return rows

    def _search_without_empty(
        self, sources: Sequence[Ids], empty: Sequence[float]
    ) -> list[list[Hypothesis] | None]:
        """Search where the empty output was in the beam; None for other sources.

        Of short sentences that is up to one in twelve, and each only costs a search more: all
        hypotheses share the probability of the empty one, which is taken out of their scores.
        """
        rows: list[list[Hypothesis] | None] = [None] * len(sources)
        places = [place for place, log_prob in enumerate(empty) if log_prob < LIKELY]  # no NaN
        chosen = [sources[place] for place in places]
        limits = self.limits(chosen, [()] * len(chosen)).tolist()
        most = max(limits, default=0)
        futures = self._translate(chosen, most + 1, min_decoding_length=1, **self._batches)
        for place, limit, beam in zip(places, limits, self._results(futures), strict=True):
            rest = math.log1p(-math.exp(empty[place]))  # log-probability of all other outputs
            exact = [each._replace(log_prob=each.log_prob + rest) for each in beam]
            if row := self._accepted(exact, limit, len(exact)):
                rows[place] = sorted(row, key=lambda each: each.score, reverse=True)
        return rows

    def _search_on_own_limits(self, sources: Sequence[Ids]) -> list[list[Hypothesis]]:
        """Search for each source on its own limit, without the tokens that no output contains.

        Where a beam does not end by itself, its hypotheses are made to end at the limit. All are
        scored once more, as a whole and with every token allowed.
        """
        limits = self.limits(sources, [()] * len(sources)).tolist()
        options: dict[str, Any] = {
            "disable_unk": True,
            "suppress_sequences": _pieces(self._tgt_texts, [[PAD], [BOS]]),
            "min_decoding_length": 1,
            "no_repeat_ngram_size": self.no_repeat,
        }
        beams = self._search_with(sources, [limit + 1 for limit in limits], options)
        unfinished = [
            place
            for place, beam in enumerate(beams)
            if not all(decoded.finished for decoded in beam[: self.options.n_best])
        ]
        if self.decode.beam_size > 1:  # all that have finished before the limit or reach it
            options |= {"patience": 2, "num_hypotheses": 2 * self.decode.beam_size}
        at_limit = self._search_with(
            [sources[place] for place in unfinished],
            [limits[place] for place in unfinished],
            options,
        )
        for place, beam in zip(unfinished, at_limit, strict=True):
            beams[place] = beam
        rows = [
            list(dict.fromkeys(decoded.tokens[:limit] for decoded in beam))
            for beam, limit in zip(beams, limits, strict=True)
        ]
        scored = self._score(
            [(source, row) for source, each in zip(sources, rows, strict=True) for row in each]
        )
        return [
            sorted(
                [next(scored) for _ in each], key=lambda hypothesis: hypothesis.score, reverse=True
            )
            for each in rows
        ]

    def _search_with(
        self, sources: Sequence[Ids], max_lengths: Sequence[int], options: Mapping[str, Any]
    ) -> list[list[Decoded]]:
        """Search for all sources at the same time, those of the same maximum in batches."""
        futures: list[Any] = [None] * len(sources)
        for length in sorted(set(max_lengths)):
            places = [place for place, each in enumerate(max_lengths) if each == length]
            started = self._translate(
                [sources[place] for place in places], length, **self._batches, **options
            )
            for place, future in zip(places, started, strict=True):
                futures[place] = future
        return self._results(futures)

    def _score(self, pairs: Sequence[tuple[Ids, tuple[int, ...]]]) -> Iterator[Hypothesis]:
        """Score these outputs of these sources, every token allowed."""
        if not pairs:
            return
        results = self.translator.score_batch(
            _pieces(self._src_texts, [source for source, _ in pairs]),
            _pieces(self._tgt_texts, [tokens for _, tokens in pairs]),
            max_input_length=0,
            # Logits of all positions are in memory together, so small batches are faster as well.
            max_batch_size=self.batch_tokens // 4,
            batch_type="tokens",
        )
        for (_, tokens), result in zip(pairs, results, strict=True):
            yield self._hypothesis(tokens, sum(result.log_probs))

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

    def _hypothesis(self, tokens: tuple[int, ...], log_prob: float) -> Hypothesis:
        score = log_prob / (len(tokens) + 1) ** self.decode.length_penalty
        return Hypothesis(tokens, log_prob, score)

    @property
    def _batches(self) -> dict[str, Any]:
        """How CTranslate2 is to share many sources out to batches."""
        size = max(1, self.batch_tokens // self.decode.beam_size)
        return {"max_batch_size": size, "batch_type": "tokens"}

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
