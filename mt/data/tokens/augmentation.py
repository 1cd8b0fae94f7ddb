"""`data.augment`: sources drawn anew for each epoch are decoded, misspelt and encoded again."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from random import Random
from threading import Event

import numpy as np

from mt.config.data_schema import Augment
from mt.config.plan import DataPlan, Stage
from mt.data.tokens import noise
from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.duplicates import Flags
from mt.data.tokens.store import Ids, Store
from mt.data.tokens.tokenizer import EOS, PairSample, Tokenizer

PAIRS_PER_CHUNK = 4_000
# Ranges from which each pair draws the share of its words that get a typo or a stray character.
TYPO_RATES = (0.05, 0.3)
STRAY_RATES = (0.05, 0.2)


def draw(augment: Augment, n_pairs: int, random: np.random.Generator) -> tuple[Flags, list[int]]:
    """Whether each pair gets typos and noise, (n, 2), and the seed of each, (n,)."""
    # Drawn for the eight kinds of earlier versions, of which these two were neighbours.
    chosen = random.random((n_pairs, 8))[:, 4:6] < [augment.typos, augment.noise]
    return chosen, random.integers(2**63, size=n_pairs).tolist()


def change(src: str, lang: str, chosen: Flags, seed: int) -> str:
    """A source with typos, with stray characters, or with both; `chosen`: (2,)."""
    random = Random(seed)
    if chosen[0]:
        src = noise.typos(src, lang, random.uniform(*TYPO_RATES), random)
    return noise.stray_characters(src, random.uniform(*STRAY_RATES), random) if chosen[1] else src


def augment_sample(sample: PairSample, data: DataPlan) -> None:
    """Change the sources that a tokenizer learns from in the same shares."""
    augments = [stage.augment for stage in data.stages if stage.augment is not None]
    if not augments:
        return
    chosen, seeds = draw(augments[-1], len(sample.src), np.random.default_rng(sample.seed))
    for i in np.flatnonzero(chosen.any(1)):
        sample.src[i] = change(sample.src[i], data.usual.src, chosen[i], seeds[i])


@dataclass(frozen=True)
class Augmentation:
    """Makes the pairs of an epoch: a function of (pairs, stage, tokenizer, seed, epoch).

    Pairs with unk or a user-defined symbol, and sources that would become too long, stay.
    """

    pairs: DirectedPairs
    stage: Stage
    tokenizer: Tokenizer
    seed: int
    max_tokens: int  # of a side

    @cached_property
    def _fixed_ids(self) -> list[set[int]]:
        sides = self.tokenizer.src, self.tokenizer.tgt
        return [{*range(EOS + 1), *side.symbol_ids()} for side in sides]

    def __call__(self, epoch: int, stop: Event | None = None) -> DirectedPairs:
        """The pairs of an epoch; InterruptedError once `stop` is set."""
        store = self.pairs.store
        n_changed = 0
        ids = bytearray()
        lengths = array("I")
        kept = []
        first = 0
        flows = zip(self.stage.flows, self.pairs.kept, strict=True)
        for number, (flow, n_pairs) in enumerate(flows):
            kept.append(n_pairs if flow.weight else 0)
            for start in range(0, kept[-1], PAIRS_PER_CHUNK):
                if stop is not None and stop.is_set():
                    raise InterruptedError("training has ended")
                end = min(start + PAIRS_PER_CHUNK, n_pairs)
                pairs = self.pairs.texts(np.arange(start, end) + first)
                random = np.random.default_rng([self.seed, epoch, 2, number, start])
                n_changed += self._change(pairs, flow.direction.src, random)
                ids.extend(np.concatenate([*chain.from_iterable(pairs)]).tobytes())
                lengths.extend(map(len, chain.from_iterable(pairs)))
            first += n_pairs
        made = Store(
            np.frombuffer(ids, store.ids.dtype), np.frombuffer(lengths, np.uint32).reshape(-1, 2).T,
            tuple(kept), store.counts, store.fingerprint,
            augmented=f"{n_changed:,} of {sum(kept):,} sources have typos or noise",
        )  # fmt: skip
        return DirectedPairs.of(made, before=[row[row > 0].tolist() for row in self.pairs.before])

    def _change(self, pairs: list[tuple[Ids, Ids]], lang: str, random: np.random.Generator) -> int:
        """Change sources of a chunk of pairs; how many."""
        assert self.stage.augment is not None
        chosen, seeds = draw(self.stage.augment, len(pairs), random)
        numbers = [
            number
            for number in np.flatnonzero(chosen.any(1)).tolist()
            if all(map(set.isdisjoint, self._fixed_ids, (ids.tolist() for ids in pairs[number])))
        ]
        texts = self.tokenizer.src.decode([pairs[number][0].tolist() for number in numbers])
        drawn = zip(texts, numbers, strict=True)
        changed = [change(text, lang, chosen[number], seeds[number]) for text, number in drawn]
        rows = self.tokenizer.src.encode(changed)
        longest = self.max_tokens - self.pairs.before.shape[1]
        n_changed = 0
        for number, row, text, new in zip(numbers, rows, texts, changed, strict=True):
            if new != text and 0 < len(row) <= longest:
                pairs[number] = np.array(row, self.pairs.store.ids.dtype), pairs[number][1]
                n_changed += 1
        return n_changed
