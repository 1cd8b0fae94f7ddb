"""The conductor: one config becomes a trained run, or goes on where it stopped.

The state of a run is (config, data, step): the plan of an epoch is a function of (seed, epoch), dropout is
seeded by (seed, step, rank), so a run that was killed and started again ends with the same weights, bit for bit,
on a CPU. How many processes share the work is no part of it.
"""

from __future__ import annotations

import signal
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mt.config.schema import Config, OptimConfig
from mt.data.batches import Plan
from mt.data.corpus import data_root, read_pairs
from mt.data.loader import Prefetcher, Update
from mt.data.store import open_built, open_or_build
from mt.data.subword_regularisation import SubwordRegularisation
from mt.data.tokenizer import Tokenizer, train_tokenizer
from mt.errors import CheckpointError, OtherRankFailedError, TrainingDivergedError
from mt.model import checkpoint
from mt.model.checkpoint import LoadedModel
from mt.runtime.devices import Device
from mt.runtime.distributed import World
from mt.runtime.memory import peak_memory_mb, resident_memory_mb
from mt.training.divergence import explain_divergence
from mt.training.finetune import load_initial_weights
from mt.training.meter import Meter
from mt.training.optim import learning_rate
from mt.training.preflight import MEASURED, fitting_batch, measured_batch, with_batch
from mt.training.runlog import RunLog, format_duration
from mt.training.signals import Signals, StopRequestedError
from mt.training.update import Updater
from mt.training.validation import Validation, names_of, score_tests

# Updates without a finite gradient, one after the other, before training goes back to its last checkpoint, and how
# often it does so before it gives up.
MAX_SKIPPED_UPDATES, MAX_ROLLBACKS = 20, 3


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
    judged_on: str = ""  # what the scores are of
    rollbacks: int = 0  # how often training has gone back because of what is no number


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    reason: str
    exit_code: int
    best: Path | None


