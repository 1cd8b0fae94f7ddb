"""From a config to a run: processes connected, the directory claimed, everything tried before the long way begins."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mt.config.load import require_training_data
from mt.config.schema import Config
from mt.data.corpus import check_sources
from mt.data.store import known_facts
from mt.errors import ConfigError, DataError
from mt.model import checkpoint
from mt.runtime.devices import Device, check_compile, choose_device, gpu_id
from mt.runtime.distributed import World, process_group, world_from_environment
from mt.runtime.memory import explain_out_of_memory
from mt.training.dry_run import dry_run_dir
from mt.training.finetune import resolve_init_from
from mt.training.manifest import is_of_this_job, write_manifest
from mt.training.preflight import forecast, run_preflight
from mt.training.run_dir import (
    CONFIG,
    check_is_run,
    check_same_run,
    claim,
    explain_write_errors,
    set_aside,
    write_config,
)
from mt.training.runlog import RunLog, summary_writer
from mt.training.trainer import Outcome, Trainer


def train(
    config: Config, run: Path, device_name: str = "auto", fresh: bool = False, dry_run: bool = False
) -> Outcome:
    """Train `config` in the directory `run`, or go on there; `fresh` sets a run that is there aside first.

    `dry_run` ends after everything is ready and has been tried, in a folder that is then removed; the run is left as it
    is, and the outcome's reason is what it would be.

    Raises MtError for what the user must mend.
    """
    alone_or_not = world_from_environment()
    device: Device | ConfigError
    try:
        device = choose_device(
            device_name, config.train.precision, local_rank=alone_or_not.local_rank
        )
        check_compile(config.train.compile, device)
    except ConfigError as error:
        device = error  # a fault of any process is told by the first, so they must be able to speak
    with process_group(alone_or_not, isinstance(device, Device) and device.is_cuda) as world:
        own = usable(device, world)
        if not dry_run:
            return _train(config, run, own, fresh, False, world)
        with dry_run_dir(run, fresh, world) as folder:
            return _train(config, folder, own, False, True, world)


def usable(device: Device | ConfigError, world: World) -> Device:
    """The device; raises the ConfigError of a rank that has none, or not one of its own."""

    def chosen() -> Device:
        if isinstance(device, ConfigError):
            raise device
        return device

    mine = world.all_or_raise(chosen)
    gpus = world.all_gather(gpu_id(mine))

    def own() -> Device:
        if None not in gpus and (first := gpus.index(gpus[world.rank])) < world.rank:
            raise ConfigError(
                f"--device: cuda is the same GPU as that of rank {first}; start one process for each GPU (torchrun "
                "--nproc-per-node=gpu)"
            )
        return mine

    return world.all_or_raise(own)


def _train(
    config: Config, run: Path, device: Device, fresh: bool, dry_run: bool, world: World
) -> Outcome:
    # A start that follows a restart goes on with what the first one has begun afresh.
    fresh = world.on_main(lambda: fresh and not is_of_this_job(run))
    # A run that goes on needs nothing of where it began: that may be gone.
    begins = world.on_main(lambda: fresh or not checkpoint.checkpoints(run))
    # By all of them before the first sets the run aside, which may be the one to start from.
    base = world.all_or_raise(lambda: resolve_init_from(config) if begins else None)
    lock, changed = world.main_first(lambda: _claim(config, run, fresh), lambda: _see(run))
    try:
        shown = RunLog(run, config.train.max_steps, world.is_main, config.train.tensorboard)
        with (
            explain_out_of_memory(device),
            explain_write_errors(run),
            shown as log,
            explain_write_errors(run),
        ):
            for line in changed:
                log.say(f"config changed since this run was started: {line}")
            others = f", {world.size} processes" if world.size > 1 else ""
            log.say(f"run directory {run} on {device}{others}")
            trainer = Trainer(config, run, device, log, world, base)
            del base  # its memory is needed
            world.all_or_raise(trainer.resume)
            state, origin = trainer.state, trainer.origin and trainer.origin["sha256"]
            world.require_same(run, checkpoint=state.step, initial_model=origin, plan=state.plan)
            if world.is_main:
                write_manifest(run, _facts(trainer))
            preflight = run_preflight(trainer)
            if dry_run:
                return Outcome(forecast(trainer, preflight), 0, None)
            log.say(f"rehearsed with {preflight}")
            outcome = trainer.train()
            log.say(outcome.reason)
            return outcome
    finally:
        if lock is not None:
            lock.close()


def _claim(config: Config, run: Path, fresh: bool) -> tuple[Any, list[str]]:
    """See that data and run directory are fit; the latter's lock, and what has changed there."""
    require_training_data(config)
    if faults := check_sources(config.data):
        raise DataError("\n".join(faults))
    if config.train.tensorboard:
        summary_writer()
    check_is_run(run)
    if fresh and (aside := set_aside(run)):
        print(f"mt: {run} is now {aside}", file=sys.stderr)
    lock = claim(run)
    try:
        changed = check_same_run(run, config)
        with explain_write_errors(run):
            write_config(run, config)
    except BaseException:
        lock.close()
        raise
    return lock, changed


def _see(run: Path) -> tuple[None, list[str]]:
    """The run directory from a process that does not write there."""
    if not (run / CONFIG).exists():
        raise DataError(f"run directory {run}: holds no {CONFIG}.")
    return None, []


def _facts(trainer: Trainer) -> Mapping[str, Any]:
    """What the manifest says about data and model."""
    files: dict[str, Any] = {}
    for split in ("train", "valid"):
        files |= known_facts(trainer.run / "store" / split)
    return {
        "seed": trainer.config.run.seed,
        "device": str(trainer.device),
        "parameters": sum(p.numel() for p in trainer.updater.model.parameters()),
        "data": {
            name: {"sha256": fact["sha256"], "lines": fact["lines"]} for name, fact in files.items()
        },
        "pairs": len(trainer.store),
        "tokenizer": trainer.tokenizer.fingerprint,
        **({"init_from": trainer.origin} if trainer.origin else {}),
    }
