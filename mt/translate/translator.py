"""Translate lines, a window at a time: steps, search, and steps again; which steps there are.

The line contract: exactly one output line for each input line, in order, whatever the input.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from mt.data.reading.languages import base_code
from mt.data.reading.words import split_sentences
from mt.translate.as_trained import AsTrained
from mt.translate.lines import Line, LineNumbers, MergeEqual, Step, Tally, Translation
from mt.translate.loaded_engine import LoadedEngine
from mt.translate.quality_flags import FLAGS, EscapeLoops, FlagOutputs, is_blank
from mt.translate.segments import Prefixes, Segments
from mt.translate.streaming import read_ahead, windows

# Lines of the first window of a file, and of what may have no end, where the first result counts.
FIRST_WINDOW, FIRST_OF_STREAM = 2_000, 200
# Later windows take about this long, so that an interruption costs little.
WINDOW_SECONDS = 15.0
# New objects after which Python looks for cyclic garbage. A window of lines is some 500,000, none
# of them garbage; looking through them again and again took 0.6 s of 20,000 lines.
GARBAGE_THRESHOLD = 100_000


class Translator:
    """An engine, and the steps around its search; a context manager, as the engine is."""

    def __init__(
        self, loaded: LoadedEngine, steps: Sequence[Step], settings: Mapping[str, str],
        on_progress: Callable[[int], None] = lambda _: None, number_of: Callable[[int], int] = int,
    ) -> None:  # fmt: skip
        self.loaded = loaded
        self.steps = steps
        self.settings = {**loaded.settings, **settings}  # all that an output depends on
        for step in steps:
            self.settings |= step.settings
        self.on_progress = on_progress  # called with the number of lines done
        self.number_of = number_of  # how messages number the lines that are read
        self.tally = Tally()

    def __enter__(self) -> Translator:
        return self

    def __exit__(self, *_: object) -> None:
        self.loaded.__exit__()

    def translate(self, lines: Iterable[str]) -> Iterator[Translation]:
        """Yield a `Translation` for each line, in order. Lines are read a window at a time."""
        cut = windows(iter(lines), lambda: self._window_size(FIRST_OF_STREAM))
        yield from itertools.chain.from_iterable(self.translate_windows(cut))

    def translate_windows(
        self, windows: Iterable[list[str]], n_before: int = 0
    ) -> Iterator[list[Translation]]:
        """Translate windows of lines; `n_before`: those finished by an earlier start of the job."""
        prepared = self._prepared(windows, n_before + self.tally.lines)
        if self.loaded.reads_ahead:
            prepared = read_ahead(prepared)
        wanted = time.perf_counter()
        for lines, started in prepared:
            with self.loaded.lock:
                self._translate_window(lines, n_before + self.tally.lines)
            # The time that the caller takes does not count, nor does waiting for lines.
            self.tally.seconds += time.perf_counter() - max(wanted, started)
            yield [line.translation for line in lines]
            wanted = time.perf_counter()

    def translate_stream(
        self, lines: Iterator[str], text_of: Callable[[str, int], str], wait: float | None = None,
        n_before: int = 0,
    ) -> Iterator[tuple[list[str], list[Translation]]]:  # fmt: skip
        """Yield windows of lines, each with its translations; their size follows the speed.

        `text_of`: what to translate of a line, given that and its number.
        """
        gc.set_threshold(GARBAGE_THRESHOLD)
        read: deque[list[str]] = deque()  # windows that are not translated yet
        n_first = FIRST_WINDOW if wait is None else FIRST_OF_STREAM

        def texts() -> Iterator[list[str]]:
            first = n_before + 1
            for window in windows(lines, lambda: self._window_size(n_first), wait):
                read.append(window)
                yield [text_of(line, number) for number, line in enumerate(window, first)]
                first += len(window)

        for translations in self.translate_windows(texts(), n_before):
            yield read.popleft(), translations

    def _window_size(self, first: int) -> int:
        """Return how many lines to translate next, by the speed so far."""
        if not self.tally.lines:
            return first
        most = 1 + WINDOW_SECONDS * self.tally.lines / self.tally.seconds
        return int(min(self.loaded.engine.window, most))

    def _prepared(
        self, windows: Iterable[list[str]], n_before: int
    ) -> Iterator[tuple[list[Line], float]]:
        """Take windows through the steps before the search, and note the time when that began."""
        for texts in windows:
            started = time.perf_counter()
            numbers = map(self.number_of, itertools.count(n_before + 1))
            lines = [Line(number, text) for text, number in zip(texts, numbers, strict=False)]
            n_before += len(lines)
            for step in self.steps:
                step.before(lines)
            yield lines, started

    def _translate_window(self, lines: list[Line], n_before: int) -> None:
        for share in self.loaded.search(lines, self.tally):
            self.on_progress(n_before + int(share * len(lines)))
        for step in reversed(self.steps):
            step.after(lines)
        for line in lines:
            self.tally.blank += not line.segments and is_blank(line.text)
            for flag in line.translation.flags:
                self.tally.flagged.setdefault(flag, LineNumbers()).add(line.number)
        self.tally.lines += len(lines)

    def summary(
        self, noun: str = "line", notes: Sequence[str] = (), counts_blank: bool = True
    ) -> str:
        """Return a line such as `1,000 lines (2 blank) in 1.6 s: 625 lines/s, 8,200 tokens/s`.

        `notes` stand in the brackets. A line follows for each quality flag, and for the engine.
        """
        tally = self.tally
        said = [f"{tally.blank:,} blank"] if tally.blank and counts_blank else []
        said += [*notes, *(note for step in self.steps for note in step.notes())]
        if tally.halved:
            batches = f"{tally.halved:,} batch{'es' * (tally.halved != 1)} too large for the memory"
            said.append(f"{batches}, translated in halves: a lower --batch-tokens is faster")
        note = f" ({'; '.join(said)})" if said else ""
        seconds = max(tally.seconds, 1e-9)
        speed = f"{tally.lines / seconds:,.0f} {noun}s/s, {tally.tokens / seconds:,.0f} tokens/s"
        plural = "s" * (tally.lines != 1)
        rows = [f"{tally.lines:,} {noun}{plural}{note} in {tally.seconds:.1f} s: {speed}"]
        rows += [
            f"{flag}: {lines.count:,} ({meaning}): {lines}"
            for flag, meaning in FLAGS.items()
            if (lines := tally.flagged.get(flag))
        ]
        rows += [f"engine: {self.loaded.name}"] if self.loaded.name else []
        return "\n".join(rows)


def make_translator(
    loaded: LoadedEngine, to: str | None = None, from_: str | None = None, *,
    protection: Step | None = None, prefixes: Iterable[str] | None = None,
    on_progress: Callable[[int], None] = lambda _: None, number_of: Callable[[int], int] = int,
) -> Translator:  # fmt: skip
    """A translator `from_` → `to` (None: as the config tells); ConfigError for what cannot be."""
    engine, tokenizer, data = loaded.engine, loaded.tokenizer, loaded.data
    search = engine.options
    first_ids = tokenizer.before_source(to, data)
    direction = data.direction(from_, to)
    source = from_ or (direction.src if direction else data.usual.src)
    # A vocabulary that was taken from another model may be that of other languages.
    styles = loaded.styles
    writing = styles.between(*direction) if styles and direction else None
    openers = frozenset(writing.src.openers if writing else ())
    sentences = partial(split_sentences, language=base_code(source), openers=openers)
    cut = sentences if loaded.cuts_sentences else None
    # The first step is the first to see a line and the last to see its translation.
    steps: list[Step] = []
    if search.n_best > 1 and search.sample is None:  # samples repeat what is probable
        steps.append(MergeEqual())
    if protection is not None:  # outermost: the user's own texts go in and come out unchanged
        steps.append(protection)
    if prefixes is not None:  # before AsTrained, which rewrites no line with a prefix
        steps.append(Prefixes(prefixes, tokenizer, engine.max_length))
    if not search.as_written:
        unknown_cases = styles.unknown_cases if styles and not direction else set()
        steps.append(AsTrained(writing, unknown_cases))
    if search.alignments:  # of texts as the model saw and wrote them
        from mt.translate.alignments import Alignments

        steps.append(Alignments(engine, tokenizer, data.tags, len(first_ids)))
    steps.append(FlagOutputs(data.limits.max_length_ratio))
    lengths = loaded.max_tokens - len(first_ids), engine.decode.length_penalty
    steps.append(Segments(tokenizer, *lengths, first_ids, cut, data.tags, loaded.n_parallel))
    if search.n_best == 1 and search.sample is None:  # several and drawn ones show what there is
        steps.append(EscapeLoops(loaded))
    settings = {"--from": source} if source != data.usual.src else {}
    return Translator(loaded, steps, settings, on_progress, number_of)
