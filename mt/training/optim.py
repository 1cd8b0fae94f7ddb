"""The optimiser, and the learning rate at each step."""

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


def orthogonalized(matrix: Tensor) -> Tensor:
    """About the nearest orthogonal matrix: the singular vectors of `matrix` (R, C), its singular values 0.66 to 1.21.

    Four Newton-Schulz iterations, with the coefficients of Jordan et al. (2024, who make five), which lift small values
    fast and never settle at 1: of a matrix divided by its Frobenius norm, values from 0.005 on come into that range.
    """
    x = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
    for _ in range(4):
        square = x @ x.mT  # (min(R, C), min(R, C))
        x = torch.addmm(
            x, torch.addmm(square, square, square, beta=-4.7750, alpha=2.0315), x, beta=3.4445
        )
    return x.mT if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.AdamW):
    """AdamW, but for groups with `matrices`, whose steps have all singular values near 1.

    Jordan et al., 2024, "Muon: An optimizer for hidden layers in neural networks": the running mean of the gradient,
    looked ahead by Nesterov's rule, is made orthogonal, so that directions which few sentences ask for count as much
    as the few that most of a gradient is made of. A step has the root mean square of 0.2 times the learning rate, which
    is about Adam's, so that one rate fits both (Liu et al., 2025, "Muon is scalable for LLM training", section 2.2).
    A group's `matrices` says how many of them each of its parameters holds, one upon the other.
    """

    MOMENTUM = 0.95

    def __init__(self, groups: Iterable[dict[str, Any]], dtype: torch.dtype, **adamw: Any) -> None:
        """`dtype`: of the products that make a step orthogonal; bfloat16 is good enough."""
        super().__init__(groups, **adamw)
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # it takes none
        stacks = []
        for group in self.param_groups:
            for weight in group["params"] if "matrices" in group else []:
                if weight.grad is not None:
                    stacks.append((weight, weight.grad, group))
                    weight.grad = None  # what has no gradient AdamW passes over
        super().step()
        bad = getattr(self, "found_inf", None)
        good = 1.0 if bad is None else 1.0 - bad  # on the device: nothing waits for it
        for weight, grad, group in stacks:
            state = self.state[weight]
            if not state:
                # AdamW counts steps, and refuses to load a state without them.
                state |= {"step": torch.zeros(()), "momentum": torch.zeros_like(weight)}
            # Where an update is to be skipped, all below is multiplied by 0, which must not meet a nan.
            grad = grad.nan_to_num(0.0, 0.0, 0.0)
            state["momentum"].lerp_(grad, (1 - self.MOMENTUM) * good)
            ahead = grad.lerp(state["momentum"], self.MOMENTUM)
            rate = group["lr"] * good
            weight.mul_(1 - rate * group["weight_decay"])
            count = group["matrices"]
            for matrix, step in zip(weight.chunk(count), ahead.chunk(count), strict=True):
                # The floor is for what does not learn: the square of what is left of its momentum underflows one day.
                turned = orthogonalized((step / step.norm().clamp_min(1e-7)).to(self.dtype))
                matrix.sub_(turned.to(weight.dtype).mul_(rate * 0.2 * max(matrix.shape) ** 0.5))


def build_optimizer(
    model: nn.Module, optim: OptimConfig, dtype: torch.dtype
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter, 2019) in fused kernels; without weight decay it is Adam (Kingma and Ba, 2015).

    With `optimizer: muon` the matrices of attention and feed-forward are learned by `Muon`, in `dtype`. Only matrices
    decay: biases and the scales of layer norms have nothing to gain from being small.
    """
    inside: dict[int, int] = {}  # the matrices that a weight of a layer holds
    if optim.optimizer == "muon":
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear) and name != "output":
                inside[id(module.weight)] = 3 if name.endswith("query_key_value") else 1
    parameters = [p for p in model.parameters() if p.requires_grad]
    decay = optim.weight_decay
    groups: list[dict[str, Any]] = [
        {
            "params": [p for p in parameters if p.dim() > 1 and id(p) not in inside],
            "weight_decay": decay,
        },
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    settings: dict[str, Any] = {"lr": 0.0, "betas": optim.betas, "eps": optim.eps, "fused": True}
    if optim.optimizer == "adamw":
        return torch.optim.AdamW(groups, **settings)
    for count in (1, 3):
        held = [p for p in parameters if inside.get(id(p)) == count]
        groups.append({"params": held, "weight_decay": decay, "matrices": count})
    return Muon(groups, dtype, **settings)


def restore_optimizer(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any], where: str
) -> None:
    """Take over the moments and the rate of a saved state, but not its settings: those are the config's.

    Raises CheckpointError where the state is of other parameters.
    """
    taken = ("params", "lr")
    settings = [
        {key: group[key] for key in group if key not in taken} for group in optimizer.param_groups
    ]
    try:
        optimizer.load_state_dict(dict(state))
    except ValueError as error:
        raise CheckpointError(
            f"{where}: the optimiser's state does not fit the model ({error}); use another checkpoint, or start over "
            "with --fresh"
        ) from error
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)
