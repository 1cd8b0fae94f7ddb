"""Keys of config.json, and names and layouts of weights, in Marian and Pegasus models and in ours.

Models of transformers put all sines of a position into the first half of its vector; ours
alternate. Reordering the dimensions of the residual stream in every weight that reads or writes it
turns one into the other exactly: layer norms do not depend on the order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

# Files of a folder of transformers.
CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
CARD = "README.md"
WEIGHTS = "model.safetensors", "pytorch_model.bin"
# Our key of the section `model`, and theirs, which must all have its value.
CONFIG_KEYS = {
    "d_model": ("d_model",),
    "n_heads": ("encoder_attention_heads", "decoder_attention_heads"),
    "n_encoder_layers": ("encoder_layers",),
    "n_decoder_layers": ("decoder_layers",),
    "d_ff": ("encoder_ffn_dim", "decoder_ffn_dim"),
    "dropout": ("dropout",),
    "attention_dropout": ("attention_dropout",),
    "activation_dropout": ("activation_dropout",),
    "activation": ("activation_function",),
    "max_positions": ("max_position_embeddings",),
}
# Keys of our config without one of theirs, under the key `mt` of config.json.
OWN_KEYS = {
    "data": ("max_tokens", "max_length_ratio"),
    "decode": ("max_len_factor", "max_len_extra"),
}
# Added to the logit of a row that fills the smaller of two vocabularies: its probability is 0.
NO_TOKEN = -1e9
Row = tuple[str, tuple[str, ...], str]


def _attention(ours: str, theirs: str) -> tuple[Row, ...]:
    return (
        (f"{ours}.query_key_value", tuple(f"{theirs}.{letter}_proj" for letter in "qkv"), "AD"),
        (f"{ours}.output", (f"{theirs}.out_proj",), "DA"),
        (f"around_{ours}.norm", (f"{theirs}_layer_norm",), "D"),
    )


# Parts of a layer, each with our name, theirs one below the other, and the axes of its matrix: D
# the residual stream, F the inside of the feed-forward layer, A the heads of attention side by
# side. The bias has the first axis; a norm has no other.
FEED_FORWARD: tuple[Row, ...] = (
    ("feed_forward.inner", ("fc1",), "FD"),
    ("feed_forward.outer", ("fc2",), "DF"),
    ("around_feed_forward.norm", ("final_layer_norm",), "D"),
)
LAYERS: dict[str, tuple[Row, ...]] = {
    "encoder": (*_attention("attention", "self_attn"), *FEED_FORWARD),
    "decoder": (
        *_attention("self_attention", "self_attn"),
        *_attention("cross_attention", "encoder_attn"),
        *FEED_FORWARD,
    ),
}


class Correspondence(NamedTuple):
    """One of our parameters and the parameters that it is, one below the other, in their model."""

    ours: str
    theirs: tuple[str, ...]
    axes: str  # of each of theirs: one letter, or two

    def reorder(self, tensor: Tensor, order: Tensor) -> Tensor:
        """Put the dimensions of the residual stream into another order, if there is that axis."""
        axis = self.axes.find("D")
        return tensor if axis < 0 else tensor.index_select(axis, order)


def correspondences(
    pre_norm: bool, n_encoder_layers: int, n_decoder_layers: int
) -> Iterator[Correspondence]:
    """All parameters inside the layers, and the last norms with pre-norm."""
    for side, n_layers in (("encoder", n_encoder_layers), ("decoder", n_decoder_layers)):
        rows = [
            (f"{side}.{i}.{ours}", tuple(f"layers.{i}.{name}" for name in theirs), axes)
            for i in range(n_layers)
            for ours, theirs, axes in LAYERS[side]
        ]
        if pre_norm:
            rows.append((f"{side}_norm", ("layer_norm",), "D"))
        for ours, theirs, axes in rows:
            for kind, kind_axes in (("weight", axes), ("bias", axes[0])):
                names = tuple(f"model.{side}.{name}.{kind}" for name in theirs)
                yield Correspondence(f"{ours}.{kind}", names, kind_axes)


def to_interleaved(d_model: int) -> Tensor:
    """The dimension of theirs (sin, sin, ..., cos, cos, ...) that each of ours is. (d_model,)"""
    return torch.arange(d_model).view(2, -1).T.flatten()  # (2, d_model/2) -> (d_model,)


def to_halves(d_model: int) -> Tensor:
    """The dimension of our residual stream that each dimension of theirs is. (d_model,)"""
    return torch.arange(d_model).view(-1, 2).T.flatten()  # (d_model/2, 2) -> (d_model,)
