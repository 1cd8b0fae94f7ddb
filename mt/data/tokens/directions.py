"""The pairs of a store as `data.train` has them: one way round, the other, or both.

The ids on disk are those of each text once, source before target. A pair the other way round has
the same ids: only where its source and its target begin is exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from mt.data.tokens.store import Ids, Starts, Store
from mt.errors import ConfigError

if TYPE_CHECKING:
    from mt.config.schema import DataConfig
    from mt.data.tokens.tokenizer import Tokenizer


class TwoArrays:
    """Two arrays of ids end to end, without a copy of them."""

    def __init__(self, first: Ids, second: Ids) -> None:
        self.parts = first, second
        self.dtype = first.dtype

    def take(self, places: Ids) -> Ids:
        """The ids at these places."""
        first, second = self.parts
        is_second = places >= len(first)
        taken = np.empty(places.shape, self.dtype)
        taken[~is_second] = first.take(places[~is_second])
        taken[is_second] = second.take(places[is_second] - len(first))
        return taken

    def __getitem__(self, rows: slice) -> Ids:
        """Consecutive ids within one of the arrays."""
        first, second = self.parts
        if rows.start < len(first):
            return first[rows]
        return second[rows.start - len(first) : rows.stop - len(first)]


@dataclass(frozen=True, kw_only=True)
class DirectedStore(Store):
    """The entries of `data.train`, one after the other, over a store of their texts."""

    stored: Store
    ends: npt.NDArray[np.int64]  # (E,) of the entries
    shifts: npt.NDArray[np.int64]  # (E,) from the number of a pair to that in the store
    is_reversed: npt.NDArray[np.bool_]  # (E,)
    skipped: npt.NDArray[np.int64]  # (2, E) tokens left out before the stored source and target

    def starts(self, indices: Ids) -> list[Starts]:
        """(B,) Where each of these sources begins in `src`, and its target in `tgt`."""
        entry = np.searchsorted(self.ends, indices, side="right")
        src, tgt = self.stored.starts(indices - self.shifts[entry])
        src = src + self.skipped[0, entry]
        tgt = tgt + self.skipped[1, entry] + len(self.stored.src)
        turned = self.is_reversed[entry]
        return [np.where(turned, tgt, src), np.where(turned, src, tgt)]


def in_directions(stored: Store, data: DataConfig, tokenizer: Tokenizer) -> Store:
    """The store of the entries of `data.train`, given that of their texts.

    The same one where no entry is reversed; else without entries of weight 0. Raises ConfigError
    for two vocabularies.
    """
    if not any(entry.reverse for entry in data.train):
        return stored
    if not tokenizer.joint:
        raise ConfigError(
            "data.train: an entry with reverse: true needs one vocabulary for both languages, and "
            "this tokenizer has two; train one with tokenizer.joint: true, or leave reverse out"
        )
    texts = list(data.texts)
    corpora = [texts.index(text) for text in data.text_numbers]
    kept = np.array(stored.kept)[corpora] * [entry.weight > 0 for entry in data.train]
    firsts = (np.cumsum(stored.kept) - stored.kept)[corpora]
    is_reversed = np.array([entry.reverse for entry in data.train])
    skipped = np.array([_tokens_of_tags(data, text, tokenizer) for text in data.text_numbers]).T
    # The tag of an entry stands before its source: as the target of its twin, without the tag.
    skipped[0, ~is_reversed] = 0
    skipped[1, is_reversed] = 0
    ends = np.cumsum(kept)
    shifts = ends - kept - firsts
    entry = np.repeat(np.arange(len(kept), dtype=np.uint16), kept)
    pairs = np.arange(len(entry)) - shifts[entry]
    turned = is_reversed[entry]
    src = stored.src_lengths[pairs] - skipped[0].astype(stored.src_lengths.dtype)[entry]
    tgt = stored.tgt_lengths[pairs] - skipped[1].astype(stored.tgt_lengths.dtype)[entry]
    ids = cast("Ids", TwoArrays(stored.src, stored.tgt))
    return DirectedStore(
        src=ids,
        tgt=ids,
        src_lengths=np.where(turned, tgt, src),
        tgt_lengths=np.where(turned, src, tgt),
        kept=tuple(kept.tolist()),
        counts=stored.counts,
        fingerprint=stored.fingerprint,
        stored=stored,
        ends=ends,
        shifts=shifts,
        is_reversed=is_reversed,
        skipped=skipped,
    )


def _tokens_of_tags(data: DataConfig, text: int, tokenizer: Tokenizer) -> list[int]:
    """How many tokens stand before source and target of a text in the store."""
    tags, languages = data.tags_of(text), data.token_languages(text)
    rows = tokenizer.src.encode([f"{tag} x" if tag else "x" for tag in (None, *tags)])
    return [
        len(row) - len(rows[0]) + (language is not None)
        for row, language in zip(rows[1:], languages, strict=True)
    ]
