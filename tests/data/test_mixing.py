"""Corpora mixed for training: weights, temperature, and tags before the source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import raises_saying, says
from subwords import rows
from token_stores import directed, store_of_lengths, stored, trained, write

from mt.cleaning.clean import cleaned_data
from mt.config.load import config_from_mapping
from mt.config.plan import DataPlan, plan_data
from mt.config.schema import BatchConfig, DataConfig
from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.plan import Plan, describe_mixture, sampling_weights, sentences_of_epoch
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import ConfigError, DataError


def mapping_of(sources: Sequence[dict[str, Any]], **values: Any) -> dict[str, Any]:
    texts = [{"src": f"{n}.de", "tgt": f"{n}.en"} | own for n, own in enumerate(sources)]
    return {"data": {"train": texts, **values}}


def data_of(sources: Sequence[dict[str, Any]], **values: Any) -> DataPlan:
    return plan_data(DataConfig.model_validate(mapping_of(sources, **values)["data"]))


def weights_of(data: DataPlan, kept: Sequence[int]) -> list[float]:
    return sampling_weights(data, data.stages[0], kept)


def drawn_of(data: DataPlan, kept: Sequence[int]) -> list[int]:
    return sentences_of_epoch(weights_of(data, kept), kept)


@pytest.mark.parametrize(
    ("sources", "temperature", "kept", "drawn"),
    [
        ([{}, {}], 1, (900, 100), [900, 100]),
        ([{}, {"weight": 2.25}], 1, (900, 100), [900, 225]),
        ([{}, {"weight": 80}], 1, (600, 20), [600, 1600]),
        # √900 : √100 = 3 : 1
        ([{}, {}], 2, (900, 100), [900, 300]),
        ([{}, {"weight": 4}], 2, (900, 100), [900, 600]),
        ([{}, {}], 0.5, (20, 10), [40, 10]),
        ([{}, {}], 1, (900, 0), [900, 0]),  # all its pairs were dropped
        ([{}, {"weight": 0.1}], 3, (900, 0), [900, 0]),
    ],
)
def test_an_epoch_by_hand(
    sources: list[dict[str, Any]], temperature: float, kept: tuple[int, ...], drawn: list[int]
) -> None:
    """The text that is drawn least comes once; the plan draws so many of each."""
    data = data_of(sources, temperature=temperature)
    assert drawn_of(data, kept) == drawn
    store = store_of_lengths(np.full(sum(kept), 5, np.uint16), kept=kept)
    batch = BatchConfig(tokens_per_update=100, tokens_per_batch=100)
    plan = Plan(store, weights_of(data, kept), batch, 1)
    numbers = np.concatenate([batch for update in plan.updates(3) for batch in update])
    seen = np.bincount(numbers, minlength=sum(kept))
    copies = [np.split(seen, np.cumsum(kept)[:-1])[n] for n in range(len(kept))]
    assert [int(own.sum()) for own in copies] == drawn
    assert all(np.ptp(own) <= 1 for own in copies if len(own))  # no pair twice more than another


def test_the_mixture_is_told_as_declared_and_as_delivered() -> None:
    data = data_of([{}, {"weight": 2.0}], temperature=3)
    epoch, first, second = describe_mixture(data, data.stages[0], (100, 150), (100, 300))
    assert says(epoch, "an epoch: 400 sentences", "drawn least", "seen once")
    assert says(first, "data.train[0] (0.de, src-tgt)", "weight 1", "25.00%", "100 sentences")
    assert says(second, "[1]", "weight 2, temperature 3", "75.00%", "300 sentences of 150 pairs")


def test_faults_of_a_mixture() -> None:
    valid = {"src": "v.de", "tgt": "v.en", "weight": 0.5}
    rows: list[Any] = [
        ([{"share": 0.3}, {}], {}, ["data.train[0].share", "removed", "weigh the text"]),
        ([{}], {"valid": valid}, ["data.valid[0].weight", "data.train", "0.5", "remove"]),
        ([{"tag": "<bt>"}], {}, ["data.train[0].tag", "user_defined_symbols", "<bt>", "add it"]),
    ]
    for sources, values, said in rows:
        with raises_saying(ConfigError, *said):
            config_from_mapping(mapping_of(sources, **values), "test")


def test_an_epoch_that_would_fill_the_memory_is_refused() -> None:
    rows: list[Any] = [([{}, {"weight": 1e-9}], 1), ([{}, {}], 0.001)]
    said = ["data.train[1]", "sentences", "weight", "temperature", "remove"]
    for sources, temperature in rows:
        with raises_saying(DataError, *said):
            weights_of(data_of(sources, temperature=temperature), (900, 100))


def test_a_tag_is_one_token_before_the_source(tmp_path: Path) -> None:
    """It hides no duplicate, and what is cleaned keeps it; without its token it is refused."""
    write(tmp_path / "0", [("eins", "one"), ("zwei drei", "two three")])
    write(tmp_path / "1", [("vier", "four"), ("eins", "one")])
    symbols = {"user_defined_symbols": ["<bt>", "<x>"]}
    tokenizer, plain = trained(300, **symbols), trained(300)

    def built(tag: str, with_tokenizer: Tokenizer = tokenizer) -> DirectedPairs:
        values = mapping_of([{}, {"tag": tag, "weight": 0.5}], root=str(tmp_path))
        data = config_from_mapping(values | {"tokenizer": symbols}, "test").data
        assert cleaned_data(plan_data(data), tmp_path).flows == plan_data(data).flows
        return directed(stored(tmp_path / "store", data, with_tokenizer), data, with_tokenizer)

    pairs = built("<bt>")
    assert pairs.kept == (2, 1)
    texts = ["eins", "zwei drei", "<bt> vier"], ["one", "two three", "four"]
    assert rows(pairs) == tuple(map(tokenizer.src.encode, texts))
    assert rows(pairs)[0][2].count(tokenizer.src.processor.piece_to_id("<bt>")) == 1
    assert tokenizer.src.processor.piece_to_id("<x>") in rows(built("<x>"))[0][2]
    with raises_saying(DataError, "data.train[1].tag", "<bt>", "user_defined_symbols", "remove"):
        built("<bt>", plain)
