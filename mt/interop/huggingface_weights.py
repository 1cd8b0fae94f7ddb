"""Names and layouts of weights in Marian and Pegasus models of transformers, and in ours.

Those models put all sines of a position into the first half of its vector and all cosines into the
second; ours alternate. Reordering the dimensions of the residual stream in every weight that reads
or writes it turns one into the other exactly: layer norms do not care about the order.

Shapes: D d_model, F d_ff.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# Our names and theirs of a layer's parts.
ENCODER_PARTS = {
    "attention": "self_attn",
    "around_attention.norm": "self_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "around_feed_forward.norm": "final_layer_norm",
}
DECODER_PARTS = {
    "self_attention": "self_attn",
    "around_self_attention.norm": "self_attn_layer_norm",
    "cross_attention": "encoder_attn",
    "around_cross_attention.norm": "encoder_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "around_feed_forward.norm": "final_layer_norm",
}


class Correspondence(NamedTuple):
    """One of our parameters and the parameters that it is, one below the other, in their model."""

    ours: str
    theirs: tuple[str, ...]
    axis: int | None  # the axis along the residual stream, (D,), if there is one


def correspondences(
    norm: str, n_encoder_layers: int, n_decoder_layers: int
) -> Iterator[Correspondence]:
    """All parameters inside the layers, and the last norms where `norm` is pre."""
    for side, parts, n_layers in (
        ("encoder", ENCODER_PARTS, n_encoder_layers),
        ("decoder", DECODER_PARTS, n_decoder_layers),
    ):
        for layer in range(n_layers):
            for ours, theirs in parts.items():
                prefix = f"model.{side}.layers.{layer}.{theirs}"
                yield from _part(f"{side}.{layer}.{ours}", prefix)
        if norm == "pre":
            yield from _part(f"{side}_norm", f"model.{side}.layer_norm")


def _part(ours: str, theirs: str) -> Iterator[Correspondence]:
    for kind in ("weight", "bias"):
        if ours.endswith("attention"):
            projections = tuple(f"{theirs}.{letter}_proj.{kind}" for letter in "qkv")
            reads = 1 if kind == "weight" else None  # (3 D, D): each row reads the stream
            yield Correspondence(f"{ours}.query_key_value.{kind}", projections, reads)
            yield Correspondence(f"{ours}.output.{kind}", (f"{theirs}.out_proj.{kind}",), 0)
        elif ours.endswith("inner"):
            yield Correspondence(
                f"{ours}.{kind}", (f"{theirs}.{kind}",), 1 if kind == "weight" else None
            )
        else:  # a norm (D,), or feed_forward.outer (D, F) and (D,), which write the stream
            yield Correspondence(f"{ours}.{kind}", (f"{theirs}.{kind}",), 0)


def to_interleaved(d_model: int) -> Tensor:
    """The dimension of their residual stream that each dimension of ours is. (D,)

    sin, sin, ..., cos, cos, ... becomes sin, cos, sin, cos, ...
    """
    return torch.arange(d_model).view(2, -1).T.flatten()  # (2, D/2) -> (D,)


def to_halves(d_model: int) -> Tensor:
    """The dimension of our residual stream that each dimension of theirs is. (D,)"""
    return torch.arange(d_model).view(-1, 2).T.flatten()  # (D/2, 2) -> (D,)
