"""The pairs of a store in the directions in which they are translated, with what stands before.

The ids on disk are those of each corpus once; of a pair that is turned, the beginnings of source
and target are exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mt.config.plan import Flow
from mt.data.tokens.store import Ids, Starts, Store
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import DataError

SPACE = "\u2581"  # SentencePiece's piece for a space


class Places(NamedTuple):
    """Where B pairs are."""

    flows: Starts  # (B,) of the pairs
    src: Starts  # (B,) where each source begins in the ids of the store
    tgt: Starts


@dataclass(frozen=True)
class DirectedPairs:
    """The n pairs of F flows, one flow after the other, over a store of their corpora."""

    store: Store
    src_lengths: Ids  # (n,) tokens without eos, with those before the source
    tgt_lengths: Ids  # (n,)
    kept: tuple[int, ...]  # pairs of each flow
    shifts: npt.NDArray[np.int64]  # (F,) from the number of a pair to its number in the store
    is_turned: npt.NDArray[np.bool_]  # (F,)
    before: Ids  # (F, P) tokens before each source, then padding

    @classmethod
    def of(
        cls, store: Store, flows: Sequence[Flow] | None = None, before: Sequence[list[int]] = ()
    ) -> DirectedPairs:
        """The pairs of these flows, with tokens `before` each source; None: the store's."""
        corpora = np.arange(len(store.kept))
        turned = np.zeros(len(corpora), np.bool_)
        if flows is not None:
            corpora = np.array([flow.corpus for flow in flows], np.int64)
            turned = np.array([flow.is_turned for flow in flows], np.bool_)
        table = np.zeros((len(corpora), max(map(len, before), default=0)), store.ids.dtype)
        for row, ids in zip(table, before, strict=False):
            row[: len(ids)] = ids
        kept = np.array(store.kept)[corpora]
        shifts = (np.cumsum(store.kept) - store.kept)[corpora] - (np.cumsum(kept) - kept)
        src, tgt = store.lengths
        if shifts.any() or len(kept) < len(store.kept) or turned.any() or table.any():
            flow = np.repeat(np.arange(len(kept), dtype=np.uint16), kept)
            pairs = np.arange(len(flow)) + shifts[flow]
            src, tgt = src[pairs], tgt[pairs]
            src, tgt = np.where(turned[flow], tgt, src), np.where(turned[flow], src, tgt)
            src = src + (table > 0).sum(1).astype(src.dtype)[flow]
        return cls(store, src, tgt, tuple(kept.tolist()), shifts, turned, table)

    def __len__(self) -> int:
        return len(self.src_lengths)

    @property
    def longest(self) -> int:
        """Tokens of the longest side of all pairs, eos counted."""
        return int(max(self.src_lengths.max(), self.tgt_lengths.max())) + 1

    def locate(self, indices: Ids) -> Places:
        """Where these pairs are in the store."""
        flows = np.searchsorted(np.cumsum(self.kept), indices, side="right")
        stored = indices + self.shifts[flows]
        first = self.store.starts(stored)
        second = first + self.store.lengths[0][stored]
        turned = self.is_turned[flows]
        return Places(flows, np.where(turned, second, first), np.where(turned, first, second))

    def texts(self, indices: Ids) -> list[tuple[Ids, Ids]]:
        """Ids of source and target of these pairs, without bos, eos and what stands before."""
        places = self.locate(indices)
        n_before = (self.before > 0).sum(1)[places.flows]
        n_src = self.src_lengths[indices] - n_before.astype(self.src_lengths.dtype)
        columns = (places.src, n_src, places.tgt, self.tgt_lengths[indices])
        ids = self.store.ids
        return [
            (ids[src : src + n_src], ids[tgt : tgt + n_tgt])
            for src, n_src, tgt, n_tgt in zip(*(side.tolist() for side in columns), strict=True)
        ]

    def pairs(self, indices: Ids) -> list[tuple[Ids, Ids]]:
        """Ids of source and target of these pairs, without bos and eos."""
        texts = self.texts(indices)
        if not self.before.size:
            return texts
        return [
            (np.append(row[row > 0], src), tgt)
            for row, (src, tgt) in zip(self.before[self.locate(indices).flows], texts, strict=True)
        ]

    def pair(self, index: int) -> tuple[Ids, Ids]:
        return self.pairs(np.array([index]))[0]


def tokens_before(flows: Sequence[Flow], tokenizer: Tokenizer) -> list[list[int]]:
    """The tokens before each source of a flow: of its target language and tag. Raises DataError."""
    turned = next((flow.name for flow in flows if flow.is_turned), None)
    if turned is not None and not tokenizer.joint:
        raise DataError(
            f"{turned}: needs one vocabulary for both languages, as its target is the source, "
            "found a tokenizer with two; train one with tokenizer.joint: true, or leave reverse "
            "and both_directions out"
        )
    known = tokenizer.languages
    plain = len(tokenizer.src.encode(["x"])[0])
    before = []
    for flow in flows:
        if flow.token is not None and flow.token not in known:
            raise DataError(
                f"data.language_tokens: the vocabulary has no token for {flow.token}, found "
                f"{', '.join(known) or 'none'}; an existing vocabulary cannot get it: start a new "
                "run (--fresh), or with train.init_from set train.new_vocabulary: true"
            )
        ids = [] if flow.token is None else [known[flow.token]]
        if flow.tag is not None:
            pieces = tokenizer.src.pieces(flow.tag)
            if [piece for piece in pieces if piece != SPACE] != [flow.tag]:
                raise DataError(
                    f"{flow.name}.tag: must be one token of the vocabulary, found {flow.tag} as "
                    f"{' '.join(pieces)}; a vocabulary that exists cannot get it: train a new one "
                    "with tokenizer.user_defined_symbols, or remove the tag"
                )
            ids += tokenizer.src.encode([f"{flow.tag} x"])[0][:-plain]
        before.append(ids)
    return before


def n_tokens_before(
    n_corpora: int, flows: Sequence[Flow], before: Sequence[list[int]]
) -> list[tuple[int, int]]:
    """How many tokens training puts before the first and the second side of each corpus."""
    counts = [[0, 0] for _ in range(n_corpora)]
    for flow, ids in zip(flows, before, strict=True):
        counts[flow.corpus][flow.is_turned] = len(ids)
    return [(src, tgt) for src, tgt in counts]
