"""The log of a run: `train.log`, `metrics.jsonl`, a progress bar, and its figures."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from mt.data.tokens.batches import Prefetcher, Update
from mt.errors import MtError
from mt.runs.records import METRICS, drop_after
from mt.runs.run_dir import LOG, explain_write_errors
from mt.runtime.distributed import World
from mt.terminal import Progress, can_show_bar, printable, prints_messages, say

# Without tqdm's own guess of the time left: the trainer gives one, the same as in the log.
BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
# Without a terminal: items that are read between looks at the clock.
ITEMS_BETWEEN_LOOKS = 1000

T = TypeVar("T")


class RunLog:
    """Everything that a run reports; a context manager. Ranks other than 0 write nothing."""

    def __init__(self, run_dir: Path, total: int, is_main: bool = True) -> None:
        """`total`: updates of the whole run, the length of the bar."""
        self.run_dir = run_dir
        self.total = total
        self.started = time.perf_counter()  # reading the data counts, too
        self._is_main = is_main
        self._bar: tqdm[Any] | None = None
        self._figures: dict[str, str] = {}
        self._file: TextIO | None = None
        self._early: list[str] = []  # lines of before `train.log` is open

    def __enter__(self) -> RunLog:
        if self._is_main:
            with explain_write_errors(self.run_dir):
                path = self.run_dir / LOG
                self._file = path.open("a", encoding="utf-8", errors="backslashreplace")
            with suppress(OSError):
                self._file.writelines(self._early)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._file is None:
            return
        if isinstance(error, MtError):  # the command line prints it; `train.log` needs it as well
            self._write(str(error), to_stderr=False)
        with suppress(OSError):  # the lines that a full disk did not take
            self._file.close()
        self._file = None
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def say(self, text: str) -> None:
        if self._is_main:
            self._write(text)

    def _write(self, text: str, to_stderr: bool = True) -> None:
        """Write lines with the time; a full disk or a closed terminal must not end training."""
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        line = "\n".join(f"{now} {part}" for part in printable(text).split("\n"))
        if self._file is None:
            self._early.append(f"{line}\n")
        else:
            with suppress(OSError):
                self._file.write(f"{line}\n")
                self._file.flush()
        if to_stderr and not prints_messages():
            say(text)
        elif to_stderr:
            with suppress(OSError):
                if self._bar is None:
                    print(line, file=sys.stderr, flush=True)
                else:
                    self._bar.write(line, file=sys.stderr)

    def progress(self, step: int, **figures: str) -> None:
        """Move the bar to `step`, and show `figures`, which stay; without a terminal do nothing."""
        if not (self._is_main and can_show_bar()):
            return
        if self._bar is None:
            self._bar = tqdm(total=self.total, initial=step, dynamic_ncols=True, bar_format=BAR)
        self._figures |= figures
        self._bar.set_postfix(self._figures, refresh=False)
        self._bar.update(step - self._bar.n)

    def watch(self, items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
        """Yield `items`, `total` of them, and show how many were read: a bar, or lines."""
        if not self._is_main:
            yield from items
            return
        with Progress(total, 0, can_show_bar(), "pairs", what, self.say) as progress:
            self._bar = progress.bar
            try:
                for number, item in enumerate(items):
                    if self._bar is not None or number % ITEMS_BETWEEN_LOOKS == 0:
                        progress.update(number)
                    yield item
            finally:
                self._bar = None

    def record(self, kind: str, step: int, **figures: Any) -> None:
        """Append one line to `metrics.jsonl`, null for non-finite numbers."""
        if not self._is_main:
            return
        known = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in figures.items()
        }
        line = json.dumps({"kind": kind, "step": step, **known}, ensure_ascii=False)
        with (self.run_dir / METRICS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def drop_after(self, step: int) -> None:
        if self._is_main:
            drop_after(self.run_dir, step)


def format_duration(seconds: float) -> str:
    """Format 3,725 seconds as `1:02:05`, and more than two days as `3 days`."""
    if seconds > 2 * 86_400:
        return f"{seconds / 86_400:,.0f} days"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


# --- figures between two log lines ------------------------------------------------------------


class Meter:
    """Running sums since the last log line, on the device until `figures` reads them."""

    def __init__(self, prefetcher: Prefetcher, world: World) -> None:
        self._prefetcher = prefetcher
        self._world = world
        self.reset()

    def reset(self) -> None:
        """Start a new interval."""
        self._start = time.perf_counter()
        self._waited_before = self._prefetcher.waited
        self._n_updates = self._n_tgt = self._n_real = self._n_padded = 0
        # smoothed loss, nll, gradient norm, target tokens, updates: those of finite updates only
        self._sums = torch.zeros(5)

    def exclude(self, seconds: float) -> None:
        self._start += seconds

    def add(self, update: Update, smoothed: Tensor, nll: Tensor, norm: Tensor) -> None:
        """Add an update: this rank's part of the loss and nll per target token, gradient norm."""
        self._n_updates += 1
        self._n_tgt += update.n_tgt
        self._n_real += sum(batch.n_src + batch.n_tgt for batch in update.batches)
        self._n_padded += sum(batch.n_padded for batch in update.batches)
        n_tgt, unit = update.n_tgt, torch.ones_like(norm)
        sums = torch.stack([smoothed * n_tgt, nll * n_tgt, norm, unit * n_tgt, unit])
        sums = torch.where(torch.isfinite(norm), sums, 0.0)
        self._sums = self._sums.to(sums.device) + sums

    def figures(self) -> dict[str, Any]:
        """Means over the interval, as in `metrics.jsonl`, over all ranks; waits for them."""
        seconds = time.perf_counter() - self._start
        world_size = self._world.size
        waited = self._prefetcher.waited - self._waited_before
        host = torch.tensor([self._n_real, self._n_padded, waited], dtype=torch.float64)
        totals = self._world.all_reduce_sum(torch.cat([self._sums.cpu().double(), host])).tolist()
        smoothed, nll, norm, n_tgt, n_updates, n_real, n_padded, waited = totals
        if n_updates:
            # Norm, tokens and updates are the same in every rank; the losses are parts of a sum.
            smoothed *= world_size / n_tgt
            nll *= world_size / n_tgt
            norm /= n_updates
            n_updates /= world_size
        else:
            smoothed = nll = norm = math.nan
        return {
            "loss": smoothed, "nll": nll, "perplexity": perplexity(nll), "grad_norm": norm,
            "skipped": self._n_updates - round(n_updates),
            "tokens_per_second": self._n_tgt / seconds, "padding": 1 - n_real / n_padded,
            "waiting": waited / world_size / seconds,
        }  # fmt: skip


def perplexity(nll: float) -> float:
    """exp(nll), cut off where a float would overflow."""
    return math.exp(min(nll, 700.0))
