"""The training loop: updates, validation, checkpoints, and the end of one that diverges.

The state of a run is (config, data, step). The plan of an epoch is a function of (seed, epoch), and
dropout is seeded by (seed, step, rank). So a run that was killed and resumed ends with the same
weights, bit for bit on a CPU with as many threads. The number of processes is no part of the state.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from dataclasses import asdict, fields
from functools import partial
from typing import Any

from torch import Tensor

from mt import errors
from mt.data.tokens.batches import Prefetcher, Update
from mt.data.tokens.plan import Plan, describe_stage
from mt.model.checkpoint import LoadedModel, load_state
from mt.runs.model_folder import BEST, CHECKPOINTS, LAST, step_name
from mt.runs.origin import HISTORY, Start, continued, history_of, model_name
from mt.runs.records import OTHER_VALID, drop_other_outputs
from mt.runs.run_dir import update_manifest
from mt.runtime.machine import signals_to
from mt.runtime.memory import peak_memory_mb, resident_memory_mb
from mt.training import checkpoints
from mt.training.checkpoints import TrainState
from mt.training.finetune import load_initial_weights
from mt.training.outcome import Outcome, Signals, StopRequestedError, finished, scored_by, verdict
from mt.training.prepare import Prepared, several_sentences, start_on
from mt.training.runlog import Meter, RunLog, format_duration
from mt.training.update import learning_rate

# Updates in a row without a finite gradient after which training gives up.
MAX_SKIPPED_UPDATES = 20
# Updates after which GPUs ask each other whether to stop or save, and wait for the slowest rank.
UPDATES_BETWEEN_REQUESTS = 8


class Trainer:
    """A training in progress: what was prepared, the position in it, and where it is recorded."""

    def __init__(self, prepared: Prepared, log: RunLog) -> None:
        self.config = prepared.config
        self.data = prepared.data
        self.ends = prepared.ends
        self.tokenizer = prepared.tokenizer
        self.updater = prepared.updater
        self.plans = prepared.plans
        self.validations = prepared.validations
        self.validation = next(iter(prepared.validations), None)
        self.device = prepared.updater.device
        self.world = prepared.updater.world
        self.run_dir = log.run_dir
        self.log = log
        self.signals = Signals()
        self.too_little_memory: errors.TooLittleMemoryError | None = None  # of this rank
        self.scored_on = scored_on = self.validation.fingerprint if self.validation else ""
        self.state = TrainState(plan=prepared.plan_fingerprint, valid_fingerprint=scored_on)
        # What goes into the meta.json of each checkpoint.
        self.meta: dict[str, Any] = {
            "config": prepared.asked.as_asked(),
            "settled": asdict(prepared.settled),
            "tokenizer": prepared.tokenizer.fingerprint,
            **several_sentences(prepared),
        }
        self.earlier: list[Start] = []  # those of the model that it began from first
        self.start = self.world.on_main(lambda: start_on(prepared, self.run_dir))
        self.last_tick = log.started
        self.saved_step = 0
        self.loop_start = self.saved_at = 0.0  # of this start, as is the number of updates
        self.n_updates = 0
        self.seconds_per_update = 0.0  # an estimate, for the time before the first report

    # --- the position -----------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        return self.plans[self.state.stage]

    @property
    def patience(self) -> int | None:
        return self.config.train.patience if self.plan is self.plans[-1] else None

    def resume(self, base: LoadedModel | None = None) -> None:
        """Load the newest usable checkpoint; without one, the weights of `base` where given."""
        find = partial(checkpoints.checkpoint_to_resume, self.run_dir, self.log.say)
        newest = self.world.on_main(find)
        if newest is None:
            self.log.drop_after(-1)
            if base is not None:
                model, say = self.updater.model, self.log.say
                self.meta["init_from"] = load_initial_weights(model, self.tokenizer, base, say)
                self.earlier = history_of(base.folder, base.meta)
                self.start.began_from = model_name(base.folder)
                if self.updater.ema is not None:
                    self.updater.ema.load_state_dict(model.state_dict())
            return
        folder, meta = newest
        if meta["tokenizer"] != self.tokenizer.fingerprint:
            raise errors.CheckpointError(
                f"{folder}: was trained with another tokenizer than the one in {self.run_dir}; put "
                "the run's tokenizer back, or give --fresh to set the run aside and start over"
            )
        plan = self.state.plan
        saved = load_state(folder)
        self.updater.load_state(folder, saved)
        known = {each.name for each in fields(TrainState)}  # mt 0.3 had more
        values = saved["train"].items()
        self.state = TrainState(**{key: value for key, value in values if key in known})
        self.saved_step = self.start.from_update = step = self.state.step
        self.earlier = history_of(folder, meta)
        self.start.began_from = f"update {step:,}"
        self.meta |= {key: meta[key] for key in ("init_from", checkpoints.ENDS) if key in meta}
        self.log.drop_after(step)
        self.log.say(f"resuming after update {step:,} from {folder}")
        complete = partial(checkpoints.complete_saving, self.run_dir, self.config, self.state)
        self.world.on_main(complete)
        if self.state.plan != plan:
            counted = "; train.max_epochs counts the updates so far as some of it"
            self.log.say(
                "data, tokens_per_update, sampling, seed or version of mt, and so the order of the "
                "data, have changed: continuing with a new epoch of the new plan"
                + (counted if self.config.train.epochs is not None else "")
            )
            self.state.plan = plan
            self.state.begin_epoch()
            self.state.stage = min(self.state.stage, len(self.plans) - 1)
        self._drop_scores_of_other_validation_set()

    def _drop_scores_of_other_validation_set(self) -> None:
        state = self.state
        if state.valid_fingerprint == self.scored_on:
            return
        if state.valid_fingerprint and state.best is not None:
            kept = self.world.on_main(lambda: checkpoints.keep_best(self.run_dir, state.step))
            self.log.say(
                "data.valid, train.metric or the tokenizer of BLEU has changed: the scores so far, "
                f"and with them the best model, do not count; it stays as checkpoints/{kept}"
            )
            state.scores, state.bad_validations = {}, 0
        state.valid_fingerprint = self.scored_on

    # --- the loop ---------------------------------------------------------------------------

    def train(self) -> Outcome:
        """Train until all updates are done, patience runs out, or a signal arrives."""
        state = self.state
        with signals_to(self.signals.record):
            # At the beginning of fine-tuning, and where a signal had interrupted it.
            if self._is_due() and self.validation and step_name(state.step) not in state.scores:
                self._validate_and_save()
            stopped = self._stop_signal()
            while not stopped and not self.is_done():
                self._end_stage()
                stopped = self._run_stage()
            if self.state.step > self.saved_step:  # a signal arrived, or a rank lacks memory
                if self._has_finite_weights():
                    self.save()
                else:
                    self.log.say("nothing is saved, because there are non-finite weights")
            self.world.all_or_raise(self._require_memory)
        links = (self.run_dir / CHECKPOINTS / name for name in (BEST, LAST))
        best = self.world.on_main(lambda: next((link for link in links if link.exists()), None))
        if stopped:
            reason = f"stopped by {signal.Signals(stopped).name} after update {state.step:,}"
            return Outcome(f"{reason}; run the same command again to resume", 128 + stopped, best)
        return finished(self.config, self.state, best, self._is_out_of_patience())

    def _run_stage(self) -> int:
        if len(self.plans) > 1:
            stage, kept, drawn = self.state.stage, self.plan.pairs.kept, self.plan.drawn
            when = f"update {self.state.step + 1:,}, epoch {self.state.epoch}: "
            for line in describe_stage(self.data, stage, self.ends[stage], kept, drawn):
                self.log.say(when + line)
                when = ""
        for plan in self.plans:
            if plan is not self.plan:
                plan.forget_epoch()  # whose store would stay in memory
        place = self.state.epoch, self.state.update, self.world.rank, self.world.size
        with Prefetcher(self.plan, *place, self.device.device) as prefetcher:
            meter = Meter(prefetcher, self.world)
            return self._wait_for_update(prefetcher) or self._run_updates(prefetcher, meter)

    def _wait_for_update(self, prefetcher: Prefetcher) -> int:
        """Wait for the next update; sampling an epoch may take minutes, which a signal ends."""
        stopped = self._stop_signal()
        while not stopped and self.world.all_reduce_max(int(not prefetcher.ready(0.5))):
            stopped = self._stop_signal()
        return stopped

    def _end_stage(self) -> None:
        if self.state.has_reached(end := self.ends[self.state.stage]):
            self.meta[checkpoints.ENDS] = [*self.meta.get(checkpoints.ENDS, []), end]
            self.state.begin_stage(self.state.stage + 1)
            position = {"stage": self.state.stage, "epoch": self.state.epoch}
            self.log.record("stage", self.state.step, **position, drawn=self.plan.drawn)

    def _run_updates(self, prefetcher: Prefetcher, meter: Meter) -> int:
        """Update until the stage or training ends; the signal that ended it, 0 for none."""
        config = self.config.train
        stage = self.state.stage
        updates = iter(prefetcher)
        stopped = 0
        if not self.n_updates:
            self.loop_start = self.saved_at = time.perf_counter()
        self.log.progress(self.state.step, left=format_duration(self._seconds_left()))
        while not stopped and not self.is_done() and self.state.stage == stage:
            if self.state.update == 0 and (stopped := self._wait_for_update(prefetcher)):
                break
            update = next(updates)
            if update.augmented and (update.number == 0 or not self.n_updates):
                self.log.say(f"data.augment: epoch {update.epoch}: {update.augmented}")
            meter.add(update, *self._train_step(update))
            self.state.advance(update)
            self.n_updates += 1
            self.log.progress(self.state.step)
            is_logged = self.state.step % config.log_every == 0
            if is_logged:
                self._report(meter, update)
            waits = self.world.size > 1 and self.device.is_cuda
            is_early = waits and self.state.step % UPDATES_BETWEEN_REQUESTS
            asked = 0 if is_early else self.world.all_reduce_max(self._request())
            stopped = max(0, asked - 1)
            is_due = self._is_due()
            if is_due or is_logged or asked == 1:
                self._give_up_if_diverged()
            if is_due and not stopped:
                start = time.perf_counter()
                self._validate_and_save()
                stopped = self._stop_signal()
                meter.exclude(time.perf_counter() - start)
            elif not is_due:  # else it is validated first, when training resumes
                self._end_stage()
                if asked == 1:
                    start = time.perf_counter()
                    self.save()
                    meter.exclude(time.perf_counter() - start)
        return stopped

    def _train_step(self, update: Update) -> tuple[Tensor, Tensor, Tensor]:
        """Do an update. A rank out of memory gives a gradient of NaN, and asks all to end."""
        try:
            return self.updater.train_step(update, self.state.step)
        except errors.TooLittleMemoryError as error:
            # A copy: the error itself holds on to the tensors of the failed pass.
            self.too_little_memory = errors.TooLittleMemoryError(str(error))
            self.signals.number = signal.SIGTERM  # all end as after a signal, with this error
        return self.updater.skip_update(self.state.step)

    def _require_memory(self) -> None:
        if self.too_little_memory is not None:
            saved = f"The checkpoint after update {self.saved_step:,} is saved"
            raise errors.TooLittleMemoryError(f"{self.too_little_memory}. {saved}")

    def _request(self) -> int:
        """Ask all ranks to stop, by 1 more than a signal's number, or to save, by 1; else 0."""
        if self.signals.number:
            return self.signals.number + 1
        minutes = self.config.train.save_every_minutes
        seconds = time.perf_counter() - self.saved_at
        return int(self.world.is_main and minutes is not None and seconds >= 60 * minutes)

    def _stop_signal(self) -> int:
        return self.world.all_reduce_max(self.signals.number)

    def _is_due(self) -> bool:
        """Whether validation and checkpoint are due after the current step."""
        step, config = self.state.step, self.config.train
        if not step:  # if there is a model to compare with, which no new vocabulary has changed
            return "init_from" in self.meta and not config.new_vocabulary
        return step % config.updates_between_validations == 0 or step == config.max_steps

    def _is_out_of_patience(self) -> bool:
        return self.patience is not None and self.state.bad_validations >= self.patience

    def is_done(self) -> bool:
        return self.state.step >= self.config.train.max_steps or self._is_out_of_patience()

    def _report(self, meter: Meter, update: Update) -> None:
        state, config = self.state, self.config
        figures = meter.figures()
        self._tick()
        rate = learning_rate(state.step, config.optim, config.model.d_model, config.train.max_steps)
        position = {"lr": rate, "epoch": state.epoch}
        if len(self.plans) > 1:
            position["stage"] = state.stage
        position["epoch_position"] = update.epoch + (update.number + 1) / update.of
        peak, resident = peak_memory_mb(self.device.device), resident_memory_mb()
        used = {"seconds": state.seconds, "memory_mb": peak, "resident_mb": resident}
        self.log.record("train", state.step, **figures, **position, **used)
        speed, nll = f"{figures['tokens_per_second']:,.0f}", f"{figures['nll']:.3f}"
        left = format_duration(self._seconds_left())
        self.log.progress(state.step, left=left, nll=nll, **{"tok/s": speed})
        skipped = f" | {figures['skipped']} updates skipped" if figures["skipped"] else ""
        self.log.say(
            f"step {state.step:,} | epoch {state.epoch} | nll {nll} | lr {rate:.2e} | {speed} tok/s"
            f" | grad {figures['grad_norm']:.2f} | padding {figures['padding']:.1%} "
            f"| waiting {figures['waiting']:.1%} | {left} left{skipped}"
        )
        meter.reset()

    def _seconds_left(self) -> float:
        """Time that the remaining updates take at the pace of this start, validations included."""
        left = self.config.train.max_steps - self.state.step
        if not self.n_updates:
            return left * self.seconds_per_update
        return left * (time.perf_counter() - self.loop_start) / self.n_updates

    def _tick(self) -> None:
        """Add the time since the last call, preparation and validation included."""
        now = time.perf_counter()
        self.state.seconds += now - self.last_tick
        self.last_tick = now

    # --- validation and checkpoints ---------------------------------------------------------

    def _validate_and_save(self) -> None:
        """Validate, which a signal interrupts, and write a checkpoint, which it does not."""
        with suppress(StopRequestedError):
            self.validate()
            self._end_stage()
        self.save()
        if self.validation is not None and self.world.is_main:
            drop_other_outputs(self.run_dir)

    def validate(self) -> None:
        """Evaluate the model on the validation set, if there is one, and record the result."""
        if self.validation is None:
            return
        start = time.perf_counter()
        about = self.run_dir, self.meta, self.config, self.tokenizer
        model = LoadedModel(*about, self.updater.eval_model)
        # All of them first: a signal meanwhile leaves nothing half recorded.
        evaluated = model, self.device, self.world, self.signals
        result, *others = (each.evaluate(*evaluated) for each in self.validations)
        step, metric = self.state.step, self.config.train.metric
        scored = scored_by(metric, result.figures())
        compared = verdict(metric, scored, self.state.best)
        new_best = {"new_best": True} if self.state.add_score(scored) else {}
        n_bad = self.state.bad_validations
        seconds = time.perf_counter() - start
        self._tick()
        times = {"seconds": self.state.seconds, "valid_seconds": seconds}
        figures = {"name": self.validation.name, **result.figures(), **times, **new_best}
        self.log.record("valid", step, **figures)
        self.log.say(
            f"valid | step {step:,} | {result} | {seconds:.1f} s | {compared}"
            + (f" | patience {n_bad} of {self.patience}" if self.patience and n_bad else "")
        )
        bleu = f"{result.scores['bleu'].value:.2f}"
        self.log.progress(step, left=format_duration(self._seconds_left()), BLEU=bleu)
        if self.world.is_main:
            self.validation.write(step, result, bool(new_best))
        for other, result in zip(self.validations[1:], others, strict=True):
            self.log.record(OTHER_VALID, step, name=other.name, **result.figures(), **times)
            self.log.say(f"{other.label} | step {step:,} | {result}")

    def save(self) -> None:
        """Write a checkpoint of the current step, in the main process."""
        self._tick()
        if self.world.is_main:
            history = {HISTORY: continued(self.earlier, self.start, self.state.step)}
            about = self.config, self.updater, self.state, self.meta | history
            checkpoints.save_checkpoint(self.run_dir, *about)
            update_manifest(self.run_dir, history)
        self.saved_step = self.state.step
        self.saved_at = time.perf_counter()

    # --- divergence -------------------------------------------------------------------------

    def _give_up_if_diverged(self) -> None:
        """Raise TrainingDivergedError, in all ranks or none, for non-finite updates or weights."""
        if self.world.all_reduce_max(self.updater.most_skipped()) >= MAX_SKIPPED_UPDATES:
            reason = f"{MAX_SKIPPED_UPDATES} updates in a row had a non-finite loss or gradient"
        elif self._has_finite_weights():
            return
        else:
            reason = "there are non-finite weights"
        if not self.world.is_main:
            raise errors.OtherRankFailedError(errors.TrainingDivergedError.exit_code)
        config, step, precision = self.config, self.state.step, self.device.precision
        rate = learning_rate(step, config.optim, config.model.d_model, config.train.max_steps)
        other_precision = "" if precision == "fp32" else ", set train.precision=fp32"
        good = checkpoints.latest_good(self.run_dir, self.log.say)
        kept = f"the last checkpoint is intact: {good[0]}" if good else "there is no checkpoint"
        raise errors.TrainingDivergedError(
            f"training gave up at update {step:,}: {reason}. Precision {precision}, learning rate "
            f"{rate:.1e} (peak_lr {config.optim.peak_lr}). Lower optim.peak_lr{other_precision} or "
            f"raise optim.warmup_steps; {kept}"
        )

    def _has_finite_weights(self) -> bool:
        """Whether the weights of all ranks are finite: one faulty device must not separate them."""
        return not self.world.all_reduce_max(int(not self.updater.has_finite_weights()))
