"""Label-smoothed cross-entropy over the target vocabulary, without keeping the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from mt.data.batches import Batch
    from mt.model.transformer import Linear

# Logits that exist at one time. On a CPU 16 MB of float32: more no longer comes from the allocator's pool but
# as fresh pages from the system, which doubled the time of the whole loss.
CHUNK_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 26}


class Loss(NamedTuple):
    """Sums over the tokens given; divide by the number of target tokens of the whole update."""

    smoothed: Tensor  # () differentiable
    nll: Tensor  # () -sum of ln p(correct token), for perplexity


def _chunk(device: torch.device, vocab_size: int) -> int:
    """Tokens whose logits exist at one time; even, since R-Drop compares rows in pairs."""
    return max(
        64, CHUNK_ELEMENTS["cuda" if device.type == "cuda" else "cpu"] // vocab_size // 2 * 2
    )


def _add_divergence(z: Tensor, p: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """`weight` times half the sum of both Kullback-Leibler divergences between rows 2i and 2i + 1 of p = softmax(z).

    z and p (C, V) -> the sum over all pairs (), and p plus its gradient with regard to z (C, V), in the place of z.
    For a pair with distributions p, q and d = z_p - z_q, whatever the two normalisers:
        J = 1/2 sum_v (p - q) d,    dJ/dz_p = 1/2 [p (d - sum_v p d) + p - q],    and so for q with both exchanged
    """
    pairs = p.unflatten(0, (-1, 2))  # (C/2, 2, V)
    others = pairs.flip(1)
    gap = z.unflatten(0, (-1, 2))  # (C/2, 2, V)
    gap -= gap.flip(1)
    mean = (pairs * gap).sum(-1, keepdim=True)  # (C/2, 2, 1)
    half = weight / 2
    gap.sub_(mean - 1).mul_(half).add_(1).mul_(pairs).sub_(others, alpha=half)
    return half * mean.sum(), z


class _SmoothedCrossEntropy(torch.autograd.Function):
    """The output matrix and the loss in one, with the gradients made on the way forward.

    With z = h W^T + b and target distribution (1 - e) onehot(y) + e / V:
        loss = lse(z) - (1 - e) z_y - e mean_v(z),    mean_v(z) = h . mean_v(W) + mean_v(b)
        dloss/dz = softmax(z) - (1 - e) onehot(y) - e / V
    The constant e / V touches every logit; written with means over v it costs one vector instead of a pass
    over (N, V). R-Drop's divergence needs the same logits, so that it is added here.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        smoothing: float,
        rdrop: float,
    ) -> tuple[Tensor, Tensor]:
        vocab_size, _ = weight.shape
        low = weight.to(hidden.dtype)  # (V, D)
        low_bias = None if bias is None else bias.to(hidden.dtype)
        weight_mean = weight.mean(0).to(hidden.dtype)  # (D,)
        # None for what is frozen.
        needed_hidden, needed_weight, needed_bias, *_ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if needed_hidden else None  # (N, D)
        grad_weight = torch.zeros_like(weight) if needed_weight else None  # (V, D)
        grad_bias = torch.zeros_like(bias) if bias is not None and needed_bias else None  # (V,)
        nll, apart, tiny = (
            weight.new_zeros(()),
            weight.new_zeros(()),
            torch.finfo(weight.dtype).tiny,
        )
        chunk = _chunk(hidden.device, vocab_size)
        for start in range(0, len(hidden), chunk):
            h = hidden[start : start + chunk]  # (C, D)
            y = target[start : start + chunk, None]  # (C, 1)
            # Softmax in float32 even where the products are not.
            z = F.linear(h, low, low_bias).to(weight.dtype)  # (C, V)
            p = z.softmax(-1)
            # ln p from p itself saves a pass; the clamp is reached only at a loss of 87 nats for one token.
            nll -= p.gather(1, y).clamp_min_(tiny).log_().sum()
            if rdrop:
                more, p = _add_divergence(z, p, rdrop)
                apart += more
            del z  # as with the others below: its memory is for what comes next
            grad_z = p.scatter_add_(1, y, p.new_full(y.shape, smoothing - 1.0))
            if grad_bias is not None:
                grad_bias += grad_z.sum(0)
            grad_z = grad_z.to(h.dtype)
            if grad_hidden is not None:
                torch.mm(grad_z, low, out=grad_hidden[start : start + chunk])
            if grad_weight is not None:
                if h.dtype == weight.dtype:
                    grad_weight.addmm_(grad_z.t(), h)
                else:
                    grad_weight += grad_z.t() @ h
            del p, grad_z
        if grad_hidden is not None:
            grad_hidden -= smoothing * weight_mean
        if grad_weight is not None:
            grad_weight -= hidden.sum(0, dtype=weight.dtype) * (smoothing / vocab_size)
        if grad_bias is not None:
            grad_bias -= smoothing * len(hidden) / vocab_size
        # lse - z_y is the nll; what is left of the smoothed loss is e (z_y - mean_v z).
        smooth = hidden.new_zeros((), dtype=weight.dtype)
        if smoothing:
            gap = low[target] - weight_mean  # (N, D)
            smooth += (hidden * gap).sum(dtype=weight.dtype)
            if bias is not None:
                smooth += (bias[target] - bias.mean()).sum()
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.mark_non_differentiable(nll)
        return nll + smoothing * smooth + apart, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        # In place: nobody else holds these buffers, and the graph is walked once.
        scaled = [None if made is None else made.mul_(grad) for made in ctx.saved_tensors]
        return *scaled, None, None, None


