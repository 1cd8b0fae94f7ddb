"""`data.train[].reverse`: pairs trained the other way round, read and stored once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from messages import raises_saying
from token_stores import trained, write

from mt.cleaning.plan import plan_of
from mt.cleaning.training_text import cleaned_data
from mt.config.load import config_from_mapping
from mt.config.schema import Config, DataConfig
from mt.data.reading import check
from mt.data.reading.corpus import read_pairs, training_pairs, translated_pairs
from mt.data.tokens import noise
from mt.data.tokens.augmentation import Augmentation
from mt.data.tokens.batches import collate, gather_batch
from mt.data.tokens.directions import in_directions
from mt.data.tokens.mixing import stages_of
from mt.data.tokens.store import Store, open_or_build
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import ConfigError

TAGS = {"user_defined_symbols": ["<2de>", "<2en>"]}
PAIRS = [("eins zwei", "one two"), ("drei", "three"), ("vier fünf eins", "four five one")]
MORE = [("zwei drei vier", "two three"), ("fünf", "five one")]
FORWARD, BACK = {"src": "a.de", "tgt": "a.en"}, {"src": "a.de", "tgt": "a.en", "reverse": True}


def config_of(root: Path, *train: dict[str, Any], **sections: Any) -> Config:
    write(root / "a", PAIRS)
    write(root / "b", MORE)
    data = {"root": str(root), "train": list(train), "src_lang": "de", "tgt_lang": "en"}
    values = {"data": data | sections.pop("data", {}), "tokenizer": TAGS} | sections
    return config_from_mapping(values, "test")


def stores(root: Path, data: DataConfig, tokenizer: Tokenizer) -> tuple[Store, Store]:
    """What is on disk, and what is trained on."""
    texts = list(data.texts.values())
    stored = open_or_build(root / "store", texts, "data.train", data, tokenizer, lambda _: None)
    return stored, in_directions(stored, data, tokenizer)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return trained(300, **TAGS)


@pytest.mark.parametrize(
    "tags", [("<2en>", "<2de>"), (None, None), ("<2en>", None), (None, "<2de>")]
)
def test_ids_are_stored_once_and_batches_have_both_directions(
    tags: tuple[str | None, str | None], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    other = {"src": "b.de", "tgt": "b.en", "reverse": True}
    config = config_of(tmp_path, FORWARD | {"tag": tags[0]}, other, BACK | {"tag": tags[1]})
    stored, store = stores(tmp_path, config.data, tokenizer)
    assert (stored.kept, store.kept) == ((3, 2), (3, 2, 3))
    before = [f"{tag} " if tag else "" for tag in tags]
    expected = [(before[0] + src, tgt) for src, tgt in PAIRS]
    expected += [(tgt, src) for src, tgt in MORE]
    expected += [(before[1] + tgt, src) for src, tgt in PAIRS]
    rows = [tuple(tokenizer.src.encode(list(pair))) for pair in expected]
    assert [(src.tolist(), tgt.tolist()) for src, tgt in store.pairs(np.arange(8))] == rows
    order = np.array([7, 0, 4, 2, 5, 1], np.uint32)
    wanted = collate([(np.array(rows[i][0]), np.array(rows[i][1])) for i in order])
    found = gather_batch(store, order)
    for name, value in vars(wanted).items():
        torch.testing.assert_close(getattr(found, name), value, rtol=0, atol=0)


def test_a_direction_that_is_not_in_a_stage_has_no_pairs(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    other = {"src": "b.de", "tgt": "b.en", "reverse": True}
    stages = [{"weights": [1, 1, 1], "until": {"updates": 1}}, {"weights": [1, 1, 0]}]
    config = config_of(tmp_path, BACK, other, FORWARD, data={"stages": stages})
    stored, _ = stores(tmp_path, config.data, tokenizer)
    store = in_directions(stored, stages_of(config.data)[-1], tokenizer)
    rows = [[ids.tolist() for ids in pair] for pair in store.pairs(np.arange(5))]
    texts = [tuple(tokenizer.src.decode(row)) for row in rows]
    assert (store.kept, texts) == ((3, 2, 0), [(tgt, src) for src, tgt in PAIRS + MORE])


def test_a_text_in_both_directions_is_read_cleaned_and_learnt_from_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"src": "b.de", "tgt": "b.en", "reverse": True}
    data = config_of(tmp_path, FORWARD, BACK | {"weight": 2.0}, other, data={"clean": {}}).data
    assert list(training_pairs(data)) == PAIRS + MORE
    both_ways = [way for pair in PAIRS for way in (pair, pair[::-1])]
    assert list(translated_pairs(data)) == both_ways + [pair[::-1] for pair in MORE]
    assert [one.where for one in plan_of(data, tmp_path).corpora] == [
        "data.train[0]",
        "data.train[2]",
    ]
    read = []

    def reading(source: Any, root: Path, where: str, *rest: Any) -> Any:
        read.append(where)
        return read_pairs(source, root, where, *rest)

    monkeypatch.setattr(check, "read_pairs", reading)
    assert not check.check_data(data).faults
    assert read == ["data.train[0]", "data.train[2]"]
    cleaned = cleaned_data(data, tmp_path)
    assert [Path(one.src).name for one in cleaned.train] == ["0.src", "0.src", "2.src"]
    assert cleaned.text_numbers == [0, 0, 2]


def test_changes_are_those_of_the_language_that_is_the_source(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typos are made in English where it is the source; what is joined and sampled is the text."""
    monkeypatch.setattr(noise, "typos", lambda text, lang, rate, random: f"{text} {lang}")
    changes = dict.fromkeys(("caps", "title", "lower", "no_final_stop", "noise", "emoji"), 0.0)
    data = {"augment": changes | {"typos": 0.999, "join": 0.0}}
    config = config_of(tmp_path, FORWARD, BACK, data=data)
    _, store = stores(tmp_path, config.data, tokenizer)
    made = Augmentation(store, tokenizer, config)(0)
    texts = [[tokenizer.src.decode([ids.tolist()])[0] for ids in made.pair(i)] for i in range(6)]
    assert texts[:3] == [[f"{src} de", tgt] for src, tgt in PAIRS]
    assert texts[3:] == [[f"{tgt} en", src] for src, tgt in PAIRS]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tokenizer": {"joint": False}}, ["data.train[1].reverse", "joint", "set", "true"]),
        ({"data": {"valid": BACK}}, ["data.valid.reverse", "data.train", "remove"]),
    ],
)
def test_what_cannot_be_reversed(values: dict[str, Any], said: list[str], tmp_path: Path) -> None:
    with raises_saying(ConfigError, *said):
        config_of(tmp_path, FORWARD, BACK, **values)


