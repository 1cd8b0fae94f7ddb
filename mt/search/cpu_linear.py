"""Fast linear layers for decoding on a CPU: prepacked once.

A decoding step multiplies a few rows by every matrix of the model, so packing a matrix into the
layout of the kernel costs as much as the product.
"""

from __future__ import annotations

from functools import cache
from typing import cast

import torch
from torch import Tensor, nn

from mt.model.transformer import Linear, Transformer

# Number of rows that oneDNN optimises the layout for; 16 to 1,024 differ by 2 % in speed.
TYPICAL_ROWS = 128


class PrepackedLinear(nn.Module):
    """x W^T + b, with W (N, K) in oneDNN's layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TYPICAL_ROWS)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)"""
        return cast(
            "Tensor", torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        )


class SplitQueryKeyValue(nn.Module):
    """Stand-in for `query_key_value` of cross-attention, as two layers.

    Cross-attention uses its two parts apart: queries of the target, keys and values of the source.
    """

    def __init__(self, query: nn.Module, key_value: nn.Module) -> None:
        super().__init__()
        self.query = query
        self.key_value = key_value

    def part(self, x: Tensor, rows: slice) -> Tensor:
        """Apply the layer of these rows, as `Linear.part` does: the queries' start at 0."""
        return cast("Tensor", (self.key_value if rows.start else self.query)(x))


def pack(model: Transformer) -> None:
    """Replace every `Linear` of a model, in place, by a prepacked layer if torch can prepack it.

    The model can then only decode, and only on a CPU. The output matrix becomes float32; see
    `fp32_logits`.
    """
    if not can_pack(model.output.weight.dtype):
        return
    sizes = [model.config.d_model, 2 * model.config.d_model]
    for layer in model.decoder_layers:
        merged = layer.cross_attention.query_key_value
        weights = merged.weight.detach().split(sizes)
        biases = (None, None) if merged.bias is None else merged.bias.detach().split(sizes)
        query, key_value = map(PrepackedLinear, weights, biases)
        split = SplitQueryKeyValue(query, key_value)
        layer.cross_attention.query_key_value = split  # type: ignore[assignment]
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Linear):
                bias = None if child.bias is None else child.bias.detach()
                wide = torch.float32 if child is model.output else child.weight.dtype
                weight = child.weight.detach().to(wide)
                bias = None if bias is None else bias.to(wide)
                setattr(module, name, PrepackedLinear(weight, bias))


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether torch prepacks matrices of this dtype on this machine, with correct products."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(*shape, generator=generator).to(dtype) for shape in ((5, 64), (48, 64), (48,))
    )
    try:
        product = PrepackedLinear(weight, bias)(x)
    except (AttributeError, RuntimeError):  # no such operator, or not for this dtype or CPU
        return False
    expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    error = (product.double() - expected).norm() / expected.norm()
    return float(error) < 4 * torch.finfo(dtype).eps
