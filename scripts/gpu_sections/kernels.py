"""The parts of an update alone: attention, loss, optimisers, and the loading of batches."""

from __future__ import annotations

import time
from functools import partial
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_sections.report import Report
from gpu_sections.setting import Setting
from mt.data.tokens.batches import Batch
from mt.data.tokens.plan import Plan
from mt.model.attention import attention_bias
from mt.model.gpu_ops import attend_packed, compile_rows, load_varlen_attn
from mt.runtime.devices import can_compile
from mt.training.loss import LogitsGradient, logits_gradient, smoothed_cross_entropy
from mt.training.update import build_optimizer


def run(report: Report, setting: Setting) -> None:
    """Measure each part on the largest batch of an update of real lengths."""
    tokens = setting.batch_tokens[-2]
    config = setting.config(tokens, compiled=False)
    plan = Plan(setting.pairs, [1.0], config.batch, 1)
    with setting.feed(plan) as feed:
        batches = next(iter(feed)).batches
        batch = max(batches, key=lambda each: each.n_padded).to(setting.torch_device)
    report.attempt("attention", lambda: attention(report, setting, batch))
    report.attempt("loss", lambda: loss(report, setting, batch))
    report.attempt("adamw", lambda: optimizer(report, setting))
    report.attempt("feed", lambda: feed_alone(report, setting, plan))


def attention(report: Report, setting: Setting, batch: Batch) -> None:
    """Forward and backward of one encoder self-attention, padded and without padding."""
    config = setting.config(1024, compiled=False).model
    heads, width = config.n_heads, config.d_model // config.n_heads
    dtype = setting.choose().dtype
    rows, length = batch.src.shape

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, device=setting.device).to(dtype).requires_grad_()

    q, k, v = (leaf(rows, heads, length, width) for _ in range(3))  # (B, H, S, K)
    bias = attention_bias(batch.src_mask, dtype)[:, None, None, :]  # (B, 1, 1, S)

    def padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out.backward(torch.ones_like(out))

    shape = f"{rows} x {length}, {batch.n_src / batch.src.numel():.0%} tokens"
    for name, mask in (("with a mask", bias), ("without a mask", None)):
        milliseconds = setting.seconds(partial(padded, q, k, v, mask)) * 1e3
        report.add(f"attention, padded, {name}", value=milliseconds, unit="ms", note=shape)
    if not setting.is_cuda or not load_varlen_attn():
        note = "varlen_attn needs a GPU and torch 2.11"
        report.add("attention, packed", "skipped", note=note)
        return
    sides = batch.pack().packed
    assert sides is not None
    where, _ = sides
    q, k, v = (leaf(1, heads, batch.n_src, width) for _ in range(3))  # (1, H, N, K)

    def packed() -> None:
        out = attend_packed(q, k, v, where, where, causal=False)
        out.backward(torch.ones_like(out))

    milliseconds = setting.seconds(packed) * 1e3
    report.add("attention, packed (varlen_attn)", value=milliseconds, unit="ms", note=shape)


def loss(report: Report, setting: Setting, batch: Batch) -> None:
    """Forward and backward of the loss, output matrix included, plain and compiled."""
    width = setting.config(1024, compiled=False).model.d_model
    device = setting.choose()
    hidden = torch.randn(batch.n_tgt, width, device=setting.device).to(device.dtype)
    weight = torch.randn(setting.vocab_size, width, device=setting.device)
    inputs = hidden.requires_grad_(), weight.requires_grad_()
    flops = 6 * batch.n_tgt * width * setting.vocab_size

    def forward_backward(gradient: LogitsGradient) -> None:
        found = smoothed_cross_entropy(*inputs, None, batch.tgt_out, 0.1, gradient=gradient)
        found.smoothed.backward()

    ways: dict[str, LogitsGradient] = {"loss": logits_gradient}
    if can_compile(device):
        ways["loss, compiled"] = compile_rows(logits_gradient)
    for name, gradient in ways.items():
        seconds = setting.seconds(partial(forward_backward, gradient))
        note = f"{batch.n_tgt:,} tokens, {flops / seconds / 1e12:.1f} TFLOP/s"
        report.add(name, value=seconds * 1e3, unit="ms", note=note)


def optimizer(report: Report, setting: Setting) -> None:
    """One step of the optimiser on all weights of the model."""
    config = setting.config(1024, compiled=False)
    updater = setting.updater(config)
    chosen = build_optimizer(updater.model, config.optim)
    grads = [torch.randn_like(weight) for weight in updater.model.parameters()]

    def step() -> None:
        for weight, grad in zip(updater.model.parameters(), grads, strict=True):
            weight.grad = grad
        chosen.step()

    note = f"{updater.n_parameters / 1e6:.1f} million weights"
    report.add("step of adamw", value=setting.seconds(step) * 1e3, unit="ms", note=note)


def feed_alone(report: Report, setting: Setting, plan: Plan) -> None:
    """Target tokens per second that one loader delivers, copied to the device."""
    seconds = 1.0 if setting.tiny else 5.0
    n_tgt = 0
    with setting.feed(plan) as feed:
        updates = iter(feed)
        list(islice(updates, 3))
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            update = next(updates)
            for batch in update.batches:
                batch.to(setting.torch_device)
            n_tgt += update.n_tgt
        setting.synchronize()
        elapsed = time.perf_counter() - start
    report.add("loading alone", value=n_tgt / elapsed, unit="target tokens/s")
