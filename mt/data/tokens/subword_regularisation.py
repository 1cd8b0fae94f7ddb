"""Subword regularisation: each epoch sees the same text split into other tokens.

BPE uses BPE-dropout (Provilkov et al., 2020, section 3), unigram samples from all segmentations
(Kudo, 2018, section 3). SentencePiece can do both, but its version 0.2.3 draws other random numbers
in every process, whatever the seed, and a run must be resumable and repeatable. So mt samples
itself, with NumPy, on whole chunks of ids at a time.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import assert_never

from mt.data.tokens.bpe_dropout import BpeDropout
from mt.data.tokens.unigram_sampling import UnigramSampling

if TYPE_CHECKING:
    from mt.config.schema import Config
    from mt.data.tokens.segmenter import Array, Segmenter
    from mt.data.tokens.store import Ids, Store
    from mt.data.tokens.tokenizer import Tokenizer

# Lines sampled at a time: the lattice of so many takes some dozens of megabytes.
LINES_PER_CHUNK = 4_000


class SubwordRegularisation:
    """Makes the store of an epoch: a pure function of (store, tokenizer, alpha, seed, epoch)."""

    def __init__(self, store: Store, tokenizer: Tokenizer, config: Config) -> None:
        """`config.tokenizer.sampling_alpha` must be set.

        Rows that sampling makes longer than `config.data.max_tokens` stay as they were.
        """
        alpha = config.tokenizer.sampling_alpha
        assert alpha is not None
        self.store = store
        self.seed = config.run.seed
        self.max_tokens = config.data.max_tokens
        algorithm: type[BpeDropout | UnigramSampling]
        match config.tokenizer.type:
            case "bpe":
                algorithm = BpeDropout
            case "unigram":
                algorithm = UnigramSampling
            case _:
                assert_never(config.tokenizer.type)
        self.src = algorithm(tokenizer.src_vocabulary(), alpha)
        self.tgt = self.src
        # An imported tokenizer may split the two sides differently over one joint vocabulary.
        if not (tokenizer.joint and tokenizer.has_own_ids):
            self.tgt = algorithm(tokenizer.tgt_vocabulary(), alpha)

    @property
    def longest(self) -> int:
        """Tokens of the longest side that an epoch may have, eos counted."""
        return self.max_tokens + 1

    def __call__(self, epoch: int, stop: Event | None = None) -> Store:
        """All pairs of the store, in its order, in memory; InterruptedError once `stop` is set."""
        store = self.store
        src, src_lengths = self._sample_side(
            self.src, store.src, store.src_lengths, (self.seed, epoch, 0), stop
        )
        tgt, tgt_lengths = self._sample_side(
            self.tgt, store.tgt, store.tgt_lengths, (self.seed, epoch, 1), stop
        )
        return replace(
            store,
            src=src,
            tgt=tgt,
            src_lengths=src_lengths,
            tgt_lengths=tgt_lengths,
            src_starts=src_lengths.cumsum() - src_lengths,
            tgt_starts=tgt_lengths.cumsum() - tgt_lengths,
        )

    def _sample_side(
        self,
        segmenter: Segmenter,
        ids: Ids,
        lengths: Array,
        seeds: tuple[int, ...],
        stop: Event | None,
    ) -> tuple[Ids, Array]:
        """Sample all rows of one side. Returns ids end to end, and lengths (n,)."""
        sampled = bytearray()
        sampled_lengths = []
        start = 0
        for number, first in enumerate(range(0, len(lengths), LINES_PER_CHUNK)):
            if stop is not None and stop.is_set():
                raise InterruptedError("training has ended")
            old_lengths = lengths[first : first + LINES_PER_CHUNK]
            old_ids = np.asarray(ids[start : start + old_lengths.sum()], np.int64)
            start += len(old_ids)
            random = np.random.default_rng([*seeds, number])
            new_ids, new_lengths = segmenter.sample(old_ids, old_lengths, random)
            new_ids, new_lengths = self._restore_long_rows(
                new_ids, new_lengths, old_ids, old_lengths
            )
            sampled += new_ids.astype(ids.dtype).tobytes()
            sampled_lengths.append(new_lengths)
        return np.frombuffer(sampled, ids.dtype), np.concatenate(sampled_lengths)

    def _restore_long_rows(
        self, ids: Array, lengths: Array, old_ids: Array, old_lengths: Array
    ) -> tuple[Array, Array]:
        """Put rows that have become longer than `max_tokens` back to what they were."""
        too_long = lengths > self.max_tokens
        if not too_long.any():
            return ids, lengths
        rows = np.split(ids, lengths.cumsum()[:-1])
        old_rows = np.split(old_ids, old_lengths.cumsum()[:-1])
        kept = [
            old if restore else row
            for row, old, restore in zip(rows, old_rows, too_long, strict=True)
        ]
        return np.concatenate(kept), np.where(too_long, old_lengths, lengths)
