"""Optimisers and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mt.errors import CheckpointError

if TYPE_CHECKING:
    from mt.config.schema import OptimConfig


def learning_rate(step: int, optim: OptimConfig, d_model: int, max_steps: int) -> float:
    """The learning rate of update `step`, counted from 1.

    Linear warm-up, then `schedule`. `noam` is equation 3 of Vaswani et al. (2017): d_model^-0.5
    times an inverse square root that peaks at `warmup_steps`.
    """
    warmup = optim.warmup_steps
    if optim.schedule == "noam":
        return float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))
    peak = optim.peak_lr
    assert peak is not None  # the config checks that
    if step < warmup:
        return peak * step / warmup
    if optim.schedule == "inverse_sqrt":
        return peak * math.sqrt(warmup / step)
    if optim.schedule == "cosine":
        done = min(1.0, (step - warmup) / (max_steps - warmup))
        return peak * 0.5 * (1 + math.cos(math.pi * done))
    return peak


def orthogonalized(matrix: Tensor) -> Tensor:
    """Approximate the nearest (semi-)orthogonal matrix of `matrix` (R, C), of Frobenius norm 1.

    Singular vectors stay; singular values of 0.005 and more become 0.66 to 1.21. Four Newton-Schulz
    iterations with the coefficients of Jordan et al. (2024), who use five; these raise small values
    fast and never converge to 1.
    """
    x = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
    for _ in range(4):
        square = x @ x.mT  # (min(R, C), min(R, C))
        x = torch.addmm(
            x, torch.addmm(square, square, square, beta=-4.7750, alpha=2.0315), x, beta=3.4445
        )
    return x.mT if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.AdamW):
    """Muon for parameter groups with a key `matrices`, AdamW for all others.

    Jordan et al., 2024, "Muon: An optimizer for hidden layers in neural networks": the step is the
    orthogonalised Nesterov momentum of the gradient, so that rare directions count as much as the
    few that dominate a gradient. Its root mean square is 0.2 times the learning rate, about Adam's,
    so that one rate fits both (Liu et al., 2025, "Muon is scalable for LLM training", section 2.2).
    `matrices` of a group: how many matrices each parameter stacks along its rows.
    """

    MOMENTUM = 0.95

    def __init__(self, groups: Iterable[dict[str, Any]], dtype: torch.dtype, **adamw: Any) -> None:
        """`dtype`: for the products that orthogonalise a step; bfloat16 is accurate enough."""
        super().__init__(groups, **adamw)
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure
        """Update all parameters that have a gradient."""
        stacks = []
        for group in self.param_groups:
            for weight in group["params"] if "matrices" in group else []:
                if weight.grad is not None:
                    stacks.append((weight, weight.grad, group))
                    weight.grad = None  # makes AdamW skip it
        super().step()
        found_inf = getattr(self, "found_inf", None)
        # 0 where the update is to be skipped; a tensor, so that nothing waits for the device
        keep = 1.0 if found_inf is None else 1.0 - found_inf
        for weight, grad, group in stacks:
            state = self.state[weight]
            if not state:
                # AdamW refuses to load a state without a step count.
                state |= {"step": torch.zeros(()), "momentum": torch.zeros_like(weight)}
            # A skipped update is multiplied by 0, and 0 times NaN would be NaN.
            grad = grad.nan_to_num(0.0, 0.0, 0.0)
            state["momentum"].lerp_(grad, (1 - self.MOMENTUM) * keep)
            ahead = grad.lerp(state["momentum"], self.MOMENTUM)
            rate = group["lr"] * keep
            weight.mul_(1 - rate * group["weight_decay"])
            count = group["matrices"]
            for matrix, step in zip(weight.chunk(count), ahead.chunk(count), strict=True):
                # Without a gradient the momentum decays until its norm underflows: hence the floor.
                unit = (step / step.norm().clamp_min(1e-7)).to(self.dtype)
                scale = rate * 0.2 * max(matrix.shape) ** 0.5
                matrix.sub_(orthogonalized(unit).to(weight.dtype).mul_(scale))


def build_optimizer(
    model: nn.Module, optim: OptimConfig, dtype: torch.dtype
) -> torch.optim.Optimizer:
    """Fused AdamW (Loshchilov and Hutter, 2019), or `Muon` computing in `dtype`.

    Without weight decay AdamW is Adam (Kingma and Ba, 2015). Muon updates the matrices of attention
    and feed-forward, AdamW the rest. Only matrices decay: biases and the scales of layer norms gain
    nothing from being small.
    """
    n_matrices: dict[int, int] = {}  # id of a layer's weight -> how many matrices it stacks
    if optim.optimizer == "muon":
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and name != "output":
                n_matrices[id(module.weight)] = 3 if name.endswith("query_key_value") else 1
    parameters = [p for p in model.parameters() if p.requires_grad]
    decay = optim.weight_decay
    matrices = [p for p in parameters if p.dim() > 1 and id(p) not in n_matrices]
    vectors = [p for p in parameters if p.dim() <= 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    settings: dict[str, Any] = {"lr": 0.0, "betas": optim.betas, "eps": optim.eps, "fused": True}
    if optim.optimizer == "adamw":
        return torch.optim.AdamW(groups, **settings)
    for count in (1, 3):
        stacked = [p for p in parameters if n_matrices.get(id(p)) == count]
        groups.append({"params": stacked, "weight_decay": decay, "matrices": count})
    return Muon(groups, dtype, **settings)


def restore_optimizer(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any], where: str
) -> None:
    """Load moments and learning rate from a checkpoint; other settings stay as the config has them.

    `where` names the checkpoint for the message. Raises CheckpointError if the state belongs to
    other parameters.
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
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)
