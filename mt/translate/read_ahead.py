"""Make the next item of an iterator in a thread, while this thread works on the one before."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def read_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the items; each is made while the caller uses the one before.

    What making an item raises is raised in its turn, after all items before it. No item may take
    for ever, such as a line from a terminal: Python waits at exit for the one being made.
    """
    made: queue.Queue[tuple[list[T], BaseException | None]] = queue.Queue()

    def make() -> None:
        try:
            made.put(([next(items)], None))
        except StopIteration:
            made.put(([], None))
        except BaseException as error:  # raised again by the thread that waits for the item
            made.put(([], error))

    # A thread makes one item and ends, so none is left waiting if the caller stops early. None is a
    # daemon: SentencePiece aborts the process if a thread is inside it when Python ends.
    threading.Thread(target=make).start()
    while True:
        item, error = made.get()
        if error is not None:
            raise error
        if not item:
            return
        threading.Thread(target=make).start()
        yield item[0]
