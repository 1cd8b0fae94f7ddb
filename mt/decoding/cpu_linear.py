"""The matrix products of a model in the form that a CPU multiplies fastest: laid out once, or in whole numbers.

A decoder's step multiplies few rows by every matrix of the model, so that laying out the matrix for the kernel costs
as much as the product. One Zen 4 thread, rows x 256 x 8,000 (the vocabulary), ms:

    rows   fp32   laid out   bf16   laid out   int8
       5   0.65       0.22   0.23       0.13   0.13
     320   14.7       12.3    7.5        6.5    4.6
"""

from __future__ import annotations

from functools import cache
from typing import cast

import torch
from torch import Tensor, nn

from mt.model.transformer import Linear, MultiHeadAttention, Transformer

# Rows that a layout is chosen for. It serves all counts: from 16 to 1,024 the choice is the same within 2 %.
TYPICAL_ROWS = 128
# Whole numbers of 8 bits with their sign, from -127 to 127; the kernel takes them from 1 to 255.
LARGEST, SHIFT = 127, 128
# What the largest value of a row of zeros is taken for; a 127th of it is still a normal number.
LEAST = 1e-30


class PrepackedLinear(nn.Module):
    """x W^T + b, by a W (N, K) in the layout of oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TYPICAL_ROWS)
        self.bias = bias

    def __reduce__(self) -> tuple[type[PrepackedLinear], tuple[Tensor, Tensor | None]]:
        """To another process it goes as it came: a layout belongs to a machine."""
        return PrepackedLinear, (self.weight.to_dense(), self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)"""
        return cast(
            "Tensor", torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        )


class Int8Linear(nn.Module):
    """x W^T + b by whole numbers of 8 bits: each row of x and of W is divided by its own largest value.

    Nothing is lost in the sums, so a row's result does not depend on what other rows there are.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        weight = weight.float().contiguous()
        scale = weight.abs().amax(1).clamp_min_(LEAST) / LARGEST  # (N,)
        codes = (weight / scale.unsqueeze(1)).round_().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(codes, [TYPICAL_ROWS, weight.shape[1]])
        self.scale, self.zero = scale, torch.zeros(len(scale), dtype=torch.int32)
        self.bias = None if bias is None else bias.float()

    def __reduce__(self) -> tuple[type[Int8Linear], tuple[Tensor, Tensor | None]]:
        """As for `Packed`; the weight in 127ths of its rows' largest values gives the same whole numbers again."""
        return Int8Linear, (self.weight.to_dense().t() * self.scale.unsqueeze(1), self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) fp32 -> (..., N) fp32"""
        rows = x.flatten(0, -2)  # (M, K)
        largest = rows.abs().amax(1, keepdim=True).clamp_min_(LEAST)  # (M, 1)
        # By way of int8: torch converts to uint8 six times slower.
        codes = (
            (rows * (LARGEST / largest))
            .round_()
            .to(torch.int8)
            .view(torch.uint8)
            .bitwise_xor_(SHIFT)
        )
        y = torch.ops.onednn.qlinear_pointwise(
            codes,
            1.0,
            SHIFT,
            self.weight,
            self.scale,
            self.zero,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )  # (M, N)
        y = y.mul_(largest / LARGEST)
        if self.bias is not None:
            y = y.add_(self.bias)
        return cast("Tensor", y.unflatten(0, x.shape[:-1]))


class SplitQueryKeyValue(nn.Module):
    """Two products in the place of a merged one that is only ever asked for its parts: the first `rows` columns, and
    the others."""

    def __init__(self, first: nn.Module, rest: nn.Module) -> None:
        super().__init__()
        self.first, self.rest = first, rest

    def part(self, x: Tensor, rows: slice) -> Tensor:
        """`Linear.part` for the two parts that there are."""
        return cast("Tensor", (self.rest if rows.start else self.first)(x))


def pack(model: Transformer, precision: str) -> None:
    """Replace every `Linear` of a model that only decodes on a CPU, for good, by the fastest of that precision."""
    kind: type[PrepackedLinear | Int8Linear]
    if precision == "int8":
        kind = Int8Linear
    elif can_pack(next(model.parameters()).dtype):
        kind = PrepackedLinear
    else:
        return
    for layer in model.decoder:
        attention = cast("MultiHeadAttention", layer.cross_attention)
        merged, parts = attention.query_key_value, [model.config.d_model, 2 * model.config.d_model]
        weights = merged.weight.detach().split(parts)
        biases = (None, None) if merged.bias is None else merged.bias.detach().split(parts)
        products = [kind(weight, bias) for weight, bias in zip(weights, biases, strict=True)]
        attention.query_key_value = SplitQueryKeyValue(*products)  # type: ignore[assignment]
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Linear):
                bias = None if child.bias is None else child.bias.detach()
                setattr(module, name, kind(child.weight.detach(), bias))


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch lays out matrices of this type here, and then gives what it gives otherwise."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(*shape, generator=generator).to(dtype) for shape in ((5, 64), (48, 64), (48,))
    )
    try:
        found = PrepackedLinear(weight, bias)(x)
    except (AttributeError, RuntimeError):  # no such operation, or not for this type or this CPU
        return False
    expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    return float((found.double() - expected).norm() / expected.norm()) < 4 * torch.finfo(dtype).eps
