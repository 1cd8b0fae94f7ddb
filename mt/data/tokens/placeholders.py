"""Placeholders: symbols that a model learns to copy, and that can stand for any text.

In training they take the place of words on both sides that translate each other, so that the model
learns where such a word belongs, whatever it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import TypeAlias

import numpy as np

from mt.config.plan import DataPlan
from mt.config.schema import TokenizerConfig
from mt.data.reading.words import UNSPACED
from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.tokenizer import UNK, Tokenizer
from mt.errors import ConfigError

PLACEHOLDERS = tuple(f"<ph{number}>" for number in range(1, 10))
# At most so many in a training pair, and the share that stands before a word, not in its place.
MOST_IN_PAIR = 3
BEFORE = 0.4
# Pairs that word translations are learnt from, and words of the longer side of one.
LEARNT_FROM = 50_000
LONGEST = 60
# A word with its translation: least pairs with both, least Dice coefficient, and the largest share
# of all pairs that either is in. Words as frequent as "the" and "with" are no terms.
LEAST_PAIRS, LEAST_DICE, MOST_FREQUENT = 3, 0.4, 0.1

Span: TypeAlias = tuple[int, int]

_WORD = re.compile(rf"[^\W{UNSPACED}]+(?:[-'’.,:/@][^\W{UNSPACED}]+)*")


def knows_placeholders(tokenizer: Tokenizer) -> bool:
    """Whether each placeholder is one token on both sides."""
    sides = (tokenizer.src, tokenizer.tgt)
    return all(side.piece_id(symbol) != UNK for side in sides for symbol in PLACEHOLDERS)


def uses_placeholders(data: DataPlan) -> bool:
    """Whether pairs get placeholders in some stage."""
    return any(stage.augment and stage.augment.placeholders for stage in data.stages)


def with_placeholders(settings: TokenizerConfig, data: DataPlan) -> TokenizerConfig:
    """The settings of a tokenizer, its symbols with the placeholders where they are needed."""
    symbols = [*settings.user_defined_symbols]
    if uses_placeholders(data):
        symbols += [symbol for symbol in PLACEHOLDERS if symbol not in symbols]
    return settings.model_copy(update={"user_defined_symbols": symbols})


def require_placeholders(data: DataPlan, tokenizer: Tokenizer) -> None:
    """Raise ConfigError if a stage needs placeholders that the vocabulary does not have."""
    if uses_placeholders(data) and not knows_placeholders(tokenizer):
        raise ConfigError(
            f"data.augment.placeholders: needs {PLACEHOLDERS[0]} to {PLACEHOLDERS[-1]} as tokens, "
            "which the vocabulary does not have; a vocabulary that is trained with this key has "
            "them (train.new_vocabulary: true, without tokenizer.model), else set it to 0"
        )


def learn_translations(pairs: DirectedPairs, tokenizer: Tokenizer) -> dict[str, str]:
    """Words, case folded, and their translations: pairs that are each the other's best one.

    By the Dice coefficient of the pairs that they are in; at most `LEARNT_FROM` pairs,
    evenly spaced.
    """
    chosen = np.linspace(0, len(pairs) - 1, min(len(pairs), LEARNT_FROM)).astype(np.int64)
    rows = list(zip(*pairs.texts(chosen), strict=True))
    vocabularies: list[dict[str, int]] = [{}, {}]
    sides = []
    for vocabulary, side, ids in zip(
        vocabularies, (tokenizer.src, tokenizer.tgt), rows, strict=True
    ):
        lines = side.decode([row.tolist() for row in ids])
        words = [{*_WORD.findall(line.casefold())} for line in lines]
        sides.append([
            np.array([vocabulary.setdefault(word, len(vocabulary)) for word in sorted(line)], int)
            for line in words
        ])  # fmt: skip
    n_tgt = len(vocabularies[1])
    keys = [
        np.add.outer(src * n_tgt, tgt).ravel()
        for src, tgt in zip(*sides, strict=True)
        if max(len(src), len(tgt)) <= LONGEST
    ]
    key, together = np.unique(np.concatenate([np.zeros(0, int), *keys]), return_counts=True)
    src, tgt = np.divmod(key, n_tgt)
    n_src_lines, n_tgt_lines = (np.bincount(np.concatenate(side)) for side in sides)
    most = MOST_FREQUENT * len(chosen)
    dice = 2 * together / (n_src_lines[src] + n_tgt_lines[tgt])
    good = (together >= LEAST_PAIRS) & (dice >= LEAST_DICE)
    good &= (n_src_lines[src] <= most) & (n_tgt_lines[tgt] <= most)
    best_last = np.flatnonzero(good)[np.argsort(dice[good], kind="stable")]
    src_ids, tgt_ids = src[best_last].tolist(), tgt[best_last].tolist()
    tgt_of = dict(zip(src_ids, tgt_ids, strict=True))
    src_of = dict(zip(tgt_ids, src_ids, strict=True))
    src_words, tgt_words = map(list, vocabularies)
    return {src_words[i]: tgt_words[j] for i, j in tgt_of.items() if src_of[j] == i}


def insert_placeholders(
    src: str, tgt: str, translations: Mapping[str, str], random: Random
) -> tuple[str, str]:
    """The texts of a pair with the same placeholders, in the place of one to three words or before.

    These are words with their translation, and numbers and names that both texts have, each found
    once in its text. The same texts if there are none.
    """
    src_words, tgt_words = _single_words(src), _single_words(tgt)
    spans: dict[Span, Span] = {}
    for word, match in src_words.items():
        other = tgt_words.get(translations.get(word, word))
        is_name = other is not None and match[0] == other[0] and not match[0].islower()
        if other is not None and (word in translations or is_name):
            spans[other.span()] = match.span()
    chosen = random.sample(sorted(spans), min(len(spans), random.randint(1, MOST_IN_PAIR)))
    symbols = [
        f"{symbol} " * (random.random() < BEFORE) or symbol
        for symbol in random.sample(PLACEHOLDERS, len(chosen))
    ]
    return _with(symbols, src, [spans[span] for span in chosen]), _with(symbols, tgt, chosen)


def _single_words(text: str) -> dict[str, re.Match[str]]:
    """The words of a text, case folded, that it has once."""
    matches = [(match[0].casefold(), match) for match in _WORD.finditer(text)]
    words = dict(matches)
    if len(words) == len(matches):
        return words
    names = [word for word, _ in matches]
    return {word: match for word, match in matches if names.count(word) == 1}


def _with(symbols: Sequence[str], text: str, spans: Sequence[Span]) -> str:
    """The text with symbols in place of spans; one that ends with a space stands before its own."""
    for (start, end), symbol in sorted(zip(spans, symbols, strict=True), reverse=True):
        text = f"{text[:start]}{symbol}{text[start if symbol.endswith(' ') else end :]}"
    return text
