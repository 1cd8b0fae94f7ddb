"""The optimiser, and the learning rate at each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mt.errors import CheckpointError

if TYPE_CHECKING:
    from mt.config import OptimConfig


def learning_rate(step: int, optim: OptimConfig, d_model: int, max_steps: int) -> float:
    """The learning rate of update `step`, counted from 1.

    Linear warm-up, then by `schedule`; `noam` is equation 3 of Vaswani et al. (2017), the product of
    d_model^-0.5 with an inverse square root whose peak is at `warmup_steps`.
    """
    warmup = optim.warmup_steps
    if optim.schedule == "noam":
        return float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))
    peak = optim.peak_lr
    assert peak is not None  # the config sees to that
    if step < warmup:
        return peak * step / warmup
    if optim.schedule == "inverse_sqrt":
        return peak * math.sqrt(warmup / step)
    if optim.schedule == "cosine":
        done = min(1.0, (step - warmup) / (max_steps - warmup))
        return peak * 0.5 * (1 + math.cos(math.pi * done))
    return peak


def build_optimizer(model: nn.Module, optim: OptimConfig) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter, 2019) in fused kernels; without weight decay it is Adam (Kingma and Ba, 2015).

    Only matrices decay: biases and the scales of layer norms have nothing to gain from being small.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=0.0, betas=optim.betas, eps=optim.eps, fused=True)


def restore_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], where: str) -> None:
    """Take over the moments and the rate of a saved state, but not its settings: those are the config's.

    Raises CheckpointError where the state is of other parameters.
    """
    taken = ("params", "lr")
    settings = [{key: group[key] for key in group if key not in taken} for group in optimizer.param_groups]
    try:
        optimizer.load_state_dict(dict(state))
    except ValueError as error:
        raise CheckpointError(
            f"{where}: the optimiser's state does not fit the model ({error}); use another checkpoint, or start over "
            "with --fresh"
        ) from error
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)
