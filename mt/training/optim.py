"""The optimiser and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from typing_extensions import assert_never

from mt.errors import CheckpointError

if TYPE_CHECKING:
    from mt.config.schema import OptimConfig


def learning_rate(step: int, optim: OptimConfig, d_model: int, max_steps: int) -> float:
    """The learning rate of update `step`, counted from 1.

    Linear warm-up, then `schedule`. `noam` is equation 3 of Vaswani et al. (2017): d_model^-0.5
    times an inverse square root that peaks at `warmup_steps`. `cosine` falls to 0 at `max_steps`.
    """
    warmup = optim.warmup_steps
    if optim.schedule == "noam":
        return float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))
    peak = optim.peak_lr
    assert peak is not None  # the config checks that
    if step < warmup:
        return peak * step / warmup
    match optim.schedule:
        case "inverse_sqrt":
            return peak * math.sqrt(warmup / step)
        case "cosine":
            done = min(1.0, (step - warmup) / max(1, max_steps - warmup))
            return peak * 0.5 * (1 + math.cos(math.pi * done))
        case "constant":
            return peak
        case _:
            assert_never(optim.schedule)


def build_optimizer(model: nn.Module, optim: OptimConfig) -> torch.optim.AdamW:
    """Fused AdamW (Loshchilov and Hutter, 2019), which is Adam without weight decay.

    Only the matrices of layers decay, and an output matrix that is not tied. Biases and the scales
    of layer norms gain nothing from being small. Nor do embeddings: without a gradient a row would
    shrink by exp(-sum of rate x decay) until its word comes again, so that rare words would fade.
    """
    named = list(model.named_parameters())
    embeddings = [p for name, p in named if "embedding" in name]  # come first; tied ones too
    of_others = {id(p) for p in embeddings}
    matrices = [p for _, p in named if p.dim() > 1 and id(p) not in of_others]
    groups = [
        {"params": embeddings, "weight_decay": 0.0},
        {"params": matrices, "weight_decay": optim.weight_decay},
        {"params": [p for _, p in named if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=optim.betas, eps=optim.eps, fused=True)


def restore_optimizer(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any], where: str
) -> None:
    """Load moments and learning rate; other settings stay. `where`: the checkpoint, for messages.

    Raises CheckpointError if the state belongs to other parameters.
    """
    loaded = ("params", "lr")
    settings = [
        {key: group[key] for key in group if key not in loaded} for group in optimizer.param_groups
    ]
    try:
        optimizer.load_state_dict(dict(state))
    except ValueError as error:
        raise CheckpointError(
            f"{where}: the optimiser's state does not fit the model ({error}); use another "
            "checkpoint, or start over with --fresh"
        ) from error
    for group, kept in zip(optimizer.param_groups, settings, strict=True):
        group.update(kept)
