"""A source and a given target → how probable the model finds each target token, and where it looks for it.

One pass over both sides instead of a search ("forced decoding"): what `mt score` prints, and what a translation is
told about after it has been found. Shapes: B pairs, S source length, T target length, L decoder layers, H heads,
N real target tokens of the batch, V vocabulary.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mt.data.batches import Batch, batch_ends, collate
from mt.data.tokenizer import Tokenizer
from mt.decoding.inference import Inference
from mt.decoding.tally import LineNumbers
from mt.errors import ConfigError, DataError
from mt.model.transformer import (
    DecoderLayer,
    Transformer,
    attention_bias,
    attention_weights,
    causal_mask,
)
from mt.runtime.devices import Device

# Padded tokens of a batch: on a CPU the logits, (tokens, V) in fp32, are the largest thing in memory.
BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}
# Pairs read before they are sorted by length and scored.
WINDOW = 20_000

Ids = Sequence[int]


@dataclass(frozen=True)
class ForcedScores:
    """What the model says about one target given its source."""

    log_probs: tuple[
        float, ...
    ]  # ln p of each token given those before it, eos included; empty: too long a pair
    attention: Tensor | None = (
        None  # (T, S) where it looked for each token, eos included on both sides
    )


class ForcedDecoder:
    """A model ready to read pairs of token ids."""

    def __init__(
        self, inference: Inference, heads: str | None = None, batch_tokens: int | None = None
    ) -> None:
        """`heads`: the cross-attention to keep, as for `chosen_heads`; None for none at all.

        Raises ConfigError for heads that the model has not.
        """
        self.inference = inference
        self.batch_tokens = batch_tokens or BATCH_TOKENS[inference.device.type]
        config = inference.model.config
        self.heads = (
            None if heads is None else chosen_heads(heads, config.n_decoder_layers, config.n_heads)
        )

    def read(self, pairs: Sequence[tuple[Ids, Ids]], scored: bool = True) -> list[ForcedScores]:
        """A `Reading` of each pair (source ids, target ids; without bos and eos), in order.

        Not `scored`: without log-probabilities, which take a pass of their own.
        """
        lengths = np.array([max(len(src), len(tgt)) + 1 for src, tgt in pairs], np.int64)
        order = np.argsort(-lengths, kind="stable")
        order = order[lengths[order] <= self.inference.max_tokens]
        found = [ForcedScores(()) for _ in pairs]
        if len(order):
            for rows in np.split(order, batch_ends(lengths[order], self.batch_tokens)[:-1]):
                for row, reading in zip(
                    rows, self._batch([pairs[row] for row in rows], scored), strict=True
                ):
                    found[row] = reading
        return found

    def _batch(self, pairs: Sequence[tuple[Ids, Ids]], scored: bool) -> list[ForcedScores]:
        ids = [(np.asarray(src, np.int64), np.asarray(tgt, np.int64)) for src, tgt in pairs]
        batch = collate(ids).to(self.inference.device)
        model = self.inference.model
        log_probs: list[tuple[float, ...]] = [()] * len(pairs)
        seen: list[Tensor | None] = [None] * len(pairs)
        if scored:
            sizes = [len(tgt) + 1 for _, tgt in pairs]
            log_probs = [
                tuple(row.tolist()) for row in token_log_probs(model, batch).cpu().split(sizes)
            ]
        if self.heads is not None:
            layers, heads = zip(*self.heads, strict=True)
            mean = (
                cross_attention(model, batch)[:, list(layers), list(heads)].mean(1).cpu()
            )  # (B, T, S)
            # Copies: a view would keep the whole padded batch in memory.
            seen = [
                one[: len(tgt) + 1, : len(src) + 1].clone()
                for one, (src, tgt) in zip(mean, pairs, strict=True)
            ]
        return [ForcedScores(*both) for both in zip(log_probs, seen, strict=True)]


def chosen_heads(text: str, n_layers: int, n_heads: int) -> list[tuple[int, int]]:
    """The (layer, head) pairs, from 0, that `2`, `2:1` or `1:3,2:1` names, from 1; a layer alone is all its heads.

    `auto` is the last layer but one, whose heads together align best (Garg et al., 2019, section 3.1). Raises
    ConfigError for what cannot be read or is not there.
    """
    if text == "auto":
        text = str(max(1, n_layers - 1))
    chosen: list[tuple[int, int]] = []
    for part in text.split(","):
        numbers = part.strip().split(":")
        if not all(number.isdecimal() for number in numbers) or len(numbers) > 2:
            raise ConfigError(
                f"--alignment-heads: must be LAYER or LAYER:HEAD, with commas between, found {part!r}"
            )
        layer, head = int(numbers[0]), int(numbers[1]) if len(numbers) == 2 else None
        if not 1 <= layer <= n_layers or (head is not None and not 1 <= head <= n_heads):
            raise ConfigError(
                f"--alignment-heads: the decoder has layers 1 to {n_layers} with heads 1 to {n_heads}, found {part!r}"
            )
        chosen += [(layer - 1, one) for one in (range(n_heads) if head is None else [head - 1])]
    return chosen


@torch.inference_mode()
def token_log_probs(model: Transformer, batch: Batch) -> Tensor:
    """ln p of every real target token given those before it, eos included, pair by pair: (N,) fp32."""
    hidden = model(batch.src, batch.tgt_in, batch.src_mask).flatten(0, 1)[
        batch.tgt_positions
    ]  # (N, D)
    return -F.cross_entropy(model.output(hidden).float(), batch.tgt_out, reduction="none")


@torch.inference_mode()
def cross_attention(model: Transformer, batch: Batch) -> Tensor:
    """The weights of the attention to the source, all layers and heads: (B, L, H, T, S) fp32, each row sums to 1.

    Row t belongs to the step that predicts token t.
    """
    memory = model.encode(batch.src, batch.src_mask)
    src_bias = attention_bias(batch.src_mask, torch.float32)[:, None, None, :]  # (B, 1, 1, S)
    tgt_bias = attention_bias(
        causal_mask(batch.tgt_in.shape[1], memory.device), model.dtype
    )  # (T, T)
    x, maps = model.tgt_embedding(batch.tgt_in, model.dtype), []
    layers: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
    for layer in layers:
        around = layer.around_self_attention
        x = around.after(x, layer.self_attention.self_attention(around.before(x), tgt_bias))
        around, attention = layer.around_cross_attention, layer.cross_attention
        keys, values = (side.float() for side in attention.key_value(memory))  # 2 x (B, H, S, K)
        maps.append(attention_weights(attention.query(around.before(x)).float(), keys, src_bias))
        x = around.after(x, attention.merge((maps[-1] @ values).to(x.dtype)))
        around = layer.around_feed_forward
        x = around.after(x, layer.feed_forward(around.before(x)))
    return torch.stack(maps, dim=1)


def words_of(pieces: Sequence[str]) -> list[int]:
    """Which word of the line, from 0, each of its pieces belongs to; a word begins at `▁`."""
    words, number, empty = list[int](), -1, False
    for piece in pieces:
        if piece.startswith("▁"):
            number += not empty  # two signs for a space in a row are one space in the text
            empty = piece == "▁"
        else:
            number, empty = max(number, 0), False
        words.append(max(number, 0))
    # A space at the end is none in the text.
    return [min(word, max(0, number - empty)) for word in words]


def joined_links(parts: Sequence[tuple[Tensor, Sequence[str], Sequence[str]]]) -> str:
    """The `links` of a line that was translated in parts, each with what `links` takes; spaces join their texts."""
    inner = [attention[: len(tgt), : len(src)] for attention, src, tgt in parts]
    src_pieces = [piece for _, src, _ in parts for piece in src]
    # A translation begins a new word even where its first piece does not say so.
    tgt_pieces = [
        piece if number else f"▁{piece.lstrip('▁')}"
        for *_, tgt in parts
        for number, piece in enumerate(tgt)
    ]
    return links(torch.block_diag(*inner), src_pieces, tgt_pieces)


def links(attention: Tensor, src_pieces: Sequence[str], tgt_pieces: Sequence[str]) -> str:
    """`i-j` for each target word j: the source word i that its pieces look at most. Words are counted from 0.

    attention (T, S); rows and columns beyond the pieces, those of eos, do not count.
    """
    src_words, tgt_words = words_of(src_pieces), words_of(tgt_pieces)
    if not src_words or not tgt_words:
        return ""
    by_word = torch.zeros(tgt_words[-1] + 1, src_words[-1] + 1, dtype=attention.dtype)
    inner = attention[: len(tgt_words), : len(src_words)]
    rows = torch.tensor(tgt_words)[:, None].expand_as(inner)
    columns = torch.tensor(src_words)[None, :].expand_as(inner)
    by_word.index_put_((rows, columns), inner, accumulate=True)
    return " ".join(
        f"{source}-{target}" for target, source in enumerate(by_word.argmax(1).tolist())
    )


@dataclass
class ScoreTally:
    """What the closing line of a scoring reports."""

    pairs: int = 0
    tokens: int = 0  # of the target, eos counted
    log_prob: float = 0.0
    too_long: LineNumbers = field(default_factory=LineNumbers)
    seconds: float = 0.0

    def summary(self) -> str:
        """One line, such as `500 pairs in 1.2 s: perplexity 4.81 over 7,210 tokens`."""
        note = f" ({self.too_long.count:,} too long for the model, scored nan: {self.too_long})"
        note = note if self.too_long.count else ""
        said = (
            f"perplexity {math.exp(-self.log_prob / self.tokens):.2f} over " if self.tokens else ""
        )
        return f"{self.pairs:,} pair{'s' * (self.pairs != 1)}{note} in {self.seconds:.1f} s: {said}{self.tokens:,} tokens"


@dataclass(frozen=True)
class Scored:
    """One pair of lines as the model finds it."""

    src_pieces: tuple[str, ...]
    tgt_pieces: tuple[str, ...]
    reading: ForcedScores
    score: float  # the sum of the log-probabilities / length^penalty, eos counted; nan where the pair is too long

    @property
    def links(self) -> str:
        """The alignment, in the form of `links`."""
        attention = self.reading.attention
        return "" if attention is None else links(attention, self.src_pieces, self.tgt_pieces)


class Scorer:
    """A model and its tokenizer, ready to score pairs of lines."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        device: Device,
        *,
        length_penalty: float,
        heads: str | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        """Raises ConfigError for `heads` that the model has not."""
        self.forced = ForcedDecoder(Inference(model, device), heads, batch_tokens)
        self.tokenizer, self.length_penalty = tokenizer, length_penalty
        self.tally = ScoreTally()

    def score(self, sources: Iterable[str], targets: Iterable[str]) -> Iterator[Scored]:
        """One `Scored` for each pair of lines, in order. Lines are read a window at a time.

        Raises DataError if one side has more lines.
        """
        pairs = itertools.zip_longest(sources, targets)
        while window := list(itertools.islice(pairs, WINDOW)):
            whole: list[tuple[str, str]] = []
            for number, (source, target) in enumerate(window, self.tally.pairs + 1):
                if source is None or target is None:
                    short, long = ("--src", "--tgt") if source is None else ("--tgt", "--src")
                    raise DataError(
                        f"{short}: ends before line {number:,}, {long} goes on; line n of one must belong to line n "
                        "of the other: check that both belong together and that no line was added, dropped or split"
                    )
                whole.append((source, target))
            yield from self._window(whole)

    def _window(self, lines: list[tuple[str, str]]) -> list[Scored]:
        start, tally, tokenizer = time.perf_counter(), self.tally, self.tokenizer
        sources, targets = ([line[side] for line in lines] for side in (0, 1))
        pairs = list(zip(tokenizer.encode_src(sources), tokenizer.encode_tgt(targets), strict=True))
        readings = self.forced.read(pairs)
        results = []
        for number, ((src, tgt), reading) in enumerate(
            zip(pairs, readings, strict=True), tally.pairs + 1
        ):
            if not reading.log_probs:
                tally.too_long.add(number)
            total = sum(reading.log_probs) if reading.log_probs else math.nan
            pieces = tuple(tokenizer.src_pieces_of(src)), tuple(tokenizer.tgt_pieces_of(tgt))
            results.append(Scored(*pieces, reading, total / (len(tgt) + 1) ** self.length_penalty))
            tally.tokens += len(reading.log_probs)
            tally.log_prob += sum(reading.log_probs)
        tally.pairs += len(lines)
        tally.seconds += time.perf_counter() - start
        return results


def format_scored(scored: Iterable[Scored], as_json: bool, aligned: bool) -> Iterator[str]:
    """Output lines: the score, and if `aligned` a tab and the alignment; or all that is known, as JSON."""
    for one in scored:
        log_probs = one.reading.log_probs
        if not as_json:
            yield f"{one.score:.4f}\t{one.links}" if aligned else f"{one.score:.4f}"
            continue
        values = {
            "score": round(one.score, 6) if log_probs else None,  # JSON has no nan
            "log_prob": round(sum(log_probs), 6) if log_probs else None,
            "tokens": [*one.tgt_pieces, "</s>"],
            "token_log_probs": [round(value, 6) for value in log_probs],
        }
        yield json.dumps(values | ({"alignment": one.links} if aligned else {}), ensure_ascii=False)
