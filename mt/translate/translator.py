"""Translate lines: encode, split, sort, batch, search, and restore the order.

The line contract: exactly one output line for each input line, in order, whatever the input. A line
of white space gives an empty line and never enters the model. A source too long for the model is
translated in segments, and so are several sentences where the model learnt from single ones.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mt.data.reading.sentences import join_sentences
from mt.data.reading.words import has_visible
from mt.data.tokens.plan import MOST_ROWS, batch_ends
from mt.data.tokens.tokenizer import Tokenizer
from mt.data.tokens.writing import Case, Writing, Written, case_of
from mt.errors import ConfigError, DataError
from mt.search.engine_contract import LEAST_SIZE, Answer, Engine, Job
from mt.search.options import encode_prefixes
from mt.translate import mbr
from mt.translate.lines import Line, Segment, SegmentOutput, SourcePart, Translation, split_source
from mt.translate.progress import LineNumbers, Tally
from mt.translate.quality_flags import flags, is_blank, loops
from mt.translate.streaming import read_ahead, windows

if TYPE_CHECKING:
    from mt.search.scoring import ForcedDecoder
    from mt.translate.rerank import Reranker
    from mt.translate.workers import Pool

# SentencePiece encodes fewer lines as fast with one thread.
LINES_PER_THREAD = 1_000
# Lines of the first window of a stream.
FIRST_WINDOW = 2_000
# Later windows take about this long, so that an interruption costs little.
WINDOW_SECONDS = 15.0
# New objects after which Python looks for cyclic garbage. A window of lines is some 500,000, none
# of them garbage, and by default all are looked through again and again: 1.5 s against 0.9 s for
# all that is not decoding, 20,000 lines on Zen 4.
GARBAGE_THRESHOLD = 100_000


class Translator:
    """An engine and its tokenizer, ready to translate lines.

    A context manager: leaving it ends its worker processes, if it has any.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        max_source: int,
        max_ratio: float = 3.0,
        batch_tokens: int | None = None,
        pool: Pool | None = None,
        reads_ahead: bool = False,
    ) -> None:
        """Prepare to translate.

        `max_source`: tokens of the longest source to translate whole, eos not counted. `max_ratio`:
        of lengths, beyond which an output is flagged. `pool`: processes that search in the place of
        the engine. `reads_ahead`: encode the next window while one is translated; reading must not
        wait for ever for lines. Raises ConfigError for options that the engine cannot fulfil.
        """
        options = engine.options
        self.engine = engine
        self.tokenizer = tokenizer
        self.max_source = min(max_source, engine.max_length)
        self.max_ratio = max_ratio
        # Everything that an output depends on, by the name of its option.
        self.settings: dict[str, str] = {}
        budget = batch_tokens or engine.batch_tokens
        self.batch_tokens = max(1, budget // engine.hypotheses_per_source)
        self.utility = None if options.mbr is None else mbr.metric(options.mbr)
        self.forced_decoder = None
        if options.alignments is not None:
            self.forced_decoder = _forced_decoder(engine, options.alignments)
        # Sorts the outputs of segments anew.
        self.reranker: Reranker | None = None
        # Cuts a line into sentences, each translated by itself; None: a line is translated whole.
        self.cut: Callable[[str], list[str]] | None = None
        # Gives the model lines as its training text would write them; None: as they are.
        self.writing: Writing | None = None
        # The cases that it would change, if the language of the lines were known.
        self.unknown_cases: set[Case] = set()
        # What lines may begin with, and then each of their segments.
        self.tags: set[str] = set()
        # The token of the language to translate into; see `Tokenizer.before_source`.
        self.first_ids: list[int] = []
        # Whether to search again where an output repeats itself up to its length limit.
        self.escapes_loops = False
        self.tally = Tally()
        # Called after each batch with the number of lines done, those before a resume included.
        self.on_progress: Callable[[int], None] = lambda _: None
        self.reads_ahead = reads_ahead
        self.pool = pool
        self.n_parallel = engine.n_parallel if pool is None else len(pool.workers)

    def __enter__(self) -> Translator:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.close()

    def translate(
        self, lines: Iterable[str], prefixes: Iterable[str] | None = None
    ) -> Iterator[Translation]:
        """Yield a `Translation` for each line, in order. Lines are read a window at a time.

        `prefixes`: what each output must begin with, one for each line; DataError if there are more
        or fewer.
        """
        cut = windows(iter(lines), lambda: self.engine.window)
        for translations in self.translate_windows(cut, prefixes):
            yield from translations

    def translate_windows(
        self, windows: Iterable[list[str]], prefixes: Iterable[str] | None = None
    ) -> Iterator[list[Translation]]:
        """Translate windows of lines that the caller has cut; otherwise as `translate`."""
        encoded = self._encoded(windows, prefixes)
        if self.reads_ahead:
            encoded = read_ahead(encoded)
        while True:
            wanted = time.perf_counter()
            window = next(encoded, None)
            if window is None:
                return
            lines, started = window
            # The time that the caller takes does not count, nor does waiting for lines.
            yield self._translate_window(lines, max(wanted, started))

    def translate_stream(
        self,
        lines: Iterator[str],
        text_of: Callable[[str, int], str],
        prefixes: Iterable[str] | None = None,
        max_wait: float | None = None,
    ) -> Iterator[tuple[list[str], list[Translation]]]:
        """Yield windows of lines, each with its translations; their size follows the speed.

        `text_of`: what to translate of a line, given that and its number. `max_wait`: as for
        `windows`.
        """
        gc.set_threshold(GARBAGE_THRESHOLD)
        read: deque[list[str]] = deque()  # windows that are not translated yet

        def texts() -> Iterator[list[str]]:
            first = self.tally.before + 1
            for window in windows(lines, self._window_size, max_wait):
                read.append(window)
                yield [text_of(line, number) for number, line in enumerate(window, first)]
                first += len(window)

        for translations in self.translate_windows(texts(), prefixes):
            yield read.popleft(), translations

    def _window_size(self) -> int:
        """Return how many lines to translate next, by the speed so far."""
        tally = self.tally
        if not tally.lines:
            return FIRST_WINDOW
        return int(min(self.engine.window, 1 + WINDOW_SECONDS * tally.lines / tally.seconds))

    def _encoded(
        self, windows: Iterable[list[str]], prefixes: Iterable[str] | None
    ) -> Iterator[tuple[list[Line], float]]:
        """Encode windows of lines with their prefixes, and note the time when encoding began.

        Uses nothing that searches change.
        """
        rest = None if prefixes is None else iter(prefixes)
        mismatch = "--prefix: must have one line for each line to translate, but line"
        first = self.tally.before + self.tally.lines + 1  # the number of the next line, from 1
        for texts in windows:
            started = time.perf_counter()
            begins = [""] * len(texts)
            if rest is not None:
                begins = list(itertools.islice(rest, len(texts)))
            if len(begins) < len(texts):
                number = first + len(begins)
                raise DataError(f"{mismatch} {number:,} of the text has no prefix")
            yield self._encode(texts, begins, first), started
            first += len(texts)
        if rest is not None and next(rest, None) is not None:
            raise DataError(f"{mismatch} {first:,} of the prefixes has no text")

    def _translate_window(self, lines: list[Line], start: float) -> list[Translation]:
        before = self.tally.before + self.tally.lines
        owners = [line for line in lines for _ in line.segments]
        left = [len(line.segments) for line in lines]
        # Lines are finished while the engine works on others.
        segments = [one for line in lines for one in line.segments]
        for done, share in self._search(segments):
            if self.reranker is not None:
                self.reranker.rerank([segments[place] for place in done])
            for place in done:
                line = owners[place]
                left[line.number - before - 1] -= 1
                if not left[line.number - before - 1]:
                    line.translation = self._translation(line)
            self.on_progress(before + int(share * len(lines)))
        if self.escapes_loops:
            self._escape_loops(lines)
        if self.forced_decoder is not None:
            self._align(self.forced_decoder, lines)
        translations = [self._written(line) for line in lines]
        self._count(lines, translations)
        self.tally.seconds += time.perf_counter() - start
        return translations

    def _encode(self, texts: list[str], prefixes: list[str], first: int) -> list[Line]:
        """Encode the lines from number `first`; split those that are too long, and sentences.

        A prefix goes to the first segment; its line stays as it is written.
        """
        written: list[Written | None] = [None] * len(texts)
        if (writing := self.writing) is not None:
            keep_words = self.forced_decoder is not None
            usual = [
                (text, None) if prefix else writing.usual(text, keep_words)
                for text, prefix in zip(texts, prefixes, strict=True)
            ]
            texts, written = [text for text, _ in usual], [how for _, how in usual]
        begins = encode_prefixes(prefixes, first, self.engine.max_length, self.tokenizer)
        threads = self.n_parallel if len(texts) >= LINES_PER_THREAD else 1
        sources = self.tokenizer.src.encode(texts, threads)
        first_ids, longest = self.first_ids, self.max_source - len(self.first_ids)
        lines = []
        for number, (text, source, prefix, how) in enumerate(
            zip(texts, sources, begins, written, strict=True), first
        ):
            if not has_visible(text):  # its tokens are bytes, of which a model makes anything
                source = []
            parts = [SourcePart(source, False)] if source else []
            n_sentences = len(self.cut(text)) if self.cut and source else 1
            if len(source) > longest or n_sentences > 1:
                parts = split_source(text, self.tokenizer, longest, self.cut, self.tags)
            segments = [
                Segment(first_ids + part.ids, [] if i else prefix, is_joined=part.is_joined)
                for i, part in enumerate(parts)
            ]
            lines.append(Line(number, text, segments, n_sentences, how))
        return lines

    def _search(
        self, segments: list[Segment], loop_free: bool = False
    ) -> Iterator[tuple[list[int], float]]:
        """Find the hypotheses of each segment and their texts.

        The longest segments come first, in batches of similar length. Yields the segments of each
        finished batch, as indices, and the share of the source tokens that is done.
        """
        if not segments:
            return
        lengths = np.array([len(segment.source) for segment in segments], np.int64)
        order = np.argsort(-lengths, kind="stable")
        most_rows = max(1, MOST_ROWS // self.engine.hypotheses_per_source)
        least = max(LEAST_SIZE, -(-self.batch_tokens // most_rows))
        sizes = np.maximum(lengths[order] + 1, least)
        batches = [
            rows.tolist()
            for rows in np.split(order, batch_cuts(sizes, self.batch_tokens, self.n_parallel))
        ]
        jobs: list[Job] = [
            ([segments[i].source for i in batch], [segments[i].prefix for i in batch])
            for batch in batches
        ]
        done, total = 0, int(lengths.sum())
        for number, (found, texts) in self._answers(jobs, loop_free):
            truncated = found.lengths >= self.engine.limits(*jobs[number]).repeat(found.counts)
            arrays = (found.scores, found.log_probs, found.lengths, truncated)
            columns = [array.tolist() for array in arrays]
            ids = itertools.repeat([]) if self.forced_decoder is None else found.ids()
            outputs = map(SegmentOutput._make, zip(texts, *columns, ids, strict=False))
            for place, count in zip(batches[number], found.counts.tolist(), strict=True):
                segments[place].outputs = list(itertools.islice(outputs, count))
            firsts = found.counts.cumsum() - found.counts
            self.tally.tokens += int((found.lengths[firsts] + 1).sum())
            self.tally.halved += found.n_halved
            done += int(lengths[batches[number]].sum())
            yield batches[number], done / total

    def _answers(self, jobs: list[Job], loop_free: bool) -> Iterator[tuple[int, Answer]]:
        """Yield (index of the job, what was found), from the pool or by the engine."""
        if self.pool is not None:
            yield from self.pool.imap_unordered([(*job, loop_free) for job in jobs])
            return
        engine = self.engine.without_loops() if loop_free else self.engine
        for number, found in engine.search_batches(jobs):
            yield number, (found, self.tokenizer.tgt.decode(found.ids()))

    def _escape_loops(self, lines: list[Line]) -> None:
        """Search again where an output repeats itself up to its limit.

        What is found stays if it does not repeat itself. Log-probabilities do not decide: without
        `with_scores` an engine may not know them, and the texts must be the same.
        """
        looping = [
            (line, segment)
            for line in lines
            for segment in line.segments
            if segment.outputs[0].truncated
            and loops(segment.outputs[0].text.split(), line.text.split())
        ]
        others = [Segment(segment.source, segment.prefix) for _, segment in looping]
        for _ in self._search(others, loop_free=True):
            pass
        for (line, segment), other in zip(looping, others, strict=True):
            if not loops(other.outputs[0].text.split(), line.text.split()):
                segment.outputs = other.outputs
                line.translation = self._translation(line)
                self.tally.escaped += 1
        self.tally.looped += len(looping)

    def _translation(self, line: Line) -> Translation:
        """Join the n-th best outputs of the segments to the n-th best output of the line."""
        rows = [segment.outputs for segment in line.segments]
        texts, scores, *_ = zip(*rows[0], strict=True)
        if len(rows) > 1:
            texts, scores = zip(*map(self._joined, zip(*rows, strict=False)), strict=True)
        if self.utility is not None:
            line.rank = mbr.choose(texts, self.utility)
            texts, scores = texts[line.rank :][:1], scores[line.rank :][:1]
        best = [outputs[line.rank] for outputs in rows]
        suspect = flags(
            line.text,
            texts[0],
            sum([len(segment.source) for segment in line.segments]),
            sum([part.length for part in best]),
            truncated=True in [part.truncated for part in best],
            max_ratio=self.max_ratio,
        )
        return Translation(texts, scores, len(best), flags=suspect)

    def _joined(self, parts: Sequence[SegmentOutput]) -> tuple[str, float]:
        """Return the text of all segments, and their log-probability / length^penalty.

        Reranked, the mean of their scores.
        """
        text = join_sentences([part.text for part in parts])
        if self.reranker is not None:
            return text, sum(part.score for part in parts) / len(parts)
        length = sum(part.length + 1 for part in parts)
        score = sum(part.log_prob for part in parts) / length**self.engine.decode.length_penalty
        return text, score

    def _written(self, line: Line) -> Translation:
        """Return the translation of a line, written as the line was."""
        translation = line.translation or self._untranslated(line)
        if line.written is None or self.writing is None:
            return translation
        texts = [self.writing.written(text, line.written) for text in translation.texts]
        links = translation.alignments
        if links and line.written.has_stop:
            from mt.search.alignment import links_within

            source = line.text.removesuffix(self.writing.src.final_stop)
            links = tuple(map(links_within, links, itertools.repeat(source), texts))
        return translation._replace(texts=tuple(texts), alignments=links)

    def _untranslated(self, line: Line) -> Translation:
        """Return the empty translation of a line without segments."""
        # Of some texts nothing is left for the model, such as of invisible characters.
        suspect = () if is_blank(line.text) else ("empty",)
        return Translation(("",), (0.0,), 0, ("",) * (self.forced_decoder is not None), suspect)

    def _align(self, forced_decoder: ForcedDecoder, lines: list[Line]) -> None:
        """Give every output its word alignment, from one more pass of the model."""
        from mt.search.alignment import begin_no_word, joined_word_links

        n_first = len(self.first_ids)  # tokens that are no part of a line
        translated = [(line, line.translation) for line in lines if line.translation is not None]
        pairs = [
            (segment.source, segment.outputs[rank].tokens)
            for line, translation in translated
            for rank in range(line.rank, line.rank + len(translation.texts))
            for segment in line.segments
        ]
        scored = zip(pairs, forced_decoder.score(pairs, log_probs=False), strict=True)
        for line, translation in translated:
            alignments = []
            for text in translation.texts:
                parts = [
                    (
                        forced.attention[:, n_first:],
                        self.tokenizer.src.pieces_of(source[n_first:]),
                        self.tokenizer.tgt.pieces_of(tokens),
                    )
                    for (source, tokens), forced in itertools.islice(scored, len(line.segments))
                    if forced.attention is not None
                ]
                for segment, (_, pieces, _) in zip(line.segments[1:], parts[1:], strict=False):
                    if self.tags.intersection(pieces[:2]):
                        pieces[0] = ""  # a tag that is repeated is no new word
                    if segment.is_joined:
                        begin_no_word(pieces, self.tags)
                alignments.append(joined_word_links(parts, line.text, text))
            line.translation = translation._replace(alignments=tuple(alignments))

    def _count(self, lines: list[Line], translations: list[Translation]) -> None:
        tally = self.tally
        for line, translation in zip(lines, translations, strict=True):
            tally.blank += not line.segments and is_blank(line.text)
            tally.several += line.sentences > 1
            tally.rewritten += line.written is not None
            if self.unknown_cases and not any(segment.prefix for segment in line.segments):
                tally.unknown += case_of(line.text) in self.unknown_cases
            if translation.segments > line.sentences:
                tally.split.add(line.number)
            for flag in translation.flags:
                tally.flagged.setdefault(flag, LineNumbers()).add(line.number)
        tally.lines += len(lines)


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
    small = [quarters + end for end in batch_ends(sizes[quarters:], budget // 4)]
    return [*whole, *small][:-1]


def _forced_decoder(engine: Engine, heads: str) -> ForcedDecoder:
    from mt.search.engine import TorchEngine
    from mt.search.inference import Inference
    from mt.search.scoring import ForcedDecoder

    if not isinstance(engine, TorchEngine) or not isinstance(engine.model, Inference):
        raise ConfigError(
            "--alignments: need the attention of a single model; "
            "leave them out, or give only one --model"
        )
    return ForcedDecoder(engine.model, heads)
