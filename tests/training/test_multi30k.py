"""The recipe on the real corpus, cut short: BLEU after a sixth of its time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import metrics_of
from corpora import MULTI30K, multi30k

from mt.config.load import load_config
from mt.model.checkpoint import load_model
from mt.runtime.devices import choose_device
from mt.search.engine import TorchEngine
from mt.search.inference import Inference
from mt.training.launch import train
from mt.translate.translator import Translator

pytestmark = [pytest.mark.multi30k]


@pytest.fixture(scope="module", autouse=True)
def corpus_is_there() -> None:
    multi30k()


@pytest.fixture
def all_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The other tests run on one thread."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.timeout(2400)
@pytest.mark.usefixtures("all_cores")
def test_800_updates_of_the_recipe_reach_the_fastest_peers_bleu_at_10_minutes(
    tmp_path: Path,
) -> None:
    """That peer: greedy BLEU 28.4 on the validation set after 591 s. Here: beam 5, 800 updates."""
    sets = [
        f"data.root={MULTI30K}",
        "train.max_steps=800",
        "train.valid_every=400",
        "train.precision=auto",
    ]
    config = load_config("multi30k.yaml", sets).config
    outcome = train(config, tmp_path / "run", "cpu")
    records = metrics_of(tmp_path / "run", "test")
    tests = {record["name"]: record["bleu"] for record in records}
    print(tests)
    assert outcome.exit_code == 0
    assert tests["test_2016_flickr.de.gz"] > 28.4
    assert tests["test_2017_flickr.de.gz"] > 24.0
    assert all("tok:13a" in record["signature"] for record in records)

    loaded = load_model(tmp_path / "run")
    greedy = config.decode.model_copy(update={"beam_size": 1})
    engine = TorchEngine(Inference(loaded.model, choose_device("cpu", "fp32")), greedy)
    translator = Translator(engine, loaded.tokenizer, max_source=128)
    source = "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche."
    (one,) = translator.translate([source])
    print(one.texts[0])
    words = one.texts[0].lower().replace(",", "").replace(".", "").split()
    assert words[0] == "two"
