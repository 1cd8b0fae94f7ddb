"""Options of a search besides the config's `decode` section: constraints, sampling and prefixes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mt.data.tokens.tokenizer import EOS, UNK, Tokenizer
from mt.errors import ConfigError, DataError

if TYPE_CHECKING:
    from mt.search.constraints import Constraint

# Beyond these, logits divided by the temperature may leave the range of floats.
TEMPERATURES = (1e-3, 1e3)


@dataclass(frozen=True)
class Sampling:
    """Draw outputs at random instead of searching for the best; see `sampling_search`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        """Raise ConfigError for a value out of range."""
        low, high = TEMPERATURES
        if not low <= self.temperature <= high:
            raise ConfigError(
                f"--temperature: must be from {low:g} to {high:g}, found {self.temperature:g}; "
                "1 leaves the model's distribution as it is, --top-k 1 takes the best token"
            )
        if self.top_k < 0:
            raise ConfigError(
                f"--top-k: must be at least 0, found {self.top_k}; 0 allows all tokens"
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(
                f"--top-p: must be above 0 and at most 1, found {self.top_p:g}; 1 allows all tokens"
            )

    def seed_of(self, source: Sequence[int], number: int) -> int:
        """Return the seed of sample `number` of a source, which depends on nothing but its ids."""
        text = f"{self.seed} {number} {' '.join(map(str, source))}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


@dataclass(frozen=True)
class SearchOptions:
    """What is asked of a search; the defaults change nothing."""

    min_length: int = 0  # least tokens of an output, if its limit allows
    no_repeat_ngram: int = 0  # 0: any n-gram may repeat
    repetition_penalty: float = 1.0
    forbidden: tuple[str, ...] = ()  # tokens of the target vocabulary, `▁` for a space
    sampling: Sampling | None = None
    # The heads whose mean gives word alignments, as for `parse_heads`; None: no alignments.
    alignment: str | None = None
    # Continue a search until nothing in the beam can improve; see `beam_search`.
    exact: bool = False
    # The utility that chooses one of the n-best outputs, of `mbr.UTILITIES`; None: the score does.
    mbr: str | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a value out of range."""
        counts = {"--min-length": self.min_length, "--no-repeat-ngram": self.no_repeat_ngram}
        for option, value in counts.items():
            if value < 0:
                raise ConfigError(f"{option}: must be at least 0, found {value}; 0 switches it off")
        if not 0 < self.repetition_penalty < math.inf:
            raise ConfigError(
                "--repetition-penalty: must be above 0 and finite, found "
                f"{self.repetition_penalty:g}; 1 switches it off"
            )
        if self.exact and self.sampling is not None:
            raise ConfigError(
                "--exact: concerns beam search, and --sample does none; leave out one of the two"
            )

    def constraints(self, tokenizer: Tokenizer) -> list[Constraint]:
        """Return the constraints. Raises ConfigError for a token that the vocabulary lacks."""
        from mt.search.constraints import (
            forbid,
            min_length,
            no_repeat_ngram,
            repetition_penalty,
        )

        found: list[Constraint] = []
        if self.repetition_penalty != 1:
            found.append(repetition_penalty(self.repetition_penalty))
        if self.no_repeat_ngram:
            found.append(no_repeat_ngram(self.no_repeat_ngram))
        if self.forbidden:
            found.append(forbid([_token_id(token, tokenizer) for token in self.forbidden]))
        if self.min_length:
            found.append(min_length(self.min_length))
        return found


def _token_id(token: str, tokenizer: Tokenizer) -> int:
    number = tokenizer.tgt_piece_id(token)
    if number <= EOS:  # unk: not in the vocabulary; pad, bos and eos are not part of a text
        tokens = " ".join(tokenizer.tgt_pieces(token)) or "nothing"
        raise ConfigError(
            f"--forbid: must name a token of the target vocabulary, found {token!r}; "
            f"the tokenizer splits this text into {tokens}"
        )
    return number


def encode_prefixes(
    prefixes: list[str], first_line: int, max_tokens: int, tokenizer: Tokenizer
) -> list[list[int]]:
    """Return the tokens that outputs must begin with, none for a blank prefix.

    The prefixes are those of the lines from `first_line` on. Raises DataError for one of more than
    `max_tokens` tokens, and for a character that the vocabulary lacks.
    """
    if not any(prefixes):
        return [[] for _ in prefixes]
    rows = tokenizer.encode_tgt(prefixes)
    for number, (text, ids) in enumerate(zip(prefixes, rows, strict=True), first_line):
        if len(ids) > max_tokens:
            raise DataError(
                f"--prefix line {number:,}: has {len(ids):,} tokens, but the model has positions "
                f"for {max_tokens:,}; shorten it"
            )
        if UNK in ids:
            raise DataError(
                f"--prefix line {number:,}: {text!r} contains a character that the vocabulary "
                "lacks; leave it out"
            )
    return rows


def sampling_of(sample: bool, beam_size: int | None, given: Mapping[str, Any]) -> Sampling | None:
    """Return the sampling that `--sample` and the options `given` ask for, None without it.

    Raises ConfigError for options that do not go together.
    """
    if not sample and given:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(
            f"{named}: only with --sample, which draws outputs instead of searching for the best; "
            "add --sample"
        )
    if sample and beam_size is not None:
        raise ConfigError(
            "--sample: draws one output at a time, without a beam; "
            "leave out --sample or --beam-size"
        )
    return Sampling(**given) if sample else None
