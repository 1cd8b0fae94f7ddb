"""`data.augment`: each epoch has other pairs in capitals, with typos, joined to one line and so on.

The store has plain text. Pairs that are drawn for an epoch are decoded, changed and encoded again.
"""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import chain, islice
from random import Random
from threading import Event
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_never

from mt.data.reading.sentences import join_sentences
from mt.data.tokens import noise
from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.store import Store
from mt.data.tokens.tokenizer import EOS

if TYPE_CHECKING:
    from mt.config.data_schema import Augment
    from mt.config.plan import DataPlan, Direction, Stage
    from mt.data.tokens.store import Ids
    from mt.data.tokens.tokenizer import PairSample, Tokenizer

PAIRS_PER_CHUNK = 4_000
# Ranges from which each pair draws the share of its words that get a typo or a stray character.
TYPO_RATES = (0.05, 0.3)
STRAY_RATES = (0.05, 0.2)

# The keys of `data.augment` but `join`, in the order of their use. A pair gets one case at most.
Kind: TypeAlias = Literal["caps", "title", "lower", "no_final_stop", "typos", "noise", "emoji"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CASES = {"caps": noise.upper_case, "title": noise.title_case, "lower": noise.lower_case}

Pair: TypeAlias = "tuple[Ids, Ids]"
Flags: TypeAlias = npt.NDArray[np.bool_]


class PairNoise:
    """Draws how pairs change, and changes them: all of `data.augment` but `join`."""

    def __init__(self, augment: Augment, direction: Direction) -> None:
        self.shares = np.array([getattr(augment, kind) for kind in KINDS])
        self.direction = direction

    def draw(self, n_pairs: int, random: np.random.Generator) -> tuple[Flags, list[int]]:
        """Which kinds each pair gets, (n, kinds), and the seed of each, (n,)."""
        # A column more than there are kinds: the draws of earlier versions.
        drawn = random.random((n_pairs, len(KINDS) + 1))[:, :-1]
        chosen = drawn < self.shares
        case = np.searchsorted(self.shares[: len(CASES)].cumsum(), drawn[:, 0], side="right")
        chosen[:, : len(CASES)] = case[:, None] == np.arange(len(CASES))
        return chosen, random.integers(2**63, size=n_pairs).tolist()

    def change(self, src: str, tgt: str, chosen: Flags, seed: int) -> tuple[str, str, list[Kind]]:
        """The texts of a pair, changed, and the kinds that have changed them."""
        random = Random(seed)
        done: list[Kind] = []
        for number in np.flatnonzero(chosen):
            before = src, tgt
            src, tgt = self._change(src, tgt, KINDS[number], random)
            if (src, tgt) != before:
                done.append(KINDS[number])
        return src, tgt, done

    def _change(self, src: str, tgt: str, kind: Kind, random: Random) -> tuple[str, str]:
        src_lang, tgt_lang = self.direction
        match kind:
            case "caps" | "title" | "lower":
                return CASES[kind](src, src_lang), CASES[kind](tgt, tgt_lang)
            case "no_final_stop":
                return noise.without_final_stop(src), noise.without_final_stop(tgt)
            case "typos":
                return noise.typos(src, src_lang, random.uniform(*TYPO_RATES), random), tgt
            case "noise":
                return noise.stray_characters(src, random.uniform(*STRAY_RATES), random), tgt
            case "emoji":
                src, tgt = noise.add_mark((src, tgt), random)
                return src, tgt
            case _:
                assert_never(kind)


def augment_sample(sample: PairSample, data: DataPlan) -> None:
    """Change the pairs that a tokenizer learns from in the same shares: capitals get pieces too."""
    augments = [stage.augment for stage in data.stages if stage.augment is not None]
    if not augments:
        return
    pair_noise = PairNoise(augments[-1], data.usual)
    chosen, seeds = pair_noise.draw(len(sample.src), np.random.default_rng(sample.seed))
    for i in np.flatnonzero(chosen.any(1)):
        changed = pair_noise.change(sample.src[i], sample.tgt[i], chosen[i], seeds[i])
        sample.src[i], sample.tgt[i], _ = changed


class Augmentation:
    """Makes the pairs of an epoch: a function of (pairs, stage, tokenizer, seed, epoch).

    Pairs with unk or a user-defined symbol, and lines that would become too long, stay.
    """

    def __init__(
        self, pairs: DirectedPairs, stage: Stage, tokenizer: Tokenizer, seed: int, max_tokens: int
    ) -> None:
        """`max_tokens`: of a side."""
        assert stage.augment is not None
        self.pairs = pairs
        self.src = tokenizer.src
        self.tgt = tokenizer.tgt
        self.fixed_ids = [{*range(EOS + 1), *side.symbol_ids()} for side in (self.src, self.tgt)]
        self.seed = seed
        self.max_tokens = max_tokens - pairs.before.shape[1]
        self.join_share = stage.augment.join
        self.flows = stage.flows
        self.noises = [PairNoise(stage.augment, flow.direction) for flow in stage.flows]

    def __call__(self, epoch: int, stop: Event | None = None) -> DirectedPairs:
        """The pairs of an epoch; InterruptedError once `stop` is set."""
        store = self.pairs.store
        counts: Counter[str] = Counter()
        ids = bytearray()
        lengths = array("I")
        kept = []
        n_used = first = 0
        for number, (flow, n_pairs) in enumerate(zip(self.flows, self.pairs.kept, strict=True)):
            n_before = len(lengths)
            for start in range(0, n_pairs if flow.weight else 0, PAIRS_PER_CHUNK):
                if stop is not None and stop.is_set():
                    raise InterruptedError("training has ended")
                end = min(start + PAIRS_PER_CHUNK, n_pairs)
                pairs = self.pairs.texts(np.arange(start, end) + first)
                random = np.random.default_rng([self.seed, epoch, 2, number, start])
                pairs = self._augment(pairs, self.noises[number], random, counts)
                ids.extend(np.concatenate([*chain.from_iterable(pairs)]).tobytes())
                lengths.extend(map(len, chain.from_iterable(pairs)))
                n_used += end - start
            first += n_pairs
            kept.append((len(lengths) - n_before) // 2)
        changed = ", ".join(f"{counts[kind]:,} {kind}" for kind in (*KINDS, "join") if counts[kind])
        made = Store(
            np.frombuffer(ids, store.ids.dtype),
            np.frombuffer(lengths, np.uint32).reshape(-1, 2).T,
            tuple(kept),
            store.counts,
            store.fingerprint,
            augmented=f"{n_used:,} pairs in {sum(kept):,} lines: {changed or 'none changed'}",
        )
        return DirectedPairs.of(made, before=[row[row > 0].tolist() for row in self.pairs.before])

    def _augment(
        self,
        pairs: list[Pair],
        pair_noise: PairNoise,
        random: np.random.Generator,
        counts: Counter[str],
    ) -> list[Pair]:
        """The pairs of a chunk, augmented; `counts` counts them by kind."""
        chosen, seeds = pair_noise.draw(len(pairs), random)
        lines = self._joined(pairs, random)
        joined = {number for line in lines for number in line}
        lines += [[i] for i in np.flatnonzero(chosen.any(1)).tolist() if i not in joined]
        lines = [line for line in lines if all(self._can_change(pairs[i]) for i in line)]
        members = [pairs[i] for line in lines for i in line]
        src_texts = iter(self.src.decode([src.tolist() for src, _ in members]))
        tgt_texts = iter(self.tgt.decode([tgt.tolist() for _, tgt in members]))
        changed = []
        for line in lines:
            parts = [list(islice(texts, len(line))) for texts in (src_texts, tgt_texts)]
            src, tgt = map(join_sentences, parts)
            changed.append(pair_noise.change(src, tgt, chosen[line[0]], seeds[line[0]]))
        src_rows = self.src.encode([src for src, _, _ in changed])
        tgt_rows = self.tgt.encode([tgt for _, tgt, _ in changed])
        result: list[Pair | None] = list(pairs)
        for line, *row, (_, _, kinds) in zip(lines, src_rows, tgt_rows, changed, strict=True):
            if min(map(len, row)) > 0 and max(map(len, row)) <= self.max_tokens:
                for number in line:
                    result[number] = None
                src_ids, tgt_ids = (np.array(ids, self.pairs.store.ids.dtype) for ids in row)
                result[line[0]] = (src_ids, tgt_ids)
                counts.update(kinds)
                counts["join"] += len(line) if len(line) > 1 else 0
        return [pair for pair in result if pair is not None]

    def _joined(self, pairs: list[Pair], random: np.random.Generator) -> list[list[int]]:
        """Numbers of pairs that become one line, two to four, none longer than `max_tokens`."""
        lines = []
        order = np.flatnonzero(random.random(len(pairs)) < self.join_share)
        sizes = random.integers(2, 5, size=len(order) // 2 + 1)
        for line in np.split(random.permutation(order), sizes.cumsum()):
            lengths = [[len(ids) for ids in pairs[number]] for number in line]
            fitting = (np.array(lengths or [[0]]).cumsum(0).max(1) <= self.max_tokens).sum()
            if min(fitting, len(line)) > 1:
                lines.append(line[:fitting].tolist())
        return lines

    def _can_change(self, pair: Pair) -> bool:
        return all(map(set.isdisjoint, self.fixed_ids, (ids.tolist() for ids in pair)))
