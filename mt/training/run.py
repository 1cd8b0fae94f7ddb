"""From a config to a run: processes connected, the directory claimed, everything tried before the long way begins."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mt.config import Config, require_training_data
from mt.data.corpus import check_sources
from mt.data.store import known_facts
from mt.devices import Device, check_compile, choose_device, peak_memory_mb
from mt.errors import CheckpointError, ConfigError, DataError, EndedElsewhereError
from mt.model import checkpoint
from mt.model.checkpoint import LoadedModel
from mt.processes import Ranks, connected, ranks_of_environment
from mt.training.initial import look_up
from mt.training.rehearsal import forecast, rehearse
from mt.training.runlog import (
    CONFIG,
    RunLog,
    check_is_run,
    check_same_run,
    claim,
    is_of_this_job,
    set_aside,
    summary_writer,
    write_config,
    write_faults,
    write_manifest,
)
from mt.training.trainer import Outcome, Trainer
from mt.training.trial import trial_of


def train(config: Config, run: Path, device_name: str = "auto", fresh: bool = False, dry_run: bool = False) -> Outcome:
    """Train `config` in the directory `run`, or go on there; `fresh` sets a run that is there aside first.

    `dry_run` ends after everything is ready and has been tried, in a folder that is then removed; the run is left as it
    is, and the outcome's reason is what it would be.

    Raises MtError for what the user must mend.
    """
    alone_or_not = ranks_of_environment()
    try:
        device = choose_device(device_name, config.train.precision, local_rank=alone_or_not.local)
        check_compile(config.train.compile, device)
    except ConfigError as error:
        raise EndedElsewhereError(error.exit_code) if alone_or_not.local else error from None
    with connected(alone_or_not, device.is_cuda) as ranks:
        if not dry_run:
            return _train(config, run, device, fresh, False, ranks)
        with trial_of(run, fresh, ranks) as folder:
            return _train(config, folder, device, False, True, ranks)


def _train(config: Config, run: Path, device: Device, fresh: bool, dry_run: bool, ranks: Ranks) -> Outcome:
    # A start that follows a restart goes on with what the first one has begun afresh.
    fresh = ranks.lead(lambda: fresh and not is_of_this_job(run))
    lock, changed, base = ranks.first(lambda: _claim(config, run, fresh) if ranks.leads else _see(config, run, ranks))
    try:
        shown = RunLog(run, config.train.max_steps, ranks.leads, config.train.tensorboard)
        with write_faults(run), shown as log, write_faults(run):
            for line in changed:
                log.say(f"config changed since this run was started: {line}")
            others = f", {ranks.count} processes" if ranks.count > 1 else ""
            log.say(f"run directory {run} on {device}{others}")
            trainer = Trainer(config, run, device, log, ranks, base)
            del base  # its memory is needed
            trainer.resume()
            if len(set(map(repr, ranks.gather((trainer.state.step, trainer.origin))))) > 1:
                raise CheckpointError(
                    f"run directory {run}: the processes do not see the same checkpoint or train.init_from in it; put "
                    "both on a file system that all machines share, where nothing else writes"
                )
            if ranks.leads:
                write_manifest(run, _facts(trainer))
            rehearsal = rehearse(trainer)
            if dry_run:
                return Outcome(forecast(trainer, rehearsal), 0, None)
            log.say(f"rehearsed with {rehearsal}")
            outcome = trainer.train()
            log.say(outcome.reason)
            return outcome
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"the memory of {device} is too small: {peak_memory_mb(device.device):,.0f} MB were in use. Lower "
            "batch.tokens_per_batch (tokens_per_update keeps the training the same), or choose a smaller model"
        ) from error
    finally:
        if lock is not None:
            lock.close()


def _claim(config: Config, run: Path, fresh: bool) -> tuple[Any, list[str], LoadedModel | None]:
    """See that data and run directory are fit; the latter's lock, what has changed there, and what to start from."""
    require_training_data(config)
    if faults := check_sources(config.data):
        raise DataError("\n".join(faults))
    if config.train.tensorboard:
        summary_writer()
    check_is_run(run)
    base = _base(config, run, fresh)
    if fresh and (aside := set_aside(run)):
        print(f"mt: {run} is now {aside}", file=sys.stderr)
    lock = claim(run)
    try:
        changed = check_same_run(run, config)
        with write_faults(run):
            write_config(run, config)
    except BaseException:
        lock.close()
        raise
    return lock, changed, base


def _base(config: Config, run: Path, fresh: bool = False) -> LoadedModel | None:
    """`train.init_from`. A run that goes on needs nothing of where it began: that may be gone."""
    return look_up(config) if fresh or not checkpoint.checkpoints(run) else None


def _see(config: Config, run: Path, ranks: Ranks) -> tuple[None, list[str], LoadedModel | None]:
    """The run directory from a process that does not write there."""
    if not (run / CONFIG).exists():
        raise DataError(
            f"rank {ranks.rank}: run directory {run}: must be on a file system that all machines share, but what the "
            "first process wrote there cannot be seen from here; give another --run-dir"
        )
    return None, [], _base(config, run)


def _facts(trainer: Trainer) -> Mapping[str, Any]:
    """What the manifest says about data and model."""
    files: dict[str, Any] = {}
    for split in ("train", "valid"):
        files |= known_facts(trainer.run / "store" / split)
    return {
        "seed": trainer.config.run.seed,
        "device": str(trainer.device),
        "parameters": sum(p.numel() for p in trainer.learner.model.parameters()),
        "data": {name: {"sha256": fact["sha256"], "lines": fact["lines"]} for name, fact in files.items()},
        "pairs": len(trainer.store),
        "tokenizer": trainer.tokenizer.fingerprint,
        **({"init_from": trainer.origin} if trainer.origin else {}),
    }
