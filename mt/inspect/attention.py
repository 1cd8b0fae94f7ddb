"""Where a model looks, and may look: attention weights and masks, as text and as pictures.

Shapes: B sentences, L layers, H heads, T rows (words that look), S columns (words looked at).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mt.data.reading.words import display_width, is_unspaced
from mt.data.tokens.batches import Batch, collate
from mt.data.tokens.tokenizer import BOS, EOS, PAD, Tokenizer
from mt.errors import ConfigError
from mt.inspect.pictures import draw_cells, saved_figure
from mt.model.attention import attention_bias, attention_weights, causal_mask
from mt.model.checkpoint import LoadedModel
from mt.model.transformer import MultiHeadAttention, Transformer
from mt.runtime.devices import choose_device
from mt.search.alignment import character_units, cross_attention, word_numbers
from mt.search.engine import TorchEngine
from mt.search.inference import Inference
from mt.terminal import printable, say
from mt.translate.as_trained import AsTrained
from mt.translate.lines import Line

Kind: TypeAlias = Literal["cross", "encoder", "decoder"]
# The sides that look and are looked at.
SIDES = {
    "cross": "target (looks) → source (looked at)",
    "encoder": "source (looks) → source (looked at)",
    "decoder": "target (looks) → target (looked at)",
}
NAMES = {PAD: "<pad>", BOS: "<s>", EOS: "</s>"}
INCHES_A_WORD = 0.42
# The text form names so many words for each row, none that has less of the weight.
NAMED, LEAST = 3, 0.05


@dataclass(frozen=True)
class AttentionOfSentence:
    """The weights of one kind of attention, all layers and heads, with labels for both axes."""

    weights: npt.NDArray[np.float32]  # (L, H, T, S), each row sums to 1
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    kind: Kind = "cross"

    def chosen(
        self, layer: int | None = None, head: int | None = None
    ) -> tuple[npt.NDArray[np.float32], str]:
        """Return the weights (T, S) of a layer and head, counted from 1, and a title for them.

        None: the mean over the heads; the last layer but one, whose cross-attention aligns best
        (Garg et al., 2019, section 3.1). Raises ConfigError for what the model does not have.
        """
        n_layers, n_heads = self.weights.shape[:2]
        if layer is None:
            layer = max(1, n_layers - 1)
        check_choice(layer, n_layers, 1 if head is None else head, n_heads)
        if head is None:
            return self.weights[layer - 1].mean(0), f"layer {layer}, mean of {n_heads} heads"
        return self.weights[layer - 1, head - 1], f"layer {layer}, head {head}"

    def as_text(self, layer: int | None, head: int | None) -> tuple[str, str]:
        """A line for each row with the columns it looks at most, in percent; and a title."""
        weights, title = self.chosen(layer, head)
        width = max(map(display_width, self.rows))
        lines = []
        for word, row in zip(self.rows, weights, strict=True):
            best = np.argsort(-row, kind="stable")[:NAMED]
            seen = [f"{self.columns[i]} {100 * row[i]:.0f} %" for i in best if row[i] >= LEAST]
            lines.append(f"{word}{' ' * (width - display_width(word))}  {', '.join(seen)}".rstrip())
        return "\n".join(lines), f"{self.kind} attention, {title}"

    def save_picture(self, output: Path, layer: int | None, head: int | None) -> None:
        """Draw a map of the weights into an SVG or PNG file."""
        weights, title = self.chosen(layer, head)
        width, height = (INCHES_A_WORD * len(words) for words in (self.columns, self.rows))
        with saved_figure(output, width + 1.5, height + 1) as figure:
            axes = figure.subplots()
            mesh = draw_cells(axes, weights, self.rows, self.columns)
            axes.set_xlabel(f"{self.kind} attention, {title}\n{SIDES[self.kind]}")
            figure.colorbar(mesh, ax=axes, fraction=0.04, pad=0.03).outline.set_visible(False)


def usual_source(loaded: LoadedModel, sentence: str, target: str | None, to: str | None) -> str:
    """A sentence without translation as `mt translate` gives it to the model."""
    styles, direction = loaded.styles, loaded.data.direction(None, to)
    line = Line(1, sentence)
    if target is None:
        AsTrained(styles.between(*direction) if styles and direction else None).before([line])
    usual = line.text or sentence  # one without a letter, of which the model sees nothing there
    if usual != sentence:
        say(f"as mt translate writes it for the model, uncut: {usual}")
    return usual


def read_attention(
    loaded: LoadedModel, source: str, target: str | None, kind: Kind, to: str | None = None
) -> AttentionOfSentence:
    """Return the attention weights for one sentence, translated by the model if `target` is None.

    The row of a target word belongs to the step that writes it. A word of several pieces has the
    mean of their rows and the sum of their columns; they stand apart for `decoder`, and where the
    script has no spaces. Raises ConfigError for a blank sentence, or one too long for the model.
    """
    tokenizer = loaded.tokenizer
    inference = Inference(loaded.model, choose_device("cpu", "fp32"))
    first_ids = tokenizer.before_source(to, loaded.data)
    longest = inference.max_tokens - len(first_ids)
    src = first_ids + checked(tokenizer.src.encode([source])[0], "the sentence", longest)
    if target is None:
        (tgt,) = TorchEngine(inference, loaded.config.decode).search([src], [[]]).ids()
    else:
        tgt = checked(tokenizer.tgt.encode([target])[0], "--target", inference.max_tokens)
    batch = collate([(np.asarray(src, np.int64), np.asarray(tgt, np.int64))]).to(inference.device)
    weights = attention_maps(loaded.model.eval(), batch, kind)[0].cpu().numpy()
    if kind == "decoder":  # the mean of a word's pieces would seem to see the pieces that follow
        written = tuple(map(printable, tokenizer.tgt.pieces_of(tgt)))
        return AttentionOfSentence(weights, (*written, NAMES[EOS]), (NAMES[BOS], *written), kind)
    # The token of the target language has a column of its own.
    tokens = tokenizer.src.pieces_of(first_ids)
    words, numbers = _words(tokenizer.src.pieces_of(src[len(first_ids) :]), source)
    columns = (*tokens, *words, NAMES[EOS])
    of_column = [*range(len(tokens)), *(n + len(tokens) for n in numbers), len(columns) - 1]
    rows, of_row = columns, of_column
    if kind == "cross":
        words, numbers = _words(tokenizer.tgt.pieces_of(tgt), tokenizer.tgt.decode([tgt])[0])
        rows, of_row = (*words, NAMES[EOS]), [*numbers, len(words)]
    return AttentionOfSentence(merged(weights, of_row, of_column), rows, columns, kind)


@torch.inference_mode()
def attention_maps(model: Transformer, batch: Batch, kind: Kind) -> Tensor:
    """Return the weights of every layer and head: (B, L, H, T, S) fp32, each row sums to 1."""
    if kind == "cross":
        return torch.stack(list(cross_attention(model, batch)), dim=1)
    maps: list[Tensor] = []

    def attend_and_keep(attention: MultiHeadAttention, bias: Tensor, x: Tensor) -> Tensor:
        q, k, _ = attention.project(x)  # 3 x (B, H, T, K)
        maps.append(attention_weights(q.float(), k.float(), bias.float()))
        return attention(x, bias)

    src_bias = attention_bias(batch.src_mask, model.dtype)[:, None, None, :]  # (B, 1, 1, S)
    if kind == "encoder":
        x = model.src_embedding(batch.src, model.dtype)
        for encoder_layer in model.encoder_layers:
            x = encoder_layer(x, partial(attend_and_keep, encoder_layer.attention, src_bias))
        return torch.stack(maps, dim=1)
    memory = model.encode(batch.src, batch.src_mask)
    x = model.tgt_embedding(batch.tgt_in, model.dtype)
    tgt_bias = attention_bias(causal_mask(batch.tgt_in.shape[1], x.device), model.dtype)  # (T, T)
    for layer in model.decoder_layers:
        own = partial(attend_and_keep, layer.self_attention, tgt_bias)
        cross = partial(layer.cross_attention, bias=src_bias, memory=memory)
        x = layer(x, self_attention=own, cross_attention=cross)
    return torch.stack(maps, dim=1)


def merged(
    weights: npt.NDArray[np.float32], rows: Sequence[int], columns: Sequence[int]
) -> npt.NDArray[np.float32]:
    """Return weights (L, H, T, S) by word, from 0, that `rows` and `columns` have for each token.

    The mean of a word's rows, the sum of its columns.
    """
    to_row = np.equal.outer(np.arange(rows[-1] + 1), rows).astype(np.float32)
    to_row /= to_row.sum(1, keepdims=True)
    to_column = np.equal.outer(columns, np.arange(columns[-1] + 1)).astype(np.float32)
    return (to_row @ weights @ to_column).astype(np.float32)


def check_choice(layer: int, n_layers: int, head: int, n_heads: int) -> None:
    """Raise ConfigError for a layer or head, from 1, that the model does not have."""
    for option, number, most in (("--layer", layer, n_layers), ("--head", head, n_heads)):
        if not 1 <= number <= most:
            raise ConfigError(f"{option}: the model has 1 to {most}, found {number}")


def checked(ids: list[int], what: str, max_tokens: int) -> list[int]:
    """Return the ids of a sentence. Raises ConfigError if there are none, or too many."""
    if not ids:
        raise ConfigError(f"{what}: is blank; give a sentence, in quotes")
    if len(ids) >= max_tokens:
        raise ConfigError(
            f"{what}: has {len(ids):,} tokens, the model takes {max_tokens - 1:,}; "
            "give a shorter one"
        )
    return ids


def _words(pieces: list[str], text: str) -> tuple[tuple[str, ...], list[int]]:
    """Return the words of a sentence, and the number of the word that each piece belongs to."""
    if is_unspaced(text):
        numbers, words = character_units(pieces)
        return tuple(map(printable, words)), numbers
    numbers, words = word_numbers(pieces), text.split()
    if len(words) != (numbers[-1] + 1 if numbers else 0):  # the tokenizer rewrites a character
        words = [""] * (numbers[-1] + 1)
        for piece, number in zip(pieces, numbers, strict=True):
            words[number] += piece.replace("▁", "")
    return tuple(map(printable, words)), numbers


# --- masks ------------------------------------------------------------------------------------

MOST_DRAWN = 8  # more pairs make a picture that nobody can read, and take minutes


class Mask(NamedTuple):
    """Which tokens of a padded sentence, the columns, each token may attend to."""

    title: str
    rows: list[str]  # T
    columns: list[str]  # S
    allowed: npt.NDArray[np.bool_]  # (T, S)


def masks_of(
    tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], length: int = 0
) -> list[list[Mask]]:
    """The masks of each pair of a batch, padded to at least `length` tokens."""
    src_rows = tokenizer.src.encode([src for src, _ in pairs])
    tgt_rows = tokenizer.tgt.encode([tgt for _, tgt in pairs])
    ids = zip(src_rows, tgt_rows, strict=True)
    batch = collate([(np.array(src, np.int64), np.array(tgt, np.int64)) for src, tgt in ids])
    src_ids, tgt_ids = (
        torch.nn.functional.pad(ids, (0, max(0, length - ids.shape[1])), value=PAD)
        for ids in (batch.src, batch.tgt_in)
    )
    causal = causal_mask(tgt_ids.shape[1], batch.src.device).numpy()  # (T, T)
    masks = []
    for both in zip(src_ids, tgt_ids, strict=True):
        src, tgt = (
            [NAMES.get(number) or printable(side.pieces_of([number])[0]) for number in row.tolist()]
            for side, row in zip((tokenizer.src, tokenizer.tgt), both, strict=True)
        )
        of_src, of_tgt = ((row != PAD).numpy() for row in both)  # (S,), (T,)
        by_src, by_tgt = (np.broadcast_to(of_src, (len(rows), len(src))) for rows in (src, tgt))
        encoder = Mask("encoder: padding", src, src, by_src)
        decoder = Mask("decoder: causal", tgt, tgt, causal)
        both_masks = Mask("decoder: causal and padding", tgt, tgt, causal & of_tgt)
        cross = Mask("decoder: source padding", tgt, src, by_tgt)
        masks.append([encoder, decoder, both_masks, cross])
    return masks


def masks_as_text(pairs: Sequence[Sequence[Mask]]) -> str:
    """Return the masks of each pair: ■ where a row's token may attend to a column's, else ·."""
    lines = []
    for number, masks in enumerate(pairs, start=1):
        *_, cross = masks
        lines.append(f"pair {number}: {' '.join(cross.columns)}  →  {' '.join(cross.rows)}")
        for mask in masks:
            width = max(map(display_width, mask.rows))
            lines.append(f"  {mask.title} {mask.allowed.shape}")
            for label, row in zip(mask.rows, mask.allowed, strict=True):
                cells = " ".join("■" if allowed else "·" for allowed in row)
                lines.append(f"    {' ' * (width - display_width(label))}{label} {cells}")
        lines.append("")
    return "\n".join(lines[:-1])


def save_masks(output: Path, pairs: Sequence[Sequence[Mask]]) -> None:
    """Draw the masks, a row for each pair."""
    size = max(2.4, 0.26 * max(len(mask.rows) for mask in pairs[0]))
    columns = len(pairs[0])
    inches = columns * size + 1, len(pairs) * size + 0.6
    with saved_figure(output, *inches, layout="constrained") as figure:
        axes = figure.subplots(len(pairs), columns, squeeze=False)
        for axis, mask in zip(axes.flat, chain.from_iterable(pairs), strict=True):
            draw_cells(axis, mask.allowed, mask.rows, mask.columns, 1.4, 6)
            axis.set_xlabel(mask.title, fontsize=8)
