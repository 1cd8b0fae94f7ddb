"""data.augment.placeholders: words and their translations become the same symbols on both sides."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from messages import raises_saying, says
from subwords import digest, pairs_of, rows
from token_stores import tokenizer_of

from mt.config.plan import DataPlan, plan_data
from mt.config.schema import Augment, DataConfig, TokenizerConfig
from mt.data.tokens.augmentation import Augmentation
from mt.data.tokens.placeholders import (
    PLACEHOLDERS,
    insert_placeholders,
    knows_placeholders,
    learn_translations,
    require_placeholders,
    with_placeholders,
)
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import ConfigError
from mt.training.trainer import Trainer

PLAIN = TokenizerConfig(vocab_size=400)
SYMBOL = re.compile(r"<ph\d>")
WORDS = {"Hund": "dog", "Katze": "cat", "Esel": "donkey", "Kuh": "cow", "Ochse": "ox",
         "Reh": "deer", "Huhn": "hen", "Hahn": "cock", "Gans": "goose", "Ente": "duck",
         "Maus": "mouse", "Ratte": "rat"}  # fmt: skip
# Each of the twelve stands beside each other one once.
PAIRS = [
    (f"Ein {one} und noch ein {two} von {n} hier.", f"a {WORDS[one]} and one {WORDS[two]} of {n}.")
    for n, (one, two) in enumerate((a, b) for a in WORDS for b in WORDS if a < b)
]


def data_of(share: float) -> DataPlan:
    augment = dict.fromkeys(Augment.model_fields, 0.0) | {"placeholders": share}
    data = {"augment": augment, "train": [{"src": "a.de", "tgt": "a.en"}]}
    return plan_data(DataConfig.model_validate(data))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_of(with_placeholders(PLAIN, data_of(0.5)), PAIRS)


def test_translations_are_learnt_from_the_pairs_without_the_frequent_words(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mt.data.tokens.placeholders.MOST_FREQUENT", 0.3)
    learnt = learn_translations(pairs_of(tokenizer, PAIRS), tokenizer)
    assert learnt == {src.casefold(): tgt for src, tgt in WORDS.items()}


@pytest.mark.parametrize(
    ("src", "tgt", "expected"),
    [
        ("Der Hund, 3.50 hier", "The DOG 3.50 here", ("Der P, P hier", "The P P here")),
        ("Olaf mag 2 in Ulm", "In Ulm Olaf likes 2", ("P mag P in P", "In P P likes P")),
        # Nothing that both have, but words in lower case, and one that is there twice.
        ("die Katze in Rom, Rom", "in Rom to die", ("die Katze in Rom, Rom", "in Rom to die")),
        ("我有3本ABC书", "I have 3 ABC", ("我有P本P书", "I have P P")),
    ],
)
def test_shared_words_are_replaced(
    src: str, tgt: str, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mt.data.tokens.placeholders.BEFORE", 0)
    found: dict[tuple[str, str], int] = {}
    for seed in range(40):
        made = insert_placeholders(src, tgt, {"hund": "dog"}, Random(seed))
        symbols = [SYMBOL.findall(text) for text in made]
        assert sorted(symbols[0]) == sorted(set(symbols[1]))  # each once, and the same ones
        found[SYMBOL.sub("P", made[0]), SYMBOL.sub("P", made[1])] = len(symbols[0])
    most = max(found.values())
    assert {texts for texts, n in found.items() if n == most} == {expected}
    assert most <= 3
    monkeypatch.setattr("mt.data.tokens.placeholders.BEFORE", 1)  # the words stay
    before = insert_placeholders(src, tgt, {"hund": "dog"}, Random(1))
    assert tuple(re.sub("<ph.> ", "", text) for text in before) == (src, tgt)
    assert (before == (src, tgt)) == (most == 0)


def test_an_epoch_has_them_in_their_share_and_is_always_the_same(tokenizer: Tokenizer) -> None:
    pairs = pairs_of(tokenizer, PAIRS * 20)
    learnt = learn_translations(pairs, tokenizer)
    augment, again = (
        Augmentation(pairs, data_of(0.4).stages[0], tokenizer, 1, 256, learnt) for _ in range(2)
    )
    made = augment(3)
    assert digest(made) == digest(again(3)) != digest(augment(4))
    texts = list(zip(*map(tokenizer.src.decode, rows(made)), strict=True))
    changed = [pair for pair, old in zip(texts, PAIRS * 20, strict=True) if pair != old]
    assert len(changed) / len(texts) == pytest.approx(0.4, abs=0.05)
    assert says(made.store.augmented, f"{len(changed):,} placeholders")
    found = [sorted(SYMBOL.findall(src)) for src, _ in changed]
    assert found == [sorted(SYMBOL.findall(tgt)) for _, tgt in changed]
    assert {symbol for symbols in found for symbol in symbols} == set(PLACEHOLDERS)
    symbols = {tokenizer.src.piece_id(symbol) for symbol in PLACEHOLDERS}
    assert symbols & set(made.store.ids.tolist())  # one token each


def test_a_text_without_such_words_is_warned_of_once(
    trainer_of: Callable[..., Trainer],
    short_corpus: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The corpus has ten words, which are as frequent as "the"; unless that were no hindrance."""
    stages = [{"until": {"updates": 1}}, {"augment": {"placeholders": 0.5}}]
    data: dict[str, Any] = {
        "train": [short_corpus],
        "augment": {"placeholders": 0.1},
        "stages": stages,
    }
    for most, times in ((0.1, 1), (1.0, 0)):
        monkeypatch.setattr("mt.data.tokens.placeholders.MOST_FREQUENT", most)
        values = data | {"valid": None, "test": []}
        trainer_of(data=values, tokenizer={"vocab_size": 340})
        warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
        assert len(warnings) == times
        assert all(says(line, "data.augment.placeholders", "no word") for line in warnings)


def test_the_vocabulary_has_them_or_training_says_so(tokenizer: Tokenizer) -> None:
    assert knows_placeholders(tokenizer)
    assert with_placeholders(PLAIN, data_of(0)).user_defined_symbols == []
    plain = tokenizer_of(PLAIN, PAIRS)
    require_placeholders(data_of(0), plain)
    with raises_saying(ConfigError, "data.augment.placeholders", "<ph1>", "train.new_vocabulary"):
        require_placeholders(data_of(0.1), plain)
