"""One update: a model, its optimiser, and what they learn from a handful of batches."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mt.errors import ConfigError
from mt.model import checkpoint
from mt.runtime.devices import Device, compiled, seed_everything
from mt.runtime.distributed import World
from mt.runtime.memory import peak_memory_mb, release_freed_memory
from mt.training.finetune import freeze
from mt.training.loss import Loss, batch_loss
from mt.training.optim import build_optimizer, learning_rate, restore_optimizer

if TYPE_CHECKING:
    from mt.config.schema import Config
    from mt.data.batches import Batch
    from mt.data.loader import Update
    from mt.data.tokenizer import Tokenizer
    from mt.model.transformer import Transformer

# On a CPU: 1 % of the time, for a third of the memory.
UPDATES_BETWEEN_RELEASES = 12


class Updater:
    """All that an update changes: weights, their running mean, and the optimiser's moments."""

    def __init__(
        self,
        config: Config,
        tokenizer: Tokenizer,
        device: Device,
        world: World,
        say: Callable[[str], None],
    ) -> None:
        self.config, self.device, self.world = config, device, world
        seed_everything(config.run.seed)
        self.model = checkpoint.build_model(config, tokenizer).to(device.device)
        self.model.compute_dtype = device.dtype
        freeze(self.model, config.train.freeze, say)
        self.ema = copy.deepcopy(self.model).eval() if config.train.ema else None
        self.optimizer = build_optimizer(self.model, config.optim, device.dtype)
        self.scaler = torch.amp.GradScaler(device.device.type, enabled=device.precision == "fp16")
        self.replica = world.wrap(self.model)
        self.forward: Any = compiled(self.replica, config.train.compile, device, say)
        # Updates without a finite gradient, one after the other; on the device, where nothing waits for it.
        self.skipped = torch.zeros((), dtype=torch.int64, device=device.device)

    @property
    def eval_model(self) -> Transformer:
        """The model that is validated and saved as the result: the averaged one where there is one."""
        return self.ema if self.ema is not None else self.model

    def update(self, update: Update, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """One optimiser step, number `step` from 0, on all micro-batches of an update.

        Returns this rank's share of the smoothed loss and of the nll per target token, and the gradient norm before
        clipping, all on the device, so that nothing waits for them.
        """
        config = self.config
        seed_everything(config.run.seed, step, self.world.rank)
        rate = learning_rate(step + 1, config.optim, config.model.d_model, config.train.max_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        smoothed, nll = self.gradients(update)
        self.scaler.unscale_(self.optimizer)
        limit = config.optim.clip_norm or math.inf
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit, foreach=True)
        bad = ~torch.isfinite(norm)
        self.skipped = (self.skipped + 1) * bad
        if not self.scaler.is_enabled():  # the scaler tells the optimiser itself
            self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
        self.scaler.step(
            self.optimizer
        )  # a gradient that is no number is skipped inside the kernel
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if not self.device.is_cuda and step % UPDATES_BETWEEN_RELEASES == 0:
            release_freed_memory()
        self._follow(step)
        return smoothed, nll, norm

    def gradients(self, update: Update) -> tuple[Tensor, Tensor]:
        """Add up the gradients of an update's loss per target token, those of all ranks; `update` without its step.

        Returns what of the smoothed loss and of the nll comes from this rank.
        """
        self.model.train()
        # Gradients become the mean over the ranks, and should be the sum.
        share = self.world.size / update.n_tgt
        smoothed, nll = torch.zeros(2, device=self.device.device)
        for number, batch in enumerate(update.batches, start=1):
            exchange = number == len(update.batches)
            with nullcontext() if exchange else self.world.no_sync(self.replica):
                loss = self._backward(batch, share)
            smoothed, nll = smoothed + loss.smoothed.detach(), nll + loss.nll
        return smoothed / update.n_tgt, nll / update.n_tgt

    def _backward(self, batch: Batch, share: float) -> Loss:
        """The loss of a batch; its gradients, times `share`, are added to those that are there."""
        try:
            batch = batch.to(self.device.device)
            optim = self.config.optim
            loss = batch_loss(
                self.forward, self.model.output, batch, optim.label_smoothing, optim.rdrop
            )
            self.scaler.scale(loss.smoothed * share).backward()
        except torch.OutOfMemoryError as error:
            raise ConfigError(self._too_large(batch)) from error
        return loss

    def _too_large(self, batch: Batch) -> str:
        """What is said of a batch that does not fit into the memory."""
        (rows, src), (_, tgt) = batch.src.shape, batch.tgt_in.shape
        given, same = (
            self.config.batch.tokens_per_batch,
            "(tokens_per_update keeps the training the same)",
        )
        if rows == 1:
            remedy = "Lower data.max_tokens, or choose a smaller model"
        elif given == "auto":
            remedy = f"In the place of auto give a number below {rows * max(src, tgt):,} {same}"
        else:
            remedy = f"Lower it from {given:,} {same}, or set it to auto"
        what = "one sentence" if rows == 1 else f"a batch of {rows:,} sentences"
        return (
            f"batch.tokens_per_batch: {what}, {src:,} source and {tgt:,} target tokens long, does not fit into the "
            f"memory of {self.device}: {peak_memory_mb(self.device.device):,.0f} MB were in use. {remedy}"
        )

    def dry_run_step(self, batch: Batch) -> None:
        """All that an update does with a batch, but for the exchange with other ranks; nothing is learned."""
        self.model.train()
        with self.world.no_sync(self.replica):
            self._backward(batch, 1.0 / max(1, batch.n_tgt))
        self.optimizer.zero_grad(set_to_none=True)

    def is_finite(self) -> bool:
        """Whether all weights are numbers, those of the running mean too; waits for the device."""
        averaged = self.ema.parameters() if self.ema is not None else ()
        return checkpoint.all_finite([*self.model.parameters(), *averaged])

    @torch.no_grad()
    def _follow(self, step: int) -> None:
        """Move the averaged weights: their memory grows from nothing to 1 / (1 - ema) updates."""
        if self.ema is None or self.config.train.ema is None:
            return
        decay = min(self.config.train.ema, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.ema.parameters()), list(self.model.parameters()), 1 - decay)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold besides the weights that are the result."""
        state = {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}
        return (
            state if self.ema is None else {**state, "weights": checkpoint.weights_of(self.model)}
        )

    def restore(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Go back to the checkpoint in `folder`, whose state this is."""
        weights = checkpoint.load_weights(folder)
        checkpoint.put_weights(self.model, state.get("weights", weights), str(folder))
        if self.ema is not None:
            checkpoint.put_weights(self.ema, weights, str(folder))
        restore_optimizer(self.optimizer, state["optimizer"], str(folder))
        if state["scaler"]:  # empty where the precision was not fp16
            self.scaler.load_state_dict(state["scaler"])
        self.skipped.zero_()
