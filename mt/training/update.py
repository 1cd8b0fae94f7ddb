"""One optimiser step: gradients summed over micro-batches and ranks, and what they change."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import assert_never

from mt.config.schema import Config, OptimConfig
from mt.data.tokens.batches import Batch, Update
from mt.data.tokens.store import Store
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import CheckpointError, ConfigError, MtError, TooLittleMemoryError, first_line
from mt.model.checkpoint import all_finite, build_model, load_weights, put_weights, weights_of
from mt.model.gpu_ops import can_pack, compile_rows, copy_weights
from mt.model.transformer import Transformer
from mt.runtime import memory
from mt.runtime.devices import Device, can_compile, seed_everything, suit_products_to
from mt.runtime.distributed import World
from mt.terminal import Say, say
from mt.training.compilation import PROBE_TOKENS, compile_for_all_shapes, probe_batch
from mt.training.loss import LogitsGradient, Loss, batch_loss, logits_gradient

# On a CPU: 1 % of the time, for a third of the memory.
UPDATES_BETWEEN_RELEASES = 12

T = TypeVar("T")


class Updater:
    """Everything that an update changes: weights, their moving average, optimiser state."""

    def __init__(
        self, config: Config, tokenizer: Tokenizer, device: Device, world: World, say: Say
    ) -> None:
        self.config = config
        self.max_steps = config.train.max_steps  # `prepare` lowers it to the epochs
        self.device = device
        self.say = say
        # All ranks alike: each takes its part of the same batches.
        self.packed = all(world.all_gather(can_pack(config, device)))
        suit_products_to(config.model.d_model)
        seed_everything(config.run.seed)
        self.model = build_model(config, tokenizer).to(device.device)
        self.model.compute_dtype = device.dtype
        world.share_weights(self.model.parameters())
        self.world = world.with_shared_memory(self.model.parameters())
        self.ema = copy.deepcopy(self.model).eval() if config.train.ema else None
        self.optimizer = build_optimizer(self.model, config.optim)
        self.scaler = torch.amp.GradScaler(device.device.type, enabled=device.precision == "fp16")
        self.forward: Any = self.model  # compiled by `choose_forward`
        self.loss_gradient: LogitsGradient = logits_gradient  # the same
        # Updates in a row whose gradient was not finite, and the most since `most_skipped` was
        # asked; on the device, so that nothing waits.
        self.skipped, self._most_skipped = torch.zeros(2, dtype=torch.int64, device=device.device)

    def choose_forward(self, store: Store) -> None:
        """Compile the model if `train.compile` wants it, the device can, and no rank fails.

        Raises ConfigError if `train.compile` is true and the model cannot be compiled.
        """
        wanted = self.config.train.compile
        if not wanted or (wanted == "auto" and not can_compile(self.device)):
            return
        self.say("compiling the model (train.compile), which takes a minute or two")
        start = time.perf_counter()
        reason = self.world.all_or_raise(lambda: self._compile_error(store))
        if reason := next(filter(None, self.world.all_gather(reason)), ""):
            self.say(self._stop_compiling(reason))
        else:
            self.say(f"the model is compiled: {time.perf_counter() - start:.0f} s")

    def _stop_compiling(self, reason: str) -> str:
        """Go on with the plain model; return why. Raises ConfigError if `train.compile` is true."""
        self.forward = self.model
        self.loss_gradient = logits_gradient
        torch._dynamo.reset()  # frees what has been compiled
        if self.config.train.compile is True:
            message = f"train.compile: true, but the model cannot be compiled ({reason})"
            raise ConfigError(f"{message}; auto trains it uncompiled then")
        return f"the model cannot be compiled, so it runs slower ({reason})"

    def _compiled_or_plain(self, compute: Callable[[], T]) -> T:
        """Return `compute()`; with the plain model if compiling fails for another shape."""
        try:
            return compute()
        except MtError:  # such as too little memory
            raise
        except Exception as error:
            if self.forward is self.model or memory.failure_kind(error) != "compiler":
                raise
            reason = first_line(error)
        # Outside of `except`: the error holds on to the tensors of the failed pass.
        self.optimizer.zero_grad(set_to_none=True)
        text = self._stop_compiling(reason)
        self.say(text) if self.world.is_main else say(f"rank {self.world.rank}: {text}")
        return compute()

    def _compile_error(self, store: Store) -> str:
        """Why the compiled model fails on a batch, empty if it does not."""
        given = self.config.batch.tokens_per_batch
        tokens = min(PROBE_TOKENS, given) if isinstance(given, int) else PROBE_TOKENS
        try:
            self.forward = compile_for_all_shapes(self.model)
            self.loss_gradient = compile_rows(logits_gradient)
            self._dry_run(probe_batch(store, self.model.output.out_features, tokens))
        except MtError:  # such as too little memory
            raise
        except Exception as error:
            self.optimizer.zero_grad(set_to_none=True)
            return first_line(error)
        return ""

    @property
    def eval_model(self) -> Transformer:
        return self.ema if self.ema is not None else self.model

    @property
    def n_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def train_step(self, update: Update, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Do one optimiser step, number `step` from 0, on all micro-batches of an update.

        Returns this rank's part of the smoothed loss and of the nll per target token, and the
        gradient norm before clipping; all on the device, so that nothing waits for them.
        """
        smoothed, nll = self._compiled_or_plain(lambda: self.accumulate_gradients(update, step))
        return smoothed, nll, self._optimize(step)

    def skip_update(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Take part in an update with a gradient of NaN, so that all ranks skip it; losses of 0."""
        self.optimizer.zero_grad(set_to_none=True)
        memory.release_cached_memory(self.device.device)
        weight = next(self.model.parameters())
        weight.grad = torch.full_like(weight, math.nan)
        self.world.sum_gradients(self.model.parameters())
        nothing = torch.zeros((), device=self.device.device)
        return nothing, nothing, self._optimize(step)

    @torch.no_grad()
    def _optimize(self, step: int) -> Tensor:
        """Do step `step` unless the gradient is not finite; its norm before clipping."""
        config = self.config
        rate = learning_rate(step + 1, config.optim, config.model.d_model, self.max_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.scaler.unscale_(self.optimizer)
        limit = config.optim.clip_norm or math.inf
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit, foreach=True)
        non_finite = ~torch.isfinite(norm)
        self.skipped = (self.skipped + 1) * non_finite
        self._most_skipped = torch.maximum(self._most_skipped, self.skipped)
        if not self.scaler.is_enabled():  # an enabled scaler sets it itself
            self.optimizer.found_inf = non_finite.float()  # type: ignore[attr-defined]
        pieces = self.model.output.weight  # (vocabulary, d_model), also the embedding where tied
        lengths = pieces.norm(dim=-1, keepdim=True) if config.optim.fix_norm else None
        self.scaler.step(self.optimizer)  # the fused kernel skips the step where found_inf is 1
        self.scaler.update()
        if lengths is not None:  # FixNorm (Nguyen and Salazar, 2019) with the lengths of the start
            pieces.mul_((lengths / pieces.norm(dim=-1, keepdim=True)).nan_to_num(nan=1.0))
        self.optimizer.zero_grad(set_to_none=True)
        if not self.device.is_cuda and step % UPDATES_BETWEEN_RELEASES == 0:
            memory.release_freed_memory()
        if self.ema is not None and config.train.ema is not None:
            decay = min(config.train.ema, (1 + step) / (10 + step))  # it grows at first
            averaged = list[Tensor](self.ema.parameters())
            torch._foreach_lerp_(averaged, list(self.model.parameters()), 1 - decay)
        return norm

    def accumulate_gradients(self, update: Update, step: int) -> tuple[Tensor, Tensor]:
        """Sum the gradients of an update's loss per target token, over micro-batches and ranks."""
        seed_everything(self.config.run.seed, step, self.world.rank)
        self.model.train()
        copy_weights(self.model, self.model.dtype)
        smoothed = nll = torch.zeros((), device=self.device.device)
        for batch in update.batches:
            loss = self._backward(batch, 1.0 / update.n_tgt)
            smoothed, nll = smoothed + loss.smoothed.detach(), nll + loss.nll
        self.world.sum_gradients(self.model.parameters())
        return smoothed / update.n_tgt, nll / update.n_tgt

    def _backward(self, batch: Batch, factor: float) -> Loss:
        """Compute the loss of a batch and add its gradients, times `factor`."""
        try:
            how = self.config.optim.label_smoothing, self.loss_gradient
            loss = batch_loss(self.forward, self.model.output, batch.to(self.device.device), *how)
            self.scaler.scale(loss.smoothed * factor).backward()
        except (MemoryError, RuntimeError) as error:
            memory.raise_unless_out_of_memory(error)
            raise TooLittleMemoryError(self._out_of_memory_message(batch)) from error
        return loss

    def _out_of_memory_message(self, batch: Batch) -> str:
        rows, src, tgt = batch.shape
        given = self.config.batch.tokens_per_batch
        same = "(tokens_per_update keeps the training the same)"
        what = f"a batch of {rows:,} sentences"
        if rows == 1:
            what, remedy = "one sentence", "Lower data.max_tokens, or choose a smaller model"
        elif not isinstance(given, int):
            sides = (batch.n_src, batch.n_tgt) if batch.packed else (rows * src, rows * tgt)
            remedy = f"Set it to a number below {max(sides):,} {same}"
        else:
            remedy = f"Lower it from {given:,} {same}, or set it to auto"
        return (
            f"batch.tokens_per_batch: {what}, up to {src:,} source and {tgt:,} target tokens long, "
            f"does not fit into the memory of {self.device}: "
            f"{memory.peak_memory_mb(self.device.device):,.0f} MB were in use. {remedy}"
        )

    def dry_run_step(self, batch: Batch) -> None:
        """Run forward and backward on a batch as an update does, without changing any weight."""
        self._compiled_or_plain(lambda: self._dry_run(batch))

    def _dry_run(self, batch: Batch) -> None:
        if self.packed and batch.packed is None:
            batch = batch.pack()
        self.model.train()
        copy_weights(self.model, self.model.dtype)
        self._backward(batch, 1.0 / batch.n_tgt)
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def skip_step(self) -> None:
        """Run the optimiser as after a non-finite gradient: it only allocates its moments."""
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self.optimizer.found_inf = torch.ones((), device=self.device.device)  # type: ignore[attr-defined]
        self.optimizer.step()
        del self.optimizer.found_inf  # type: ignore[attr-defined]
        self.optimizer.zero_grad(set_to_none=True)

    def most_skipped(self) -> int:
        """The most updates in a row without a finite gradient since last asked; waits for a GPU."""
        most = int(self._most_skipped)
        self._most_skipped = torch.zeros_like(self._most_skipped)
        return most

    def has_finite_weights(self) -> bool:
        """Whether all weights are finite, those of the average too; waits for the device."""
        averaged = self.ema.parameters() if self.ema is not None else ()
        return all_finite([*self.model.parameters(), *averaged])

    def state_dict(self) -> dict[str, Any]:
        """All that a checkpoint holds besides the weights of `eval_model`."""
        state = {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "skipped": [int(self.skipped), int(self._most_skipped)],
        }
        if self.ema is not None:
            state["weights"] = weights_of(self.model)
        return state

    def load_state(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Load the weights in the checkpoint `folder` and `state`, what `state_dict` returned."""
        weights = load_weights(folder)
        put_weights(self.model, state.get("weights", weights), str(folder))
        if self.ema is not None:
            put_weights(self.ema, weights, str(folder))
        restore_optimizer(self.optimizer, state["optimizer"], str(folder))
        if state["scaler"]:  # empty if the precision was not fp16
            self.scaler.load_state_dict(state["scaler"])
        self.skipped, self._most_skipped = self.skipped.new_tensor(state["skipped"])


def learning_rate(step: int, optim: OptimConfig, d_model: int, max_steps: int) -> float:
    """The learning rate of update `step`, counted from 1.

    Linear warm-up, then `schedule`. `noam` is equation 3 of Vaswani et al. (2017): d_model^-0.5
    times an inverse square root that peaks at `warmup_steps`. `cosine` falls to 0 at `max_steps`.
    """
    warmup = optim.warmup_steps
    if optim.schedule == "noam":
        return float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))
    peak = optim.peak_lr
    assert peak is not None  # the config checks that
    if step < warmup:
        return peak * step / warmup
    match optim.schedule:
        case "inverse_sqrt":
            return peak * math.sqrt(warmup / step)
        case "cosine":
            done = min(1.0, (step - warmup) / max(1, max_steps - warmup))
            return peak * 0.5 * (1 + math.cos(math.pi * done))
        case "constant":
            return peak
        case _:
            assert_never(optim.schedule)


def build_optimizer(model: nn.Module, optim: OptimConfig) -> torch.optim.AdamW:
    """Fused AdamW (Loshchilov and Hutter, 2019), which is Adam without weight decay.

    Only the matrices of layers decay, and an output matrix that is not tied. Biases and the scales
    of layer norms gain nothing from being small. Nor do embeddings: without a gradient a row would
    shrink by exp(-sum of rate x decay) until its word comes again, so that rare words would fade.
    """
    named = list(model.named_parameters())  # each once: a tied output matrix is an embedding
    assert optim.weight_decay != "auto" != optim.fix_norm, "mt.config.settled chooses"
    matrices = [p for name, p in named if p.dim() > 1 and "embedding" not in name]
    groups = [
        {"params": [p for name, p in named if "embedding" in name], "weight_decay": 0.0},
        {"params": matrices, "weight_decay": optim.weight_decay},
        {"params": [p for _, p in named if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=optim.betas, eps=optim.eps, fused=True)


def restore_optimizer(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any], where: str
) -> None:
    """Load moments and learning rate; settings stay. CheckpointError for other parameters."""
    try:
        groups = zip(optimizer.state_dict()["param_groups"], state["param_groups"], strict=True)
        kept = [{**now, "params": saved["params"], "lr": saved["lr"]} for now, saved in groups]
        optimizer.load_state_dict({"state": state["state"], "param_groups": kept})
    except ValueError as error:
        raise CheckpointError(
            f"{where}: the optimiser's state does not fit the model ({error}); use another "
            "checkpoint, or start over with --fresh"
        ) from error
