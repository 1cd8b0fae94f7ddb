"""A CUDA graph of an update, which replays its kernels without launching them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gpu_sections.setting import Setting
from mt.data.tokens.batches import Update
from mt.model.gpu_ops import copy_weights
from mt.training.loss import batch_loss
from mt.training.update import Updater

Grads = list[tuple[nn.Parameter, Tensor]]


def captured(
    setting: Setting, updater: Updater, update: Update
) -> tuple[Callable[[], None], torch.cuda.CUDAGraph, Grads]:
    """A CUDA graph of forward pass, loss and backward pass, and the gradients that it writes."""
    (batch,) = update.batches
    batch = batch.to(setting.torch_device)
    model, smoothing = updater.model, updater.config.optim.label_smoothing

    def compute() -> None:
        copy_weights(model, model.dtype)
        given = updater.forward, model.output, batch, smoothing
        loss = batch_loss(*given, gradient=updater.loss_gradient)
        (loss.smoothed / update.n_tgt).backward()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    model.train()
    updater.optimizer.zero_grad(set_to_none=True)
    with torch.cuda.stream(stream):
        for _ in range(3):
            compute()
    torch.cuda.current_stream().wait_stream(stream)
    grads: Grads = [(each, each.grad) for each in model.parameters() if each.grad is not None]
    graph = torch.cuda.CUDAGraph()
    # Thread-local, because a thread that loads batches may pin memory meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        torch._foreach_zero_([grad for _, grad in grads])
        compute()
    return graph.replay, graph, grads
