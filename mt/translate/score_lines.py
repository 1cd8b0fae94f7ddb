"""Score pairs of lines with a model: the whole of `mt score` but its options."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import DataError
from mt.model.checkpoint import load_model
from mt.runtime.devices import choose_device
from mt.search.alignment import word_links
from mt.search.inference import Inference
from mt.search.options import EngineOptions, SearchOptions
from mt.search.scoring import ForcedDecoder, ForcedScores
from mt.translate.progress import LineNumbers

# Pairs read before they are sorted by length and scored.
WINDOW = 20_000


@dataclass(frozen=True)
class ScoredPair:
    """One pair of lines and its score."""

    src: str
    tgt: str
    src_pieces: tuple[str, ...]
    tgt_pieces: tuple[str, ...]
    forced: ForcedScores
    # Sum of the log-probabilities / length^penalty, eos included; nan if the pair is too long.
    score: float

    @property
    def alignment(self) -> str:
        """Word links in the form of `word_links`; empty without attention."""
        attention = self.forced.attention
        if attention is None:
            return ""
        return word_links(attention, self.src_pieces, self.tgt_pieces, self.src, self.tgt)


@dataclass
class Scorer:
    """Scores pairs of lines with a model and its tokenizer, and counts them for a summary."""

    forced: ForcedDecoder
    tokenizer: Tokenizer
    length_penalty: float
    first_ids: list[int] = field(default_factory=list)  # of each source: its target language
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

    def score(self, sources: Iterable[str], targets: Iterable[str]) -> Iterator[ScoredPair]:
        """Yield one `ScoredPair` per pair of lines, in order; reads a window of lines at a time.

        Raises DataError if one side has more lines than the other.
        """
        pairs = itertools.zip_longest(sources, targets)
        while window := list(itertools.islice(pairs, WINDOW)):
            for number, (source, target) in enumerate(window, self.pairs + 1):
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
        tokenizer = self.tokenizer
        rows = tokenizer.src.encode([source for source, _ in lines])
        sources = [self.first_ids + ids for ids in rows]
        targets = tokenizer.tgt.encode([target for _, target in lines])
        pairs = list(zip(sources, targets, strict=True))
        results = []
        for number, ((src, tgt), forced) in enumerate(
            zip(pairs, self.forced.score(pairs), strict=True)
        ):
            total = sum(forced.log_probs)
            score = total / (len(tgt) + 1) ** self.length_penalty if forced.log_probs else math.nan
            n_first = len(self.first_ids)  # which are no part of the line
            if n_first and forced.attention is not None:
                forced = replace(forced, attention=forced.attention[:, n_first:])
            src_pieces = tuple(tokenizer.src.pieces_of(src[n_first:]))
            tgt_pieces = tuple(tokenizer.tgt.pieces_of(tgt))
            results.append(ScoredPair(*lines[number], src_pieces, tgt_pieces, forced, score))
            if not forced.log_probs:
                self.too_long.add(self.pairs + number + 1)
            self.tokens += len(forced.log_probs)
            self.log_prob += total
        self.pairs += len(lines)
        self.seconds += time.perf_counter() - start
        return results


def load_scorer(search: SearchOptions, options: EngineOptions) -> Scorer:
    """Load the first model, ready to score. Raises MtError for what the user must correct.

    ConfigError if it lacks the heads that `search.alignments` names.
    """
    device = choose_device(options.device, options.precision)
    loaded = load_model(options.models[0])
    forced = ForcedDecoder(Inference(loaded.model, device), search.alignments, options.batch_tokens)
    first_ids = loaded.tokenizer.before_source(search.to, loaded.data)
    length_penalty = search.decode_config(loaded.config).length_penalty
    return Scorer(forced, loaded.tokenizer, length_penalty, first_ids)


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
