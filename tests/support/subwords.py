"""What the tests of subword regularisation share: lines, tokenizers, stores and samplers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from itertools import chain

import numpy as np
from token_stores import tokenizer_of

from mt.config.load import config_from_mapping
from mt.config.schema import TokenizerConfig
from mt.data.tokens.store import Store
from mt.data.tokens.subword_regularisation import SubwordRegularisation
from mt.data.tokens.tokenizer import Tokenizer

# An alpha that changes most words.
STRONG = {"bpe": 0.4, "unigram": 0.05}
WORDS = (
    "der Hund Hunde Häuser Hausboot schläft schlafen Schlaf laufen läuft Lauf 1987 12 nicht , . "
    "the houses hound"
)
NASTY = [
    "👨\u200d👩 😀😀",
    "水水 漢字かな交じり文",
    "a\u0323\u0307 e\u0301\u0302\u0303 ก็",  # combining marks with no composed form, Thai
    "1987 0.5 ½ ²",
    "<s> </s> <0x41> <unk> ⁇",
    "\0 \u00ad\ufeff \u200b",
    "ß" * 50 + "Hunde" * 30,
    "x",
    "▁▁ a▁b",
    "Schlaf\u00a0Hausboot\u2028Lauf",
]


def made_lines(n: int = 400) -> list[str]:
    """`n` lines of 1 to 12 words, always the same ones."""
    draw = random.Random(5)
    return [" ".join(draw.choices(WORDS.split(), k=draw.randint(1, 12))) for _ in range(n)]


def trained(kind: str, joint: bool = True, byte_fallback: bool = True) -> Tokenizer:
    """A tokenizer of 340 or 80 tokens, trained on `made_lines`; its target side is upper case."""
    keys = {
        "type": kind,
        "joint": joint,
        "byte_fallback": byte_fallback,
        "vocab_size": 340 if byte_fallback else 80,
    }
    pairs = [(line, line.upper()) for line in made_lines()]
    return tokenizer_of(TokenizerConfig.model_validate(keys), pairs)


def store_of(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> Store:
    """The token store of `pairs`, in memory."""
    sides = (
        tokenizer.src.encode([src for src, _ in pairs]),
        tokenizer.tgt.encode([tgt for _, tgt in pairs]),
    )
    lengths = np.array([[len(row) for row in rows] for rows in sides], np.int64)
    src, tgt = (np.array(list(chain.from_iterable(rows)), "<u2") for rows in sides)
    return Store(src, tgt, lengths[0], lengths[1], (len(pairs),), "", "")


def sampling_of(
    store: Store, tokenizer: Tokenizer, kind: str, alpha: float, seed: int = 1, **data: int
) -> SubwordRegularisation:
    """The sampler of a config with this tokenizer type, alpha and seed."""
    tree = {
        "run": {"seed": seed},
        "data": data,
        "tokenizer": {"type": kind, "sampling_alpha": alpha},
    }
    return SubwordRegularisation(store, tokenizer, config_from_mapping(tree, "test"))


def rows(store: Store) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of each source and of each target of a store."""
    src, tgt = zip(*(store.pair(i) for i in range(len(store))), strict=True)
    return [row.tolist() for row in src], [row.tolist() for row in tgt]


def digest(store: Store) -> str:
    """SHA-256 of all ids and lengths of a store."""
    parts = (store.src, store.tgt, store.src_lengths, store.tgt_lengths)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


def epochs(kind: str, wanted: Sequence[int], seed: int = 1) -> list[str]:
    """Digests of the stores of these epochs; called in another process too."""
    tokenizer = trained(kind)
    store = store_of(tokenizer, [(line, line.upper()) for line in NASTY + made_lines(200)])
    sampling = sampling_of(store, tokenizer, kind, STRONG[kind], seed)
    return [digest(sampling(epoch)) for epoch in wanted]
