"""The conductor: one config becomes a trained run, or goes on where it stopped.

The state of a run is (config, data, step): the plan of an epoch is a function of (seed, epoch), dropout is
seeded by (seed, step), so a run that was killed and started again ends with the same weights, bit for bit, on
a CPU.
"""

from __future__ import annotations

import contextlib
import copy
import math
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from mt.config import Config, require_training_data
from mt.data.batches import Feed, Plan, Update
from mt.data.corpus import check_sources, data_root, read_pairs
from mt.data.store import known_facts, open_or_build
from mt.data.tokenizer import Tokenizer, train_tokenizer
from mt.devices import Device, choose_device, compiled, peak_memory_mb, release_freed_memory, seed_everything
from mt.errors import CheckpointError, ConfigError, DataError, TrainingDivergedError
from mt.model import checkpoint
from mt.model.transformer import Transformer
from mt.training.loss import batch_loss
from mt.training.optim import build_optimizer, learning_rate, restore_optimizer
from mt.training.runlog import (
    RunLog,
    Window,
    check_same_run,
    claim,
    clock,
    set_aside,
    write_config,
    write_faults,
    write_manifest,
)
from mt.training.validation import Validation, score_tests

# On a CPU: 1 % of the time, for a third of the memory.
UPDATES_BETWEEN_RELEASES = 12
# Updates without a finite gradient, one after the other, before training gives up.
MOST_SKIPPED = 20


@dataclass
class TrainState:
    """All that changes from step to step besides tensors; with those it is what a checkpoint holds."""

    step: int = 0  # updates done
    epoch: int = 0
    update: int = 0  # of the epoch, the next one to do
    best_score: float | None = None
    best_step: int | None = None
    bad_validations: int = 0  # since the best one
    seconds: float = 0.0  # of training, over all starts
    tokens: int = 0  # target tokens learned from
    scores: dict[str, float] = field(default_factory=dict)  # checkpoint -> its validation score
    plan: str = ""  # what the position (epoch, update) refers to


