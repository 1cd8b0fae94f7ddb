"""How fast the matrix products of an update are, in the shapes that the model has."""

from __future__ import annotations

import torch

from gpu_sections.decision import PRODUCTS
from gpu_sections.report import Report
from gpu_sections.setting import Setting


def run(report: Report, setting: Setting) -> None:
    """Measure (N, inputs) x (inputs, outputs) of each matrix, and both of its gradients.

    Those of an update together count as often as a model has them.
    """
    model = setting.config(1024, compiled=False).model
    width, inner = model.d_model, model.d_ff
    n_encoder, n_decoder = model.n_encoder_layers, model.n_decoder_layers
    n_layers = n_encoder + n_decoder
    matrices = {  # shape, how many
        "queries, keys, values": ((width, 3 * width), n_layers),
        "output of attention, query": ((width, width), n_encoder + 3 * n_decoder),
        "keys, values": ((width, 2 * width), n_decoder),
        "feed-forward": ((width, inner), n_layers),
        "feed-forward, second": ((inner, width), n_layers),
        "output": ((width, setting.vocab_size), 1),
        "keys and values of all layers": ((width, 2 * width * n_decoder), 0),  # not done today
    }
    for tokens in setting.batch_tokens[-2:]:
        flops = seconds = 0.0
        for name, (shape, count) in matrices.items():
            speed, part = product(report, setting, f"{name}, {tokens:,} tokens", (tokens, *shape))
            flops += count * speed * part
            seconds += count * part
        name = f"{PRODUCTS}{tokens:,} tokens"
        report.add(name, value=flops / seconds, unit="TFLOP/s", note=f"{1e3 * seconds:.1f} ms")


def product(
    report: Report, setting: Setting, name: str, shape: tuple[int, int, int]
) -> tuple[float, float]:
    """Measure x w, grad w^T and x^T grad: their TFLOP/s, and seconds."""
    tokens, inputs, outputs = shape
    dtype = setting.choose().dtype
    x, weight, grad = (
        torch.randn(size, device=setting.device).to(dtype)
        for size in ((tokens, inputs), (inputs, outputs), (tokens, outputs))
    )
    calls = (lambda: x @ weight), (lambda: grad @ weight.t()), (lambda: x.t() @ grad)
    times = [setting.seconds(call) for call in calls]
    flops = 2 * tokens * inputs * outputs / 1e12
    each = ", ".join(f"{flops / part:.0f}" for part in times)
    speed = 3 * flops / sum(times)
    note = f"{each}: forward, gradients of inputs and of weights"
    report.add(f"product: {name}", value=speed, unit="TFLOP/s", note=note)
    return speed, sum(times)
