"""Giving up on a training that diverged, with what can be found out about the cause."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from mt.data.tokens.tokenizer import EOS
from mt.errors import OtherRankFailedError, TrainingDivergedError
from mt.files import write_whole
from mt.runtime.devices import seed_everything
from mt.training.optim import learning_rate

if TYPE_CHECKING:
    from mt.data.tokens.loader import Update
    from mt.data.tokens.tokenizer import Tokenizer
    from mt.training.checkpoints import TrainState
    from mt.training.update import Updater

# The file in the run directory that gets the sentences of the last update.
LINES = "diverged.txt"
# How many weights and gradients are named.
N_NAMED = 3


def divergence_error(
    trouble: str,
    state: TrainState,
    update: Update,
    updater: Updater,
    tokenizer: Tokenizer,
    run_dir: Path,
    last_good: Path | None,
) -> TrainingDivergedError | OtherRankFailedError:
    """The error that ends training after `update`, when returning to checkpoints has not helped.

    All ranks must call this. The main process gets the message, the others an error without one.
    """
    diagnosis = explain_divergence(updater, update, tokenizer, state.step - 1, run_dir)
    attempts = f", after {state.rollbacks} times back to a checkpoint" if state.rollbacks else ""
    precision = "" if updater.device.precision == "fp32" else ", set train.precision=fp32"
    kept = f"the last checkpoint is intact: {last_good}"
    if last_good is None:
        kept = "there is no checkpoint to go back to"
    message = (
        f"training gave up at update {state.step:,}: {trouble}{attempts}. {diagnosis}. Lower "
        f"optim.peak_lr{precision} or raise optim.warmup_steps; {kept}"
    )
    if updater.world.is_main:
        return TrainingDivergedError(message)
    return OtherRankFailedError(TrainingDivergedError.exit_code)


def explain_divergence(
    updater: Updater, update: Update, tokenizer: Tokenizer, step: int, run_dir: Path
) -> str:
    """Describe update number `step`, from 0: learning rate, weights, gradients, sentences.

    Its gradients are computed once more, with the same dropout; all ranks must call this.
    """
    config = updater.config
    rate = learning_rate(step + 1, config.optim, config.model.d_model, config.train.max_steps)
    facts = [
        f"Precision {updater.device.precision}, learning rate {rate:.1e} "
        f"(peak_lr {config.optim.peak_lr})"
    ]
    non_finite = [
        name for name, weight in updater.model.named_parameters() if not weight.isfinite().all()
    ]
    if non_finite:
        facts.append(f"non-finite weights: {_first_names(non_finite)}")
    seed_everything(config.run.seed, step, updater.world.rank)
    updater.accumulate_gradients(update)
    norms = {
        name: float(weight.grad.norm()) / updater.scaler.get_scale()
        for name, weight in updater.model.named_parameters()
        if weight.grad is not None
    }
    updater.optimizer.zero_grad()
    largest = sorted(norms, key=lambda name: _sort_key(norms[name]), reverse=True)[:N_NAMED]
    facts.append("largest gradients: " + ", ".join(f"{name} {norms[name]:.3g}" for name in largest))
    shards = updater.world.all_gather(sentences(update, tokenizer))
    if updater.world.is_main:
        pairs = [pair for shard in shards for pair in shard]
        write_whole(run_dir / LINES, "".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    facts.append(f"the sentences of that update are in {run_dir / LINES}")
    return "; ".join(facts)


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - N_NAMED} more" if len(names) > N_NAMED else ""
    return ", ".join(names[:N_NAMED]) + more


def _sort_key(norm: float) -> float:
    """NaN does not compare; it counts as infinite."""
    return norm if math.isfinite(norm) else math.inf


def sentences(update: Update, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """The sentence pairs of this rank's batches as text."""
    pairs = []
    for batch in update.batches:
        if not batch.n_tgt:  # a placeholder for a rank without sentences
            continue
        src_pieces = [tokenizer.src_pieces_of(row) for row in _text_ids(batch.src)]
        src = ["".join(pieces).replace("\u2581", " ").strip() for pieces in src_pieces]
        tgt = tokenizer.decode_tgt(_text_ids(batch.tgt_in))
        pairs += list(zip(src, tgt, strict=True))
    return pairs


def _text_ids(ids: Tensor) -> list[list[int]]:
    """The ids of each row without padding, bos and eos. ids (B, T)"""
    return [[i for i in row if i > EOS] for row in ids.tolist()]
