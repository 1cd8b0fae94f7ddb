"""The architecture of a model as boxes: what each step computes, and its matrices' shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mt.inspect.pictures import saved_figure
from mt.inspect.summary import Summary

BOX: Any = {"boxstyle": "round,pad=0.4", "facecolor": "#e8eef7", "edgecolor": "#1f4e8c"}
HALF, DECODER = 0.34, 6.0  # half the height of a box; where the decoder stands


def boxes(summary: Summary) -> tuple[list[str], list[str]]:
    """Return what both stacks compute, first to last; S and T are the tokens of their sides."""
    config, d = summary.config, summary.config.d_model
    heads = f"{config.n_heads} heads of {d // config.n_heads}; W_Q, W_K, W_V, W_O: {d} x {d}"
    around = "X + f(LN(X))" if config.pre_norm else "LN(X + f(X))"
    feed = f"{around}, f: feed-forward\nW_1: {d} x {config.d_ff}, W_2: {config.d_ff} x {d}"
    stacks = []
    for side, length, size, layers, names in (
        ("source", "S", summary.sizes[0], config.n_encoder_layers, ["self-attention"]),
        ("target", "T", summary.sizes[1], config.n_decoder_layers,
         ["masked self-attention", "cross-attention, K and V from M"]),
    ):  # fmt: skip
        embedded = f"√{d} · rows of W_E ({size:,} x {d}) + positions: ({length}, {d})"
        attentions = [f"{around}, f: {name}\n{heads}" for name in names]
        repeated = f"{feed}\n({layers} times from attention on)"
        last = ["LN(X)"] * config.pre_norm
        stacks.append([f"{side} ids ({length})", embedded, *attentions, repeated, *last])
    encoder, decoder = stacks
    size = summary.sizes[1]
    end = [f"logits = X W, W: {d} x {size:,}", f"p = softmax: (T, {size:,})"]
    return [*encoder, f"M: (S, {d})"], [*decoder, *end]


def save_architecture(output: Path, summary: Summary) -> None:
    """Draw the boxes."""
    stacks = boxes(summary)
    with saved_figure(output, 11, max(map(len, stacks))) as figure:
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(-0.5 * DECODER, 1.5 * DECODER)
        axes.set_ylim(-1, max(map(len, stacks)))
        arrow: Any = {"arrowprops": {"arrowstyle": "->", "color": "#808080"}}
        for x, stack in zip((0.0, DECODER), stacks, strict=True):
            for y, text in enumerate(stack):
                axes.text(x, y, text, ha="center", va="center", fontsize=8.5, bbox=BOX)
                if y:
                    axes.annotate("", (x, y - HALF), (x, y - 1 + HALF), **arrow)
        axes.annotate("", (0.72 * DECODER, 3), (0.09 * DECODER, len(stacks[0]) - 1), **arrow)
