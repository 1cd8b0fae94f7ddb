"""Score pairs of lines with a model: the whole of `mt score` but its options."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import DataError
from mt.model.checkpoint import load_model
from mt.runtime.devices import choose_device
from mt.search.inference import Inference
from mt.search.options import EngineOptions, SearchOptions
from mt.search.scoring import ForcedDecoder
from mt.translate.lines import LineNumbers

# Pairs read before they are sorted by length and scored.
WINDOW = 20_000


class ScoredPair(NamedTuple):
    """The score of one pair of lines, and of what it is the sum."""

    # Sum of the log-probabilities / length^penalty, eos included; nan if the pair is too long.
    score: float
    log_probs: list[float]  # of each token of the target and eos; none if the pair is too long
    tgt: list[int]

    def as_json(self, tokenizer: Tokenizer) -> str:
        """A line of `mt score --json`."""
        values = {  # JSON has no nan
            "score": round(self.score, 6) if self.log_probs else None,
            "log_prob": round(sum(self.log_probs), 6) if self.log_probs else None,
            "tokens": [*tokenizer.tgt.pieces_of(self.tgt), "</s>"],
            "token_log_probs": [round(value, 6) for value in self.log_probs],
        }
        return json.dumps(values, ensure_ascii=False)


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
        if n_long := self.too_long.count:
            text += f" ({n_long:,} too long for the model, scored nan: {self.too_long})"
        text += f" in {self.seconds:.1f} s: "
        if self.tokens:
            text += f"perplexity {math.exp(-self.log_prob / self.tokens):.2f} over "
        return f"{text}{self.tokens:,} tokens"

    def score(self, sources: Iterable[str], targets: Iterable[str]) -> Iterator[ScoredPair]:
        """Yield one `ScoredPair` per pair of lines, in order; DataError if one side has more."""
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
            start = time.perf_counter()
            scored = self._score_window(window)
            self.seconds += time.perf_counter() - start
            yield from scored

    def _score_window(self, lines: list[tuple[str, str]]) -> list[ScoredPair]:
        sources = self.tokenizer.src.encode([source for source, _ in lines])
        targets = self.tokenizer.tgt.encode([target for _, target in lines])
        given = [self.first_ids + ids for ids in sources]
        found = self.forced.log_probs(list(zip(given, targets, strict=True)))
        scored = []
        for tgt, log_probs in zip(targets, found, strict=True):
            self.pairs += 1
            total = sum(log_probs)
            score = total / (len(tgt) + 1) ** self.length_penalty if log_probs else math.nan
            scored.append(ScoredPair(score, log_probs, tgt))
            if not log_probs:
                self.too_long.add(self.pairs)
            self.tokens += len(log_probs)
            self.log_prob += total
        return scored


def load_scorer(search: SearchOptions, options: EngineOptions) -> Scorer:
    """Load the first model, ready to score."""
    device = choose_device(options.device, options.precision)
    loaded = load_model(options.models[0])
    forced = ForcedDecoder(Inference(loaded.model, device), options.batch_tokens)
    first_ids = loaded.tokenizer.before_source(search.to, loaded.data)
    length_penalty = search.decode_config(loaded.config).length_penalty
    return Scorer(forced, loaded.tokenizer, length_penalty, first_ids)
