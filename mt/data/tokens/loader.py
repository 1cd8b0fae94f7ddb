"""Load the batches of training in a thread of its own, ahead of the updates that use them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from mt.data.tokens.batches import Batch, shard_of
from mt.data.tokens.plan import Plan, Updates

CPU = torch.device("cpu")
# Updates that are loaded ahead of training.
PREFETCH = 4


@dataclass(frozen=True)
class Update:
    """The micro-batches of one update for this rank, and its position in the training data."""

    epoch: int
    number: int  # within the epoch, from 0
    of: int  # updates in the epoch
    batches: list[Batch]
    n_tgt: int  # target tokens of the whole update, over all ranks: its loss is divided by this
    augmented: str = ""  # what `data.augment` has changed in the epoch

    @property
    def last(self) -> bool:
        return self.number == self.of - 1


@dataclass(eq=False)
class Prefetcher:
    """Iterator over updates without end, from a given position on, loaded ahead by a thread.

    A context manager: leaving it stops the thread; outside of it, iterating raises RuntimeError.
    `waited` counts the seconds that training has waited for data.
    """

    plan: Plan
    epoch: int  # the first update: its epoch, and its number in that
    number: int
    rank: int = 0
    world_size: int = 1
    device: torch.device = CPU  # where the batches will be copied to
    waited: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._queue: queue.Queue[Update | BaseException] = queue.Queue(maxsize=PREFETCH)
        self._stop = threading.Event()
        self._next: Update | BaseException | None = None  # taken from the queue by `ready`
        self._thread = threading.Thread(target=self._load, daemon=True)

    def __enter__(self) -> Prefetcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        while self._thread.is_alive():
            # The thread may be waiting for space in the queue.
            if not self._queue.empty():
                self._queue.get_nowait()
            self._thread.join(0.05)

    def ready(self, seconds: float) -> bool:
        """Wait `seconds` for the next update, minutes for an epoch's first; is it loaded?"""
        if self._next is None:
            start = time.perf_counter()
            with suppress(queue.Empty):
                self._next = self._queue.get(timeout=seconds)
            self.waited += time.perf_counter() - start
        return self._next is not None

    def __iter__(self) -> Iterator[Update]:
        while True:
            while self._stop.is_set() or not self.ready(1.0):
                has_more = self._thread.is_alive() or not self._queue.empty()
                if self._stop.is_set() or not has_more:
                    raise RuntimeError("a Prefetcher loads updates only inside its `with` block")
            item, self._next = self._next, None
            if isinstance(item, BaseException):
                raise item
            assert item is not None
            yield item

    def _load(self) -> None:
        """Put updates, or what went wrong, into the queue until `_stop` is set."""
        epoch, number = self.epoch, self.number
        try:
            pin = self.device.type == "cuda"
            if pin:
                torch.cuda.set_device(self.device)  # of this thread
            # While the updates of one epoch are loaded, the next one is planned.
            with ThreadPoolExecutor(1) as planner:
                next_epoch = planner.submit(self._planned, epoch)
                while not self._stop.is_set():
                    plan, updates = next_epoch.result()
                    next_epoch = planner.submit(self._planned, epoch + 1)
                    for position in range(number, len(updates)):
                        batches, n_tgt = shard_of(
                            plan, updates[position], self.rank, self.world_size, pin
                        )
                        place = (epoch, position, len(updates))
                        self._put(Update(*place, batches, n_tgt, plan.pairs.store.augmented))
                        if self._stop.is_set():
                            return
                    epoch += 1
                    number = 0
        except BaseException as error:
            self._put(error)

    def _planned(self, epoch: int) -> tuple[Plan, Updates]:
        plan = self.plan.for_epoch(epoch, self._stop)
        return plan, plan.updates(epoch)

    def _put(self, item: Update | BaseException) -> None:
        """Put an item into the queue, waiting for space unless `_stop` is set."""
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return
