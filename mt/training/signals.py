"""Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP: noted, so that training ends after the update in progress."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class StopRequestedError(Exception):
    """A signal came inside `Signals.breakable`."""


class Signals:
    """A context manager in which signals are noted instead of ending the process.

    Batch systems send SIGTERM before they take a machine away, and SIGUSR1 when they are asked to give notice; SIGHUP
    comes when a terminal is closed, unless the process was told to ignore it.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

    def __init__(self) -> None:
        self.number = 0  # of the last one that came
        self._breakable = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in self.NUMBERS:
            if (
                number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
            ):  # as under nohup
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        """A second Ctrl-C ends the process at once."""
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number
        if self._breakable:
            self._breakable = False
            raise StopRequestedError

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, a signal raises StopRequestedError: for what takes long and can be done again."""
        try:
            self._breakable = True
            if self.number:
                raise StopRequestedError
            yield
        finally:
            self._breakable = False