class Trainer:
    """A run in progress: model, optimiser, position, and what they are written to."""

    def __init__(
        self,
        config: Config,
        run: Path,
        device: Device,
        log: RunLog,
        world: World | None = None,
        base: LoadedModel | None = None,
    ) -> None:
        self.config, self.run, self.device, self.log = config, run, device, log
        self.world = world or World()
        self.base = base  # what the first weights are of
        self.origin: dict[str, Any] | None = None  # what is known of it, over all starts
        self.measured: dict[str, int] = {}  # what `auto` has become, for the checkpoints
        self.last_tick = time.perf_counter()
        self.tokenizer = self.world.main_first(self._tokenizer, lambda: Tokenizer.load(run))
        data, folder = config.data, run / "store" / "train"
        self.store = self.world.main_first(
            lambda: open_or_build(folder, data.train, "data.train", data, self.tokenizer, log.say),
            lambda: open_built(folder),
        )
        self.world.require_same(
            run, tokenizer=self.tokenizer.fingerprint, token_store=self.store.fingerprint
        )
        self.updater = Updater(config, self.tokenizer, device, self.world, log.say)
        if config.batch.tokens_per_batch == "auto":
            self._settle_batch()  # not in the learner, whose messages are about what was asked for
        self.validation = self._validation()
        weights = [source.weight for source in config.data.train]
        sampling = (
            SubwordRegularisation(self.store, self.tokenizer, config)
            if config.tokenizer.sampling_alpha
            else None
        )
        self.plan = Plan(self.store, weights, self.config.batch, config.run.seed, sampling)
        judged_on = self.validation.fingerprint if self.validation is not None else ""
        self.state = TrainState(plan=self._plan_id(), judged_on=judged_on)
        self.signals = Signals()

    # --- getting ready ----------------------------------------------------------------------

    def _tokenizer(self) -> Tokenizer:
        if Tokenizer.exists_in(self.run):
            return Tokenizer.load(self.run)
        if self.base is not None and not self.config.train.new_vocabulary:
            self.log.say(
                "tokenizer: kept from train.init_from (train.new_vocabulary: true learns one from this data)"
            )
            self.base.tokenizer.save(self.run)
            return self.base.tokenizer
        config, root = self.config, data_root(self.config.data)
        pairs = (
            pair
            for number, source in enumerate(config.data.train)
            for pair in read_pairs(source, root, f"data.train[{number}]")
        )
        tokenizer = train_tokenizer(config.tokenizer, pairs, config.run.seed, self.log.say)
        tokenizer.save(self.run)
        return tokenizer

    def _validation(self) -> Validation | None:
        source = self.config.data.valid
        return (
            Validation(self.config, source, self.run, self.tokenizer, self.log, self.world)
            if source
            else None
        )

    def _settle_batch(self) -> None:
        """`batch.tokens_per_batch: auto` becomes a number, which the run keeps from its first checkpoint on."""
        tokens = self.world.on_main(lambda: measured_batch(self.run))
        since = "since this run was started"
        if tokens is None:
            fits = self.world.all_or_raise(
                lambda: fitting_batch(self.config, self.updater, self.store)
            )
            tokens = min(self.world.all_gather(fits))
            since = "here"
        self.config, self.measured = with_batch(self.config, tokens), {MEASURED: tokens}
        self.log.say(f"batch.tokens_per_batch: auto is {tokens:,} {since}")

    def _plan_id(self) -> str:
        """Changes when the order of the data does."""
        alpha = self.config.tokenizer.sampling_alpha
        plan = f"{self.store.fingerprint}/{self.plan.weights}/{self.config.batch!r}/{self.config.run.seed}"
        return plan if alpha is None else f"{plan}/{alpha}"

    def resume(self) -> None:
        """Go on from the newest undamaged checkpoint, if there is one."""
        found = self.world.on_main(self._latest)
        if found is None:
            self.log.drop_after(0)
            if self.base is not None:
                self.origin = load_initial_weights(
                    self.updater.model, self.tokenizer, self.base, self.log.say
                )
                self.base = None  # its memory is needed
                if self.updater.ema is not None:
                    self.updater.ema.load_state_dict(self.updater.model.state_dict())
            return
        folder, meta = found
        if meta["tokenizer"] != self.tokenizer.fingerprint:
            raise CheckpointError(
                f"{folder}: was trained with another tokenizer than the one in {self.run}; put the run's tokenizer "
                "back, or give --fresh to set the run aside and start over"
            )
        self.state, self.origin = self._restored(folder), meta.get("init_from")
        then = meta["config"]
        settings = OptimConfig.model_validate(then["optim"]), then["train"]["precision"]
        if settings != (self.config.optim, self.config.train.precision):
            self.state.rollbacks = 0  # somebody has done something about it
        self.log.drop_after(self.state.step)
        self.log.say(f"resuming after update {self.state.step:,} from {folder}")
        if self.state.plan != self._plan_id():
            self.log.say(
                "data, batch sizes, sampling or seed have changed: going on with a new epoch of the new plan"
            )
            self.state.plan, self.state.epoch, self.state.update = (
                self._plan_id(),
                self.state.epoch + 1,
                0,
            )
        self._drop_other_scores()

    def _drop_other_scores(self) -> None:
        """Forget scores on another validation set than today's: no later model can be compared with them."""
        state = self.state
        if self.validation is None or state.judged_on == self.validation.fingerprint:
            return
        if state.judged_on and state.best_step is not None:
            self.log.say(
                "data.valid has changed: the scores so far, and with them the best model, do not count"
            )
            state.scores, state.best_score, state.best_step, state.bad_validations = (
                {},
                None,
                None,
                0,
            )
        state.judged_on = self.validation.fingerprint

    def _latest(self) -> tuple[Path, dict[str, Any]] | None:
        checkpoint.tidy(self.run)
        found = checkpoint.latest_good(self.run, self.log.say)
        if found is None and checkpoint.checkpoints(self.run):
            raise CheckpointError(
                f"run directory {self.run}: none of its checkpoints is whole and holds numbers only; give --fresh to "
                "set it aside and start over"
            )
        return found

    def _restored(self, folder: Path) -> TrainState:
        """Weights and moments of a checkpoint, put back; returns the rest of it."""
        state = checkpoint.load_state(folder)
        self.updater.restore(folder, state)
        return TrainState(**state["train"])

    # --- validation and checkpoints ---------------------------------------------------------

    def validate(self) -> float | None:
        """Judge the model on the validation set; the score is its BLEU there."""
        if self.validation is None:
            return None
        start = time.perf_counter()
        result = self.validation.evaluate(
            self.updater.eval_model, self.device, self.world, self.signals
        )
        seconds, step = time.perf_counter() - start, self.state.step
        self._tick()
        self.log.record(
            "valid",
            step,
            nll=result.nll,
            perplexity=result.perplexity,
            bleu=result.bleu.value,
            signature=result.bleu.signature,
            seconds=self.state.seconds,
            valid_seconds=seconds,
        )
        self.log.say(
            f"valid | step {step:,} | nll {result.nll:.3f} | ppl {result.perplexity:.2f} "
            f"| BLEU {result.bleu.value:.2f} | {seconds:.1f} s"
        )
        if self.world.is_main:
            self.validation.write_samples(checkpoint.step_name(step), result.outputs)
        return result.bleu.value

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
        if self.world.is_main:
            self._write(name)

    def _write(self, name: str) -> None:
        """The checkpoint, the links to it and to the best one; then those whose time is over are deleted."""
        state, folder = self.state, self.run / checkpoint.CHECKPOINTS / name
        meta = {
            "config": self.config.model_dump(mode="json"),
            "tokenizer": self.tokenizer.fingerprint,
            "step": state.step,
            "score": state.scores.get(name),
            **({"init_from": self.origin} if self.origin else {}),
            **self.measured,
        }
        tensors = {**self.updater.state(), "train": asdict(state)}
        checkpoint.save_model_folder(
            folder, checkpoint.weights_of(self.updater.eval_model), meta, tensors
        )
        checkpoint.point(self.run, checkpoint.LAST, folder)
        if state.best_step is not None:
            best = checkpoint.step_name(state.best_step)
            if (folder.parent / best).exists():
                checkpoint.point(self.run, checkpoint.BEST, folder.parent / best)
        self._prune()

    def _tick(self) -> None:
        """Count the time that has passed, preparation and validation included."""
        now = time.perf_counter()
        self.state.seconds += now - self.last_tick
        self.last_tick = now

    def _prune(self) -> None:
        keep, scores = self.config.train, self.state.scores
        # Newer ones are damaged, or the run would not be here again.
        newest = checkpoint.step_name(self.state.step)
        here = [folder.name for folder in checkpoint.checkpoints(self.run) if folder.name <= newest]
        ranked = sorted((name for name in here if name in scores), key=lambda name: -scores[name])
        # A checkpoint that a signal made serves to resume; it must not crowd out those whose turn it was.
        in_turn = [
            name
            for name in here
            if name in scores or checkpoint.step_of(name) % keep.valid_every == 0
        ]
        kept = {newest, *in_turn[-keep.keep_last :], *ranked[: max(1, keep.keep_best)]}
        checkpoint.prune(self.run, kept)
        self.state.scores = {name: score for name, score in scores.items() if name in kept}

    # --- the loop ---------------------------------------------------------------------------

    def train(self) -> Outcome:
        """Train until the steps are done, patience is out, or a signal comes."""
        config, state = self.config.train, self.state
        feed = Prefetcher(self.plan, state.epoch, state.update, self.world.rank, self.world.size)
        with self.signals, feed:
            if (
                self.validation
                and self._due()
                and checkpoint.step_name(state.step) not in state.scores
            ):
                self._validate_and_save()  # a signal came before its validation
            meter = Meter(feed, self.world)
            updates = iter(feed)
            saved = state.step
            stopped = self._stopped_by()
            while not stopped and self.world.all_reduce_max(int(not feed.ready(0.5))):
                stopped = self._stopped_by()
            while not stopped and state.step < config.max_steps and not self._impatient():
                update = next(updates)
                meter.add(update, *self.updater.update(update, state.step))
                state.step += 1
                state.epoch, state.update = (
                    (update.epoch + 1, 0) if update.last else (update.epoch, update.number + 1)
                )
                state.tokens += update.n_tgt
                self.log.progress(state.step)
                if state.step % config.log_every == 0:
                    self._report(meter, update)
                stopped = self._stopped_by()
                due = self._due()
                trouble = self._trouble() if due or state.step % config.log_every == 0 else ""
                if trouble:
                    self._roll_back(update, trouble)
                    state = self.state
                    saved = state.step
                    meter.reset()
                elif due and not stopped:
                    start = time.perf_counter()
                    self._validate_and_save()
                    saved, stopped = state.step, self._stopped_by()
                    meter.exclude(time.perf_counter() - start)
            if state.step > saved:  # a signal came
                if self._non_finite_weights():
                    self.log.say("nothing is saved, since there are weights that are no numbers")
                else:
                    self.save()
        return self._stopped(stopped) if stopped else self._finished()

    def _stopped_by(self) -> int:
        """The number of the signal that has come to this rank or another, 0 for none."""
        return self.world.all_reduce_max(self.signals.number)

    def _due(self) -> bool:
        step, config = self.state.step, self.config.train
        return step > 0 and (step % config.valid_every == 0 or step == config.max_steps)

    def _validate_and_save(self) -> None:
        """Validation and checkpoint; a signal breaks off the first, which is made up for on resuming."""
        try:
            score = self.validate()
        except StopRequestedError:
            score = None
        self.save(score)

    def _impatient(self) -> bool:
        patience = self.config.train.patience
        return patience is not None and self.state.bad_validations >= patience

    def _report(self, meter: Meter, update: Update) -> None:
        state, config = self.state, self.config
        figures = meter.figures()
        self._tick()
        rate = learning_rate(state.step, config.optim, config.model.d_model, config.train.max_steps)
        position = update.epoch + (update.number + 1) / update.of
        figures |= {
            "lr": rate,
            "epoch": state.epoch,
            "epoch_position": position,
            "seconds": state.seconds,
        }
        memory = {
            "memory_mb": peak_memory_mb(self.device.device),
            "resident_mb": resident_memory_mb(),
        }
        self.log.record("train", state.step, **figures, **memory)
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
            f"| padding {figures['padding']:.1%} | waiting {figures['waiting']:.1%} | {format_duration(left)} left"
            + (f" | {figures['skipped']} updates skipped" if figures["skipped"] else "")
        )
        meter.reset()

    def _stopped(self, number: int) -> Outcome:
        name = signal.Signals(number).name
        reason = f"stopped by {name} after update {self.state.step:,}; run the same command again to go on"
        return Outcome(reason, 128 + number, self._best())

    def _finished(self) -> Outcome:
        state, config = self.state, self.config.train
        if self._impatient():
            reason = f"no better validation in the last {state.bad_validations}, at update {state.step:,}"
        else:
            reason = f"all {config.max_steps:,} updates are done"
            if state.step > config.max_steps:
                reason = f"{state.step:,} updates were done already, train.max_steps is {config.max_steps:,}"
        best = self.world.on_main(self._best)
        if best is not None and state.best_score is not None:
            reason += f"; best model (BLEU {state.best_score:.2f} on the validation set): {best}"
        elif best is not None:
            reason += f"; model: {best}"
        self._score_tests(best)
        return Outcome(reason, 0, best)

    def _score_tests(self, best: Path | None) -> None:
        """The best model on the test sets: looked at once, when nothing can be chosen by it any more."""
        done = self.world.on_main(lambda: self.log.recorded_names("test", self.state.step))
        if best is None or done.issuperset(names_of(self.config.data.test)):
            return
        model = checkpoint.build_model(self.config, self.tokenizer).to(self.device.device).eval()
        folder = self.world.on_main(best.resolve)
        checkpoint.put_weights(model, checkpoint.load_weights(folder), str(folder))
        for name, score in score_tests(
            self.config, model, self.tokenizer, self.device, self.world, done
        ):
            self.log.record(
                "test", self.state.step, name=name, bleu=score.value, signature=score.signature
            )
            self.log.say(f"test | {name} | BLEU {score.value:.2f} | {score.signature}")

    def _best(self) -> Path | None:
        for name in (checkpoint.BEST, checkpoint.LAST):
            link = self.run / checkpoint.CHECKPOINTS / name
            if link.exists():
                return link
        return None

    # --- bad luck ---------------------------------------------------------------------------

    def _trouble(self) -> str:
        """Why to go back to an earlier checkpoint; empty where there is no need."""
        if int(self.updater.skipped) >= MAX_SKIPPED_UPDATES:
            return (
                f"{MAX_SKIPPED_UPDATES} updates in a row had a loss or a gradient that is no number"
            )
        return "there are weights that are no numbers" if self._non_finite_weights() else ""

    def _non_finite_weights(self) -> bool:
        """Whether a weight is no number, in any rank: a fault of one device must not part them."""
        return bool(self.world.all_reduce_max(int(not self.updater.is_finite())))

    def _roll_back(self, update: Update, trouble: str) -> None:
        """Back to the last good weights, but on with the data: what spoilt the weights may have been in them.

        Raises TrainingDivergedError, with what can be found out about the cause, where there are no such weights or
        that has not helped before.
        """
        state, run = self.state, self.run
        found = self.world.on_main(lambda: checkpoint.latest_good(run, self.log.say))
        if found is None or state.rollbacks == MAX_ROLLBACKS:
            kept = (
                f"the last checkpoint is whole: {found[0]}"
                if found
                else "there is no checkpoint to go back to"
            )
            other = " or" if self.device.precision == "fp32" else ", set train.precision=fp32 or"
            message = (
                f"training gave up at update {state.step:,}: {trouble}"
                + (
                    f", after {state.rollbacks} times back to a checkpoint"
                    if state.rollbacks
                    else ""
                )
                + f". {explain_divergence(self.updater, update, self.tokenizer, state.step - 1, run)}. Lower "
                f"optim.peak_lr{other} raise optim.warmup_steps; {kept}"
            )
            raise TrainingDivergedError(message) if self.world.is_main else OtherRankFailedError(3)
        before = self._restored(found[0])
        self.world.all_gather(None)  # all have read it before it is written anew
        self.log.say(
            f"{trouble}: from update {state.step:,} back to the weights after update {before.step:,}, on with the data "
            "after those"
        )
        self.state = replace(
            before,
            plan=state.plan,
            epoch=state.epoch,
            update=state.update,
            seconds=state.seconds,
            tokens=state.tokens,
            rollbacks=state.rollbacks + 1,
        )
        self._drop_other_scores()
        self.log.drop_after(before.step)
        self.log.record(
            "rollback", before.step, from_step=state.step, rollbacks=state.rollbacks + 1
        )
        if self.world.is_main:
            checkpoint.prune_after(run, before.step)
            self._write(
                checkpoint.step_name(before.step)
            )  # a start from here must not meet the same data again
