"""What a store or a plan depends on: every key of the config, but for those that are listed."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import config_of
from pydantic import BaseModel, create_model

from mt.config.schema import Config, DataConfig, Source, sections
from mt.data.tokens.store import DATA_KEYS, SOURCE_KEYS, corpus_records, fingerprint_of
from mt.data.tokens.store_parts import StoreTexts
from mt.training.prepare import PLAN_KEYS, Prepared


def with_new_key(model: BaseModel, **values: Any) -> Any:
    """The same section after `shuffled_words: float = 0` has been added to the schema."""
    new: Any = create_model("New", __base__=type(model), shuffled_words=(float, 0.0))
    return new.model_validate(model.model_dump() | values)


@pytest.fixture
def config(tiny_mapping: Mapping[str, Any]) -> Config:
    return config_of(tiny_mapping)


def store_fingerprint(data: DataConfig, sources: list[Source] | None = None) -> str:
    records = corpus_records(data.train, data, {})
    tokenizer: Any = SimpleNamespace(fingerprint="tokenizer", styles=None, languages={})
    texts = StoreTexts(sources or data.train, "data.train", data, tokenizer, records)
    return fingerprint_of(texts)


def plan_fingerprint(config: Config) -> str:
    prepared: Any = SimpleNamespace(
        config=config,
        store=SimpleNamespace(fingerprint=store_fingerprint(config.data)),
        plans=[SimpleNamespace(drawn=[70])],
    )
    return Prepared.plan_fingerprint.fget(prepared)  # type: ignore[attr-defined]


def test_the_size_of_batches_does_not_change_the_plan(config: Config) -> None:
    before = plan_fingerprint(config)
    for tokens in (20, 300, "auto"):
        batch = config.batch.model_copy(update={"tokens_per_batch": tokens})
        assert plan_fingerprint(config.model_copy(update={"batch": batch})) == before
    batch = config.batch.model_copy(update={"tokens_per_update": 301})
    assert plan_fingerprint(config.model_copy(update={"batch": batch})) != before


@pytest.mark.parametrize("section", ["data", *PLAN_KEYS])
def test_a_new_key_of_a_section_changes_the_plan_unless_it_is_at_its_default(
    config: Config, section: str
) -> None:
    before = plan_fingerprint(config)
    for value, same in ((0.0, True), (0.5, False)):
        new = with_new_key(getattr(config, section), shuffled_words=value)
        assert (plan_fingerprint(config.model_copy(update={section: new})) == before) is same


def test_a_new_key_of_a_text_changes_the_store_unless_it_is_at_its_default(config: Config) -> None:
    before = store_fingerprint(config.data)
    for value, same in ((0.0, True), (0.5, False)):
        source = with_new_key(config.data.train[0], shuffled_words=value)
        assert (store_fingerprint(config.data, [source]) == before) is same


def test_the_lists_name_keys_of_the_schema() -> None:
    listed = {**PLAN_KEYS, "data": DATA_KEYS}
    for section, keys in listed.items():
        assert keys <= sections()[section].model_fields.keys()
    assert Source.model_fields.keys() >= SOURCE_KEYS
