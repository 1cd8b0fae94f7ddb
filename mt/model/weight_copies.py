"""Weights in the precision of the products: cast where they are used, or copied once an update.

On a GPU each cast is a kernel of its own, most kernels of a forward pass (scripts/README.md), and
every micro-batch of an update needs all of them. Copies take 2 bytes a weight in bf16 and fp16.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _FromCopy(torch.autograd.Function):
    """The copy of a weight, whose gradient is the weight's, as that of a cast is."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, copied: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return copied.view_as(copied)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.dtype), None


class CastWeights(nn.Module):
    """A layer with a weight, and a bias or None, that computes in the dtype of its input."""

    copies: list[Tensor] | None = None  # of both; out of training not used, as they may be older

    def __getstate__(self) -> dict[str, Any]:
        """Copy the layer without the copies, which only training uses."""
        return {name: value for name, value in self.__dict__.items() if name != "copies"}

    def cast_to(self, dtype: torch.dtype) -> list[Any]:
        """Weight and bias, if there is one, in this dtype: that of the copies, if there are any."""
        values: list[Any] = [self.weight] if self.bias is None else [self.weight, self.bias]
        if self.copies is None or not self.training:
            return [value.to(dtype) for value in values]
        apply: Any = _FromCopy.apply
        return [apply(value, copied) for value, copied in zip(values, self.copies, strict=True)]


@torch.no_grad()
def copy_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Let all layers but the output learn with copies in `dtype` of their weights of now."""
    weights, copies = list[Tensor](), list[Tensor]()
    for name, layer in model.named_modules():
        if isinstance(layer, CastWeights) and name != "output" and layer.weight.dtype != dtype:
            if layer.copies is None:
                layer.copies = layer.cast_to(dtype)
            weights += layer.parameters(recurse=False)
            copies += layer.copies
    if copies:
        torch._foreach_copy_(copies, weights)
