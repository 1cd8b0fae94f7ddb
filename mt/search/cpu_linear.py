"""Fast linear layers for decoding on a CPU: prepacked once, or in int8.

A decoding step multiplies a few rows by every matrix of the model, so packing a matrix into the
layout of the kernel costs as much as the product. One Zen 4 thread, rows x 256 x 8,000 (the
vocabulary), milliseconds:

    rows   fp32   prepacked   bf16   prepacked   int8
       5   0.65        0.22   0.23        0.13   0.13
     320   14.7        12.3    7.5         6.5    4.6
"""

from __future__ import annotations

from functools import cache
from typing import cast

import torch
from torch import Tensor, nn

from mt.model.transformer import Linear, Transformer

# Number of rows that oneDNN optimises the layout for; 16 to 1,024 differ by 2 % in speed.
TYPICAL_ROWS = 128
# int8 codes run from -127 to 127; the kernel takes its left side as uint8, shifted by 128.
MAX_CODE = 127
SHIFT = 128
# Lower bound of a row's largest value, against division by zero; 1/127 of it is a normal number.
MIN_ROW_MAX = 1e-30


class PrepackedLinear(nn.Module):
    """x W^T + b, with W (N, K) in oneDNN's layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TYPICAL_ROWS)
        self.bias = bias

    def __reduce__(self) -> tuple[type[PrepackedLinear], tuple[Tensor, Tensor | None]]:
        """Pickle the plain weight, because the layout depends on the machine."""
        return PrepackedLinear, (self.weight.to_dense(), self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) -> (..., N)"""
        return cast(
            "Tensor", torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        )


class Int8Linear(nn.Module):
    """x W^T + b in int8: each row of x and of W is scaled by its own largest value.

    The sums are exact integers, so the result of a row does not depend on the other rows.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        weight = weight.float().contiguous()
        scale = weight.abs().amax(1).clamp_min_(MIN_ROW_MAX) / MAX_CODE  # (N,)
        codes = (weight / scale.unsqueeze(1)).round_().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack(codes, [TYPICAL_ROWS, weight.shape[1]])
        self.scale = scale
        self.zero_points = torch.zeros(len(scale), dtype=torch.int32)
        self.bias = None if bias is None else bias.float()

    def __reduce__(self) -> tuple[type[Int8Linear], tuple[Tensor, Tensor | None]]:
        """Pickle the dequantised weight, which quantises to the same codes again."""
        return Int8Linear, (self.weight.to_dense().t() * self.scale.unsqueeze(1), self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., K) fp32 -> (..., N) fp32"""
        rows = x.flatten(0, -2)  # (M, K)
        row_max = rows.abs().amax(1, keepdim=True).clamp_min_(MIN_ROW_MAX)  # (M, 1)
        # Through int8, because torch converts to uint8 six times slower.
        codes = (rows * (MAX_CODE / row_max)).round_().to(torch.int8)
        codes = codes.view(torch.uint8).bitwise_xor_(SHIFT)
        y = torch.ops.onednn.qlinear_pointwise(
            codes,
            1.0,  # scale of x: applied below, one per row
            SHIFT,
            self.weight,
            self.scale,
            self.zero_points,
            None,  # bias
            1.0,  # scale and zero point of the output
            0,
            torch.float32,
            "none",  # no activation
            [],
            "",
        )  # (M, N)
        y = y.mul_(row_max / MAX_CODE)
        if self.bias is not None:
            y = y.add_(self.bias)
        return cast("Tensor", y.unflatten(0, x.shape[:-1]))


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


def pack(model: Transformer, precision: str) -> None:
    """Replace every `Linear` of a model, in place, by the fastest layer of its precision.

    The model can then only decode, and only on a CPU. Any `precision` but `int8` means the dtype
    that the weights have, and float32 for the output matrix; see `fp32_logits`.
    """
    kind: type[PrepackedLinear | Int8Linear]
    if precision == "int8":
        kind = Int8Linear
    elif can_pack(model.output.weight.dtype):
        kind = PrepackedLinear
    else:
        return
    sizes = [model.config.d_model, 2 * model.config.d_model]
    for layer in model.decoder_layers:
        merged = layer.cross_attention.query_key_value
        weights = merged.weight.detach().split(sizes)
        biases = (None, None) if merged.bias is None else merged.bias.detach().split(sizes)
        query, key_value = map(kind, weights, biases)
        split = SplitQueryKeyValue(query, key_value)
        layer.cross_attention.query_key_value = split  # type: ignore[assignment]
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Linear):
                bias = None if child.bias is None else child.bias.detach()
                wide = torch.float32 if child is model.output else child.weight.dtype
                weight = child.weight.detach().to(wide)
                setattr(module, name, kind(weight, None if bias is None else bias.to(wide)))


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
