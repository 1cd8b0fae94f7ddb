"""Texts that outputs must begin with, one for each line."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from mt.data.tokens.tokenizer import UNK, Tokenizer
from mt.errors import DataError
from mt.translate.lines import Line, Step


class Prefixes(Step):
    """Reads a prefix for each line; the output of a line begins with it."""

    def __init__(self, prefixes: Iterable[str], tokenizer: Tokenizer, max_tokens: int) -> None:
        """`prefixes`: from line 1 on, a blank one for none. `max_tokens`: of the longest one."""
        self._prefixes = iter(prefixes)
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.n_read = 0

    def before(self, lines: Sequence[Line]) -> None:
        """Give lines their prefixes.

        Raises DataError if there is none, for one that is too long, and for a character that the
        vocabulary lacks.
        """
        skipped = lines[0].number - 1 - self.n_read  # finished by an earlier start of the job
        prefixes = list(itertools.islice(self._prefixes, skipped, skipped + len(lines)))
        self.n_read += skipped + len(prefixes)
        if len(prefixes) < len(lines):
            raise _mismatch(f"{self.n_read + 1:,} of the text has no prefix")
        if not any(prefixes):
            return
        rows = self.tokenizer.tgt.encode(prefixes)
        for line, text, ids in zip(lines, prefixes, rows, strict=True):
            if len(ids) > self.max_tokens:
                raise DataError(
                    f"--prefix line {line.number:,}: has {len(ids):,} tokens, but the model has "
                    f"positions for {self.max_tokens:,}; shorten it"
                )
            if UNK in ids:
                raise DataError(
                    f"--prefix line {line.number:,}: {text!r} contains a character that the "
                    "vocabulary lacks; leave it out"
                )
            line.prefix = ids


def require_all_read(prefixes: Iterator[str], n_lines: int) -> None:
    if next(prefixes, None) is not None:
        raise _mismatch(f"{n_lines + 1:,} of the prefixes has no text")


def _mismatch(problem: str) -> DataError:
    return DataError(f"--prefix: must have one line for each line to translate, but line {problem}")
