"""Optimisers and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from typing_extensions import assert_never

from mt.errors import CheckpointError

if TYPE_CHECKING:
    from mt.config.schema import OptimConfig

# Elements of the matrices that Muon updates together. On a CPU they stay in its cache.
STACK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 26}
# A weight, its gradient and its momentum.
_Matrix = tuple[Tensor, Tensor, Tensor]


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


def orthogonalized(matrices: Tensor) -> Tensor:
    """Approximate the nearest (semi-)orthogonal matrix of each of `matrices` (..., R, C).

    They must have a Frobenius norm of 1. Singular vectors stay; singular values of 0.005 and more
    become 0.66 to 1.21. Four Newton-Schulz iterations with the coefficients of Jordan et al.
    (2024), who use five; these raise small values fast and never converge to 1.
    """
    rows, columns = matrices.shape[-2:]
    x = matrices.reshape(-1, rows, columns)  # (N, R, C)
    if rows > columns:
        x = x.mT
    for _ in range(4):
        square = x @ x.mT  # (N, min(R, C), min(R, C))
        factor = torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, factor, x, beta=3.4445)
    return (x.mT if rows > columns else x).reshape(matrices.shape)


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
        # Matrices of one shape are updated together: on a GPU thousands of small operations would
        # take longer to start than to compute.
        stacks: dict[Any, tuple[dict[str, Any], list[_Matrix]]] = {}
        for number, group in enumerate(self.param_groups):
            for weight in group["params"] if "matrices" in group else []:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    # AdamW refuses to load a state without a step count.
                    state |= {"step": torch.zeros(()), "momentum": torch.zeros_like(weight)}
                parts = (weight, weight.grad, state["momentum"])
                matrices = zip(*(part.chunk(group["matrices"]) for part in parts), strict=True)
                for matrix in matrices:
                    shape = matrix[0].shape
                    stacks.setdefault((number, shape), (group, []))[1].append(matrix)
                weight.grad = None  # makes AdamW skip it
        super().step()
        found_inf = getattr(self, "found_inf", None)
        # 0 where the update is to be skipped; a tensor, so that nothing waits for the device
        keep = 1.0 if found_inf is None else 1.0 - found_inf
        for group, stack in stacks.values():
            first, *_ = stack[0]
            at_once = max(1, STACK_ELEMENTS[first.device.type] // first.numel())
            for start in range(0, len(stack), at_once):
                self._update(group, stack[start : start + at_once], keep)

    def _update(self, group: dict[str, Any], stack: list[_Matrix], keep: float | Tensor) -> None:
        """Update matrices of one shape: each with its gradient and momentum."""
        weights, grads, momenta = (list(each) for each in zip(*stack, strict=True))
        # A skipped update is multiplied by 0, and 0 times NaN would be NaN.
        grad = torch.stack(grads).nan_to_num_(0.0, 0.0, 0.0)  # (N, R, C)
        momentum = torch.stack(momenta).lerp_(grad, (1 - self.MOMENTUM) * keep)
        torch._foreach_copy_(momenta, momentum.unbind())
        ahead = grad.lerp_(momentum, self.MOMENTUM)
        # Without a gradient the momentum decays until its norm underflows: hence the floor.
        norms = torch.linalg.matrix_norm(ahead, keepdim=True).clamp_min(1e-7)  # (N, 1, 1)
        steps = orthogonalized(ahead.div_(norms).to(self.dtype)).to(ahead.dtype)
        rate = group["lr"] * keep
        steps.mul_(rate * 0.2 * max(weights[0].shape) ** 0.5)
        torch._foreach_mul_(weights, 1 - rate * group["weight_decay"])
        torch._foreach_sub_(weights, steps.unbind())


def build_optimizer(
    model: nn.Module, optim: OptimConfig, dtype: torch.dtype
) -> torch.optim.Optimizer:
    """Fused AdamW (Loshchilov and Hutter, 2019), or `Muon` computing in `dtype`.

    Without weight decay AdamW is Adam (Kingma and Ba, 2015). Muon updates the matrices of attention
    and feed-forward, AdamW the rest.

    Only these matrices decay, and an output matrix that is not tied. Biases and the scales of layer
    norms gain nothing from being small. Nor do embeddings: without a gradient a row would shrink by
    exp(-sum of rate x decay) until its word comes again, so that rare words would fade.
    """
    settings: dict[str, Any] = {"lr": 0.0, "betas": optim.betas, "eps": optim.eps, "fused": True}
    match optim.optimizer:
        case "adamw":
            return torch.optim.AdamW(_parameter_groups(model, optim.weight_decay, {}), **settings)
        case "muon":
            n_matrices = {
                id(module.weight): 3 if name.endswith("query_key_value") else 1
                for name, module in model.named_modules()
                if isinstance(module, nn.Linear) and name != "output"
            }
            groups = _parameter_groups(model, optim.weight_decay, n_matrices)
            return Muon(groups, dtype, **settings)
        case _:
            assert_never(optim.optimizer)


def _parameter_groups(
    model: nn.Module, decay: float, n_matrices: Mapping[int, int]
) -> list[dict[str, Any]]:
    """Embeddings, matrices, vectors, then what Muon updates, by how many matrices a weight stacks.

    `n_matrices` has that number by the id of each weight that Muon updates.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    parameters = [p for _, p in named]
    embeddings = [p for name, p in named if "embedding" in name]  # come first; tied ones too
    of_others = {id(p) for p in embeddings} | n_matrices.keys()
    matrices = [p for p in parameters if p.dim() > 1 and id(p) not in of_others]
    groups: list[dict[str, Any]] = [
        {"params": embeddings, "weight_decay": 0.0},
        {"params": matrices, "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    for count in (1, 3) if n_matrices else ():
        stacked = [p for p in parameters if n_matrices.get(id(p)) == count]
        groups.append({"params": stacked, "weight_decay": decay, "matrices": count})
    return groups


def n_moments(group: Mapping[str, Any]) -> int:
    """How many numbers the optimiser keeps of each weight of a group: AdamW two, Muon one."""
    return 1 if "matrices" in group else 2


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
    for group, kept in zip(optimizer.param_groups, settings, strict=True):
        group.update(kept)
