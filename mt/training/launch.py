"""From a config to a trained model: connect the processes, claim the directory, prepare, train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mt.artefacts import exclusive
from mt.config.plan import HELD_OUT, held_out_sets, plan_data
from mt.config.schema import Config
from mt.config.settled import auto_keys
from mt.data.reading.check import check_data
from mt.data.tokens.store import corpus_records, known_records
from mt.data.tokens.tokenizer import PairSample, Tokenizer
from mt.errors import ConfigError, DataError, add_note
from mt.evaluation.bleu_tokenizer import check_tokenizer
from mt.model.checkpoint import LoadedModel
from mt.runs import run_dir as runs
from mt.runs.model_folder import checkpoints
from mt.runs.origin import HISTORY, continued, files_of
from mt.runs.records import metrics_lines
from mt.runtime.devices import Device, check_compile, choose_device, gpu_uuid
from mt.runtime.distributed import World, process_group, world_from_environment
from mt.runtime.memory import explain_failures
from mt.terminal import say
from mt.training import prepare as preparation
from mt.training.checkpoints import tidy
from mt.training.finetune import load_base
from mt.training.outcome import Outcome, rise_note, standstill_note
from mt.training.preflight import Preflight, describe_training, run_preflight
from mt.training.prepare import CleanText, CorpusRead, Prepared, not_cleaned, settle_start
from mt.training.runlog import RunLog, format_duration
from mt.training.trainer import Trainer
from mt.training.validation import score_tests, store_of_set


def train(
    config: Config, run_dir: Path, device_name: str = "auto", fresh: bool = False,
    dry_run: bool = False, clean: CleanText = not_cleaned, started: float | None = None,
) -> Outcome:  # fmt: skip
    """Train `config` in `run_dir`, resuming if it holds a run; `fresh` sets that aside first.

    `dry_run` stops before the first update and leaves the run directory as it is; the reason in the
    outcome describes the training. `started`: when the command was. MtError: the user can mend it.
    """
    world = world_from_environment()
    device: Device | ConfigError
    try:
        device = choose_device(device_name, config.train.precision, local_rank=world.local_rank)
        check_compile(config.train.compile, device)
    except ConfigError as error:
        device = error  # raised once the ranks are connected, so that it is reported once
    with process_group(world, isinstance(device, Device) and device.is_cuda) as connected:
        device = agree_on_devices(device, connected)
        connected.on_main(lambda: runs.check_is_run(run_dir))
        if not dry_run:
            try:
                return _train(config, run_dir, device, fresh, False, connected, clean, started)
            except KeyboardInterrupt as error:  # before the first update, or the second Ctrl-C
                add_note(error, "the same command, without --fresh, resumes from what is saved")
                raise
        with runs.dry_run_dir(run_dir, fresh, connected) as folder:
            return _train(config, folder, device, False, True, connected, clean, started)


def agree_on_devices(device: Device | ConfigError, world: World) -> Device:
    """The device of this rank. ConfigError if a rank has none, or the same GPU as another."""
    gpus = world.all_gather(gpu_uuid(device) if isinstance(device, Device) else None)

    def checked() -> Device:
        if isinstance(device, ConfigError):
            raise device
        if None not in gpus and (first := gpus.index(gpus[world.rank])) < world.rank:
            fault = f"cuda is the same GPU as that of rank {first}; start one process for each GPU"
            raise ConfigError(f"--device: {fault} (torchrun --nproc-per-node=gpu)")
        return device

    return world.all_or_raise(checked)


def _train(
    config: Config, run_dir: Path, device: Device, fresh: bool, dry_run: bool, world: World,
    clean: CleanText, started: float | None,
) -> Outcome:  # fmt: skip
    config = world.on_main(lambda: config)
    run_log = RunLog(run_dir, config.train.max_steps, world.is_main)
    run_log.started = started or run_log.started  # loading torch counts, too
    # A restarted job resumes the run that its first start created with --fresh.
    fresh = world.on_main(lambda: fresh and not runs.is_of_this_job(run_dir))
    # A run that resumes does not need train.init_from, which may be gone.
    is_new = world.on_main(lambda: fresh or not checkpoints(run_dir))
    # In all ranks before the main one sets the run aside, which may be the one to start from.
    base = world.all_or_raise(lambda: load_base(config) if is_new else None)
    world.on_main(lambda: check_tokenizer(config.train.bleu_tokenize, "train.bleu_tokenize"))
    lock, read = world.main_first(
        lambda: _claim(config, run_dir, fresh, base, run_log), lambda: _find_claimed(run_dir)
    )
    read = replace(read, settled=world.on_main(lambda: read.settled))
    with (
        lock or nullcontext(),
        run_log as log,  # has the last words of all that follows
        runs.explain_write_errors(run_dir),
        explain_failures(device),
    ):
        where = "dry run" if dry_run else f"run directory {run_dir}"
        log.say(f"{where} on {device}" + f", {world.size} processes" * (world.size > 1))
        prepared = world.all_or_raise(
            lambda: preparation.prepare(config, device, log, world, base, read, clean)
        )
        trainer = Trainer(prepared, log)
        preflight = _resume(trainer, prepared, base)
        base = None  # frees its memory
        if not trainer.is_done():  # a run keeps the config that it was trained with
            world.on_main(lambda: runs.write_config(run_dir, config, prepared.settled))
        if dry_run:
            return Outcome(describe_training(prepared, trainer.state, preflight), 0, None)
        log.say(f"preflight passed: {preflight}")
        left = trainer.config.train.max_steps - trainer.state.step
        seconds = trainer.seconds_per_update = preflight.seconds_per_update
        if left > 0:
            duration = f"{format_duration(left * seconds)} for {left:,} updates"
            log.say(f"time: about {seconds:.2f} s an update, {duration}")
        del preflight  # frees its epoch, whose text may be augmented
        outcome = trainer.train()
        if outcome.exit_code == 0:
            lines = [*metrics_lines(run_dir)] if trainer.n_updates else []
            size = prepared.tokenizer.tgt.size
            for note in filter(None, (standstill_note(lines, config), rise_note(lines, size))):
                log.say(note)
            if outcome.best is not None:
                score_tests(prepared.scoring, outcome.best, device, world, log, trainer.state.step)
        log.say(outcome.reason)
        return outcome


def _resume(trainer: Trainer, prepared: Prepared, base: LoadedModel | None) -> Preflight:
    world, log = trainer.world, trainer.log
    world.all_or_raise(lambda: trainer.resume(base))
    state = trainer.state
    origin = trainer.meta.get("init_from", {}).get("sha256")
    world.require_same(log.run_dir, checkpoint=state.step, initial_model=origin, plan=state.plan)
    if trainer.is_done() and (log.run_dir / runs.MANIFEST).exists():
        untouched = f"{runs.MANIFEST} and {runs.CONFIG} stay"
        log.say(f"no update is left to do, so nothing is trained on this data; {untouched}")
    elif world.is_main:
        details = _data_and_model(prepared, trainer)
        with suppress(OSError, ValueError):
            before = runs.read_manifest(log.run_dir) if state.step else {}
            for key in ("device", "processes"):
                if (was := before.get(key, details[key])) != details[key]:
                    log.say(f"note: {key}: was {was}, now {details[key]}: last bits will differ")
        runs.write_manifest(log.run_dir, details)
        for corpus in trainer.start.corpora:
            if corpus.changed:
                log.say(
                    f"warning: {', '.join(corpus.changed)}: not as fetched from {corpus.source} on "
                    f"{corpus.fetched}: corpus.yaml beside it has another SHA-256"
                )
    return run_preflight(prepared, state.epoch, log.say, state.stage)


def _claim(
    config: Config, run_dir: Path, fresh: bool, base: LoadedModel | None, log: RunLog
) -> tuple[Any, CorpusRead]:
    """Check data and run directory; return its lock, and what was read of the data."""
    runs.check_can_start(run_dir, fresh)
    read = _check_corpora(config, run_dir, fresh, base, log)
    if fresh and (aside := runs.set_aside(run_dir)):
        say(f"{run_dir} is now {aside}")
    lock = runs.claim(run_dir)
    try:
        settled = settle_start(config, log, read.n_pairs, base)
        stays = "; the tokenizer stays (--fresh may learn one)" * Tokenizer.exists_in(run_dir)
        for line in runs.check_same_run(run_dir, config):
            said = line + stays * line.startswith("data.train:")
            log.say(f"config changed since this run was started: {said}")
        with runs.explain_write_errors(run_dir):
            tidy(run_dir)
        if not checkpoints(run_dir):
            runs.write_config(run_dir, config, settled)
    except BaseException:
        lock.close()
        raise
    return lock, replace(read, settled=settled)


def _check_corpora(
    config: Config, run_dir: Path, fresh: bool, base: LoadedModel | None, log: RunLog
) -> CorpusRead:
    """Read the data, draw the tokenizer's sample, and warn. Raises DataError with all faults."""
    known = known_records(run_dir / runs.STORE / "train")
    for name in (runs.CLEANED, HELD_OUT):
        known |= known_records(run_dir / name)
    is_kept = config.tokenizer.model or (base is not None and not config.train.new_vocabulary)
    learns = not is_kept and (fresh or not Tokenizer.exists_in(run_dir))
    # The vocabulary is that of the text that is trained on.
    is_changed = config.data.clean is not None or held_out_sets(config.data)
    sample = PairSample(config.tokenizer.sample_lines) if learns and not is_changed else None
    counts = auto_keys(config) and (fresh or runs.read_settled(run_dir) is None)

    def watch(pairs: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        watched = log.watch(pairs, "reading data.train")
        return watched if sample is None else sample.watch(watched)

    data = check_data(plan_data(config.data), True, known, watch if counts or sample else None)
    if data.faults:
        raise DataError("\n".join(data.faults))
    for warning in data.warnings:
        log.say(f"warning: {warning}")
    return CorpusRead(data.records, sample, data.n_pairs if counts else 0)


def prepare_data(config: Config, run_dir: Path, clean: CleanText = not_cleaned) -> str:
    """Make the tokenizer and the token store of a run ahead of its training; says what was done."""
    runs.check_is_run(run_dir)
    runs.check_version(run_dir)
    log, world = RunLog(run_dir, config.train.max_steps), World()
    base = load_base(config)
    read = _check_corpora(config, run_dir, False, base, log)
    with runs.explain_write_errors(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        waiting = f"waiting for another process in the run directory {run_dir}"
        with exclusive(run_dir / runs.LOCK, lambda: log.say(waiting)):
            settled = settle_start(config, log, read.n_pairs, base)
            runs.check_same_run(run_dir, config)
            if not checkpoints(run_dir):
                runs.write_config(run_dir, config, settled)
            config = preparation.hold_out(settled.apply(config), log, world)
            data = clean(plan_data(config.data), log, world)
            tokenizer = preparation.prepare_tokenizer(config, data, log, world, base, read.sample)
    store = preparation.prepare_store(data, tokenizer, log, world, read.records)
    return f"{run_dir}: ready to train on {len(store):,} pairs, {len(store.ids):,} tokens"


def _find_claimed(run_dir: Path) -> tuple[None, CorpusRead]:
    if not (run_dir / runs.LOCK).exists():
        raise DataError(f"run directory {run_dir}: holds no {runs.LOCK}.")
    return None, CorpusRead()


def _data_and_model(prepared: Prepared, trainer: Trainer) -> Mapping[str, Any]:
    data, start = prepared.data, trainer.start
    stores = (store_of_set(trainer.run_dir, place) for place in range(len(data.valid_sets)))
    valid = {path: of for store in stores for path, of in files_of(known_records(store)).items()}
    return {
        "cwd": str(Path.cwd()),
        "seed": prepared.config.run.seed,
        "device": str(prepared.updater.device),
        "processes": prepared.updater.world.size,
        "parameters": prepared.updater.n_parameters,
        "data": start.files | valid,
        "valid_data": valid,
        "corpora": [corpus.model_dump() for corpus in start.corpora],
        HISTORY: continued(trainer.earlier, trainer.start, trainer.state.step),
        "test_data": files_of(corpus_records(data.test, data.root, known={})),
        "pairs": len(prepared.store),
        "max_steps": prepared.config.train.max_steps,
        "tokenizer": prepared.tokenizer.fingerprint,
        **({"init_from": trainer.meta["init_from"]} if "init_from" in trainer.meta else {}),
    }
