"""Signals that end training after the current update: Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequestedError(Exception):
    """A signal arrived inside `Signals.interruptible`."""


class Signals:
    """A context manager in which signals are recorded instead of ending the process.

    Batch systems send SIGTERM before they stop a job, and SIGUSR1 if asked to give notice. SIGHUP
    is sent when a terminal is closed; it stays ignored where it was, as under nohup.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

    def __init__(self) -> None:
        self.number = 0  # of the last signal, 0 for none
        self._interruptible = False
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        # Python lets only the main thread handle signals. In another one, its program does.
        in_main = threading.current_thread() is threading.main_thread()
        for number in self.NUMBERS if in_main else ():
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._previous_handlers[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _record(self, number: int, _: FrameType | None) -> None:
        """Handle a signal; a second Ctrl-C ends the process at once."""
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number
        if self._interruptible:
            self._interruptible = False
            raise StopRequestedError

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, a signal raises StopRequestedError: for long work that can be done again."""
        try:
            self._interruptible = True
            if self.number:
                raise StopRequestedError
            yield
        finally:
            self._interruptible = False