OTHER = {"src": "b.de", "tgt": "b.en", "weight": 2.0}
BOTH_THEN_ONE = [{"until": {"epochs": 4}, "both_directions": True}, {}]


def test_both_directions_of_a_stage_are_written_out(tmp_path: Path) -> None:
    """As reverses and weights; the config of a run, which has them, is read as the same."""
    config = config_of(tmp_path, FORWARD, OTHER, data={"stages": BOTH_THEN_ONE})
    reverses = [BACK, OTHER | {"reverse": True}]
    stages = [{"until": {"epochs": 4}, "weights": [1, 2, 1, 2]}, {"weights": [1, 2, 0, 0]}]
    assert config == config_of(tmp_path, FORWARD, OTHER, *reverses, data={"stages": stages})
    assert config_from_mapping(config.model_dump(), "test") == config
    # Only the texts that have none get a reverse.
    stages = [{"until": {"updates": 9}}, BOTH_THEN_ONE[0], {"weights": [0, 1, 5]}]
    config = config_of(tmp_path, FORWARD, OTHER, BACK, data={"stages": stages})
    assert [one.weights for one in config.data.stages or []] == [
        [1, 2, 1, 0],
        [1, 2, 1, 2],
        [0, 1, 5, 0],
    ]
    stages = [BOTH_THEN_ONE[0] | {"weights": [0, 3]}, {"weights": [1, 0]}]
    config = config_of(tmp_path, FORWARD, OTHER, data={"stages": stages})
    assert [one.weights for one in config.data.stages or []] == [[0, 3, 0, 3], [1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("texts", "stages", "other"),
    [
        ([OTHER, FORWARD | {"share": 0.5}], BOTH_THEN_ONE, "data.train[1].share"),
        ([FORWARD, OTHER], [BOTH_THEN_ONE[0], {"shares": [1, 0]}], "data.stages[1].shares"),
    ],
)
def test_what_both_directions_cannot_stand_with(
    texts: list[dict[str, Any]], stages: list[dict[str, Any]], other: str, tmp_path: Path
) -> None:
    with raises_saying(ConfigError, "data.stages[0].both_directions", "false", other, "reverse"):
        config_of(tmp_path, *texts, data={"stages": stages})


def test_a_weight_too_few_is_refused_as_without_both_directions(tmp_path: Path) -> None:
    stages = [BOTH_THEN_ONE[0] | {"weights": [1]}, {}]
    with raises_saying(ConfigError, "data.stages[0].weights", "2 texts", "found 1"):
        config_of(tmp_path, FORWARD, OTHER, data={"stages": stages})


def test_two_vocabularies_that_were_kept_are_refused(tmp_path: Path) -> None:
    data = config_of(tmp_path, FORWARD, BACK).data
    with raises_saying(ConfigError, "data.train", "reverse", "tokenizer.joint: true"):
        stores(tmp_path, data, trained(300, joint=False, **TAGS))
