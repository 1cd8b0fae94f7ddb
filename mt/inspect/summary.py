"""The parameter table of a model: every matrix and its shape, totals per block, closed forms.

The count of matrices per head follows `transformers-demystified-1.txt`: per attention, three
projections for each head and one output matrix; per feed-forward, W1, b1, W2 and b2; and two
embeddings and the output matrix, tied or not. Biases of projections and layer norms do not count.
"""

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
    per_head: int  # how many matrices it is in the count per head; 0: does not count
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
    """The parameters of a model: `blocks` read from the built model, `terms` from formulas."""

    config: ModelConfig
    src_vocab_size: int
    tgt_vocab_size: int
    joint: bool
    blocks: tuple[Block, ...]
    terms: tuple[tuple[str, str, int], ...]  # what, its formula and its value

    @property
    def total(self) -> int:
        """Parameters of the built model; tied ones count once."""
        return sum(block.count for block in self.blocks)

    @property
    def total_by_formula(self) -> int:
        """The same total, computed from the sizes alone."""
        return sum(count for _, _, count in self.terms)

    @property
    def matrices(self) -> int:
        """Parameter matrices of the built model, counted per head."""
        return sum(matrix.per_head for block in self.blocks for matrix in block.matrices)

    @property
    def matrices_by_formula(self) -> int:
        """N_e (3h + 5) + N_d (6h + 6) + 3; with N_e = N_d = N that is N (9h + 11) + 3."""
        config = self.config
        encoder, decoder = 3 * config.n_heads + 5, 6 * config.n_heads + 6
        return config.n_encoder_layers * encoder + config.n_decoder_layers * decoder + 3


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
        parts = _parts(below, tuple(parameter.shape), tied_to, config.n_heads)
        blocks.setdefault(block, []).extend(parts)
    return Summary(
        config,
        src_vocab_size,
        tgt_vocab_size,
        joint,
        tuple(Block(name, tuple(matrices)) for name, matrices in blocks.items()),
        _closed_form(config, src_vocab_size, tgt_vocab_size, joint),
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


def _parts(name: str, shape: tuple[int, ...], tied_to: str | None, n_heads: int) -> list[Matrix]:
    """Rows of the table for a parameter: three if it merges Q, K and V, else one."""
    is_matrix = len(shape) == 2
    if "query_key_value" in name:
        third, per_head = (shape[0] // 3, *shape[1:]), n_heads if is_matrix else 0
        return [Matrix(f"{name} {letter}", third, per_head) for letter in "QKV"]
    # The formula has neither learned positions nor a bias of the output layer.
    counted = "feed_forward" in name and "norm" not in name
    counted = counted or (is_matrix and not name.endswith("positions"))
    return [Matrix(name, shape, int(counted), tied_to)]


def _closed_form(
    config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int, joint: bool
) -> tuple[tuple[str, str, int], ...]:
    """Terms of the parameter total (d: d_model, f: d_ff, V: vocabulary, N: layers)."""
    d, f = config.d_model, config.d_ff
    n_enc, n_dec = config.n_encoder_layers, config.n_decoder_layers
    last = 2 if config.pre_norm else 0
    n_attentions, n_norms = n_enc + 2 * n_dec, 2 * n_enc + 3 * n_dec + last
    rows, embeddings = src_vocab_size + tgt_vocab_size, "(V_src + V_tgt) d"
    if joint:
        rows, embeddings = tgt_vocab_size, "V d"
    if not config.tie_embeddings:
        rows = src_vocab_size + 2 * tgt_vocab_size
        embeddings = "3 V d" if joint else "(V_src + 2 V_tgt) d"
    terms = [("embeddings and output matrix", embeddings, rows * d)]
    if config.learned_positions:
        terms.append(("learned positions", "2 max_positions d", 2 * config.max_positions * d))
    attention, size = "4 d^2", 4 * d * d
    if config.attention_bias:
        attention, size = "4 d^2 + 4 d", 4 * d * d + 4 * d
    terms += [
        ("attention", f"(N_e + 2 N_d) ({attention})", n_attentions * size),
        ("feed-forward", "(N_e + N_d) (2 d f + f + d)", (n_enc + n_dec) * (2 * d * f + f + d)),
        ("layer norms", f"(2 N_e + 3 N_d{' + 2' * (last > 0)}) 2 d", n_norms * 2 * d),
    ]
    if config.output_bias:
        terms.append(("output bias", "V" if joint else "V_tgt", tgt_vocab_size))
    return tuple(terms)


def summary_as_json(summary: Summary) -> dict[str, Any]:
    """Parameters by block, each with its shapes, and the closed form of their total."""

    def listed(matrix: Matrix) -> dict[str, Any]:
        counted = {"shape": list(matrix.shape), "parameters": matrix.count}
        return {"name": matrix.name, **counted, "tied_to": matrix.tied_to}

    vocabulary = {"source": summary.src_vocab_size, "target": summary.tgt_vocab_size}
    return {
        "vocabulary": {**vocabulary, "joint": summary.joint},
        "parameters": summary.total,
        "matrices_per_head": summary.matrices,
        "blocks": [
            {
                "name": block.name,
                "parameters": block.count,
                "matrices": [*map(listed, block.matrices)],
            }
            for block in summary.blocks
        ],
        "closed_form": [
            {"what": what, "formula": formula, "count": count}
            for what, formula, count in summary.terms
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
    lines += [*_totals(alike), "", *_closed_forms(summary)]
    return "\n".join(lines) + "\n"


def _title(blocks: list[Block]) -> str:
    return blocks[0].name + (f" to {blocks[-1].name}" if len(blocks) > 1 else "")


def _table(blocks: list[Block], config: ModelConfig) -> list[str]:
    """One row per matrix; the last column shows W as in x W, inputs first."""
    title = _title(blocks) + (", each" if len(blocks) > 1 else "")
    lines = [f"{title:<44}{'shape':>16}{'parameters':>14}  counted per head"]
    for matrix in blocks[0].matrices:
        shape = " x ".join(f"{size:,}" for size in matrix.shape)
        count, note = f"{matrix.count:,}", str(matrix.per_head or "-")
        if matrix.name.endswith(("weight Q", "weight K", "weight V")):
            note = f"{matrix.per_head} of {config.d_model} x {config.d_model // config.n_heads}"
        if matrix.tied_to:
            count, note = "tied", f"{note}, is {matrix.tied_to.split('.')[0]}"
        lines.append(f"  {matrix.name:<42}{shape:>16}{count:>14}  {note}")
    return lines


def _totals(alike: list[list[Block]]) -> list[str]:
    lines, total = [f"{'totals':<44}{'each':>16}{'parameters':>14}"], 0
    for blocks in alike:
        each = f"{blocks[0].count:,}" if len(blocks) > 1 else ""
        total += (count := sum(block.count for block in blocks))
        lines.append(f"  {_title(blocks):<42}{each:>16}{count:>14,}")
    return [*lines, f"  {'all':<42}{'':>16}{total:>14,}"]


def _closed_forms(summary: Summary) -> list[str]:
    config = summary.config
    h, n_enc, n_dec = config.n_heads, config.n_encoder_layers, config.n_decoder_layers
    lines = ["closed form of the parameter total"]
    for what, term, count in summary.terms:
        lines.append(f"  {what:<29} {term:<29}{count:>13,}")
    lines += [f"  {'sum':<59}{summary.total_by_formula:>13,}", ""]
    formula = "N_e (3h + 5) + N_d (6h + 6) + 3" + " = N (9h + 11) + 3" * (n_enc == n_dec)
    numbers = f"{n_enc} x {3 * h + 5} + {n_dec} x {6 * h + 6} + 3 = {summary.matrices_by_formula:,}"
    return [*lines, "parameter matrices counted per head", f"  {formula}", f"  {numbers}"]
