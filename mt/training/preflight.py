"""Trials before training, so that running out of memory shows at once, and the time is known."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from threading import Event

import numpy as np

from mt.data.tokens.batches import gather_batch
from mt.data.tokens.plan import Plan, describe_stage
from mt.errors import NonFiniteError
from mt.model.checkpoint import LoadedModel
from mt.runtime import memory
from mt.runtime.distributed import flatten_gradients
from mt.terminal import Say
from mt.training.checkpoints import TrainState
from mt.training.prepare import Prepared, sizes_of
from mt.training.runlog import format_duration
from mt.training.settle import typical_update
from mt.training.validation import translate

# Sentences of the validation set that are translated, the longest ones; on a GPU several batches.
N_TRANSLATED = {"cpu": 16, "cuda": 1024}


@dataclass(frozen=True)
class Preflight:
    """Memory for the largest batch of an epoch, and time of a typical update."""

    plan: Plan  # of the epoch, with its augmented text
    rows: int  # sentences in the largest batch
    longest: int  # tokens of its longest sentence, with eos
    memory_mb: float  # most that any rank uses
    seconds_per_update: float  # of the slowest rank

    def __str__(self) -> str:
        return f"{self.rows:,} sentences of up to {self.longest:,} tokens: {self.memory_mb:,.0f} MB"


def run_preflight(prepared: Prepared, epoch: int, say: Say, stage: int = 0) -> Preflight:
    """Do all the work of some updates of `epoch` and of a translation; nothing changes."""
    world, seconds = prepared.updater.world, prepared.seconds_per_update
    explained = memory.explain_failures(prepared.updater.device)(_run_on_this_rank)
    plan, largest, memory_mb = world.all_or_raise(lambda: explained(prepared, epoch, say, stage))
    if seconds is None:
        say("preflight: timing typical updates")
        seconds = typical_update(prepared.updater, plan, epoch)
    return Preflight(plan, *largest, max(world.all_gather(memory_mb)), seconds)


def _run_on_this_rank(
    prepared: Prepared, epoch: int, say: Say, stage: int
) -> tuple[Plan, tuple[int, int], float]:
    """The plan of the epoch, its largest batch (sentences, tokens) and its memory here."""
    updater = prepared.updater
    device = updater.device.device
    if prepared.plans[stage].resample is not None:
        say("preflight: making the tokens of an epoch")
    plan = prepared.plans[stage].for_epoch(epoch, Event())
    memory.release_freed_memory()
    memory.reset_peak_memory(device)
    updater.skip_step()  # the optimiser allocates its moments
    if updater.world.size > 1 and updater.world.rows is None:  # as before a sum over all ranks
        flatten_gradients(updater.model.parameters())
        updater.optimizer.zero_grad(set_to_none=True)
    lengths = np.maximum(plan.pairs.src_lengths, plan.pairs.tgt_lengths) + 1
    batches = [batch for update in plan.updates(epoch) for batch in update]
    with_longest = max(batches, key=lambda batch: int(lengths[batch].max()))
    largest = max(batches, key=lambda batch: sum(plan.n_tokens(batch)))
    for indices in (with_longest, largest):
        n_tokens = int(lengths[indices].max())
        say(f"preflight: a batch of {len(indices):,} sentences of up to {n_tokens:,} tokens")
        updater.dry_run_step(gather_batch(plan.pairs, indices))
    _translate_longest(prepared, say)
    return plan, (len(largest), int(lengths[largest].max())), memory.peak_memory_mb(device)


def _translate_longest(prepared: Prepared, say: Say) -> None:
    device, sets = prepared.updater.device, prepared.validations
    if not sets:
        return
    every = [pair for valid in sets for pair in zip(valid.src, valid.directions, strict=True)]
    longest = sorted(every, key=lambda pair: len(pair[0]))[-N_TRANSLATED[device.device.type] :]
    lines, directions = zip(*longest, strict=True)
    say(f"preflight: translating {len(lines):,} sentences")
    config, tokenizer, model = prepared.config, prepared.tokenizer, prepared.updater.eval_model
    loaded = LoadedModel(sets[0].run_dir, {}, config, tokenizer, model)
    with suppress(NonFiniteError):  # training skips such updates
        translate(loaded, device, lines, directions)


def describe_training(prepared: Prepared, state: TrainState, preflight: Preflight) -> str:
    """Describe a training to come: data, updates, memory and time, one row for each."""
    data, updater = prepared.data, prepared.updater
    pairs = preflight.plan.pairs
    updates = preflight.plan.updates(state.epoch)
    order = np.concatenate([batch for update in updates for batch in update])
    n_src = int((pairs.src_lengths[order] + 1).sum())
    n_tgt = int((pairs.tgt_lengths[order] + 1).sum())
    left = max(0, prepared.config.train.max_steps - state.step)
    lengths = prepared.epochs.lengths
    to_do = prepared.epochs.by_stage(state, prepared.ends, left)
    n_epochs = sum(updates / lengths[stage] for stage, updates in to_do)
    each = ", then ".join(f"{length:,}" for length in lengths)
    seconds = preflight.seconds_per_update
    rows = {
        "pairs": f"{len(prepared.store):,}, {len(order):,} sentences drawn for an epoch",
        "tokens per epoch": f"{n_src:,} source, {n_tgt:,} target",
        "vocabulary": sizes_of(prepared.tokenizer),
        "parameters": f"{updater.n_parameters:,}",
        "updates per epoch": f"{each}, of {n_tgt / len(updates):,.0f} target tokens each",
        "updates to do": f"{left:,}, {n_epochs:,.1f} epochs",
        "largest batch": f"{preflight}, on {updater.device}",
        "time": f"{format_duration(left * seconds)} at {seconds:.2f} s an update, plus validations",
    }
    if len(data.stages) > 1:
        stage = state.stage, prepared.ends[state.stage]
        rows["stage"] = next(describe_stage(data, *stage, pairs.kept, preflight.plan.drawn))
    return "\n".join(f"{name:<{max(map(len, rows))}}  {text}" for name, text in rows.items())
