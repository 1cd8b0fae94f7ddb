"""Label-smoothed cross-entropy over the target vocabulary, without storing all logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from mt.data.tokens.batches import Batch
from mt.model.transformer import Linear

# Logits computed at a time. On a CPU 16 MB of float32: larger blocks come as fresh pages from the
# operating system instead of the allocator's pool, which doubled the time of the whole loss. On a
# GPU as many as fit into its memory at BYTES_PER_LOGIT; one takes 4 in bf16 compiled.
CHUNK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 30}
BYTES_PER_LOGIT = 64


# (logits, target, smoothing) -> (sum of ln p(target), gradient of the logits): `logits_gradient`.
LogitsGradient = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]


class Loss(NamedTuple):
    """Sums over target tokens; divide them by the number of target tokens of the whole update."""

    smoothed: Tensor  # (), differentiable
    nll: Tensor  # (), -sum of ln p(correct token)


def _chunk(device: torch.device, vocab_size: int) -> int:
    """Tokens per chunk of logits; even, as the bits of a sum depend on it."""
    elements = CHUNK_ELEMENTS[device.type]
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        elements = min(elements, memory // BYTES_PER_LOGIT)
    return max(64, elements // vocab_size // 2 * 2)


def logits_gradient(logits: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The elementwise part of the loss, which is compiled on a GPU into one pass over the logits.

    logits (C, V) in the dtype of the products, target (C, 1) -> the sum of ln p(target) (), and the
    gradient softmax(logits) - (1 - smoothing) onehot(target) (C, V) in the dtype of the logits.
    """
    p = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))  # (C, V)
    p_target = p.gather(1, target)  # (C, 1)
    grad_target = p_target + (smoothing - 1)
    if torch.compiler.is_compiling():  # the other order would be another pass over the logits
        grad_target = grad_target.to(logits.dtype)
        return log_sum(p_target), p.to(logits.dtype).scatter_(1, target, grad_target)
    # On a CPU, scatter_ in bf16 copies all of a tensor to float32 and back.
    return log_sum(p_target), p.scatter_(1, target, grad_target).to(logits.dtype)


def log_sum(p: Tensor) -> Tensor:
    """The sum of ln p; the clamp matters only for a token with a loss of 87 nats."""
    return p.clamp_min(torch.finfo(p.dtype).tiny).log().sum()


