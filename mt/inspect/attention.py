"""Where a model looks: all attention weights of a sentence pair, by word or by piece.

Shapes: B sentences, L layers, H heads, T rows (tokens that look), S columns (tokens looked at).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mt.config.plan import plan_data
from mt.data.reading.words import is_unspaced
from mt.data.tokens.batches import Batch, collate
from mt.errors import ConfigError
from mt.model.attention import attention_bias, attention_weights, causal_mask
from mt.model.checkpoint import LoadedModel
from mt.model.transformer import MultiHeadAttention, Transformer
from mt.runtime.devices import Device
from mt.search.alignment import character_units, cross_attention, word_numbers
from mt.search.engine import TorchEngine
from mt.search.inference import Inference
from mt.terminal import printable

KINDS = ("cross", "encoder", "decoder")
BOS, EOS = "<s>", "</s>"
# The words of a sentence, and the number of the word that each piece belongs to.
Side = tuple[tuple[str, ...], list[int]]


@dataclass(frozen=True)
class AttentionOfSentence:
    """The weights of one kind of attention, all layers and heads, with labels for both axes."""

    weights: npt.NDArray[np.float32]  # (L, H, T, S), each row sums to 1
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    kind: str = KINDS[0]


def usual_source(loaded: LoadedModel, sentence: str, to: str | None) -> str:
    """A sentence as `mt translate` gives it to the model: in its usual case, with a stop."""
    styles = loaded.styles
    direction = plan_data(loaded.config.data).direction(None, to)
    writing = styles.between(*direction) if styles and direction else None
    return writing.usual(sentence)[0] if writing else sentence


def read_attentions(
    loaded: LoadedModel,
    device: Device,
    source: str,
    target: str | None,
    kinds: Iterable[str],
    pieces: bool = False,
    to: str | None = None,
) -> dict[str, AttentionOfSentence]:
    """Return the attention weights for one sentence, translated by the model if `target` is None.

    `kinds`: `cross` (a row for each target word, a column for each source word), `encoder` (source
    to source) or `decoder` (target to what is written so far, from `<s>` on). The row of a target
    word belongs to the step that writes it. A word of several pieces has the mean of their rows and
    the sum of their columns. They stand apart with `pieces`, for `decoder`, and where the script
    has no spaces.

    Raises ConfigError for an unknown kind, a blank sentence, or one too long for the model.
    """
    kinds = list(kinds)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ConfigError(f"--kind: must be one of {', '.join(KINDS)}, found {unknown[0]!r}")
    tokenizer = loaded.tokenizer
    inference = Inference(loaded.model, device)
    first_ids = tokenizer.before_source(to, plan_data(loaded.config.data))
    longest = inference.max_tokens - len(first_ids)
    src = first_ids + checked(tokenizer.src.encode([source])[0], "the sentence", longest)
    if target is None:
        (tgt,) = TorchEngine(inference, loaded.config.decode).search([src], [[]]).ids()
    else:
        tgt = checked(tokenizer.tgt.encode([target])[0], "--target", inference.max_tokens)
    batch = collate([(np.asarray(src, np.int64), np.asarray(tgt, np.int64))]).to(device.device)
    labels, numbers = _labels(tokenizer.src.pieces_of(src[len(first_ids) :]), source, pieces)
    tokens = tokenizer.src.pieces_of(first_ids)  # of the target language: a column of its own
    src_side = (*tokens, *labels), [*range(len(tokens)), *(n + len(tokens) for n in numbers)]
    tgt_side = _labels(tokenizer.tgt.pieces_of(tgt), tokenizer.tgt.decode([tgt])[0], pieces)
    src_then_eos, tgt_then_eos = (
        ((*words, EOS), [*numbers, len(words)]) for words, numbers in (src_side, tgt_side)
    )
    # The mean of a word's pieces would seem to see the pieces that follow.
    written = tuple(map(printable, tokenizer.tgt.pieces_of(tgt)))
    places = [*range(len(written) + 1)]
    sides = {
        "cross": (tgt_then_eos, src_then_eos),
        "encoder": (src_then_eos, src_then_eos),
        "decoder": (((*written, EOS), places), ((BOS, *written), places)),
    }
    attentions = {}
    for kind in kinds:
        maps = attention_maps(loaded.model.eval(), batch, kind)
        (rows, row_numbers), (columns, column_numbers) = sides[kind]
        weights = merged(maps[0].cpu().numpy(), row_numbers, column_numbers)
        attentions[kind] = AttentionOfSentence(weights, rows, columns, kind)
    return attentions


def of_word(attention: AttentionOfSentence, word: int) -> AttentionOfSentence:
    """Return the row of one word, counted from 1. Raises ConfigError where it does not exist."""
    if not 1 <= word <= len(attention.rows):
        raise ConfigError(
            f"--word: the {attention.kind} map has 1 to {len(attention.rows)}, found {word}"
        )
    row = slice(word - 1, word)
    return replace(attention, weights=attention.weights[:, :, row], rows=attention.rows[row])


@torch.inference_mode()
def attention_maps(model: Transformer, batch: Batch, kind: str) -> Tensor:
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
        x = layer(
            x,
            self_attention=partial(attend_and_keep, layer.self_attention, tgt_bias),
            cross_attention=partial(layer.cross_attention, bias=src_bias, memory=memory),
        )
    return torch.stack(maps, dim=1)


def merged(
    weights: npt.NDArray[np.float32], rows: Sequence[int], columns: Sequence[int]
) -> npt.NDArray[np.float32]:
    """Return weights (L, H, T, S) by word: the mean of a word's rows, the sum of its columns.

    `rows` and `columns` number the words, from 0, that each token belongs to.
    """
    to_row = np.equal.outer(np.arange(rows[-1] + 1), rows).astype(np.float32)
    to_row /= to_row.sum(1, keepdims=True)
    to_column = np.equal.outer(columns, np.arange(columns[-1] + 1)).astype(np.float32)
    return (to_row @ weights @ to_column).astype(np.float32)


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


def _labels(pieces: list[str], text: str, apart: bool) -> Side:
    """Return the words of a sentence, and the number of the word that each piece belongs to."""
    if apart:
        return tuple(map(printable, pieces)), list(range(len(pieces)))
    if is_unspaced(text):
        numbers, words = character_units(pieces)
        return tuple(map(printable, words)), numbers
    numbers = word_numbers(pieces)
    words = text.split()
    if len(words) != (numbers[-1] + 1 if numbers else 0):  # the tokenizer rewrites a character
        words = [""] * (numbers[-1] + 1)
        for piece, number in zip(pieces, numbers, strict=True):
            words[number] += piece.replace("▁", "")
    return tuple(map(printable, words)), numbers
