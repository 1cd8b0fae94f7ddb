"""The error of a training that diverged: a diagnosis of its last update."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mt.errors import OtherRankFailedError, TrainingDivergedError
from mt.runtime.devices import seed_everything
from mt.training.loss import batch_loss
from mt.training.optim import learning_rate

if TYPE_CHECKING:
    from mt.data.tokens.loader import Update
    from mt.training.checkpoints import TrainState
    from mt.training.update import Updater


def divergence_error(
    reason: str, state: TrainState, update: Update, updater: Updater, last_good: Path | None
) -> TrainingDivergedError | OtherRankFailedError:
    """The error that ends training after `update`, when returning to checkpoints has not helped.

    It names the learning rate and the first module with a non-finite output. All ranks must call
    this. The main process gets the message, the others an error without one.
    """
    modules = updater.world.all_gather(first_non_finite(updater, update, state.step - 1))
    if not updater.world.is_main:
        return OtherRankFailedError(TrainingDivergedError.exit_code)
    optim = updater.config.optim
    max_steps = updater.config.train.max_steps
    rate = learning_rate(state.step, optim, updater.config.model.d_model, max_steps)
    precision = updater.device.precision
    diagnosis = f"Precision {precision}, learning rate {rate:.1e} (peak_lr {optim.peak_lr})"
    if module := next(filter(None, modules), ""):
        diagnosis += f"; the first non-finite output in that update is that of {module}"
    attempts = f", after {state.rollbacks} times back to a checkpoint" if state.rollbacks else ""
    other_precision = "" if precision == "fp32" else ", set train.precision=fp32"
    intact = f"the last checkpoint is intact: {last_good}"
    kept = intact if last_good else "there is no checkpoint to go back to"
    return TrainingDivergedError(
        f"training gave up at update {state.step:,}: {reason}{attempts}. {diagnosis}. "
        f"Lower optim.peak_lr{other_precision} or raise optim.warmup_steps; {kept}"
    )


def first_non_finite(updater: Updater, update: Update, step: int) -> str:
    """The first module whose output is not finite for this rank's batches, or "the loss".

    Empty if all outputs are finite. `step`, from 0, is that of the update, for its dropout.
    """
    model = updater.model
    names = {module: name for name, module in model.named_modules()}
    non_finite: list[str] = []

    def look(module: torch.nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not output.isfinite().all():
            non_finite.append(names[module])

    hooks = [module.register_forward_hook(look) for module in names]
    seed_everything(updater.config.run.seed, step, updater.world.rank)
    model.train()
    with torch.no_grad():
        for batch in update.batches:
            batch = batch.to(updater.device.device)
            loss = batch_loss(model, model.output, batch, 0.0)
            non_finite += ["the loss"] * (not loss.nll.isfinite())
    for hook in hooks:
        hook.remove()
    return next(iter(non_finite), "")
