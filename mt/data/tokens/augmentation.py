"""Augmentation: each epoch sees other pairs in capitals, with typos, joined to one line and so on.

The token store holds the plain text once. An epoch decodes the pairs that are drawn, changes their
text and encodes it; all others keep their ids. The tokenizer learns from a sample that is changed
in the same way, so that capitals get pieces of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from random import Random
from threading import Event
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_never

from mt.data.reading.words import is_unspaced
from mt.data.tokens import noise
from mt.data.tokens.subword_regularisation import SubwordRegularisation

if TYPE_CHECKING:
    from mt.config.schema import Config, DataConfig
    from mt.data.tokens.store import Ids, Store
    from mt.data.tokens.tokenizer import PairSample, Side, Tokenizer

PAIRS_PER_CHUNK = 4_000
MOST_JOINED = 4
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

    def __init__(self, data: DataConfig) -> None:
        """`data.augment` must be set."""
        self.shares = np.array([getattr(data.augment, kind) for kind in KINDS])
        self.languages = (data.src_lang, data.tgt_lang)

    def draw(self, n_pairs: int, random: np.random.Generator) -> tuple[Flags, list[int]]:
        """Which kinds each pair gets, (n, kinds), and the seed of each, (n,)."""
        drawn = random.random((n_pairs, len(KINDS)))
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
        src_lang, tgt_lang = self.languages
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


def augment_sample(sample: PairSample, data: DataConfig, seed: int) -> None:
    """Change the pairs that a tokenizer will be trained on, in the shares of `data.augment`."""
    if data.augment is None:
        return
    pair_noise = PairNoise(data)
    chosen, seeds = pair_noise.draw(len(sample.src), np.random.default_rng(seed))
    for i in np.flatnonzero(chosen.any(1)):
        changed = pair_noise.change(sample.src[i], sample.tgt[i], chosen[i], seeds[i])
        sample.src[i], sample.tgt[i], _ = changed


class Augmentation:
    """Makes the store of an epoch: a function of (store, tokenizer, `data.augment`, seed, epoch).

    Pairs with unk or a user-defined symbol, and lines that would become longer than
    `data.max_tokens`, stay as they are. The ids of an epoch are in memory.
    """

    def __init__(self, store: Store, tokenizer: Tokenizer, config: Config) -> None:
        """`config.data.augment` must be set."""
        assert config.data.augment is not None
        self.store = store
        self.src = tokenizer.src
        self.tgt = tokenizer.tgt
        self.fixed_ids = (_fixed_ids(tokenizer.src), _fixed_ids(tokenizer.tgt))
        self.seed = config.run.seed
        self.max_tokens = config.data.max_tokens
        self.join_share = config.data.augment.join
        self.noise = PairNoise(config.data)

    def __call__(self, epoch: int, stop: Event | None = None) -> Store:
        """The store of an epoch; InterruptedError once `stop` is set."""
        store = self.store
        counts: Counter[str] = Counter()
        ids = (bytearray(), bytearray())
        lengths: tuple[list[int], list[int]] = ([], [])
        kept = [0] * len(store.kept)
        first = 0
        for corpus, n_pairs in enumerate(store.kept):
            for start in range(0, n_pairs, PAIRS_PER_CHUNK):
                if stop is not None and stop.is_set():
                    raise InterruptedError("training has ended")
                numbers = range(first + start, first + min(start + PAIRS_PER_CHUNK, n_pairs))
                # Subword regularisation draws from [seed, epoch, 0 or 1, chunk].
                random = np.random.default_rng([self.seed, epoch, 2, corpus, start])
                pairs = self._augment(store.pairs(numbers), random, counts)
                kept[corpus] += len(pairs)
                for side in (0, 1):
                    rows = [pair[side] for pair in pairs]
                    ids[side].extend(np.concatenate(rows).tobytes())
                    lengths[side].extend(map(len, rows))
            first += n_pairs
        found = ", ".join(f"{counts[kind]:,} {kind}" for kind in (*KINDS, "join") if counts[kind])
        return replace(
            store,
            src=np.frombuffer(ids[0], store.src.dtype),
            tgt=np.frombuffer(ids[1], store.tgt.dtype),
            src_lengths=np.array(lengths[0], np.uint32),
            tgt_lengths=np.array(lengths[1], np.uint32),
            kept=tuple(kept),
            augmented=f"{len(store):,} pairs in {sum(kept):,} lines: {found or 'none changed'}",
        )

    def _augment(
        self, pairs: list[Pair], random: np.random.Generator, counts: Counter[str]
    ) -> list[Pair]:
        """The pairs of a chunk, augmented; `counts` counts them by kind."""
        chosen, seeds = self.noise.draw(len(pairs), random)
        to_join = np.flatnonzero(random.random(len(pairs)) < self.join_share)
        lines = self._joined(pairs, random.permutation(to_join).tolist(), random)
        joined = {number for line in lines for number in line}
        lines += [[i] for i in np.flatnonzero(chosen.any(1)).tolist() if i not in joined]
        lines = [line for line in lines if all(self._is_changeable(pairs[i]) for i in line)]
        members = [pairs[i] for line in lines for i in line]
        src_texts = iter(self.src.decode([src.tolist() for src, _ in members]))
        tgt_texts = iter(self.tgt.decode([tgt.tolist() for _, tgt in members]))
        changed = []
        for line in lines:
            src, tgt = (join_texts(list(islice(it, len(line)))) for it in (src_texts, tgt_texts))
            changed.append(self.noise.change(src, tgt, chosen[line[0]], seeds[line[0]]))
        src_rows = self.src.encode([src for src, _, _ in changed])
        tgt_rows = self.tgt.encode([tgt for _, tgt, _ in changed])
        result: list[Pair | None] = list(pairs)
        for line, src_ids, tgt_ids, (_, _, kinds) in zip(
            lines, src_rows, tgt_rows, changed, strict=True
        ):
            if not (src_ids and tgt_ids and len(max(src_ids, tgt_ids, key=len)) <= self.max_tokens):
                continue
            for number in line[1:]:
                result[number] = None
            id_type = self.store.src.dtype
            result[line[0]] = (np.array(src_ids, id_type), np.array(tgt_ids, id_type))
            counts.update(kinds)
            counts["join"] += len(line) if len(line) > 1 else 0
        return [pair for pair in result if pair is not None]

    def _is_changeable(self, pair: Pair) -> bool:
        return all(map(set.isdisjoint, self.fixed_ids, (ids.tolist() for ids in pair)))

    def _joined(
        self, pairs: list[Pair], order: list[int], random: np.random.Generator
    ) -> list[list[int]]:
        """Lines of two to four pairs, in this order, none longer than `max_tokens`."""
        lines = []
        start = 0
        for size in random.integers(2, MOST_JOINED + 1, size=len(order)):
            line = order[start : start + size]
            start += size
            totals = np.array([[len(ids) for ids in pairs[number]] for number in line])
            fitting = int((totals.cumsum(0).max(1) <= self.max_tokens).sum()) if line else 0
            if fitting > 1:
                lines.append(line[:fitting])
        return lines


def resampling(
    store: Store, tokenizer: Tokenizer, config: Config
) -> Callable[[int, Event], Store] | None:
    """What makes the store of each epoch; None where all have the one on disk."""
    augment = sample = None
    if config.data.augment is not None:
        augment = Augmentation(store, tokenizer, config)
    if config.tokenizer.sampling_alpha:
        sample = SubwordRegularisation(store, tokenizer, config)
    if augment is None or sample is None:
        return augment or sample
    return lambda epoch, stop: sample(epoch, stop, augment(epoch, stop))


def join_texts(texts: list[str]) -> str:
    """Sentences as one line: with spaces, except between those of scripts without them."""
    return ("" if is_unspaced(texts[0]) else " ").join(texts)


def _fixed_ids(side: Side) -> set[int]:
    """Ids of special tokens and user-defined symbols."""
    pieces = zip(side.all_pieces(), side.scored_pieces(), strict=True)
    return {i for i, (piece, (text, _)) in enumerate(pieces) if not (text or piece[:3] == "<0x")}
