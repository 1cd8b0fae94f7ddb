"""Translate lines: encode, split long ones, sort, batch, search, and restore the order.

The line contract: exactly one output line for each input line, in order, whatever the input. A line
of white space gives an empty line and never enters the model. A source too long for the model is
translated in segments.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mt.data.tokens.lengths import batch_ends
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import ConfigError, DataError
from mt.files import sha256_of
from mt.search.engine_contract import LEAST_SIZE, Engine, Hypothesis, Job, search_in_worker
from mt.search.options import SearchOptions, encode_prefixes
from mt.translate import mbr
from mt.translate.choose_engine import EngineRequest, load_engine
from mt.translate.converted import Convert
from mt.translate.lines import Line, Output, Segment, Translation, Window
from mt.translate.quality_flags import flags, is_blank
from mt.translate.read_ahead import read_ahead
from mt.translate.segments import split_source
from mt.translate.tally import LineNumbers, Tally

if TYPE_CHECKING:
    from mt.search.scoring import ForcedDecoder
    from mt.translate.workers import Pool

# SentencePiece encodes fewer lines as fast with one thread.
LINES_PER_THREAD = 1_000
# A wider beam is more likely a mistake than a wish.
LARGE_BEAM = 1_000
# More processes for each core are a mistake: each has its own batches in memory.
WORKERS_PER_CORE = 16


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
        batch_tokens: int | None = None,
        alignment: str | None = None,
        mbr_utility: str | None = None,
        max_ratio: float = 3.0,
        workers: int = 1,
        searches: Sequence[Callable[..., Any]] = (),
        reads_ahead: bool = False,
        settings: Mapping[str, str] | None = None,
        note: str = "",
    ) -> None:
        """Prepare to translate; start the workers if there are to be several.

        `max_source`: tokens of the longest source to translate whole, eos not counted. `alignment`:
        the heads whose mean gives word alignments, as for `parse_heads`. `mbr_utility`: the
        utility that chooses one of the n-best outputs, of `mbr.UTILITIES`. `max_ratio`: of lengths,
        beyond which an output is flagged. `searches`: in the place of `workers` and of the
        engine's search, the functions of worker processes that each load a model. `reads_ahead`:
        encode the next window while one is translated; it must not wait for ever for lines.
        `settings`: everything that an output depends on, by the name of its option. `note`: what
        the closing summary says of the engine.

        Raises ConfigError for settings that do not go together.
        """
        if mbr_utility is not None and engine.n_best == 1:
            raise ConfigError(
                "--mbr: chooses among several outputs of a line; "
                "give --n-best 16, say, with --sample"
            )
        self.engine = engine
        self.tokenizer = tokenizer
        self.max_source = min(max_source, engine.max_source)
        self.max_ratio = max_ratio
        self.settings = dict(settings or {})
        # Each of two workers gets half: 0.63 GB in all instead of 0.81 with a small model, and as
        # fast within 5 %.
        budget = batch_tokens or engine.batch_tokens // min(2, workers)
        self.batch_tokens = max(1, budget // engine.hypotheses_per_source)
        self.utility = None if mbr_utility is None else mbr.metric(mbr_utility)
        self.forced_decoder = None if alignment is None else _forced_decoder(engine, alignment)
        self.tally = Tally(engine=note)
        # Called after each batch with the number of lines done, those before a resume included.
        self.on_progress: Callable[[int], None] = lambda _: None
        # On a CPU, encoding takes 1 % of the time (Zen 4), and all cores are busy anyway.
        self.reads_ahead = reads_ahead
        self.pool = _pool(engine, workers, searches)

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
        lines = iter(lines)
        windows = iter(lambda: list(itertools.islice(lines, self.engine.window)), [])
        for translations in self.translate_windows(windows, prefixes):
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
            # The time that the caller takes does not count, nor does waiting for lines.
            yield self._translate_window(window, max(wanted, window.started))

    def _encoded(
        self, windows: Iterable[list[str]], prefixes: Iterable[str] | None
    ) -> Iterator[Window]:
        """Encode windows of lines, each line with its prefix. Uses nothing that searches change."""
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
            yield Window(self._encode(texts, begins, first), started)
            first += len(texts)
        if rest is not None and next(rest, None) is not None:
            raise DataError(f"{mismatch} {first:,} of the prefixes has no text")

    def _translate_window(self, window: Window, start: float) -> list[Translation]:
        lines = window.lines
        before = self.tally.before + self.tally.lines
        owners = [line for line in lines for _ in line.segments]
        left = [len(line.segments) for line in lines]
        # Lines are finished while the engine works on others.
        for done, share in self._search([one for line in lines for one in line.segments]):
            for place in done:
                line = owners[place]
                left[line.number - before - 1] -= 1
                if not left[line.number - before - 1]:
                    self._finish(line)
            self.on_progress(before + int(share * len(lines)))
        if self.forced_decoder is not None:
            self._align(self.forced_decoder, lines)
        translations = [line.translation or self._translation(line) for line in lines]
        self._count(lines, translations)
        self.tally.seconds += time.perf_counter() - start
        return translations

    def _finish(self, line: Line) -> None:
        """Join the outputs of a line whose segments are translated."""
        line.outputs = self._outputs(line)
        if self.forced_decoder is None:
            line.translation = self._translation(line)

    def _encode(self, texts: list[str], prefixes: list[str], first: int) -> list[Line]:
        """Encode the lines from number `first`; split those that are too long.

        A prefix goes to the first segment.
        """
        begins = encode_prefixes(prefixes, first, self.engine.max_target, self.tokenizer)
        threads = self.engine.threads if len(texts) >= LINES_PER_THREAD else 1
        sources = self.tokenizer.encode_src(texts, threads)
        lines = []
        for number, (text, source, prefix) in enumerate(
            zip(texts, sources, begins, strict=True), first
        ):
            parts = [source] if source else []
            if len(source) > self.max_source:
                parts = split_source(text, self.tokenizer, self.max_source)
            segments = [Segment(part) for part in parts]
            if segments:
                segments[0].prefix = prefix
            lines.append(Line(number, text, segments))
        return lines

    def _search(self, segments: list[Segment]) -> Iterator[tuple[list[int], float]]:
        """Find the hypotheses of each segment and their texts.

        The longest segments come first, in batches of similar length. Yields the segments of each
        finished batch, as indices, and the share of the source tokens that is done.
        """
        if not segments:
            return
        lengths = np.array([len(segment.source) for segment in segments], np.int64)
        order = np.argsort(-lengths, kind="stable")
        sizes = np.maximum(lengths[order] + 1, LEAST_SIZE)
        workers = self.engine.threads if self.pool is None else len(self.pool.workers)
        batches = [
            rows.tolist() for rows in np.split(order, batch_cuts(sizes, self.batch_tokens, workers))
        ]
        jobs: list[Job] = [
            ([segments[i].source for i in batch], [segments[i].prefix for i in batch])
            for batch in batches
        ]
        done = 0
        for number, answer in self._answers(jobs):
            # A whole batch: a call of the tokenizer costs more than decoding ten rows.
            rows = [list(hypothesis.tokens) for row in answer for hypothesis in row]
            texts = iter(self.tokenizer.decode_tgt(rows))
            for place, hypotheses in zip(batches[number], answer, strict=True):
                segment = segments[place]
                segment.hypotheses = hypotheses
                segment.texts = list(itertools.islice(texts, len(hypotheses)))
                self.tally.tokens += len(hypotheses[0].tokens) + 1
                done += len(segment.source)
            yield batches[number], done / int(lengths.sum())

    def _answers(self, jobs: list[Job]) -> Iterator[tuple[int, list[list[Hypothesis]]]]:
        """Yield (index of the job, its hypotheses), and count the batches searched in halves."""
        if self.pool is None:
            before = self.engine.n_halved
            yield from self.engine.search_batches(jobs)
            self.tally.halved += self.engine.n_halved - before
            return
        for number, (answer, n_halved) in self.pool.imap_unordered(jobs):
            self.tally.halved += n_halved
            yield number, answer

    def _outputs(self, line: Line) -> list[Output]:
        """Join the n-th best hypotheses of the segments to the n-th best output of the line."""
        segments = line.segments
        if not segments:
            return []
        outputs = [
            Output(
                " ".join(filter(None, (segment.texts[rank] for segment in segments))),
                [segment.hypotheses[rank] for segment in segments],
            )
            for rank in range(min(len(segment.hypotheses) for segment in segments))
        ]
        if self.utility is not None:
            chosen = mbr.choose([output.text for output in outputs], self.utility)
            outputs = [outputs[chosen.place]]
        return outputs

    def _align(self, forced_decoder: ForcedDecoder, lines: list[Line]) -> None:
        """Give every output its word alignment, from one more pass of the model."""
        from mt.search.alignment import joined_word_links

        outputs = [(output, line.segments) for line in lines for output in line.outputs]
        pairs = [
            (segment.source, list(hypothesis.tokens))
            for output, segments in outputs
            for segment, hypothesis in zip(segments, output.hypotheses, strict=True)
        ]
        scores = iter(forced_decoder.score(pairs, log_probs=False))
        for output, segments in outputs:
            parts = [
                (
                    forced.attention,
                    self.tokenizer.src_pieces_of(segment.source),
                    self.tokenizer.tgt_pieces_of(list(hypothesis.tokens)),
                )
                for segment, hypothesis, forced in zip(
                    segments,
                    output.hypotheses,
                    itertools.islice(scores, len(segments)),
                    strict=True,
                )
                if forced.attention is not None
            ]
            output.alignment = joined_word_links(parts)

    def _translation(self, line: Line) -> Translation:
        aligned = self.forced_decoder is not None
        if not line.outputs:
            # Of some texts nothing is left for the model, such as of invisible characters.
            suspect = () if is_blank(line.text) else ("empty",)
            return Translation(("",), (0.0,), 0, ("",) if aligned else (), suspect)
        return Translation(
            texts=tuple(output.text for output in line.outputs),
            scores=tuple(output.score for output in line.outputs),
            segments=len(line.segments),
            alignments=tuple(output.alignment or "" for output in line.outputs if aligned),
            flags=self._flags(line),
        )

    def _flags(self, line: Line) -> tuple[str, ...]:
        """Return the quality flags of the best output."""
        best = line.outputs[0]
        truncated = any(
            len(hypothesis.tokens) >= self.engine.limit(segment.source, segment.prefix)
            for segment, hypothesis in zip(line.segments, best.hypotheses, strict=True)
        )
        return flags(
            line.text,
            best.text,
            sum(len(segment.source) for segment in line.segments),
            sum(len(hypothesis.tokens) for hypothesis in best.hypotheses),
            truncated=truncated,
            max_ratio=self.max_ratio,
        )

    def _count(self, lines: list[Line], translations: list[Translation]) -> None:
        tally = self.tally
        for line, translation in zip(lines, translations, strict=True):
            tally.blank += is_blank(line.text)
            if translation.segments > 1:
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


def _pool(engine: Engine, workers: int, searches: Sequence[Callable[..., Any]]) -> Pool | None:
    if workers == 1 and not searches:
        return None
    from mt.translate.workers import Pool

    # A process that has used a GPU cannot be forked.
    if searches:
        return Pool(searches, forks=False)
    return Pool([partial(search_in_worker, engine)] * workers)


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


def load_translator(
    models: Sequence[Path],
    decode: Mapping[str, Any],
    *,
    batch_tokens: int | None = None,
    precision: str = "auto",
    device: str = "auto",
    n_best: int = 1,
    options: SearchOptions | None = None,
    ensemble: str | None = None,
    workers: int | None = None,
    large: bool = False,
    engine: str = "torch",
    prefixes: bool = False,
    shortlist: Path | None = None,
    with_scores: bool = True,
    convert: Convert | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Translator:
    """Load the models at these paths, ready to translate; several make an ensemble.

    Values of `decode` that are not None replace the first model's own settings. `workers`:
    processes or threads on a CPU, None for one per core; or GPUs, None for one, or for all of
    them if the text is `large`. `engine`: auto, torch or ctranslate2; for
    the last, `convert` converts a model that has not been converted before, `prefixes` says that
    there will be some, `shortlist` is a vocabulary map, and `with_scores` False leaves scores
    out where that is faster. `say` receives notes about what was chosen and what differs from what
    was asked for.

    Raises MtError for what the user must correct.
    """
    most = WORKERS_PER_CORE * (os.cpu_count() or 1)
    if (workers or 1) > most:
        raise ConfigError(
            f"--workers: must be at most {most} on this machine, {WORKERS_PER_CORE} for each core, "
            f"found {workers:,}; one for each core is fastest"
        )
    if ensemble is not None and len(models) == 1:
        raise ConfigError(
            "--ensemble: takes several models, found one; give --model again, or leave it out"
        )
    options = options or SearchOptions()
    request = EngineRequest(
        models=models,
        decode=decode,
        name=engine,
        precision=precision,
        device=device,
        n_best=n_best,
        options=options,
        ensemble=ensemble,
        workers=workers,
        large=large,
        with_scores=with_scores,
        prefixes=prefixes,
        shortlist=shortlist,
        convert=convert,
    )
    loaded = load_engine(request, say)
    beam_size = loaded.engine.decode.beam_size
    if beam_size > LARGE_BEAM:
        say(
            f"--beam-size {beam_size:,}: time and memory grow with the beam, and translations get "
            f"no better above about 10; is there a reason to search more than {LARGE_BEAM:,}?"
        )
    return Translator(
        loaded.engine,
        loaded.tokenizer,
        max_source=loaded.max_source,
        batch_tokens=batch_tokens,
        alignment=options.alignment,
        mbr_utility=options.mbr,
        max_ratio=loaded.config.data.max_length_ratio,
        workers=loaded.workers,
        searches=loaded.searches,
        reads_ahead=large and bool(loaded.searches),  # a large text is a file
        note=loaded.note,
        settings={
            "--beam-size": str(beam_size),
            "--length-penalty": str(loaded.engine.decode.length_penalty),
            "--n-best": str(n_best),
            "search option": repr(options),
            "--model": loaded.weights,
            "--ensemble": ensemble or "probability",
            "--precision": loaded.precision,
            "--engine": loaded.name,
            **({} if shortlist is None else {"--shortlist": sha256_of(shortlist)}),
        },
    )
