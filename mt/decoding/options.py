"""What can be asked of a search besides the config's `decode` section: constraints, and sampling."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mt.data.tokenizer import EOS, UNK, Tokenizer
from mt.decoding.constraints import (
    Constraint,
    forbid,
    force_prefixes,
    min_length,
    no_repeat_ngram,
    repetition_penalty,
)
from mt.errors import ConfigError, DataError


@dataclass(frozen=True)
class Sampling:
    """Outputs drawn at random instead of searched for; see `sampling_search`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        """Raises ConfigError for what no distribution has."""
        if not self.temperature > 0:
            raise ConfigError(
                f"--temperature: must be above 0, found {self.temperature:g}; 1 is the model's own"
            )
        if self.top_k < 0:
            raise ConfigError(
                f"--top-k: must be at least 0, found {self.top_k}; 0 leaves all pieces in"
            )
        if not 0 < self.top_p <= 1:
            raise ConfigError(
                f"--top-p: must be above 0 and at most 1, found {self.top_p:g}; 1 leaves all pieces in"
            )

    def seed_of(self, source: Sequence[int], number: int) -> int:
        """The seed of sample `number` of a source: by its text alone, wherever in whichever file it stands."""
        text = f"{self.seed} {number} {' '.join(map(str, source))}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


@dataclass(frozen=True)
class SearchOptions:
    """The defaults ask for nothing."""

    min_length: int = 0  # pieces of an output at least, where its limit allows
    no_repeat_ngram: int = 0  # 0: any row of pieces may come again
    repetition_penalty: float = 1.0
    forbidden: tuple[str, ...] = ()  # pieces of the target vocabulary, `▁` for a space
    sampling: Sampling | None = None
    alignment: str | None = (
        None  # the heads whose mean aligns, as for `chosen_heads`; None: no alignments
    )
    exact: bool = False  # no end of a search that could miss a better hypothesis of the beam
    mbr: str | None = (
        None  # the utility by which one of the n-best is chosen, of `mbr.UTILITIES`; None: the score
    )

    def __post_init__(self) -> None:
        """Raises ConfigError for a value out of range."""
        for option, value in (
            ("--min-length", self.min_length),
            ("--no-repeat-ngram", self.no_repeat_ngram),
        ):
            if value < 0:
                raise ConfigError(
                    f"{option}: must be at least 0, found {value}; 0 asks for nothing"
                )
        if not self.repetition_penalty > 0:
            found = f"{self.repetition_penalty:g}"
            raise ConfigError(
                f"--repetition-penalty: must be above 0, found {found}; 1 asks for nothing"
            )
        if self.exact and self.sampling is not None:
            raise ConfigError(
                "--exact: is about beam search, which --sample does not make; leave out the one or the other"
            )

    def constraints(self, tokenizer: Tokenizer) -> list[Constraint]:
        """Those asked for. Raises ConfigError for a piece that the vocabulary has not."""
        found: list[Constraint] = []
        if self.repetition_penalty != 1:
            found.append(repetition_penalty(self.repetition_penalty))
        if self.no_repeat_ngram:
            found.append(no_repeat_ngram(self.no_repeat_ngram))
        if self.forbidden:
            found.append(forbid([_piece_id(piece, tokenizer) for piece in self.forbidden]))
        if self.min_length:
            found.append(min_length(self.min_length))
        return found


def _piece_id(piece: str, tokenizer: Tokenizer) -> int:
    number = tokenizer.tgt_piece_id(piece)
    if number <= EOS:  # unk: there is none; the others are no pieces of a text
        pieces = " ".join(tokenizer.tgt_pieces(piece)) or "nothing"
        raise ConfigError(
            f"--forbid: must name a piece of the target vocabulary, found {piece!r}; this text is made of {pieces}"
        )
    return number


def encode_prefixes(
    prefixes: list[str], first_line: int, most: int, tokenizer: Tokenizer
) -> list[list[int]]:
    """The pieces that outputs are to begin with, of lines from `first_line` on; none for a blank one.

    Raises DataError where there are more than `most`, or where the vocabulary lacks a character.
    """
    rows = tokenizer.encode_tgt(prefixes)
    for number, (text, ids) in enumerate(zip(prefixes, rows, strict=True), first_line):
        if len(ids) > most:
            raise DataError(
                f"--prefix line {number:,}: has {len(ids):,} pieces, the model has positions for {most:,}; shorten it"
            )
        if UNK in ids:
            raise DataError(
                f"--prefix line {number:,}: {text!r} holds a character that the vocabulary lacks; leave it out"
            )
    return rows


def with_prefixes(
    prefixes: Sequence[Sequence[int]], constraints: list[Constraint]
) -> list[Constraint]:
    """The constraints of a batch whose sentences begin with these pieces."""
    return [force_prefixes(prefixes, constraints)] if any(prefixes) else constraints


def sampling_of(sample: bool, beam_size: int | None, given: Mapping[str, Any]) -> Sampling | None:
    """What `--sample` and the options `given` beside it ask for; ConfigError where they do not go together."""
    if not sample and given:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(
            f"{named}: only with --sample, which draws outputs instead of searching for the best; add it"
        )
    if sample and beam_size is not None:
        raise ConfigError(
            "--sample: draws one output at a time, without a beam; leave out the one or --beam-size"
        )
    return Sampling(**given) if sample else None
