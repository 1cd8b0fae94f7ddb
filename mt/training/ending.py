"""How a training ends: by a signal after the current update, and with which outcome."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from mt.runs.model_folder import step_name

if TYPE_CHECKING:
    from mt.config.schema import Config
    from mt.training.checkpoints import TrainState
    from mt.training.selection import Criterion


@dataclass(frozen=True)
class Outcome:
    """How a training ended."""

    reason: str
    exit_code: int
    best: Path | None


def stopped_by(number: int, state: TrainState, best: Path | None) -> Outcome:
    done = f"stopped by {signal.Signals(number).name} after update {state.step:,}"
    return Outcome(f"{done}; run the same command again to resume", 128 + number, best)


def finished(
    config: Config,
    state: TrainState,
    criterion: Criterion | None,
    best: Path | None,
    is_out_of_patience: bool,
) -> Outcome:
    """The outcome after the last update, or where patience has run out."""
    max_steps = config.train.max_steps
    if is_out_of_patience:
        none_better = f"no better validation in the last {state.bad_validations}"
        reason = f"{none_better}, at update {state.step:,}"
    elif state.step > max_steps:
        reason = f"{state.step:,} updates were done already, train.max_steps is {max_steps:,}"
    else:
        reason = f"all {max_steps:,} updates are done"
    if (n_stages := len(config.data.stages or [0])) > state.stage + 1:
        reason += f", in data.stages[{state.stage}], {n_stages - state.stage - 1} before the last"
    if best is not None and state.best is not None and criterion is not None:
        score = f"{criterion.describe(state.best[0])} on the validation set"
        reason += f"; best model ({score}): {best}"
        if state.best_name == step_name(0):
            reason += ", which is the model that training started from: nothing was better"
    elif best is not None:
        reason += f"; model: {best}"
    return Outcome(reason, 0, best)


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
