"""An engine with its tokenizer: lines in segments → their hypotheses, searched in batches."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mt.config.plan import DataPlan, plan_data
from mt.config.schema import DataConfig
from mt.data.reading.languages import base_code
from mt.data.reading.words import split_sentences
from mt.data.tokens.plan import MOST_ROWS, batch_ends
from mt.data.tokens.tokenizer import Tokenizer
from mt.data.tokens.writing import Styles
from mt.errors import ConfigError
from mt.runs.model_folder import SEVERAL_SENTENCES, ModelFolder
from mt.search.engine_contract import LEAST_SIZE, Engine, Hypotheses, Ids, Job
from mt.terminal import say
from mt.translate.lines import Line, SegmentOutput, Tally

if TYPE_CHECKING:
    from mt.translate.workers import Pool

# What was found for a batch, and the text of each hypothesis.
Answer = tuple[Hypotheses, list[str]]
# Share of training lines with several sentences below which `auto` translates them one by one.
LEAST_SEVERAL = 0.05
# Options of the search that no output depends on by themselves, but on what some stand for.
NOT_IN_SETTINGS = {"with_scores", "prefixes", "split_sentences", "as_written", "to", "from_"}
NO_DATA = plan_data(DataConfig())  # of a model that tells nothing of its training text


@dataclass(frozen=True, kw_only=True)
class LoadedEngine:
    """An engine and what else of a model decides how lines are translated; closes its workers."""

    engine: Engine
    tokenizer: Tokenizer
    max_source: int  # tokens of the longest source to translate whole, eos not counted
    data: DataPlan = NO_DATA  # languages and tags of the training text
    styles: Styles | None = None  # how that is written, if it is known
    cuts_sentences: bool = False  # each sentence of a line is translated by itself
    batch_tokens: int | None = None  # padded source tokens x beam; None: as suits the engine
    pool: Pool | None = None  # processes that search in the place of the engine
    # Encode the next window while one is translated; reading must not wait for ever for lines.
    reads_ahead: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)  # see `Step.settings`
    name: str = ""  # what decodes, and why, where that was a choice
    # Held while a window is translated: several threads may share an engine.
    lock: threading.RLock = field(default_factory=threading.RLock, compare=False, repr=False)

    @classmethod
    def of_model(cls, model: ModelFolder, engine: Engine, **values: Any) -> LoadedEngine:
        """Take from a model folder what `values` does not have."""
        options = vars(engine.options) | vars(engine.decode)
        names = [name for name in options if name not in NOT_IN_SETTINGS]
        settings = {f"--{name.replace('_', '-')}": str(options[name]) for name in names}
        return cls(
            engine=engine, tokenizer=model.tokenizer, data=model.data, styles=model.styles,
            cuts_sentences=cuts_into_sentences(engine.options.split_sentences, model),
            settings=settings | values.pop("settings", {}),
            **{"max_source": model.data.limits.max_tokens, **values},
        )  # fmt: skip

    def with_n_best(self, n: int) -> LoadedEngine:
        """Return this engine for `n` outputs of each line; both share the models and processes."""
        return replace(self, engine=self.engine.with_n_best(n))

    def __enter__(self) -> LoadedEngine:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.close()

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest source to translate whole, as far as the model has positions."""
        return min(self.max_source, self.engine.max_length)

    @property
    def n_parallel(self) -> int:
        return self.engine.n_parallel if self.pool is None else len(self.pool.workers)

    def search(
        self, lines: Sequence[Line], tally: Tally, loop_free: bool = False
    ) -> Iterator[float]:
        """Find the hypotheses of the segments, the longest first; yield the share that is done."""
        segments = [segment for line in lines for segment in line.segments]
        if not segments:
            return
        lengths = np.array([len(segment.source) for segment in segments], np.int64)
        batches = self._batches(lengths)
        members = [[segments[i] for i in batch] for batch in batches]
        jobs: list[Job] = [([s.source for s in b], [s.prefix for s in b]) for b in members]
        searched, total = 0, int(lengths.sum())
        for number, (hypotheses, texts) in self._answers(jobs, loop_free):
            limits = self.engine.limits(*jobs[number]).repeat(hypotheses.counts)
            found = (hypotheses.scores, hypotheses.log_probs, hypotheses.lengths)
            columns = [array.tolist() for array in (*found, hypotheses.lengths >= limits)]
            ids = hypotheses.ids() if self.engine.options.alignments else itertools.repeat([])
            outputs = map(SegmentOutput._make, zip(texts, *columns, ids, strict=False))
            for segment, count in zip(members[number], hypotheses.counts.tolist(), strict=True):
                segment.outputs = list(itertools.islice(outputs, count))
            firsts = hypotheses.counts.cumsum() - hypotheses.counts
            tally.tokens += int((hypotheses.lengths[firsts] + 1).sum())
            tally.halved += hypotheses.n_halved
            searched += int(lengths[batches[number]].sum())
            yield searched / total

    def _batches(self, lengths: np.ndarray) -> list[list[int]]:
        """Share sources of these lengths out to batches, as indices."""
        n_hypotheses = self.engine.hypotheses_per_source
        budget = max(1, (self.batch_tokens or self.engine.batch_tokens) // n_hypotheses)
        order = np.argsort(-lengths, kind="stable")
        least = max(LEAST_SIZE, -(-budget // max(1, MOST_ROWS // n_hypotheses)))
        cuts = batch_cuts(np.maximum(lengths[order] + 1, least), budget, self.n_parallel)
        return [rows.tolist() for rows in np.split(order, cuts)]

    def _answers(self, jobs: list[Job], loop_free: bool) -> Iterator[tuple[int, Answer]]:
        """Yield (index of the job, what was found), from the pool or by the engine."""
        if self.pool is not None:
            n_best = self.engine.options.n_best
            yield from self.pool.imap_unordered([(*job, n_best, loop_free) for job in jobs])
            return
        engine = self.engine.without_loops() if loop_free else self.engine
        for number, hypotheses in engine.search_batches(jobs):
            yield number, (hypotheses, self.tokenizer.tgt.decode(hypotheses.ids()))

    def answer(
        self, sources: Sequence[Ids], prefixes: Sequence[Ids], n_best: int, loop_free: bool
    ) -> Answer:
        """Search one batch, as a worker does: decoding it to text takes as long as all the rest."""
        ((_, answer),) = self.with_n_best(n_best)._answers([(sources, prefixes)], loop_free)
        return answer


def cuts_into_sentences(choice: str, model: ModelFolder) -> bool:
    """Whether the sentences of a line are translated one by one, by --split-sentences."""
    share = model.meta.get(SEVERAL_SENTENCES, 1.0)
    if choice == "never" or (choice == "auto" and share >= LEAST_SEVERAL):
        return False
    try:
        split_sentences("", base_code(model.config.data.src_lang))
    except ConfigError as error:
        if choice == "always":
            raise
        say(f"{error}; until then, lines of several sentences are translated whole")
        return False
    return True


def batch_cuts(sizes: np.ndarray, budget: int, workers: int = 1) -> list[int]:
    """Return where batches of at most `budget` padded tokens begin, except the first batch.

    `sizes` are descending. With several workers the last work comes in quarters, so that all of
    them finish at about the same time: 5,000 sentences make 16 batches, each 6 % of the work.
    """
    if workers > 1:  # at least one batch for each
        budget = min(budget, max(int(sizes[0]), int(sizes.sum()) // workers))
    if workers == 1 or sizes.sum() < 4 * budget * workers:
        return batch_ends(sizes, budget)[:-1]
    left = sizes[::-1].cumsum()  # of the last n, for n from 1
    quarters = len(sizes) - int(np.searchsorted(left, budget * workers, side="right"))
    whole = batch_ends(sizes[:quarters], budget)
    return [*whole, *[quarters + end for end in batch_ends(sizes[quarters:], budget // 4)]][:-1]
