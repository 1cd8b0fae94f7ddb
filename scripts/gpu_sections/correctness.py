"""Whether results are right: against float64, compiled against eager, and after odd events."""

from __future__ import annotations

import copy
import gc
import io
import math
import os
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from gpu_sections.report import NotJudgedError, Report
from gpu_sections.setting import Setting, n_compiled_graphs
from mt.data.tokens.batches import Batch, Update, collate, gather_batch
from mt.data.tokens.plan import Plan
from mt.errors import ConfigError
from mt.model.attention import attend, attention_bias, attention_weights
from mt.runtime.devices import DTYPES, can_compile
from mt.runtime.distributed import World
from mt.runtime.machine import free_port
from mt.training.loss import smoothed_cross_entropy
from mt.training.settle import fitting_batch, lengths_to_try
from mt.training.update import Updater

# Largest relative error (norm of the difference over norm) of results and gradients.
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 3e-3}
# Of all gradients of an update in bf16, whose errors add up over the layers: 0.039 on a CPU.
GRADIENTS_IN_BF16 = 0.1
VOCABULARY = 1000


def run(report: Report, setting: Setting) -> None:
    """Do every check that the device allows."""
    names = ("fp32", "bf16", "fp16") if setting.is_cuda else ("fp32", "bf16")
    for name in names:
        report.check(f"attention in {name}", partial(attention, setting, name))
        report.check(f"loss in {name}", partial(loss, setting, name))
    if setting.is_cuda:  # of which 15 % are one word, whose sum is beyond float16
        report.check("loss of 150,000 tokens in fp16", partial(loss, setting, "fp16", 150_000))
    for name in names[1:] if setting.is_cuda else names[:1]:
        report.check(
            f"an infinite gradient in {name} changes nothing",
            partial(infinite_gradient, setting, name),
        )
        report.check(f"an update in {name} waits for nothing", partial(no_waiting, setting, name))
    for name in ("fp32", "bf16") if setting.is_cuda else ("fp32",):
        report.check(
            f"compiled equals eager in {name}, one graph", partial(compiled, setting, name)
        )
    for name in ("bf16, eager", "bf16, compiled"):
        wanted = name.endswith("compiled")
        report.check(f"gradients in {name}", partial(low_precision, setting, wanted))
    report.check("gradients summed over one rank", lambda: distributed(setting))
    report.check("a checkpoint goes to the CPU and back", lambda: checkpoint(setting))
    report.check("batch.tokens_per_batch: auto", lambda: automatic_batch(setting))
    report.check("too little memory is one message", lambda: out_of_memory(setting))


