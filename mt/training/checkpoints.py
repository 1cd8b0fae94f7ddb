"""The checkpoints of a training: what one holds, which are kept, and which one to resume from."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mt.artefacts import beside, restore
from mt.config.plan import StageEnd
from mt.config.schema import Config
from mt.data.tokens.batches import Update
from mt.errors import CheckpointError
from mt.model.checkpoint import all_finite, load_weights, save_model_folder, weights_of
from mt.runs import model_folder
from mt.runs.model_folder import CHECKPOINTS, Scored, checkpoints, sort_key, step_name, step_of
from mt.runs.records import OUTPUTS, SAMPLES
from mt.terminal import Say
from mt.training.update import Updater

ENDS = "stage_ends"  # the key of `meta.json`


@dataclass
class TrainState:
    """State of a training besides tensors, which every update changes: as `state.pt` has it."""

    step: int = 0  # updates done
    epoch: int = 0
    update: int = 0  # the next one to do, within the epoch
    stage: int = 0  # of `data.stages`; what follows counts what it has had
    stage_start: float = 0.0  # its first epoch, later by the part that a changed plan cut off
    stage_epochs: float = 0.0
    stage_updates: int = 0
    bad_validations: int = 0  # since the best one, or the beginning of the stage
    seconds: float = 0.0  # of training, over all starts
    scores: dict[str, Scored] = field(default_factory=dict)  # of the kept checkpoints, by name
    plan: str = ""  # fingerprint of the data order that (epoch, update) refers to
    valid_fingerprint: str = ""  # of the validation set that the scores are from

    def advance(self, update: Update) -> None:
        """Count `update` as done."""
        self.step += 1
        self.epoch = update.epoch + update.last
        self.update = 0 if update.last else update.number + 1
        self.stage_epochs = update.epoch - self.stage_start + (update.number + 1) / update.of
        self.stage_updates += 1

    def has_reached(self, end: StageEnd) -> bool:
        if end.updates is not None:
            return self.stage_updates >= end.updates
        return end.epochs is not None and self.stage_epochs >= end.epochs

    def begin_epoch(self) -> None:
        """Leave out the rest of the current epoch: another plan or stage goes on with the next."""
        self.epoch += self.update > 0
        self.update = 0
        self.stage_start = self.epoch - self.stage_epochs

    def begin_stage(self, stage: int) -> None:
        """Go to the beginning of a stage, which is that of an epoch."""
        self.stage = stage
        self.stage_epochs = 0.0
        self.stage_updates = self.bad_validations = 0
        self.begin_epoch()

    @property
    def best_name(self) -> str | None:
        """The checkpoint of the best validation; of equally good ones, of the first."""
        return max(self.scores, key=lambda name: sort_key(self.scores[name]), default=None)

    @property
    def best(self) -> Scored | None:
        return None if self.best_name is None else self.scores[self.best_name]

    def add_score(self, scored: Scored) -> bool:
        """Record the validation of the current step; returns whether it is the best so far."""
        name = step_name(self.step)
        self.scores[name] = scored
        self.bad_validations = 0 if self.best_name == name else self.bad_validations + 1
        return self.best_name == name


def save_checkpoint(
    run_dir: Path, config: Config, updater: Updater, state: TrainState, meta: Mapping[str, Any]
) -> None:
    """Write a checkpoint with `meta`, move `last` and `best`, and delete what is not to be kept."""
    scored = state.scores.get(name := step_name(state.step))
    about = {**meta, "step": state.step, "score": scored and scored[0]}
    about |= {model_folder.SCORED: scored, model_folder.SCORED_ON: state.valid_fingerprint}
    tensors = {**updater.state_dict(), "train": asdict(state)}
    weights = weights_of(updater.eval_model)
    save_model_folder(run_dir / CHECKPOINTS / name, weights, about, tensors, replace=True)
    _add_to_run(run_dir, config, state)


def complete_saving(run_dir: Path, config: Config, state: TrainState) -> None:
    """Do the rest of `save_checkpoint` where a kill came after the checkpoint was written."""
    last = (run_dir / CHECKPOINTS / model_folder.LAST).resolve()
    if not last.exists() or last.name < step_name(state.step):
        _add_to_run(run_dir, config, state)


def _add_to_run(run_dir: Path, config: Config, state: TrainState) -> None:
    """Move the links, and delete the checkpoints that are not kept and their scores in `state`."""
    folder = run_dir / CHECKPOINTS
    newest = step_name(state.step)
    if state.best_name is not None and (best := folder / state.best_name).exists():
        set_link(run_dir, model_folder.BEST, best)
    elif not state.valid_fingerprint:  # training goes on without validation
        (folder / model_folder.BEST).unlink(missing_ok=True)
    set_link(run_dir, model_folder.LAST, folder / newest)  # last: `complete_saving` looks at it
    # Later ones are damaged, or training would have resumed from them.
    names = [folder.name for folder in checkpoints(run_dir) if folder.name <= newest]
    # A checkpoint that a signal caused is there to resume from; it must not displace regular ones.
    every = config.train.updates_between_validations
    regular = [name for name in names if name in state.scores or step_of(name) % every == 0]
    scored = [name for name in names if name in state.scores]
    by_score = sorted(scored, key=lambda name: sort_key(state.scores[name]), reverse=True)
    best_ones = by_score[: max(1, config.train.keep_best)]
    linked = (link.resolve().name for link in folder.glob(f"{model_folder.BEST}-until-*"))
    kept = {newest, *regular[-config.train.keep_last :], *best_ones, *linked}
    prune(run_dir, kept)
    state.scores = {name: scored for name, scored in state.scores.items() if name in kept}


def keep_best(run_dir: Path, step: int) -> str:
    """Keep the checkpoint that is the best up to a step for good, under the link returned."""
    name, best = f"{model_folder.BEST}-until-{step}", run_dir / CHECKPOINTS / model_folder.BEST
    if best.exists():
        while (link := best.with_name(name)).exists() and not link.samefile(best):
            name += "-later"  # what decides has changed twice at this step
        set_link(run_dir, name, best.resolve())
    return name


def latest_good(run_dir: Path, say: Say) -> tuple[Path, dict[str, Any]] | None:
    """The newest undamaged checkpoint with finite weights, and its meta; reports the others."""
    for folder in reversed(checkpoints(run_dir)):
        try:
            meta = model_folder.read_meta(folder, [model_folder.WEIGHTS, model_folder.STATE])
            if all_finite(load_weights(folder).values()):
                return folder, meta
            fault = f"{folder}: has non-finite weights"
        except model_folder.DamagedError as error:
            fault = str(error)
        say(f"{fault}. Skipped; trying the checkpoint before it")
    return None


def checkpoint_to_resume(run_dir: Path, say: Say) -> tuple[Path, dict[str, Any]] | None:
    """The newest usable checkpoint and its meta, None for a run that has no checkpoint at all."""
    newest = latest_good(run_dir, say)
    if newest is None and checkpoints(run_dir):
        raise CheckpointError(
            f"run directory {run_dir}: all of its checkpoints are damaged or hold non-finite "
            "weights; give --fresh to set it aside and start over"
        )
    return newest


def progress_of(run_dir: Path) -> tuple[int, list[StageEnd]]:
    """The updates in the newest checkpoint, and the ends of the stages that are over by then."""
    for folder in reversed(checkpoints(run_dir)):
        with suppress(CheckpointError):  # reported on resuming
            ends = model_folder.read_meta(folder, []).get(ENDS, [])
            return step_of(folder.name), [StageEnd(*end) for end in ends]
    return 0, []


def set_link(run_dir: Path, name: str, folder: Path) -> None:
    """Let a link such as `checkpoints/best` name a checkpoint, atomically."""
    link = run_dir / CHECKPOINTS / name
    partial = beside(link, "partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(folder.name)
    partial.replace(link)


def prune(run_dir: Path, keep: set[str]) -> None:
    """Delete the checkpoints of a run whose names are not in `keep`."""
    for folder in checkpoints(run_dir):
        if folder.name not in keep:
            # Renamed first: a half-deleted folder would look like a damaged checkpoint.
            partial = beside(folder, "partial")
            shutil.rmtree(partial, ignore_errors=True)
            folder.rename(partial)
            shutil.rmtree(partial, ignore_errors=True)


def tidy(run_dir: Path) -> None:
    """Restore or delete what a killed process left; only the holder of the run's lock may do it."""
    for name in (CHECKPOINTS, OUTPUTS, SAMPLES):
        restore(run_dir / name)
