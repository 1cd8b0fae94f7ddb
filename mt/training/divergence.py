"""The error of a training that diverged: a diagnosis of its last update."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from mt.data.tokens.tokenizer import EOS
from mt.errors import OtherRankFailedError, TrainingDivergedError
from mt.files import write_whole
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
    reason: str,
    state: TrainState,
    update: Update,
    updater: Updater,
    tokenizer: Tokenizer,
    run_dir: Path,
    last_good: Path | None,
) -> TrainingDivergedError | OtherRankFailedError:
    """The error that ends training after `update`, when returning to checkpoints has not helped.

    It describes the update: learning rate, weights, gradients, sentences. All ranks must call this.
    The main process gets the message, the others an error without one.
    """
    optim = updater.config.optim
    max_steps = updater.config.train.max_steps
    rate = learning_rate(state.step, optim, updater.config.model.d_model, max_steps)
    precision = updater.device.precision
    diagnosis = [f"Precision {precision}, learning rate {rate:.1e} (peak_lr {optim.peak_lr})"]
    non_finite = [
        name for name, weight in updater.model.named_parameters() if not weight.isfinite().all()
    ]
    if non_finite:
        more = f" and {len(non_finite) - N_NAMED} more" if len(non_finite) > N_NAMED else ""
        diagnosis.append(f"non-finite weights: {', '.join(non_finite[:N_NAMED])}{more}")
    norms = gradient_norms(updater, update, state.step - 1)
    # Non-finite ones first: NaN does not compare.
    largest = sorted(norms, key=lambda name: (math.isfinite(norms[name]), -norms[name]))
    gradients = ", ".join(f"{name} {norms[name]:.3g}" for name in largest[:N_NAMED])
    diagnosis.append(f"largest gradients: {gradients}")
    shards = updater.world.all_gather(sentences(update, tokenizer))
    if not updater.world.is_main:
        return OtherRankFailedError(TrainingDivergedError.exit_code)
    lines = [f"{src}\t{tgt}\n" for shard in shards for src, tgt in shard]
    write_whole(run_dir / LINES, "".join(lines))
    diagnosis.append(f"the sentences of that update are in {run_dir / LINES}")
    attempts = f", after {state.rollbacks} times back to a checkpoint" if state.rollbacks else ""
    other_precision = "" if precision == "fp32" else ", set train.precision=fp32"
    intact = f"the last checkpoint is intact: {last_good}"
    kept = intact if last_good else "there is no checkpoint to go back to"
    return TrainingDivergedError(
        f"training gave up at update {state.step:,}: {reason}{attempts}. {'; '.join(diagnosis)}. "
        f"Lower optim.peak_lr{other_precision} or raise optim.warmup_steps; {kept}"
    )


def gradient_norms(updater: Updater, update: Update, step: int) -> dict[str, float]:
    """The norm of each weight's gradient in update number `step`, from 0.

    Gradients are computed once more, with the same dropout; all ranks must call this.
    """
    updater.accumulate_gradients(update, step)
    norms = {
        name: float(weight.grad.norm()) / updater.scaler.get_scale()
        for name, weight in updater.model.named_parameters()
        if weight.grad is not None
    }
    updater.optimizer.zero_grad()
    return norms


def sentences(update: Update, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """The sentence pairs of this rank's batches as text."""
    pairs = []
    for batch in update.batches:
        if not batch.n_tgt:  # a placeholder for a rank without sentences
            continue
        src_pieces = [tokenizer.src.pieces_of(row) for row in _text_ids(batch.src)]
        src = ["".join(pieces).replace("\u2581", " ").strip() for pieces in src_pieces]
        tgt = tokenizer.tgt.decode(_text_ids(batch.tgt_in))
        pairs += list(zip(src, tgt, strict=True))
    return pairs


def _text_ids(ids: Tensor) -> list[list[int]]:
    """The ids of each row without padding, bos and eos. ids (B, T)"""
    return [[i for i in row if i > EOS] for row in ids.tolist()]