def smoothed_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    smoothing: float,
    rdrop: float = 0.0,
) -> Loss:
    """Equal to `F.cross_entropy(hidden @ weight.T + bias, target, label_smoothing=..., reduction="sum")`.

    hidden (N, D) decoder outputs at real tokens, weight (V, D), bias (V,) or None, target (N,) ids. The
    smoothing mass is spread over all V words (Szegedy et al., 2016, as in torch).

    With `rdrop`, rows 2i and 2i + 1 are two readings of one token, and that much of (KL(p||q) + KL(q||p)) / 2 is added,
    where p and q are what the model makes of it in each.
    """
    if rdrop or torch.is_grad_enabled():
        apply: Any = _SmoothedCrossEntropy.apply
        return Loss(*apply(hidden, weight, bias, target, smoothing, rdrop))
    smoothed, nll = weight.new_zeros(()), weight.new_zeros(())
    chunk = _chunk(hidden.device, len(weight))
    low, low_bias = weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype)
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
    rdrop: float = 0.0,
) -> Loss:
    """The loss of a model on the real target tokens of a batch; `forward` is the model, or it compiled.

    With `rdrop` (R-Drop: Wu et al., 2021, equation 4, halved) the batch is read twice, with other dropout. The loss is
    then the mean of both, and what both disagree by counts too, half as often as `rdrop` says.
    """
    if not rdrop:
        hidden = forward(batch.src, batch.tgt_in, batch.src_mask).flatten(0, 1)[
            batch.tgt_positions
        ]  # (N, D)
        return smoothed_cross_entropy(hidden, output.weight, output.bias, batch.tgt_out, smoothing)
    # In one call, since copies of the model on several devices exchange gradients once per call.
    twice = (torch.cat([part, part]) for part in (batch.src, batch.tgt_in, batch.src_mask))
    rows = torch.stack(
        [batch.tgt_positions, batch.tgt_positions + batch.tgt_in.numel()], dim=1
    ).flatten()  # (2 N,) each token's two
    pairs = forward(*twice).flatten(0, 1)[rows]  # (2 N, D)
    targets = batch.tgt_out.repeat_interleave(2)
    loss = smoothed_cross_entropy(pairs, output.weight, output.bias, targets, smoothing, rdrop)
    return Loss(loss.smoothed / 2, loss.nll / 2)
