"""A padded batch and its masks: which tokens each token may attend to.

Shapes: B sentences, S source length, T target length, padding included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mt.data.reading.words import display_width
from mt.data.tokens.batches import collate
from mt.data.tokens.tokenizer import BOS, EOS, PAD, Tokenizer
from mt.inspect.pictures import draw_cells, new_figure, save_figure
from mt.model.attention import causal_mask
from mt.terminal import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {PAD: "<pad>", BOS: "<s>", EOS: "</s>"}
# More pairs make a picture that nobody can read, and take minutes.
MOST_DRAWN = 8
TITLES = ("encoder: padding", "decoder: causal", "decoder: source padding")


@dataclass(frozen=True)
class MaskedPair:
    """A sentence pair of a batch: its tokens with padding, and its masks, True where allowed."""

    src: list[str]  # S
    tgt_in: list[str]  # T
    masks: tuple[npt.NDArray[np.bool_], ...]  # (S, S), (T, T), (T, S), as `TITLES`


def masked_pairs(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[MaskedPair]:
    """Return the pairs of one batch as training pads and masks them.

    A token after the last one of its sentence is padding: no other token attends to it. On the
    target side the causal mask alone sees to that.
    """
    rows = zip(
        tokenizer.src.encode([src for src, _ in pairs]),
        tokenizer.tgt.encode([tgt for _, tgt in pairs]),
        strict=True,
    )
    batch = collate([(np.asarray(src, np.int64), np.asarray(tgt, np.int64)) for src, tgt in rows])
    causal = causal_mask(batch.tgt_in.shape[1], batch.src.device).numpy()  # (T, T)
    masked = []
    for src, tgt_in, mask in zip(batch.src, batch.tgt_in, batch.src_mask.numpy(), strict=True):
        src_labels, tgt_labels = (
            [NAMES.get(number) or side.pieces_of([number])[0] for number in ids.tolist()]
            for side, ids in ((tokenizer.src, src), (tokenizer.tgt, tgt_in))
        )
        self_mask = np.broadcast_to(mask, (len(src), len(src)))
        cross_mask = np.broadcast_to(mask, (len(tgt_in), len(src)))
        masked.append(MaskedPair(src_labels, tgt_labels, (self_mask, causal, cross_mask)))
    return masked


def as_text(pairs: Sequence[MaskedPair]) -> str:
    """Return the masks of each pair: ■ where a row's token may attend to a column's, else ·."""
    lines = []
    for number, pair in enumerate(pairs, start=1):
        lines += [
            f"pair {number}: {printable(' '.join(pair.src))}  →  {printable(' '.join(pair.tgt_in))}"
        ]
        for title, rows, mask in zip(
            TITLES, (pair.src, pair.tgt_in, pair.tgt_in), pair.masks, strict=True
        ):
            width = max(display_width(printable(label)) for label in rows)
            lines.append(f"  {title} {mask.shape}")
            for label, row in zip(map(printable, rows), mask, strict=True):
                cells = " ".join("■" if allowed else "·" for allowed in row)
                lines.append(f"    {' ' * (width - display_width(label))}{label} {cells}")
        lines.append("")
    return "\n".join(lines[:-1])


def save_picture(output: Path, pairs: Sequence[MaskedPair]) -> str:
    """Draw the masks, a row of three for each pair; return a warning about the font, or ""."""

    def draw() -> Figure:
        widest = max(len(pairs[0].src), len(pairs[0].tgt_in))
        size = max(2.4, 0.26 * widest)
        figure = new_figure(3 * size + 1, len(pairs) * size + 0.6, layout="constrained")
        axes = figure.subplots(len(pairs), 3, squeeze=False)
        for row, pair in zip(axes, pairs, strict=True):
            sides = ((pair.src, pair.src), (pair.tgt_in, pair.tgt_in), (pair.tgt_in, pair.src))
            for axis, title, mask, (looking, looked_at) in zip(
                row, TITLES, pair.masks, sides, strict=True
            ):
                draw_cells(axis, mask, looking, looked_at, 1.4, 6)
                axis.set_xlabel(title, fontsize=8)
        return figure

    return save_figure(output, draw)
