"""Forced decoding: how probable a model finds given targets. `mt score` prints it.

One pass over both sides instead of a search. Shapes: B pairs, S source length, T target length,
N real target tokens of a batch, V vocabulary.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mt.data.batches import Batch, collate
from mt.data.lengths import batch_ends
from mt.data.tokenizer import Tokenizer
from mt.decoding.alignment import cross_attention, parse_heads, word_links
from mt.decoding.inference import Inference
from mt.decoding.tally import LineNumbers
from mt.errors import ConfigError, DataError
from mt.model.transformer import Transformer
from mt.runtime.devices import Device
from mt.runtime.memory import is_out_of_memory, peak_memory_mb

# Padded tokens of a batch. On a CPU the logits, (tokens, V) in fp32, need most of the memory.
BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}
# Pairs read before they are sorted by length and scored.
WINDOW = 20_000

# Source and target ids, without bos and eos.
Pair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class ForcedScores:
    """What the model says about one target given its source."""

    # ln p of each token given those before it, eos included; empty if the pair is too long.
    log_probs: tuple[float, ...] = ()
    # (T, S), the mean of the chosen heads' cross-attention, eos included on both sides.
    attention: Tensor | None = None


class ForcedDecoder:
    """A model that reads pairs of token ids in batches."""

    def __init__(
        self, inference: Inference, heads: str | None = None, batch_tokens: int | None = None
    ) -> None:
        """Return the attention of `heads`, in the form of `parse_heads`; None: no attention.

        Raises ConfigError for heads that the model does not have.
        """
        self.inference = inference
        self.batch_tokens = batch_tokens or BATCH_TOKENS[inference.device.type]
        config = inference.model.config
        self.heads: list[tuple[int, int]] = []
        if heads is not None:
            self.heads = parse_heads(heads, config.n_decoder_layers, config.n_heads)

    def score(self, pairs: Sequence[Pair], log_probs: bool = True) -> list[ForcedScores]:
        """Score each pair, in order.

        Without `log_probs` only the attention is computed; each of them takes a pass of its own.
        Raises ConfigError if the memory is too small for a batch.
        """
        lengths = np.array([max(len(src), len(tgt)) + 1 for src, tgt in pairs], np.int64)
        order = np.argsort(-lengths, kind="stable")
        order = order[lengths[order] <= self.inference.max_tokens]
        scores = [ForcedScores() for _ in pairs]
        if len(order):
            for rows in np.split(order, batch_ends(lengths[order], self.batch_tokens)[:-1]):
                try:
                    batch_scores = self._score_batch([pairs[row] for row in rows], log_probs)
                except (MemoryError, RuntimeError) as error:  # torch's errors are RuntimeErrors
                    if not is_out_of_memory(error):
                        raise
                    device = self.inference.device
                    raise ConfigError(
                        f"scoring: a batch of {len(rows):,} with the longest side of "
                        f"{lengths[rows].max():,} tokens does not fit into the memory of "
                        f"{device.type.upper()}: {peak_memory_mb(device):,.0f} MB were in use. "
                        "Lower --batch-tokens"
                    ) from error
                for row, one in zip(rows, batch_scores, strict=True):
                    scores[row] = one
        return scores

    def _score_batch(self, pairs: Sequence[Pair], log_probs: bool) -> list[ForcedScores]:
        ids = [(np.asarray(src, np.int64), np.asarray(tgt, np.int64)) for src, tgt in pairs]
        batch = collate(ids).to(self.inference.device)
        model = self.inference.model
        found: list[tuple[float, ...]] = [()] * len(pairs)
        if log_probs:
            sizes = [len(tgt) + 1 for _, tgt in pairs]
            rows = token_log_probs(model, batch).cpu().split(sizes)
            found = [tuple(row.tolist()) for row in rows]
        attention: list[Tensor | None] = [None] * len(pairs)
        if self.heads:
            layers, heads = zip(*self.heads, strict=True)
            maps = cross_attention(model, batch)[:, list(layers), list(heads)]
            means = maps.mean(1).cpu()  # (B, T, S)
            # Copies: a view would keep the whole padded batch in memory.
            attention = [
                mean[: len(tgt) + 1, : len(src) + 1].clone()
                for mean, (src, tgt) in zip(means, pairs, strict=True)
            ]
        return [ForcedScores(*both) for both in zip(found, attention, strict=True)]


@torch.inference_mode()
def token_log_probs(model: Transformer, batch: Batch) -> Tensor:
    """ln p of each real target token given those before it, eos included, pair by pair: (N,)."""
    hidden = model(batch.src, batch.tgt_in, batch.src_mask).flatten(0, 1)  # (B T, D)
    logits = model.output(hidden[batch.tgt_positions])  # (N, V)
    return -F.cross_entropy(logits.float(), batch.tgt_out, reduction="none")


@dataclass
class ScoreTally:
    """Counts for the closing summary of `mt score`."""

    pairs: int = 0
    tokens: int = 0  # of the target, eos included
    log_prob: float = 0.0
    too_long: LineNumbers = field(default_factory=LineNumbers)
    seconds: float = 0.0

    def summary(self) -> str:
        """One line, such as `500 pairs in 1.2 s: perplexity 4.81 over 7,210 tokens`."""
        text = f"{self.pairs:,} pair{'s' * (self.pairs != 1)}"
        if self.too_long.count:
            text += (
                f" ({self.too_long.count:,} too long for the model, scored nan: {self.too_long})"
            )
        text += f" in {self.seconds:.1f} s: "
        if self.tokens:
            text += f"perplexity {math.exp(-self.log_prob / self.tokens):.2f} over "
        return f"{text}{self.tokens:,} tokens"


@dataclass(frozen=True)
class ScoredPair:
    """One pair of lines and its score."""

    src_pieces: tuple[str, ...]
    tgt_pieces: tuple[str, ...]
    forced: ForcedScores
    # Sum of the log-probabilities / length^penalty, eos included; nan if the pair is too long.
    score: float

    @property
    def alignment(self) -> str:
        """Word links in the form of `word_links`; empty without attention."""
        attention = self.forced.attention
        return "" if attention is None else word_links(attention, self.src_pieces, self.tgt_pieces)


class Scorer:
    """Scores pairs of lines with a model and its tokenizer."""

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
        """Raises ConfigError for `heads` that the model does not have."""
        self.forced = ForcedDecoder(Inference(model, device), heads, batch_tokens)
        self.tokenizer = tokenizer
        self.length_penalty = length_penalty
        self.tally = ScoreTally()

    def score(self, sources: Iterable[str], targets: Iterable[str]) -> Iterator[ScoredPair]:
        """Yield one `ScoredPair` per pair of lines, in order; reads a window of lines at a time.

        Raises DataError if one side has more lines than the other.
        """
        pairs = itertools.zip_longest(sources, targets)
        while window := list(itertools.islice(pairs, WINDOW)):
            for number, (source, target) in enumerate(window, self.tally.pairs + 1):
                if source is None or target is None:
                    short, long = ("--src", "--tgt") if source is None else ("--tgt", "--src")
                    raise DataError(
                        f"{short}: ends before line {number:,}, {long} has more lines; line n of "
                        "one must belong to line n of the other: check that both belong together "
                        "and that no line was added, dropped or split"
                    )
            yield from self._score_window(window)

    def _score_window(self, lines: list[tuple[str, str]]) -> list[ScoredPair]:
        start = time.perf_counter()
        tokenizer, tally = self.tokenizer, self.tally
        sources = tokenizer.encode_src([source for source, _ in lines])
        targets = tokenizer.encode_tgt([target for _, target in lines])
        pairs = list(zip(sources, targets, strict=True))
        results = []
        for number, ((src, tgt), forced) in enumerate(
            zip(pairs, self.forced.score(pairs), strict=True), tally.pairs + 1
        ):
            total = sum(forced.log_probs)
            score = total / (len(tgt) + 1) ** self.length_penalty if forced.log_probs else math.nan
            src_pieces = tuple(tokenizer.src_pieces_of(src))
            tgt_pieces = tuple(tokenizer.tgt_pieces_of(tgt))
            results.append(ScoredPair(src_pieces, tgt_pieces, forced, score))
            if not forced.log_probs:
                tally.too_long.add(number)
            tally.tokens += len(forced.log_probs)
            tally.log_prob += total
        tally.pairs += len(lines)
        tally.seconds += time.perf_counter() - start
        return results


def format_scored(pairs: Iterable[ScoredPair], as_json: bool, aligned: bool) -> Iterator[str]:
    """Format output lines: the score, with a tab and the alignment if `aligned`; or all as JSON."""
    for pair in pairs:
        if as_json:
            yield _json_line(pair, aligned)
        else:
            yield f"{pair.score:.4f}\t{pair.alignment}" if aligned else f"{pair.score:.4f}"


def _json_line(pair: ScoredPair, aligned: bool) -> str:
    log_probs = pair.forced.log_probs
    values: dict[str, Any] = {
        "score": round(pair.score, 6) if log_probs else None,  # JSON has no nan
        "log_prob": round(sum(log_probs), 6) if log_probs else None,
        "tokens": [*pair.tgt_pieces, "</s>"],
        "token_log_probs": [round(value, 6) for value in log_probs],
    }
    if aligned:
        values["alignment"] = pair.alignment
    return json.dumps(values, ensure_ascii=False)
