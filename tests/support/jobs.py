"""Functions for worker processes, which import this file."""

from __future__ import annotations

import os
import signal
import time

from mt.errors import DataError


def square(number: int, seconds: float = 0.0) -> tuple[int, int]:
    """Return the square, and the process that took so many seconds for it."""
    time.sleep(seconds)
    return number * number, os.getpid()


class UnpicklableError(Exception):
    """Cannot be made again of its text."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def fail(how: str) -> None:
    """Fail in one of five ways."""
    if how == "refuse":
        raise DataError("line 3 is wrong")
    if how == "break":
        raise ZeroDivisionError("a defect")
    if how == "unpicklable":
        raise UnpicklableError(1, 2)
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)
