"""Show how far a translation has come: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

# Seconds between lines without a terminal.
SECONDS_BETWEEN_LINES = 60.0


class Progress:
    """The progress of one translation, as a context manager."""

    def __init__(
        self, total: int | None, before: int, say: Callable[[str], None], on_terminal: bool
    ) -> None:
        """Start with `before` lines done of `total`; None: not known, as of a stream."""
        self._total = total
        self._before = before
        self._say = say
        self._started = time.monotonic()
        self._said_at = self._started
        self.bar: tqdm[Any] | None = None
        if on_terminal:
            self.bar = tqdm(
                total=total, initial=before, unit=" lines", dynamic_ncols=True, leave=False, delay=1
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def update(self, done: int) -> None:
        """Show that `done` lines of the input are translated, those before the start included."""
        if self.bar is not None:
            self.bar.update(done - self.bar.n)
            return
        now = time.monotonic()
        if now - self._said_at < SECONDS_BETWEEN_LINES:
            return
        self._said_at = now
        of_all = "" if self._total is None else f" of {self._total:,}"
        speed = (done - self._before) / (now - self._started)
        self._say(f"{done:,}{of_all} lines translated, {speed:,.1f} lines/s")