class _Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """A signal came during a validation."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    reason: str
    exit_code: int
    best: Path | None


class Trainer:
    """A run in progress: model, optimiser, position, and what they are written to."""

    def __init__(self, config: Config, run: Path, device: Device, log: RunLog) -> None:
        self.config, self.run, self.device, self.log = config, run, device, log
        self.ticked = time.perf_counter()
        self.tokenizer = self._tokenizer()
        data, folder = config.data, run / "store" / "train"
        self.store = open_or_build(folder, data.train, "data.train", data, self.tokenizer, log.say)
        self.validation = Validation(config, data.valid, run, self.tokenizer, log) if data.valid else None
        self.plan = Plan(
            self.store,
            [source.weight for source in config.data.train],
            config.batch,
            config.run.seed,
        )
        seed_everything(config.run.seed)
        self.model = checkpoint.build_model(config, self.tokenizer).to(device.device)
        self.model.compute_dtype = device.dtype
        self.ema = copy.deepcopy(self.model).eval() if config.train.ema else None
        self.optimizer = build_optimizer(self.model, config.optim)
        self.scaler = torch.amp.GradScaler(device.device.type, enabled=device.precision == "fp16")
        self.forward: Any = compiled(self.model, config.train.compile, device, log.say)
        self.state = TrainState(plan=self._plan_id())
        self.stop_signal: int | None = None
        self.judging = False  # a validation can be broken off, an update cannot
        # Updates without a finite gradient, one after the other; on the device, where nothing waits for it.
        self.skipped = torch.zeros((), dtype=torch.int64, device=device.device)

    # --- getting ready ----------------------------------------------------------------------

    def _tokenizer(self) -> Tokenizer:
        if Tokenizer.is_in(self.run):
            return Tokenizer.load(self.run)
        config, root = self.config, data_root(self.config.data)
        pairs = (
            pair
            for number, source in enumerate(config.data.train)
            for pair in read_pairs(source, root, f"data.train[{number}]")
        )
        tokenizer = train_tokenizer(config.tokenizer, pairs, config.run.seed, self.log.say)
        tokenizer.save(self.run)
        return tokenizer

    def _plan_id(self) -> str:
        """Changes when the order of the data does."""
        return f"{self.store.fingerprint}/{self.plan.weights}/{self.config.batch!r}/{self.config.run.seed}"

    def resume(self) -> None:
        """Go on from the newest undamaged checkpoint, if there is one."""
        checkpoint.tidy(self.run)
        found = checkpoint.latest_checkpoint(self.run, self.log.say)
        if found is None:
            if checkpoint.checkpoints(self.run):
                raise CheckpointError(
                    f"run directory {self.run}: none of its checkpoints is whole; give --fresh to set it aside "
                    "and start over"
                )
            self.log.forget_after(0)
            return
        folder, meta = found
        if meta["tokenizer"] != self.tokenizer.fingerprint:
            raise CheckpointError(
                f"{folder}: was trained with another tokenizer than the one in {self.run}; put the run's tokenizer "
                "back, or give --fresh to set the run aside and start over"
            )
        state = checkpoint.load_state(folder)
        weights = checkpoint.load_weights(folder)
        checkpoint.put_weights(self.model, state.get("weights", weights), str(folder))
        if self.ema is not None:
            checkpoint.put_weights(self.ema, weights, str(folder))
        restore_optimizer(self.optimizer, state["optimizer"], str(folder))
        if state["scaler"]:  # empty where the precision was not fp16
            self.scaler.load_state_dict(state["scaler"])
        self.state = TrainState(**state["train"])
        self.log.forget_after(self.state.step)
        self.log.say(f"resuming after update {self.state.step:,} from {folder}")
        if self.state.plan != self._plan_id():
            self.log.say("data, batch sizes or seed have changed: going on with a new epoch of the new plan")
            self.state.plan, self.state.epoch, self.state.update = (
                self._plan_id(),
                self.state.epoch + 1,
                0,
            )

    # --- one update -------------------------------------------------------------------------

    def learn(self, update: Update) -> tuple[Tensor, Tensor]:
        """One optimiser step on all micro-batches of an update.

        Returns the nll per target token and the gradient norm before clipping, both on the device, so that
        nothing waits for them.
        """
        config, state = self.config, self.state
        seed_everything(config.run.seed, state.step)
        rate = learning_rate(state.step + 1, config.optim, config.model.d_model, config.train.max_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        nll = torch.zeros((), device=self.device.device)
        for batch in update.batches:
            batch = batch.to(self.device.device)
            loss = batch_loss(self.forward, self.model.output, batch, config.optim.label_smoothing)
            self.scaler.scale(loss.smoothed / update.n_tgt).backward()
            nll += loss.nll
        self.scaler.unscale_(self.optimizer)
        limit = config.optim.clip_norm or math.inf
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit, foreach=True)
        bad = ~torch.isfinite(norm)
        self.skipped = (self.skipped + 1) * bad
        if not self.scaler.is_enabled():  # the scaler tells the optimiser itself
            self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
        self.scaler.step(self.optimizer)  # a gradient that is no number is skipped inside the kernel
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if not self.device.is_cuda and state.step % UPDATES_BETWEEN_RELEASES == 0:
            release_freed_memory()
        self._follow(state.step)
        return nll / update.n_tgt, norm

    @torch.no_grad()
    def _follow(self, step: int) -> None:
        """Move the averaged weights: their memory grows from nothing to 1 / (1 - ema) updates."""
        if self.ema is None or self.config.train.ema is None:
            return
        decay = min(self.config.train.ema, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.ema.parameters()), list(self.model.parameters()), 1 - decay)

    # --- validation and checkpoints ---------------------------------------------------------

    @property
    def judged(self) -> Transformer:
        """The model that is validated and saved as the result: the averaged one where there is one."""
        return self.ema if self.ema is not None else self.model

    def validate(self) -> float | None:
        """Judge the model on the validation set; the score is its BLEU there."""
        if self.validation is None:
            return None
        start = time.perf_counter()
        try:
            self.judging = True
            verdict = self.validation.judge(self.judged, self.device)
        finally:
            self.judging = False
        seconds, step = time.perf_counter() - start, self.state.step
        self._tick()
        self.log.record(
            "valid",
            step,
            nll=verdict.nll,
            perplexity=verdict.perplexity,
            bleu=verdict.bleu.value,
            signature=verdict.bleu.signature,
            seconds=self.state.seconds,
            valid_seconds=seconds,
        )
        self.log.say(
            f"valid | step {step:,} | nll {verdict.nll:.3f} | ppl {verdict.perplexity:.2f} "
            f"| BLEU {verdict.bleu.value:.2f} | {seconds:.1f} s"
        )
        self.validation.write_samples(checkpoint.step_name(step), verdict.outputs)
        return verdict.bleu.value

    def save(self, score: float | None = None) -> None:
        """Write a checkpoint of this moment; with a `score`, see whether it is the best."""
        self._tick()
        state, name = self.state, checkpoint.step_name(self.state.step)
        if score is not None:
            state.scores[name] = score
            if state.best_score is None or score > state.best_score:
                state.best_score, state.best_step, state.bad_validations = score, state.step, 0
            else:
                state.bad_validations += 1
        folder = self.run / checkpoint.CHECKPOINTS / name
        tensors: dict[str, Any] = {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "train": asdict(state),
        }
        if self.ema is not None:
            tensors["weights"] = checkpoint.weights_of(self.model)
        meta = {
            "config": self.config.model_dump(mode="json"),
            "tokenizer": self.tokenizer.fingerprint,
            "step": state.step,
            "score": score,
        }
        checkpoint.save_model_folder(folder, checkpoint.weights_of(self.judged), meta, tensors)
        checkpoint.point(self.run, checkpoint.LAST, folder)
        if state.best_step is not None:
            best = checkpoint.step_name(state.best_step)
            if (folder.parent / best).exists():
                checkpoint.point(self.run, checkpoint.BEST, folder.parent / best)
        self._prune()

    def _tick(self) -> None:
        """Count the time that has passed, preparation and validation included."""
        now = time.perf_counter()
        self.state.seconds += now - self.ticked
        self.ticked = now

    def _prune(self) -> None:
        keep, scores = self.config.train, self.state.scores
        # Newer ones are damaged, or the run would not be here again.
        newest = checkpoint.step_name(self.state.step)
        here = [folder.name for folder in checkpoint.checkpoints(self.run) if folder.name <= newest]
        ranked = sorted((name for name in here if name in scores), key=lambda name: -scores[name])
        # A checkpoint that a signal made serves to resume; it must not crowd out those whose turn it was.
        in_turn = [name for name in here if name in scores or checkpoint.step_of(name) % keep.valid_every == 0]
        kept = {newest, *in_turn[-keep.keep_last :], *ranked[: max(1, keep.keep_best)]}
        checkpoint.prune(self.run, kept)
        self.state.scores = {name: score for name, score in scores.items() if name in kept}

    # --- the loop ---------------------------------------------------------------------------

    def train(self) -> Outcome:
        """Train until the steps are done, patience is out, or a signal comes."""
        config, state = self.config.train, self.state
        with Feed(self.plan, state.epoch, state.update) as feed, self._signals():
            if self.validation and self._due() and checkpoint.step_name(state.step) not in state.scores:
                self._judge_and_save()  # a signal came before its validation
            window, updates, saved = Window(feed), iter(feed), state.step
            while not self._stopping() and state.step < config.max_steps and not self._impatient():
                update = next(updates)
                nll, norm = self.learn(update)
                state.step += 1
                state.epoch, state.update = update.epoch, update.number + 1
                if update.last:
                    state.epoch, state.update = update.epoch + 1, 0
                state.tokens += update.n_tgt
                window.add(update, nll, norm)
                self.log.progress(state.step)
                if state.step % config.log_every == 0:
                    self._report(window)
                if self._due() and not self._stopping():
                    start = time.perf_counter()
                    self._judge_and_save()
                    saved = state.step
                    window.leave_out(time.perf_counter() - start)
            if state.step > saved:  # a signal came
                self.save()
        return self._stopped() if self._stopping() else self._finished()

    def _stopping(self) -> bool:
        return self.stop_signal is not None

    def _due(self) -> bool:
        step, config = self.state.step, self.config.train
        return step > 0 and (step % config.valid_every == 0 or step == config.max_steps)

    def _judge_and_save(self) -> None:
        """Validation and checkpoint; a signal breaks off the first, which is made up for on resuming."""
        self._give_up_if_diverged()
        try:
            score = self.validate()
        except _Interrupted:
            score = None
        self.save(score)

    def _impatient(self) -> bool:
        patience = self.config.train.patience
        return patience is not None and self.state.bad_validations >= patience

    def _report(self, window: Window) -> None:
        state, config = self.state, self.config
        figures = window.figures()
        self._give_up_if_diverged()
        self._tick()
        rate = learning_rate(state.step, config.optim, config.model.d_model, config.train.max_steps)
        figures |= {"lr": rate, "epoch": state.epoch, "seconds": state.seconds}
        self.log.record("train", state.step, **figures, memory_mb=peak_memory_mb(self.device.device))
        left = (config.train.max_steps - state.step) * state.seconds / max(1, state.step)
        self.log.progress(
            state.step,
            {
                "nll": f"{figures['nll']:.3f}",
                "lr": f"{rate:.1e}",
                "tok/s": f"{figures['tokens_per_second']:,.0f}",
            },
        )
        self.log.say(
            f"step {state.step:,} | epoch {state.epoch} | nll {figures['nll']:.3f} | lr {rate:.2e} "
            f"| {figures['tokens_per_second']:,.0f} tok/s | grad {figures['grad_norm']:.2f} "
            f"| padding {figures['padding']:.1%} | waiting {figures['waiting']:.1%} | {clock(left)} left"
            + (f" | {figures['skipped']} updates skipped" if figures["skipped"] else "")
        )
        window.restart()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run after the update in progress; a second Ctrl-C at once."""

        def note(number: int, _: FrameType | None) -> None:
            if self.stop_signal is not None and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.stop_signal = number
            if self.judging:
                raise _Interrupted

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stopped(self) -> Outcome:
        number = self.stop_signal or signal.SIGINT
        name = signal.Signals(number).name
        reason = f"stopped by {name} after update {self.state.step:,}; run the same command again to go on"
        return Outcome(reason, 128 + number, self._best())

    def _finished(self) -> Outcome:
        state, config = self.state, self.config.train
        if self._impatient():
            reason = f"no better validation in the last {state.bad_validations}, at update {state.step:,}"
        else:
            reason = f"all {config.max_steps:,} updates are done"
        best = self._best()
        if best is not None and state.best_score is not None:
            reason += f"; best model (BLEU {state.best_score:.2f} on the validation set): {best}"
        elif best is not None:
            reason += f"; model: {best}"
        self._score_tests(best)
        return Outcome(reason, 0, best)

    def _score_tests(self, best: Path | None) -> None:
        """The best model on the test sets: looked at once, when nothing can be chosen by it any more."""
        if best is None or not self.config.data.test or self.log.has("test", self.state.step):
            return
        model = checkpoint.build_model(self.config, self.tokenizer).to(self.device.device).eval()
        checkpoint.put_weights(model, checkpoint.load_weights(best), str(best))
        for name, score in score_tests(self.config, model, self.tokenizer, self.device).items():
            self.log.record("test", self.state.step, name=name, bleu=score.value, signature=score.signature)
            self.log.say(f"test | {name} | BLEU {score.value:.2f} | {score.signature}")

    def _best(self) -> Path | None:
        for name in (checkpoint.BEST, checkpoint.LAST):
            link = self.run / checkpoint.CHECKPOINTS / name
            if link.exists():
                return link
        return None

    def _give_up_if_diverged(self) -> None:
        if int(self.skipped) < MOST_SKIPPED:
            return
        last = self.run / checkpoint.CHECKPOINTS / checkpoint.LAST
        kept = f"the last checkpoint is whole: {last}" if last.exists() else "the run has no checkpoint yet"
        raise TrainingDivergedError(
            f"training gave up at update {self.state.step:,}: {MOST_SKIPPED} updates in a row had a loss or a "
            f"gradient that is no number (precision {self.device.precision}, peak_lr "
            f"{self.config.optim.peak_lr}). Lower optim.peak_lr, raise optim.warmup_steps, or set "
            f"train.precision=fp32; {kept}"
        )


