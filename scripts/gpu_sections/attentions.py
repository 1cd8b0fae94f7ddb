"""Ways of attention without padding: their errors against float64, and their times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_sections.attention_ways import WAYS, Way, attending, require
from gpu_sections.correctness import TOLERANCE, low_precision, relative, worst
from gpu_sections.decision import ERROR
from gpu_sections.report import Report
from gpu_sections.setting import Setting
from mt.data.tokens.batches import Packed, gather_batch
from mt.data.tokens.plan import Plan
from mt.model.gpu_ops import load_varlen_attn

CHECKED = 300  # pairs whose attention is compared with float64


def run(report: Report, setting: Setting) -> None:
    """Check and time every way."""
    load_varlen_attn()
    for name, way in WAYS.items():
        for kind in ("encoder", "decoder", "cross"):
            about = f"{name}: {kind}, float64"
            report.check(about, partial(compare, setting, name, way, kind))
        report.attempt(name + ERROR, partial(gradient_error, report, setting, name))
        for tokens in setting.batch_tokens[-2:]:
            report.attempt(f"{name}, {tokens:,}", partial(measure, report, setting, name, tokens))


def sides(setting: Setting, n_pairs: int) -> tuple[Packed, Packed]:
    """Where the sentences of the first pairs are: source, target."""
    batch = gather_batch(setting.pairs, torch.arange(n_pairs).numpy()).pack()
    packed = batch.to(setting.torch_device).packed
    assert packed is not None
    return packed


def inputs(setting: Setting, kind: str, n_pairs: int) -> tuple[list[Tensor], Packed, Packed]:
    """Queries (1, H, N, K), keys and values, as slices of products, and their sentences."""
    model = setting.config(1024, compiled=False).model
    width = model.d_model
    source, target = sides(setting, n_pairs)
    queries, keys = {
        "encoder": (source, source), "decoder": (target, target), "cross": (target, source)
    }[kind]  # fmt: skip
    n, m = len(queries.places), len(keys.places)
    torch.manual_seed(1)
    shape = (n, 3 * width) if n == m else (n, width)
    first = torch.randn(shape, device=setting.device).to(setting.choose().dtype)
    both = torch.randn((m, 2 * width), device=setting.device).to(first.dtype)
    rows = [first[:, :width], *(first[:, width:] if n == m else both).chunk(2, dim=1)]
    heads = [row[None].unflatten(-1, (model.n_heads, -1)).transpose(1, 2) for row in rows]
    return heads, queries, keys


def within(way: Way, queries: Packed, keys: Packed, causal: bool) -> Callable[..., Tensor]:
    """The way of attention as a function of queries, keys and values alone."""
    return lambda q, k, v: way(q, k, v, queries, keys, causal)


def results(heads: list[Tensor], attend: Callable[..., Tensor]) -> list[Tensor]:
    """The output, and the gradients of queries, keys and values."""
    leaves = [part.detach().requires_grad_() for part in heads]
    out = attend(*leaves)
    return [out, *torch.autograd.grad(out, leaves, torch.ones_like(out) + out.detach())]


def compare(setting: Setting, name: str, way: Way, kind: str) -> str:
    """Output and gradients against attention of one sentence after the other in float64."""
    require(name, setting)
    heads, queries, keys = inputs(setting, kind, CHECKED)
    causal = kind == "decoder"

    def each(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ends = (places.starts.diff().tolist() for places in (queries, keys, keys))
        parts = (part.split(end, dim=2) for part, end in zip((q, k, v), ends, strict=True))
        attend = partial(F.scaled_dot_product_attention, is_causal=causal)
        return torch.cat([attend(*sentence) for sentence in zip(*parts, strict=True)], dim=2)

    found = results(heads, within(way, queries, keys, causal))
    expected = results([part.double() for part in heads], each)
    errors = [relative(one, other) for one, other in zip(found, expected, strict=True)]
    return worst(errors, TOLERANCE[setting.precision])


def gradient_error(report: Report, setting: Setting, name: str) -> None:
    """Gradients of updates in bf16 against the same weights in float64."""
    require(name, setting)
    with attending(name):
        note = low_precision(setting, compiled=False)
    report.add(name + ERROR, value=float(note.split(",")[0].split()[-1]), note=note)


def measure(report: Report, setting: Setting, name: str, tokens: int) -> None:
    """Time forward and backward pass of each kind of attention."""
    require(name, setting)
    batch = setting.config(tokens, compiled=False).batch
    (indices,) = Plan(setting.pairs, [1.0], batch, 1, packed=True).updates(0)[0]
    for kind in ("encoder", "decoder", "cross"):
        heads, queries, keys = inputs(setting, kind, len(indices))
        attend = within(WAYS[name], queries, keys, causal=kind == "decoder")
        seconds = setting.seconds(partial(results, heads, attend))
        about = f"{name}: {kind}, {len(queries.places):,} queries"
        report.add(about, value=1e3 * seconds, unit="ms", note=f"{len(indices)} sentences")
