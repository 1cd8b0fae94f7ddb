"""A dry run: everything that comes before training, in a temporary folder, and what it tells."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import TYPE_CHECKING

import numpy as np

from mt.errors import DataError, MtError
from mt.model.checkpoint import CHECKPOINTS, checkpoints
from mt.runs.manifest import MANIFEST
from mt.runs.run_dir import CONFIG, LOCK, check_is_run
from mt.training.preflight import PreflightResult, estimate_update_seconds, time_updates
from mt.training.runlog import format_duration

if TYPE_CHECKING:
    from mt.runtime.distributed import World
    from mt.training.checkpoints import TrainState
    from mt.training.prepare import Prepared

# Updates that take less than so many seconds are timed; of slower ones the estimate is enough.
QUICK_SECONDS = 5.0


@contextmanager
def dry_run_dir(run_dir: Path, fresh: bool, world: World) -> Iterator[Path]:
    """A temporary run directory that starts like `run_dir`, or empty with `fresh`; then removed.

    So a dry run goes the same way as a training and fails where that would fail, and nothing is
    changed in `run_dir`: small files are copied, large ones are links that nothing writes to.

    The folder is made in the run directory, or in the nearest folder above it that exists, so that
    all ranks see it. Raises DataError if it cannot be made.
    """
    with ExitStack() as until_the_end:

        def make() -> Path:
            check_is_run(run_dir)
            try:
                parent = next(p for p in (run_dir, *run_dir.absolute().parents) if p.exists())
                folder = TemporaryDirectory(
                    prefix=".dry-run-", dir=parent, ignore_cleanup_errors=True
                )
                path = Path(until_the_end.enter_context(folder))
                if not fresh:
                    _fill(path, run_dir.absolute())
            except OSError as error:
                raise DataError(
                    f"run directory {run_dir}: must be a folder that can be written, but "
                    f"{error.strerror} ({error.filename}); give another one with --run-dir"
                ) from error
            return path

        folder = world.on_main(make)
        try:
            yield folder
        except MtError as error:  # the temporary folder's name would be of no use
            error.args = (str(error).replace(str(folder), str(run_dir)),)
            raise
        world.all_gather(None)  # all ranks have read what is removed now


def _fill(folder: Path, run_dir: Path) -> None:
    """Give `folder` what training reads from a run directory before it starts."""
    names = (CONFIG, MANIFEST, LOCK)  # a copied lock is another one: a training may be in progress
    for path in (*(run_dir / name for name in names), *run_dir.glob("tokenizer*.model")):
        if path.exists():
            shutil.copy(path, folder)
    (folder / CHECKPOINTS).mkdir()
    for path in checkpoints(run_dir):
        (folder / CHECKPOINTS / path.name).symlink_to(path)
    if (run_dir / "store").exists():
        shutil.copytree(run_dir / "store", folder / "store", copy_function=_copy_or_link)


def _copy_or_link(source: str, target: str) -> None:
    """Copy the JSON files of a token store and link its arrays."""
    if source.endswith(".json"):
        shutil.copy(source, target)
    else:
        os.symlink(source, target)


def describe_training(prepared: Prepared, state: TrainState, preflight: PreflightResult) -> str:
    """What a training is going to be: data, updates, memory and time, one fact a line."""
    tokenizer = prepared.tokenizer
    updater = prepared.updater
    plan = prepared.plan.for_epoch(state.epoch, Event())
    updates = plan.updates(state.epoch)
    order = np.concatenate([batch for update in updates for batch in update])
    n_src = int((plan.store.src_lengths[order] + 1).sum())
    n_tgt = int((plan.store.tgt_lengths[order] + 1).sum())
    vocabulary = f"{tokenizer.src_vocab_size:,}"
    if not tokenizer.joint:
        vocabulary += f" and {tokenizer.tgt_vocab_size:,}"
    left = max(0, prepared.config.train.max_steps - state.step)
    seconds = estimate_update_seconds(preflight, plan, state.epoch, updater.world.size)
    if updater.world.on_main(lambda: seconds < QUICK_SECONDS):
        seconds = time_updates(updater, plan, state.epoch)
    rows = {
        "pairs": f"{len(plan.store):,}, {len(order):,} of them drawn for an epoch",
        "tokens per epoch": f"{n_src:,} source, {n_tgt:,} target",
        "vocabulary": vocabulary,
        "parameters": f"{updater.n_parameters:,}",
        "updates per epoch": f"{len(updates):,}, of {n_tgt / len(updates):,.0f} target tokens each",
        "updates to do": f"{left:,}, {left / len(updates):,.1f} epochs",
        "largest batch": f"{preflight}, on {updater.device}",
        "time": f"{format_duration(left * seconds)} at {seconds:.2f} s an update, validations not "
        "counted",
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows.items())
