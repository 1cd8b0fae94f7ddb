"""What a store or a plan depends on: every key of the config, but for those that are listed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, create_model

from mt.config.load import load_config
from mt.config.schema import Config, DataConfig, Source, sections
from mt.data.tokens.store import DATA_KEYS, SOURCE_KEYS, corpus_records, fingerprint_of
from mt.data.tokens.store_parts import StoreTexts
from mt.data.tokens.tokenizer import Tokenizer
from mt.training.prepare import PLAN_KEYS, Prepared

OLD_RUN = Path(__file__).parents[1] / "files" / "run-0.1.0"


def with_new_key(model: BaseModel, **values: Any) -> Any:
    """The same section after `shuffled_words: float = 0` has been added to the schema."""
    new: Any = create_model("New", __base__=type(model), shuffled_words=(float, 0.0))
    return new.model_validate(model.model_dump() | values)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.chdir(OLD_RUN / "corpus")
    return load_config(str(OLD_RUN / "run" / "config.yaml")).config


def store_fingerprint(data: DataConfig, sources: list[Source] | None = None) -> str:
    records = corpus_records(data.train, data, {})
    tokenizer = Tokenizer.load(OLD_RUN / "run")
    texts = StoreTexts(sources or data.train, "data.train", data, tokenizer, records)
    return fingerprint_of(texts)


def plan_fingerprint(config: Config) -> str:
    prepared: Any = SimpleNamespace(
        config=config,
        store=SimpleNamespace(fingerprint=store_fingerprint(config.data)),
        plans=[SimpleNamespace(drawn=[70])],
    )
    return Prepared.plan_fingerprint.fget(prepared)  # type: ignore[attr-defined]


def test_a_store_of_the_first_version_has_the_fingerprint_that_it_had(config: Config) -> None:
    meta = json.loads((OLD_RUN / "run" / "store" / "train" / "meta.json").read_text())
    assert store_fingerprint(config.data) == meta["fingerprint"]


def test_a_plan_has_the_fingerprint_that_it_had(config: Config) -> None:
    """Or a run of this version would not resume within its epoch; that of 0.1.0 does not."""
    plan = "equal updates of all lengths from 8192 tokens on, shuffled by length"
    before = f"{store_fingerprint(config.data)}/[70]/300/3/{plan}"
    assert plan_fingerprint(config) == before
    for tokens in (20, 300, "auto"):
        batch = config.batch.model_copy(update={"tokens_per_batch": tokens})
        assert plan_fingerprint(config.model_copy(update={"batch": batch})) == before
    sampling = config.tokenizer.model_copy(update={"sampling_alpha": 0.1})
    assert plan_fingerprint(config.model_copy(update={"tokenizer": sampling})) == f"{before}/0.1"


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
