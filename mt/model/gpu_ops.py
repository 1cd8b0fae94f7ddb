"""Code for a GPU: attention without padding, copies of the weights, compiled functions.

Sentences lie end to end in one row, so that a GPU takes all lengths of an update in one batch:
`varlen_attn` (torch's interface to FlashAttention-2, Dao, 2023, section 3.1) keeps each sentence to
itself. Weights are copied in the precision of the products once an update, as each cast is a kernel
of its own; copies take 2 bytes a weight in bf16 and fp16. scripts/README.md has what both gain.

Shapes: B sentences, the longest of T tokens, N tokens of all of them, M of those that are attended
to, H heads, K head width. A row of tokens is (1, N), so that the layers take it as a batch of one
long sentence.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from mt.config.schema import Config
from mt.data.tokens.batches import Packed
from mt.runtime.devices import Device

varlen_attn: Any = None  # see `load_varlen_attn`
# What torch.compile generates code with; tests replace it.
BACKEND: Any = "inductor"


def attend_packed(
    q: Tensor, k: Tensor, v: Tensor, queries: Packed, keys: Packed, causal: bool
) -> Tensor:
    """Attention within each sentence: q (1, H, N, K), k and v (1, H, M, K) -> (1, H, N, K).

    `causal`: each token attends to those of its sentence up to itself.
    """
    by_token = [part[0].transpose(0, 1) for part in (q, k, v)]  # (N, H, K), (M, H, K) twice
    lengths = queries.starts, keys.starts, queries.longest, keys.longest
    window = (-1, 0 if causal else -1)  # how far to the left and right; -1 is without end
    out: Tensor = varlen_attn(*by_token, *lengths, window_size=window)  # (N, H, K)
    return out.transpose(0, 1)[None]


def load_varlen_attn() -> bool:
    """Load torch's `varlen_attn` if it fits; only where used, as it brings the compiler, 1.4 s."""
    global varlen_attn
    with suppress(ImportError):  # torch 2.9 has none; 2.10 has no `window_size`
        attend = importlib.import_module("torch.nn.attention.varlen").varlen_attn
        varlen_attn = attend if "window_size" in inspect.signature(attend).parameters else None
    return varlen_attn is not None


def can_pack(config: Config, device: Device) -> bool:
    """Whether a GPU trains without padding: FlashAttention-2, bf16, fp16, no attention dropout."""
    model = config.model
    width = model.d_model // model.n_heads
    return (
        device.is_cuda
        and device.precision in ("bf16", "fp16")
        and load_varlen_attn()
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device.device) >= (8, 0)
        and width % 8 == 0
        and width <= 192  # wider ones need a GPU of data centres for the backward pass
        and not model.attention_dropout
    )


def compile_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function whose tensors have as many rows each: one graph for any number but one."""
    compiled = torch.compile(function, backend=BACKEND)

    def called(*arguments: Any) -> Any:
        tensors = [value for value in arguments if isinstance(value, Tensor)]
        if len(tensors[0]) == 1:  # torch.compile makes a graph of its own for one row
            return function(*arguments)
        for tensor in tensors:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return compiled(*arguments)

    return called


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
    """Refresh the copies in `dtype` of the weights of all layers but the output."""
    weights, copies = list[Tensor](), list[Tensor]()
    for name, layer in model.named_modules():
        if isinstance(layer, CastWeights) and name != "output" and layer.weight.dtype != dtype:
            if layer.copies is None:
                layer.copies = layer.cast_to(dtype)
            weights += layer.parameters(recurse=False)
            copies += layer.copies
    if copies:
        torch._foreach_copy_(copies, weights)
