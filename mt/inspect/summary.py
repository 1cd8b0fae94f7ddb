"""The parameter table of a model: every matrix and its shape, totals per block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch

from mt.model.transformer import Transformer

if TYPE_CHECKING:
    from mt.config.schema import ModelConfig


@dataclass(frozen=True)
class Matrix:
    """One parameter, or one of the three parts of a merged query-key-value parameter."""

    name: str  # as in a checkpoint, without its block; parts end in " Q", " K" or " V"
    shape: tuple[int, ...]  # as stored: (outputs, inputs), (words, d_model) or (length,)
    tied_to: str | None = None  # full name of the parameter that it shares

    @property
    def count(self) -> int:
        """Number of elements; 0 if tied to another parameter."""
        return 0 if self.tied_to else math.prod(self.shape)


@dataclass(frozen=True)
class Block:
    """The parameters of one layer, the embeddings, the last norms or the output layer."""

    name: str
    matrices: tuple[Matrix, ...]

    @property
    def count(self) -> int:
        """Number of parameters; a tied one counts in the block where it occurs first."""
        return sum(matrix.count for matrix in self.matrices)


@dataclass(frozen=True)
class Summary:
    """The parameters of a model, read from the built one."""

    config: ModelConfig
    src_vocab_size: int
    tgt_vocab_size: int
    joint: bool
    blocks: tuple[Block, ...]

    @property
    def total(self) -> int:
        """Parameters of the built model; tied ones count once."""
        return sum(block.count for block in self.blocks)


def summarise(
    config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, joint: bool
) -> Summary:
    """Build the model on the meta device, which takes no memory, and list its parameters.

    Vocabulary sizes are those of the tokenizer; before one is trained, `tokenizer.vocab_size`.
    """
    with torch.device("meta"):
        model = Transformer(config, src_vocab_size, tgt_vocab_size, joint)
    blocks: dict[str, list[Matrix]] = {}
    first_names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = first_names.setdefault(id(parameter), name)
        block, below = _place(name)
        tied_to = first if first != name else None
        parts = _parts(below, tuple(parameter.shape), tied_to)
        blocks.setdefault(block, []).extend(parts)
    return Summary(
        config,
        src_vocab_size,
        tgt_vocab_size,
        joint,
        tuple(Block(name, tuple(matrices)) for name, matrices in blocks.items()),
    )


def _place(name: str) -> tuple[str, str]:
    """Split a name into block and rest: encoder.0.attention.x -> encoder.0, attention.x."""
    top, *rest = name.split(".")
    if top in ("encoder", "decoder"):
        return f"{top}.{rest[0]}", ".".join(rest[1:])
    for block, word in (("embeddings", "embedding"), ("last norms", "norm")):
        if word in top:
            return block, name
    return top, name


def _parts(name: str, shape: tuple[int, ...], tied_to: str | None) -> list[Matrix]:
    """Rows of the table for a parameter: three if it merges Q, K and V, else one."""
    if "query_key_value" not in name:
        return [Matrix(name, shape, tied_to)]
    return [Matrix(f"{name} {letter}", (shape[0] // 3, *shape[1:])) for letter in "QKV"]


def summary_as_json(summary: Summary) -> dict[str, Any]:
    """Parameters by block, each with its shapes."""

    def listed(matrix: Matrix) -> dict[str, Any]:
        counted = {"shape": list(matrix.shape), "parameters": matrix.count}
        return {"name": matrix.name, **counted, "tied_to": matrix.tied_to}

    vocabulary = {"source": summary.src_vocab_size, "target": summary.tgt_vocab_size}
    return {
        "vocabulary": {**vocabulary, "joint": summary.joint},
        "parameters": summary.total,
        "blocks": [
            {
                "name": block.name,
                "parameters": block.count,
                "matrices": [*map(listed, block.matrices)],
            }
            for block in summary.blocks
        ],
    }


def format_summary(summary: Summary) -> str:
    """Print the tables, at most 100 columns wide; layers of equal shapes appear once."""

    def kind(block: Block) -> tuple[str, tuple[Matrix, ...]]:
        return block.name.split(".")[0], block.matrices

    config = summary.config
    words = f"V {summary.tgt_vocab_size:,}"
    if not summary.joint:
        words = f"V_src {summary.src_vocab_size:,}, V_tgt {summary.tgt_vocab_size:,}"
    lines = [
        f"d {config.d_model}, h {config.n_heads} (heads of {config.d_model // config.n_heads}), "
        f"f {config.d_ff}, N_e {config.n_encoder_layers}, N_d {config.n_decoder_layers}, {words}, "
        f"{config.norm}-norm",
        "",
    ]
    alike = [list(blocks) for _, blocks in groupby(summary.blocks, key=kind)]
    for blocks in alike:
        lines += [*_table(blocks, config), ""]
    return "\n".join([*lines, *_totals(alike)])


def _title(blocks: list[Block]) -> str:
    return blocks[0].name + (f" to {blocks[-1].name}" if len(blocks) > 1 else "")


def _table(blocks: list[Block], config: ModelConfig) -> list[str]:
    """One row per matrix; the last column shows W as in x W, inputs first."""
    title = _title(blocks) + (", each" if len(blocks) > 1 else "")
    lines = [f"{title:<44}{'shape':>16}{'parameters':>14}"]
    for matrix in blocks[0].matrices:
        shape = " x ".join(f"{size:,}" for size in matrix.shape)
        count, note = f"{matrix.count:,}", ""
        if matrix.name.endswith(("weight Q", "weight K", "weight V")):
            size = config.d_model // config.n_heads
            note = f"  {config.n_heads} heads of {config.d_model} x {size}"
        if matrix.tied_to:
            count, note = "tied", f"  is {matrix.tied_to.split('.')[0]}"
        lines.append(f"  {matrix.name:<42}{shape:>16}{count:>14}{note}")
    return lines


def _totals(alike: list[list[Block]]) -> list[str]:
    lines, total = [f"{'totals':<44}{'each':>16}{'parameters':>14}"], 0
    for blocks in alike:
        each = f"{blocks[0].count:,}" if len(blocks) > 1 else ""
        total += (count := sum(block.count for block in blocks))
        lines.append(f"  {_title(blocks):<42}{each:>16}{count:>14,}")
    return [*lines, f"  {'all':<42}{'':>16}{total:>14,}"]
