"""The parameters of a model: a table of every matrix with totals per block; a picture of boxes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from mt.config.schema import ModelConfig
from mt.inspect.pictures import saved_figure
from mt.model.transformer import Transformer


@dataclass(frozen=True)
class Matrix:
    """One parameter, or one of the three parts of a merged query-key-value parameter."""

    name: str  # as in a checkpoint, without its block; parts end in " Q", " K" or " V"
    shape: tuple[int, ...]  # as stored: (outputs, inputs), (words, d_model) or (length,)
    tied_to: str | None = None  # full name of the parameter that it shares

    @property
    def count(self) -> int:
        """Its elements; 0 if tied to another parameter, which comes first and counts."""
        return 0 if self.tied_to else math.prod(self.shape)


def count_of(matrices: list[Matrix], but: str = "-") -> int:
    return sum(matrix.count for matrix in matrices if but not in matrix.name)


@dataclass(frozen=True)
class Summary:
    """The parameters of a model by block: layers, embeddings, last norms, output."""

    config: ModelConfig
    sizes: tuple[int, int]  # of the vocabularies
    joint: bool
    blocks: dict[str, list[Matrix]]

    @property
    def total(self) -> int:
        return sum(map(count_of, self.blocks.values()))


def summarise(config: ModelConfig, sizes: tuple[int, int], joint: bool) -> Summary:
    """Build the model on the meta device, which takes no memory, and list its parameters."""
    with torch.device("meta"):
        model = Transformer(config, *sizes, joint)
    blocks: dict[str, list[Matrix]] = {}
    first_names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = first_names.setdefault(id(parameter), name)
        block, below = _place(name)
        shape = tuple(parameter.shape)
        matrices = [Matrix(below, shape, first if first != name else None)]
        if "query_key_value" in below:
            shape = (shape[0] // 3, *shape[1:])
            matrices = [Matrix(f"{below} {letter}", shape) for letter in "QKV"]
        blocks.setdefault(block, []).extend(matrices)
    return Summary(config, sizes, joint, blocks)


def _place(name: str) -> tuple[str, str]:
    """Split a name into block and rest: encoder.0.attention.x -> encoder.0, attention.x."""
    top, *rest = name.split(".")
    if top in ("encoder", "decoder"):
        return f"{top}.{rest[0]}", ".".join(rest[1:])
    for block, word in (("embeddings", "embedding"), ("last norms", "norm")):
        if word in top:
            return block, name
    return top, name


def summary_as_json(summary: Summary) -> dict[str, Any]:
    """Parameters by block, each with its shapes."""
    blocks = []
    for name, block in summary.blocks.items():
        numbers = [{"shape": list(one.shape), "parameters": one.count} for one in block]
        names = [{"name": one.name, "tied_to": one.tied_to} for one in block]
        matrices = [first | second for first, second in zip(names, numbers, strict=True)]
        blocks.append({"name": name, "parameters": count_of(block), "matrices": matrices})
    source, target = summary.sizes
    vocabulary = {"source": source, "target": target, "joint": summary.joint}
    return {"vocabulary": vocabulary, "parameters": summary.total, "blocks": blocks}


def format_summary(summary: Summary) -> str:
    """Print the tables, at most 100 columns wide; layers of equal shapes appear once."""
    config, (src_size, tgt_size) = summary.config, summary.sizes
    head_size = config.d_model // config.n_heads
    words = f"V {tgt_size:,}" if summary.joint else f"V_src {src_size:,}, V_tgt {tgt_size:,}"
    lines = [
        f"d {config.d_model}, h {config.n_heads} (heads of {head_size}), "
        f"f {config.d_ff}, N_e {config.n_encoder_layers}, N_d {config.n_decoder_layers}, {words}, "
        f"{config.norm}-norm",
        "",
    ]
    totals = [f"{'totals':<36}{'each':>14}{'norms apart':>14}{'parameters':>16}"]
    for _, alike in groupby(summary.blocks.items(), key=lambda one: (one[0].split(".")[0], one[1])):
        names, (block, *_) = zip(*alike, strict=True)
        several = len(names) > 1
        title = f"{names[0]} to {names[-1]}" if several else names[0]
        lines.append(f"{title + ', each' * several:<44}{'shape':>16}{'parameters':>14}")
        for matrix in block:
            shape = " x ".join(f"{size:,}" for size in matrix.shape)
            count, note = f"{matrix.count:,}", ""
            if matrix.name.endswith(("weight Q", "weight K", "weight V")):
                note = f"  {config.n_heads} heads of {config.d_model} x {head_size}"
            if matrix.tied_to:
                count, note = "tied", f"  is {matrix.tied_to.split('.')[0]}"
            lines.append(f"  {matrix.name:<42}{shape:>16}{count:>14}{note}")
        lines.append("")
        each, apart = f"{count_of(block):,}", f"{count_of(block, but='norm'):,}"
        all_of = len(names) * count_of(block)
        totals.append(f"  {title:<34}{each:>14}{apart:>14}{all_of:>16,}")
    matrices = [matrix for block in summary.blocks.values() for matrix in block]
    n_apart = count_of(matrices, "norm")
    totals.append(f"  {'all':<48}{n_apart:>14,}{summary.total:>16,}")
    if tied := sum(math.prod(matrix.shape) for matrix in matrices if matrix.tied_to):
        untied = f"{n_apart + tied:>14,}{summary.total + tied:>16,}"
        totals.append(f"  {'if nothing were tied':<48}{untied}")
    return "\n".join([*lines, *totals])


# --- the architecture as boxes: what each step computes, and its matrices' shapes ---------------

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


def save_boxes(output: Path, summary: Summary) -> None:
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
