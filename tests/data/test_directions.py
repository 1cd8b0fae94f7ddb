"""`data.train[].reverse`: pairs trained the other way round, read and stored once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from messages import raises_saying
from subwords import rows
from token_stores import directed, stored, trained, write

from mt.cleaning.clean import cleaned_data
from mt.cleaning.plan import plan_of
from mt.config.load import config_from_mapping
from mt.config.plan import DataPlan, plan_data
from mt.config.schema import BatchConfig, Config
from mt.data.reading import check
from mt.data.reading.corpus import read_pairs, training_pairs
from mt.data.tokens import noise
from mt.data.tokens.augmentation import Augmentation
from mt.data.tokens.batches import collate, gather_batch
from mt.data.tokens.directions import DirectedPairs
from mt.data.tokens.plan import Plan, sampling_weights
from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import ConfigError, DataError

TAGS = {"user_defined_symbols": ["<2de>", "<2en>"]}
PAIRS = [("eins zwei", "one two"), ("drei", "three"), ("vier fünf eins", "four five one")]
MORE = [("zwei drei vier", "two three"), ("fünf", "five one")]
FORWARD, BACK = {"src": "a.de", "tgt": "a.en"}, {"src": "a.de", "tgt": "a.en", "reverse": True}
B_BACK = {"src": "b.de", "tgt": "b.en", "reverse": True}


def config_of(root: Path, *train: dict[str, Any], **sections: Any) -> Config:
    write(root / "a", PAIRS)
    write(root / "b", MORE)
    data = {"root": str(root), "train": list(train), "src_lang": "de", "tgt_lang": "en"}
    values = {"data": data | sections.pop("data", {}), "tokenizer": TAGS} | sections
    return config_from_mapping(values, "test")


def pairs_of(config: Config, tokenizer: Tokenizer) -> DirectedPairs:
    """The pairs that training has."""
    store = stored(Path(config.data.root or ".") / "store", config.data, tokenizer)
    return directed(store, config.data, tokenizer)


def texts_of(pairs: DirectedPairs, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return list(zip(*map(tokenizer.src.decode, rows(pairs)), strict=True))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return trained(300, **TAGS)


@pytest.mark.parametrize(
    "tags", [("<2en>", "<2de>"), (None, None), ("<2en>", None), (None, "<2de>")]
)
def test_ids_are_stored_once_and_batches_have_both_directions(
    tags: tuple[str | None, str | None], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = config_of(tmp_path, FORWARD | {"tag": tags[0]}, B_BACK, BACK | {"tag": tags[1]})
    pairs = pairs_of(config, tokenizer)
    assert (pairs.store.kept, pairs.kept) == ((3, 2), (3, 2, 3))
    before = [f"{tag} " if tag else "" for tag in tags]
    expected = [(before[0] + src, tgt) for src, tgt in PAIRS]
    expected += [(tgt, src) for src, tgt in MORE]
    expected += [(before[1] + tgt, src) for src, tgt in PAIRS]
    src, tgt = (tokenizer.src.encode(list(side)) for side in zip(*expected, strict=True))
    assert rows(pairs) == (src, tgt)
    order = np.array([7, 0, 4, 2, 5, 1], np.uint32)
    wanted = collate([(np.array(src[i]), np.array(tgt[i])) for i in order])
    gathered = gather_batch(pairs, order)
    for name, value in vars(wanted).items():
        torch.testing.assert_close(getattr(gathered, name), value, rtol=0, atol=0)


def test_a_direction_outside_a_stage_is_not_drawn(tokenizer: Tokenizer, tmp_path: Path) -> None:
    stages = [{"weights": [1, 1, 1], "until": {"updates": 1}}, {"weights": [1, 1, 0]}]
    config = config_of(tmp_path, BACK, B_BACK, FORWARD, data={"stages": stages})
    data, pairs = plan_data(config.data), pairs_of(config, tokenizer)
    turned = [(tgt, src) for src, tgt in PAIRS + MORE]
    assert (pairs.store.kept, texts_of(pairs, tokenizer)) == ((3, 2), turned + PAIRS)
    drawn = [
        Plan(pairs, sampling_weights(data, stage, pairs.kept), BatchConfig(), 1).drawn
        for stage in data.stages
    ]
    assert drawn == [[3, 2, 3], [3, 2, 0]]


def test_a_text_in_both_directions_is_read_cleaned_and_learnt_from_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = FORWARD, BACK | {"weight": 2.0}, B_BACK
    data = plan_data(config_of(tmp_path, *train, data={"clean": {}}).data)
    assert list(training_pairs(data)) == PAIRS + MORE
    names = ["data.train[0]", "data.train[2]"]
    assert [corpus.name for corpus in plan_of(data, tmp_path).corpora] == names
    read = []

    def reading(source: Any, root: Path, where: str, *rest: Any) -> Any:
        read.append(where)
        return read_pairs(source, root, where, *rest)

    monkeypatch.setattr(check, "read_pairs", reading)
    assert not check.check_data(data).faults
    assert read == names
    cleaned = cleaned_data(data, tmp_path)
    assert [Path(corpus.source.src).name for corpus in cleaned.corpora] == ["0.src", "1.src"]
    assert [flow.corpus for flow in cleaned.flows] == [0, 0, 1]


def test_changes_are_those_of_the_language_that_is_the_source(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "typos", lambda text, lang, rate, random: f"{text} {lang}")
    data = {"augment": {"typos": 0.999, "noise": 0.0}}
    config = config_of(tmp_path, FORWARD, BACK, data=data)
    stage = plan_data(config.data).stages[0]
    made = Augmentation(pairs_of(config, tokenizer), stage, tokenizer, 1, 256)(0)
    changed = [(f"{src} de", tgt) for src, tgt in PAIRS]
    assert texts_of(made, tokenizer) == changed + [(f"{tgt} en", src) for src, tgt in PAIRS]


OTHER = {"src": "b.de", "tgt": "b.en", "weight": 2.0}
BOTH_THEN_ONE: list[dict[str, Any]] = [{"until": {"updates": 4}, "both_directions": True}, {}]


def test_both_directions_of_a_stage_are_reverses_with_weights(tmp_path: Path) -> None:
    def plan(stages: Any, *train: dict[str, Any]) -> DataPlan:
        return plan_data(config_of(tmp_path, *train, data={"stages": stages}).data)

    def weights(data: DataPlan) -> list[list[float]]:
        return [[flow.weight for flow in stage.flows] for stage in data.stages]

    both = plan(BOTH_THEN_ONE, FORWARD, OTHER)
    stages = [{"until": {"updates": 4}, "weights": [1, 2, 1, 2]}, {"weights": [1, 2, 0, 0]}]
    by_hand = plan(stages, FORWARD, OTHER, BACK, OTHER | {"reverse": True})
    assert [flow.name for flow in both.flows[2:]] == [
        f"data.train[{number}], reversed" for number in (0, 1)
    ]
    pairs = zip(by_hand.flows, both.flows, strict=True)
    assert all(replace(flow, name=other.name) == other for flow, other in pairs)
    assert weights(both) == weights(by_hand) == [[1, 2, 1, 2], [1, 2, 0, 0]]
    # Only the texts that have none get a reverse.
    stages = [{"until": {"updates": 9}}, BOTH_THEN_ONE[0], {"weights": [0, 1, 5]}]
    expected = [[1, 2, 1, 0], [1, 2, 1, 2], [0, 1, 5, 0]]
    assert weights(plan(stages, FORWARD, OTHER, BACK)) == expected
    stages = [BOTH_THEN_ONE[0] | {"weights": [0, 3]}, {"weights": [1, 0]}]
    assert weights(plan(stages, FORWARD, OTHER)) == [[0, 3, 0, 3], [1, 0, 0, 0]]
    # A direction of an early stage is learnt, unless its reverse alone is trained to the end.
    learnt = plan([BOTH_THEN_ONE[0], {"weights": [1, 0]}], FORWARD, OTHER | {"src_lang": "fr"})
    assert list(map(str, learnt.directions)) == ["de-en", "fr-en", "en-fr"]
    # A reverse has the token of its own target.
    data = {"stages": BOTH_THEN_ONE, "language_tokens": True}
    config = config_of(tmp_path, FORWARD, data=data, tokenizer={})
    assert [flow.token for flow in plan_data(config.data).flows] == ["en", "de"]


def test_a_tag_counts_on_the_side_that_is_the_source(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The sides have 5 and 4 tokens, 2 and 3, 6 and 6; a tag has two."""
    config = config_of(tmp_path, BACK | {"tag": "<2de>"}, data={"max_tokens": 6})
    kept = [(f"<2de> {tgt}", src) for src, tgt in PAIRS[:2]]
    assert texts_of(pairs_of(config, tokenizer), tokenizer) == kept


def test_faults_of_directions(tmp_path: Path) -> None:
    rows: list[Any] = [
        ([FORWARD, BACK], {"tokenizer": {"joint": False}},
         ["tokenizer.joint", "must be true", "data.train[1]", "found false"]),
        ([FORWARD, BACK], {"data": {"valid": BACK}},
         ["data.valid[0].reverse", "data.train", "remove"]),
        ([FORWARD, OTHER], {"data": {"stages": [BOTH_THEN_ONE[0] | {"weights": [1]}, {}]}},
         ["data.stages[0].weights", "2 texts", "found [1.0]"]),
    ]  # fmt: skip
    for texts, sections, said in rows:
        with raises_saying(ConfigError, *said):
            config_of(tmp_path, *texts, **sections)


def test_two_vocabularies_that_were_kept_are_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, FORWARD, BACK)
    with raises_saying(DataError, "data.train[1]", "with two", "tokenizer.joint: true", "reverse"):
        pairs_of(config, trained(300, joint=False, **TAGS))