def train(config: Config, run: Path, device_name: str = "auto", fresh: bool = False) -> Outcome:
    """Train `config` in the directory `run`, or go on there; `fresh` sets a run that is there aside first.

    Raises MtError for what the user must mend.
    """
    require_training_data(config)
    if faults := check_sources(config.data):
        raise DataError("\n".join(faults))
    device = choose_device(device_name, config.train.precision)
    if fresh and (aside := set_aside(run)):
        print(f"mt: {run} is now {aside}", file=sys.stderr)
    lock = claim(run)
    try:
        changed = check_same_run(run, config)
        with write_faults(run), RunLog(run, config.train.max_steps) as log, write_faults(run):
            write_config(run, config)
            for line in changed:
                log.say(f"config changed since this run was started: {line}")
            log.say(f"run directory {run} on {device}")
            trainer = Trainer(config, run, device, log)
            write_manifest(run, _facts(trainer))
            trainer.resume()
            outcome = trainer.train()
            log.say(outcome.reason)
            return outcome
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"batch.tokens_per_batch: {config.batch.tokens_per_batch:,} do not fit into the memory of {device}; "
            f"at most {peak_memory_mb(device.device):,.0f} MB were in use. Lower it: tokens_per_update keeps the "
            "training the same"
        ) from error
    finally:
        lock.close()


def _facts(trainer: Trainer) -> Mapping[str, Any]:
    """What the manifest says about data and model."""
    files: dict[str, Any] = {}
    for split in ("train", "valid"):
        files |= known_facts(trainer.run / "store" / split)
    return {
        "seed": trainer.config.run.seed,
        "device": str(trainer.device),
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "data": {name: {"sha256": fact["sha256"], "lines": fact["lines"]} for name, fact in files.items()},
        "pairs": len(trainer.store),
        "tokenizer": trainer.tokenizer.fingerprint,
    }
