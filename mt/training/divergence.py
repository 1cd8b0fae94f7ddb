"""What can be found out about gradients that are no numbers, when training gives up."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from mt.data.tokenizer import EOS
from mt.files import write_whole
from mt.runtime.devices import seed_everything
from mt.training.optim import learning_rate

if TYPE_CHECKING:
    from mt.data.loader import Update
    from mt.data.tokenizer import Tokenizer
    from mt.training.update import Updater

# Where the sentences of the last update are written, in the run directory.
LINES = "diverged.txt"
SHOWN = 3


def explain_divergence(
    updater: Updater, update: Update, tokenizer: Tokenizer, step: int, run: Path
) -> str:
    """What the last update, number `step` from 0, was made of: rate, weights, gradients, sentences.

    Its gradients are worked out once more, as they were, by all ranks.
    """
    config = updater.config
    rate = learning_rate(step + 1, config.optim, config.model.d_model, config.train.max_steps)
    said = [
        f"Precision {updater.device.precision}, learning rate {rate:.1e} (peak_lr {config.optim.peak_lr})"
    ]
    spoilt = [
        name for name, weight in updater.model.named_parameters() if not weight.isfinite().all()
    ]
    if spoilt:
        said.append(f"weights that are no numbers: {_some(spoilt)}")
    seed_everything(config.run.seed, step, updater.world.rank)
    updater.gradients(update)
    norms = {
        name: float(weight.grad.norm()) / updater.scaler.get_scale()
        for name, weight in updater.model.named_parameters()
        if weight.grad is not None
    }
    updater.optimizer.zero_grad()
    largest = sorted(norms, key=lambda name: -_size(norms[name]))[:SHOWN]
    said.append("largest gradients: " + ", ".join(f"{name} {norms[name]:.3g}" for name in largest))
    pairs = [
        pair for share in updater.world.all_gather(sentences(update, tokenizer)) for pair in share
    ]
    if updater.world.is_main:
        write_whole(run / LINES, "".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    said.append(f"the sentences of that update are in {run / LINES}")
    return "; ".join(said)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _size(norm: float) -> float:
    return norm if math.isfinite(norm) else math.inf


def sentences(update: Update, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """The pairs of this rank's batches as text."""
    pairs = []
    for batch in update.batches:
        if not batch.n_tgt:  # a rank for which no sentence was left
            continue
        src = [tokenizer.src_pieces_of(row) for row in _rows(batch.src)]
        tgt = tokenizer.decode_tgt(_rows(batch.tgt_in))
        pairs += [
            ("".join(pieces).replace("\u2581", " ").strip(), text)
            for pieces, text in zip(src, tgt, strict=True)
        ]
    return pairs


def _rows(ids: Tensor) -> list[list[int]]:
    """The ids of each row without padding, bos and eos. ids (B, T)"""
    return [[i for i in row if i > EOS] for row in ids.tolist()]
