"""Small corpora, a tokenizer trained on their words, and token stores of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from conftest import write_lines

from mt.config.load import config_from_mapping
from mt.config.plan import plan_data
from mt.config.schema import DataConfig, TokenizerConfig
from mt.data.tokens.directions import DirectedPairs, tokens_before
from mt.data.tokens.store import Store, open_or_build
from mt.data.tokens.tokenizer import PairSample, Tokenizer, train_on_sample
from mt.training.prepare import training_texts

# Two are equal, one has an empty side, one is too long, one is lopsided.
PAIRS = [
    ("eins zwei", "one two"), ("drei", "three"), ("eins zwei", "one two"), ("vier", "  "),
    ("eins " * 60, "one " * 60), ("zwei", "two " * 12), ("drei vier eins", "three four one"),
]  # fmt: skip
KEPT = [0, 1, 6]


def tokenizer_of(
    cfg: TokenizerConfig, pairs: Iterable[tuple[str, str]],
    log: Callable[[str], None] = lambda _: None, seed: int = 1,
) -> Tokenizer:  # fmt: skip
    """A tokenizer that has learnt from these pairs, or from `cfg.sample_lines` of them."""
    sample = PairSample(cfg.sample_lines, seed)
    deque(sample.watch(pairs), maxlen=0)
    return train_on_sample(cfg, sample, log)


def trained(size: int, **settings: Any) -> Tokenizer:
    words = [("eins zwei drei vier fünf", "one two three four five")] * 50
    return tokenizer_of(TokenizerConfig(vocab_size=size, **settings), words)


def store_of_lengths(
    src: Sequence[int] | npt.NDArray[Any],
    tgt: Sequence[int] | npt.NDArray[Any] | None = None,
    kept: Sequence[int] = (),
) -> DirectedPairs:
    """Pairs of sentences of these lengths, of several texts of `kept` pairs each.

    Every id in it is another number; lengths keep their type. tgt: None if as long as the sources.
    """
    lengths = np.stack([np.asarray(src), np.asarray(src if tgt is None else tgt)])
    ids = np.arange(4, 4 + int(lengths.sum()))
    return DirectedPairs.of(Store(ids, lengths, tuple(kept) or (len(src),), "", ""))


def write(stem: Path, pairs: list[tuple[str, str]]) -> None:
    write_lines(stem.with_suffix(".de"), [src for src, _ in pairs])
    write_lines(stem.with_suffix(".en"), [tgt for _, tgt in pairs])


def build(
    root: Path, tokenizer: Tokenizer, names: str = "a", log: Callable[[str], None] = lambda _: None,
    weights: dict[str, float] | None = None, **limits: Any,
) -> Store:  # fmt: skip
    train = [
        {"src": f"{name}.de", "tgt": f"{name}.en", "weight": (weights or {}).get(name, 1.0)}
        for name in names
    ]
    data = {"root": str(root), "train": train, "max_tokens": 40} | limits
    config = config_from_mapping({"data": data}, "test")
    return stored(root / "store", config.data, tokenizer, log)


def stored(
    folder: Path, data: DataConfig, tokenizer: Tokenizer,
    log: Callable[[str], None] = lambda _: None,
) -> Store:  # fmt: skip
    """The token store of the training text, opened or built."""
    return open_or_build(folder, training_texts(plan_data(data), tokenizer, folder, {}), log)


def directed(store: Store, data: DataConfig, tokenizer: Tokenizer) -> DirectedPairs:
    """The pairs of a store as the first stage of training has them."""
    flows = plan_data(data).flows
    return DirectedPairs.of(store, flows, tokens_before(flows, tokenizer))
