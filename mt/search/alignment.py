"""Word alignments from cross-attention: the source word that each target word comes from.

Shapes: B pairs, S source length, T target length, H heads.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence, Set
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from mt.data.reading.words import is_unspaced
from mt.data.tokens.batches import Batch
from mt.data.tokens.tokenizer import BYTE
from mt.model.attention import attention_bias, attention_weights, causal_mask
from mt.model.transformer import MultiHeadAttention, Transformer


@torch.inference_mode()
def cross_attention(model: Transformer, batch: Batch) -> Iterator[Tensor]:
    """Yield each decoder layer's cross-attention, (B, H, T, S) fp32; row t predicts token t."""
    memory = model.encode(batch.src, batch.src_mask)
    src_bias = attention_bias(batch.src_mask, torch.float32)[:, None, None, :]  # (B, 1, 1, S)
    causal = causal_mask(batch.tgt_in.shape[1], memory.device)
    tgt_bias = attention_bias(causal, model.dtype)  # (T, T)
    maps: list[Tensor] = []

    def attend_and_keep(attention: MultiHeadAttention, x: Tensor) -> Tensor:
        keys, values = attention.key_value(memory)  # 2 x (B, H, S, K)
        queries = attention.query(x)  # (B, H, T, K)
        weights = attention_weights(queries.float(), keys.float(), src_bias)  # (B, H, T, S)
        maps.append(weights)
        return attention.merge((weights @ values.float()).to(x.dtype))

    x = model.tgt_embedding(batch.tgt_in, model.dtype)
    for layer in model.decoder_layers:
        x = layer(
            x,
            self_attention=partial(layer.self_attention, bias=tgt_bias),
            cross_attention=partial(attend_and_keep, layer.cross_attention),
        )
        yield maps.pop()


def word_numbers(pieces: Sequence[str]) -> list[int]:
    """Number the words of a line from 0: one number per piece. A word begins at `▁`."""
    words, number, empty = list[int](), -1, False
    for piece in pieces:
        if piece.startswith("▁"):
            number += not empty  # `▁` twice in a row is one space in the text
            empty = piece == "▁"
        else:
            number, empty = max(number, 0), False
        words.append(max(number, 0))
    # A `▁` at the end of a line begins no word.
    return [min(word, max(0, number - empty)) for word in words]


def character_units(pieces: Sequence[str]) -> tuple[list[int], list[str]]:
    """Number the units of a line without spaces from 0, one number per piece; and spell each unit.

    A unit is a piece with the vowel and tone signs that follow, or a character that is spelled in
    bytes. A `▁` alone is part of the next one, at the end of the last one.
    """
    numbers, spelled = list[int](), list[bytes]()
    for piece in pieces:
        if byte := BYTE.fullmatch(piece):
            text = bytes([int(byte[1], 16)])
            continues = text[0] & 0xC0 == 0x80
        else:
            text = piece.replace("▁", " ").strip().encode()
            continues = text != b"" and unicodedata.category(piece[0]).startswith("M")
        if not spelled or (spelled[-1] and not continues):
            spelled.append(b"")
        spelled[-1] += text
        numbers.append(len(spelled) - 1)
    if len(spelled) > 1 and not spelled[-1]:
        spelled.pop()
        numbers = [min(number, len(spelled) - 1) for number in numbers]
    return numbers, [unit.decode("utf-8", "replace") for unit in spelled]


def _named_units(pieces: Sequence[str], text: str) -> tuple[list[int], list[str]]:
    """Number the words of a line, one number per piece, and name each: its number, from 0.

    Where the script has no spaces, the units of `character_units`, named `start:end`: characters of
    the line in NFC.
    """
    if not is_unspaced(text):
        numbers = word_numbers(pieces)
        return numbers, [str(number) for number in range(max(numbers, default=-1) + 1)]
    text = unicodedata.normalize("NFC", text)  # as the pieces spell it, but for spaces
    numbers, units = character_units(pieces)
    starts, ends, end = list[int](), list[int | None](), 0
    for unit in units:
        start = text.find(unit, end)
        starts.append(max(start, end))
        end = max(start + len(unit), end) if start >= 0 else end
        ends.append(end if start >= 0 else None)  # an unknown one ends where the next begins
    spans = zip(starts, ends, [*starts[1:], len(text)], strict=True)
    return numbers, [f"{start}:{after if end is None else end}" for start, end, after in spans]


def word_links(
    attention: Tensor, src_pieces: Sequence[str], tgt_pieces: Sequence[str], src: str, tgt: str
) -> str:
    """Write `i-j` for each target word j and the source word i that it attends to most, from 0.

    attention (T, S). The weights of a word's pieces are added up, those of eos are ignored. `src`,
    `tgt`: the lines; one of a script without spaces has pieces for words, named by their
    characters: `0:2-3`.
    """
    src_words, src_names = _named_units(src_pieces, src)
    tgt_words, tgt_names = _named_units(tgt_pieces, tgt)
    if not src_words or not tgt_words:
        return ""
    by_word = torch.zeros(len(tgt_names), len(src_names), dtype=attention.dtype)
    inner = attention[: len(tgt_words), : len(src_words)]
    rows = torch.tensor(tgt_words)[:, None].expand_as(inner)
    columns = torch.tensor(src_words)[None, :].expand_as(inner)
    by_word.index_put_((rows, columns), inner, accumulate=True)
    best = zip(tgt_names, by_word.argmax(1).tolist(), strict=True)
    return " ".join(f"{src_names[source]}-{name}" for name, source in best)


def begin_no_word(pieces: list[str], tags: Set[str] = frozenset()) -> None:
    """Let pieces, after `tags`, go on with the word before them, as without a space between."""
    for number, piece in enumerate(pieces):
        if piece not in tags:
            pieces[number] = piece.lstrip("▁")
            if pieces[number]:
                return


def links_within(links: str, src: str, tgt: str) -> str:
    """The links of lines that have lost their end, such as a final stop, between their words."""

    def shortened(name: str, line: str) -> str:
        start, _, end = name.partition(":")
        most = len(unicodedata.normalize("NFC", line)) if end else len(line.split())
        if int(start) >= most:
            return ""
        return f"{start}:{min(int(end), most)}" if end else name

    kept = [[*map(shortened, link.split("-"), (src, tgt))] for link in links.split()]
    return " ".join("-".join(names) for names in kept if all(names))


def moved_links(links: str, src: str, tgt: str, by: Literal[1, -1] = 1) -> str:
    """The links after `src` and `tgt` are written before their lines, or by -1 cut off there."""

    def moved(name: str, before: str) -> str:
        places = name.split(":")
        length = len(before) if places[1:] else len(before.split())
        return ":".join(str(int(place) + by * length) for place in places)

    rows = [[*map(moved, link.split("-"), (src, tgt))] for link in links.split()]
    return " ".join("-".join(names) for names in rows if "-" not in "".join(names))


def joined_word_links(
    parts: Sequence[tuple[Tensor, Sequence[str], Sequence[str]]], src: str, tgt: str
) -> str:
    """Write the links of a line translated in parts; each part's output begins a new word."""
    inner = [attention[: len(tgt), : len(src)] for attention, src, tgt in parts]
    src_pieces = [piece for _, src, _ in parts for piece in src]
    numbered = (enumerate(tgt) for *_, tgt in parts)
    tgt_pieces = [p if n else f"▁{p.lstrip('▁')}" for pieces in numbered for n, p in pieces]
    return word_links(torch.block_diag(*inner), src_pieces, tgt_pieces, src, tgt)
