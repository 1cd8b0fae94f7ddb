"""Translate lines, a window at a time: steps, search, and steps again.

The line contract: exactly one output line for each input line, in order, whatever the input.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from mt.translate.lines import Line, Step, Translation
from mt.translate.loaded_engine import LoadedEngine
from mt.translate.progress import LineNumbers, Tally
from mt.translate.quality_flags import is_blank
from mt.translate.streaming import read_ahead, windows

# Lines of the first window of a stream.
FIRST_WINDOW = 2_000
# Later windows take about this long, so that an interruption costs little.
WINDOW_SECONDS = 15.0
# New objects after which Python looks for cyclic garbage. A window of lines is some 500,000, none
# of them garbage; looking through them again and again took 0.6 s of 20,000 lines.
GARBAGE_THRESHOLD = 100_000


class Translator:
    """An engine, and the steps around its search; `make_translator` puts them together.

    A context manager, as its engine is.
    """

    def __init__(
        self,
        loaded: LoadedEngine,
        steps: Sequence[Step],
        settings: Mapping[str, str],
        on_progress: Callable[[int], None] = lambda _: None,
        number_of: Callable[[int], int] = int,
    ) -> None:
        """`settings`: what an output depends on beside the engine and the steps.

        `on_progress` is called after each batch with the number of lines done, those before a
        resume included. `number_of` gives the number by which messages call a line, from 1.
        """
        self.loaded = loaded
        self.steps = steps
        self.settings = {**loaded.settings, **settings}
        for step in steps:
            self.settings |= step.settings
        self.on_progress = on_progress
        self.number_of = number_of
        self.tally = Tally()

    def __enter__(self) -> Translator:
        return self

    def __exit__(self, *_: object) -> None:
        self.loaded.__exit__()

    def translate(self, lines: Iterable[str]) -> Iterator[Translation]:
        """Yield a `Translation` for each line, in order. Lines are read a window at a time."""
        for translations in self.translate_windows(
            windows(iter(lines), lambda: self.loaded.engine.window)
        ):
            yield from translations

    def translate_windows(
        self, windows: Iterable[list[str]], n_before: int = 0
    ) -> Iterator[list[Translation]]:
        """Translate windows of lines that the caller has cut.

        `n_before`: lines finished by an earlier start of the job; line numbers continue there.
        """
        prepared = self._prepared(windows, n_before + self.tally.lines)
        if self.loaded.reads_ahead:
            prepared = read_ahead(prepared)
        while True:
            wanted = time.perf_counter()
            window = next(prepared, None)
            if window is None:
                return
            lines, started = window
            with self.loaded.lock:
                self._translate_window(lines, n_before + self.tally.lines)
            # The time that the caller takes does not count, nor does waiting for lines.
            self.tally.seconds += time.perf_counter() - max(wanted, started)
            yield [line.translation for line in lines]

    def translate_stream(
        self,
        lines: Iterator[str],
        text_of: Callable[[str, int], str],
        max_wait: float | None = None,
        n_before: int = 0,
    ) -> Iterator[tuple[list[str], list[Translation]]]:
        """Yield windows of lines, each with its translations; their size follows the speed.

        `text_of`: what to translate of a line, given that and its number. `max_wait`: as for
        `windows`. `n_before`: as for `translate_windows`.
        """
        gc.set_threshold(GARBAGE_THRESHOLD)
        read: deque[list[str]] = deque()  # windows that are not translated yet

        def texts() -> Iterator[list[str]]:
            first = n_before + 1
            for window in windows(lines, self._window_size, max_wait):
                read.append(window)
                yield [text_of(line, number) for number, line in enumerate(window, first)]
                first += len(window)

        for translations in self.translate_windows(texts(), n_before):
            yield read.popleft(), translations

    def _window_size(self) -> int:
        """Return how many lines to translate next, by the speed so far."""
        tally = self.tally
        if not tally.lines:
            return FIRST_WINDOW
        most = 1 + WINDOW_SECONDS * tally.lines / tally.seconds
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
        """Return the closing summary; see `Tally.summary`. `notes`: what the caller has to say."""
        tally = self.tally if counts_blank else replace(self.tally, blank=0)
        notes = [*notes, *(note for step in self.steps for note in step.notes())]
        return tally.summary(noun, notes, self.loaded.name)