def relative(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference over the norm."""
    expected = expected.detach().double().cpu()
    return float((found.detach().double().cpu() - expected).norm() / expected.norm())


def worst(errors: list[float], limit: float) -> str:
    """Return the largest error as a note; raise AssertionError if it is above the limit."""
    largest = max(errors)
    if not largest <= limit:  # NaN fails too
        raise AssertionError(f"relative error {largest:.1e}, at most {limit:.0e} is right")
    return f"relative error {largest:.1e}"


def attention(setting: Setting, precision: str) -> str:
    """Attention forward and backward, with padding, against float64."""
    torch.manual_seed(1)
    shape = (3, 4, 33, 32)  # (B, H, T, K)
    inputs = [torch.randn(shape).to(DTYPES[precision]).to(setting.device) for _ in range(3)]
    mask = torch.arange(33) < torch.tensor([33, 20, 1])[:, None]  # (B, S)
    mask = mask.to(setting.device)

    def grads(tensors: list[Tensor], fast: bool) -> list[Tensor]:
        q, k, v = (tensor.clone().requires_grad_() for tensor in tensors)
        bias = attention_bias(mask, q.dtype)[:, None, None, :]  # (B, 1, 1, S)
        out = attend(q, k, v, bias) if fast else attention_weights(q, k, bias) @ v
        out.square().sum().backward()
        return [out, *(tensor.grad for tensor in (q, k, v) if tensor.grad is not None)]

    expected = grads([tensor.double() for tensor in inputs], fast=False)
    found = grads(inputs, fast=True)
    return worst(
        [relative(*pair) for pair in zip(found, expected, strict=True)], TOLERANCE[precision]
    )


def loss(setting: Setting, precision: str, tokens: int = 300) -> str:
    """Label-smoothed cross-entropy and its gradients against float64."""
    torch.manual_seed(1)
    hidden = (torch.randn(tokens, 64) + 4).to(DTYPES[precision]).to(setting.device)
    weight = (torch.randn(VOCABULARY, 64) / 8).to(setting.device)
    target = torch.randint(VOCABULARY, (tokens,)).to(setting.device)
    target[: tokens * 15 // 100] = 0
    h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    found = smoothed_cross_entropy(h, w, None, target, 0.1)
    found.smoothed.backward()
    wide_h = hidden.double().requires_grad_()
    wide_w = weight.double().requires_grad_()
    expected = F.cross_entropy(wide_h @ wide_w.T, target, label_smoothing=0.1, reduction="sum")
    expected.backward()
    pairs = [(found.smoothed, expected), (h.grad, wide_h.grad), (w.grad, wide_w.grad)]
    errors = [relative(one, other) for one, other in pairs if one is not None and other is not None]
    return worst(errors, TOLERANCE[precision])


def first_updates(setting: Setting, updater: Updater, count: int) -> list[Update]:
    """The first updates of training on made-up pairs."""
    plan = Plan(setting.pairs, [1.0], updater.config.batch, 1, packed=updater.packed)
    with setting.feed(plan) as feed:
        return list(islice(feed, count))


def gradients(updater: Updater, update: Update) -> Tensor:
    """The gradients of an update, in one vector."""
    updater.optimizer.zero_grad(set_to_none=True)
    updater.accumulate_gradients(update, 0)
    parameters = updater.model.parameters()
    return nn.utils.parameters_to_vector([p.grad for p in parameters if p.grad is not None])


def moments_of(updater: Updater) -> list[Tensor]:
    """Copies of the moments of the optimiser."""
    states = updater.optimizer.state_dict()["state"].values()
    return [each.clone() for state in states for name, each in state.items() if name != "step"]


def infinite_gradient(setting: Setting, precision: str) -> str:
    """An update with an infinite gradient leaves weights and moments as they are."""
    updater = setting.updater(setting.config(512, compiled=False), precision)
    first, second = first_updates(setting, updater, 2)
    updater.train_step(first, 0)
    weights, moments = copy.deepcopy(updater.model.state_dict()), moments_of(updater)
    n_skipped = int(updater.skipped)
    hook = updater.model.output.weight.register_hook(lambda grad: grad * math.inf)
    updater.train_step(second, 1)
    hook.remove()
    assert int(updater.skipped) == n_skipped + 1, "the update was not skipped"
    for name, weight in updater.model.state_dict().items():
        assert torch.equal(weight, weights[name]), f"{name} has changed"
    assert moments, "there are no moments"
    assert all(map(torch.equal, moments_of(updater), moments)), "moments have changed"
    return f"{len(moments)} moments and all weights are equal"


def no_waiting(setting: Setting, precision: str) -> str:
    """An update queues its work on the GPU without waiting for any of it."""
    if not setting.is_cuda:
        raise NotJudgedError("a CPU never queues")
    updater = setting.updater(setting.config(2048, compiled=False), precision)
    updates = first_updates(setting, updater, 3)
    for step in range(2):
        updater.train_step(updates[step], step)
    with setting.without_waiting():
        updater.train_step(updates[2], 2)
    return "torch.cuda.set_sync_debug_mode('error') raised nothing"


def compiled(setting: Setting, precision: str) -> str:
    """Compiled, model and loss have the gradients of the plain ones, for many shapes of batches.

    One graph each, also for batches of one row. Few layers, which compile fast and have all that
    many have. In bf16 a GPU computes nothing for padding.
    """
    if not can_compile(setting.choose(precision)):
        raise NotJudgedError("this device has no compiler, training would run eagerly")
    model = {"dropout": 0.0, "n_encoder_layers": 2, "n_decoder_layers": 2}
    plain, fast = (
        setting.updater(setting.config(1024, compiled=wanted, model=model), precision)
        for wanted in (False, True)
    )
    fast.choose_forward(setting.pairs.store)
    n_graphs = n_compiled_graphs()
    updates = first_updates(setting, fast, 12)
    for row in range(3):
        batch = gather_batch(setting.pairs, np.array([row]))
        batch = batch.pack() if fast.packed else batch
        updates.append(Update(0, 0, 1, [batch], batch.n_tgt))
    errors = [relative(gradients(fast, each), gradients(plain, each)) for each in updates]
    more = n_compiled_graphs() - n_graphs
    assert not more, f"{more} more graphs were compiled for other shapes"
    # The compiler may use TF32; in bf16 each of the two has its own errors.
    limit = 2e-3 if precision == "fp32" else 2 * GRADIENTS_IN_BF16
    return worst(errors, limit) + ", without padding" * fast.packed


def padded(batch: Batch) -> Batch:
    """A packed batch as a padded one."""
    if batch.packed is None:
        return batch
    src, tgt = (
        [row.numpy() for row in ids[0].cpu().split(side.starts.diff().tolist())]
        for ids, side in zip((batch.src, batch.tgt_in), batch.packed, strict=True)
    )
    return collate([(s[:-1], t[1:]) for s, t in zip(src, tgt, strict=True)])


def low_precision(setting: Setting, compiled: bool) -> str:
    """Gradients of an update in bf16 against those of the same weights in float64."""
    if compiled and not can_compile(setting.choose("bf16")):
        raise NotJudgedError("this device has no compiler, training would run eagerly")
    model = {"dropout": 0.0, "n_encoder_layers": 2, "n_decoder_layers": 2}
    exact = setting.updater(setting.config(1024, compiled=False, model=model), "fp32")
    exact.model.double().compute_dtype = None
    updater = setting.updater(setting.config(1024, compiled=compiled, model=model), "bf16")
    updater.choose_forward(setting.pairs.store)
    errors = []
    for each in first_updates(setting, updater, 3):
        expected = gradients(exact, replace(each, batches=[padded(b) for b in each.batches]))
        errors.append(relative(gradients(updater, each), expected))
    return worst(errors, GRADIENTS_IN_BF16) + ", without padding" * updater.packed


def distributed(setting: Setting) -> str:
    """One rank over NCCL (gloo on a CPU): gradients as without, of three batches."""
    backend = "nccl" if setting.is_cuda else "gloo"
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    dist.init_process_group(backend, rank=0, world_size=1)
    try:
        config = setting.config(512, compiled=False, model={"dropout": 0.0})
        alone = setting.updater(config, "fp32")
        together = setting.updater(config, "fp32", World(patient_group=dist.group.WORLD))
        batches = [update.batches[0] for update in first_updates(setting, alone, 3)]
        update = Update(0, 0, 1, batches, sum(batch.n_tgt for batch in batches))
        together.dry_run_step(batches[0])
        found, expected = gradients(together, update), gradients(alone, update)
        return f"{backend}, {worst([relative(found, expected)], 1e-4)}"
    finally:
        dist.destroy_process_group()


def checkpoint(setting: Setting) -> str:
    """Weights and optimiser state, saved on the device, learn on equally once loaded on a CPU."""
    config = setting.config(512, compiled=False)
    updater = setting.updater(config, "fp32")
    updates = first_updates(setting, updater, 3)
    for step in range(2):
        updater.train_step(updates[step], step)
    file = io.BytesIO()
    torch.save({"model": updater.model.state_dict(), **updater.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, map_location="cpu", weights_only=True)
    other = setting.updater(config, "fp32")
    other.model.load_state_dict(loaded["model"])
    other.optimizer.load_state_dict(loaded["optimizer"])
    before = weights_of(updater)
    for one in (updater, other):
        one.train_step(updates[2], 2)
    # The step, not the weights, which hardly change. Adam makes whole steps of rounding errors
    # where the gradient is 0, as that of the biases of keys is.
    return worst([relative(weights_of(other) - before, weights_of(updater) - before)], 0.05)


def weights_of(updater: Updater) -> Tensor:
    """A copy of all weights, in one vector."""
    return nn.utils.parameters_to_vector(updater.model.parameters()).detach()


def automatic_batch(setting: Setting) -> str:
    """The batch that `auto` chooses fits, and is no smaller than two sentences."""
    tokens = 512 if setting.tiny else 2_000_000
    config = setting.config(tokens, compiled=False, batch={"tokens_per_batch": "auto"})
    updater = setting.updater(config)
    lengths = lengths_to_try(setting.pairs, setting.pairs.longest, updater.packed)
    chosen = fitting_batch(updater, lengths)
    assert chosen > 200, f"only {chosen} tokens"
    return f"{chosen:,} tokens of the longer side, padding included where it is computed"


def out_of_memory(setting: Setting) -> str:
    """A batch beyond the memory is a message with a remedy, and training could go on."""
    if not setting.is_cuda:
        raise NotJudgedError("it would fill the memory of a CPU")
    index = setting.torch_device.index or 0
    updater = setting.updater(setting.config(1_000_000, compiled=False))
    large, small = (
        gather_batch(setting.pairs, np.arange(count), pin=True) for count in (40_000, 100)
    )
    gc.collect()  # the models of earlier checks
    torch.cuda.empty_cache()
    room = torch.cuda.memory_allocated(index) + 6e9
    total = torch.cuda.get_device_properties(index).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, room / total), index)
    try:
        message = memory_message(updater, large)
        updater.dry_run_step(small)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, index)
        torch.cuda.empty_cache()
    return message[:100]


def memory_message(updater: Updater, batch: Batch) -> str:
    """What is said of a batch that does not fit into the memory."""
    try:
        updater.dry_run_step(batch)
    except ConfigError as error:
        if "batch.tokens_per_batch" not in str(error):
            raise
        return str(error)
    raise AssertionError(f"{batch.n_padded:,} padded tokens fitted into 6 GB")
