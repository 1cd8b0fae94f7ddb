"""How a training ended: in a sentence, and as an exit code."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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