def _sum_over_tokens(grad_z: Tensor, h: Tensor, dtype: torch.dtype) -> Tensor:
    """grad_z (C, V), h (C, D) in low precision -> grad_z^T h (V, D), in `dtype` if it is float16.

    The loss scale comes later, so lowering it could not mend a sum beyond 65,504, the largest
    float16. A frequent word reaches that in a batch of 150,000 tokens.
    """
    if h.dtype is not torch.float16:
        return grad_z.t() @ h
    if h.is_cuda:
        return torch.mm(grad_z.t(), h, out_dtype=dtype)
    return grad_z.t().to(dtype) @ h.to(dtype)  # torch has no such product for a CPU


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Output projection and loss fused; the forward pass computes the gradients as well.

    With z = h W^T + b and target distribution (1 - e) onehot(y) + e / V:
        loss = lse(z) - (1 - e) z_y - e mean_v(z),    mean_v(z) = h . mean_v(W) + mean_v(b)
        dloss/dz = softmax(z) - (1 - e) onehot(y) - e / V
    The constant e / V touches every logit; written with means over v it costs one vector instead of
    a pass over (N, V).

    A loss scale reaches the gradients only afterwards. In float16 that loses nothing: the entries
    of dloss/dz are not divided by the tokens yet, and their sum is wider (`_sum_over_tokens`).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor,
        smoothing: float, gradient: LogitsGradient,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        vocab_size, _ = weight.shape
        low = weight.to(hidden.dtype)  # (V, D)
        low_bias = None if bias is None else bias.to(hidden.dtype)
        weight_mean = weight.mean(0).to(hidden.dtype)  # (D,)
        grad_hidden = torch.empty_like(hidden)  # (N, D)
        grad_weight = torch.zeros_like(weight)  # (V, D)
        grad_bias = None if bias is None else torch.zeros_like(bias)  # (V,)
        nll = weight.new_zeros(())
        chunk = _chunk(hidden.device, vocab_size)
        for start in range(0, len(hidden), chunk):
            h = hidden[start : start + chunk]  # (C, D)
            y = target[start : start + chunk, None]  # (C, 1)
            log_p, grad_z = gradient(F.linear(h, low, low_bias), y, smoothing)
            nll -= log_p
            if grad_bias is not None:
                grad_bias += grad_z.sum(0, dtype=weight.dtype)
            torch.mm(grad_z, low, out=grad_hidden[start : start + chunk])
            if h.dtype == weight.dtype:
                grad_weight.addmm_(grad_z.t(), h)
            else:
                grad_weight += _sum_over_tokens(grad_z, h, weight.dtype)
            del grad_z
        grad_hidden -= smoothing * weight_mean
        grad_weight -= hidden.sum(0, dtype=weight.dtype) * (smoothing / vocab_size)
        if grad_bias is not None:
            grad_bias -= smoothing * len(hidden) / vocab_size
        # lse - z_y is the nll; the rest of the smoothed loss is e (z_y - mean_v z).
        smooth = hidden.new_zeros((), dtype=weight.dtype)
        if smoothing:
            gap = low[target] - weight_mean  # (N, D)
            smooth += (hidden * gap).sum(dtype=weight.dtype)
            if bias is not None:
                smooth += (bias[target] - bias.mean()).sum()
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.mark_non_differentiable(nll)
        return nll + smoothing * smooth, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        # In place: nothing else uses these buffers, and backward runs once.
        scaled = [None if made is None else made.mul_(grad) for made in ctx.saved_tensors]
        return *scaled, None, None, None


def smoothed_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    smoothing: float,
    gradient: LogitsGradient = logits_gradient,
) -> Loss:
    """`F.cross_entropy(hidden @ weight.T + bias, target, label_smoothing=..., reduction="sum")`.

    hidden (N, D) decoder outputs without padding, weight (V, D), bias (V,) or None, target (N,).
    The smoothing mass is spread over all V tokens (Szegedy et al., 2016, as in torch).
    `gradient` is `logits_gradient`, as it is or compiled.
    """
    if torch.is_grad_enabled():
        apply: Any = _SmoothedCrossEntropy.apply
        return Loss(*apply(hidden, weight, bias, target, smoothing, gradient))
    smoothed = weight.new_zeros(())
    nll = weight.new_zeros(())
    chunk = _chunk(hidden.device, len(weight))
    low = weight.to(hidden.dtype)
    low_bias = None if bias is None else bias.to(hidden.dtype)
    for h, y in zip(hidden.split(chunk), target.split(chunk), strict=True):
        log_p = F.linear(h, low, low_bias).to(weight.dtype).log_softmax(-1)  # (C, V)
        part = -log_p.gather(1, y[:, None]).sum()
        nll += part
        smoothed += (1 - smoothing) * part - smoothing * log_p.mean(-1).sum()
    return Loss(smoothed, nll)


def batch_loss(
    forward: Callable[..., Tensor],
    output: Linear,
    batch: Batch,
    smoothing: float,
    gradient: LogitsGradient = logits_gradient,
) -> Loss:
    """The loss on the target tokens of a batch; `forward` and `gradient` may be compiled."""
    given = batch.src, batch.tgt_in, batch.src_mask
    if batch.packed is not None:
        hidden = forward(*given, batch.packed)[0]  # (N, D)
    else:
        hidden = forward(*given).flatten(0, 1)[batch.tgt_positions]  # (N, D) of (B * T, D)
    return smoothed_cross_entropy(
        hidden, output.weight, output.bias, batch.tgt_out, smoothing, gradient
    )
