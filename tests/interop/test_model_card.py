"""The model card says what the run's files say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from conftest import Mapped, config_of, merged, metrics_of
from messages import says
from sentencepiece import SentencePieceProcessor
from untrained_models import untrained_model

from mt.data.tokens.sentencepiece_model import SPECIAL_PIECES
from mt.files import sha256_of
from mt.interop.ctranslate2 import export
from mt.interop.exporter import model_card
from mt.model.checkpoint import LoadedModel, load_model


def test_a_card_has_languages_data_and_scores(loaded: LoadedModel, tiny_corpus: Path) -> None:
    card = model_card(loaded, "Use it.", "apache-2.0", "transformers")
    _, header, body = card.split("---\n", 2)
    assert yaml.safe_load(header) == {
        "language": ["de", "en"], "license": "apache-2.0", "library_name": "transformers",
        "tags": ["translation"],
    }  # fmt: skip
    assert "# Translation model de → en\n" in body
    train = tiny_corpus / "train.src"
    assert f"| train.src | 2,000 | `{sha256_of(train)}` |" in body
    assert str(tiny_corpus) not in body
    scored = [values for values in metrics_of(loaded.folder.parent.parent) if "bleu" in values]
    here = [values for values in scored if values["step"] == loaded.meta["step"]]
    assert {values["kind"] for values in here} == {"valid", "test"}
    for values in here:
        name = "validation" if values["kind"] == "valid" else "test.src"
        score, signature = f"{values['bleu']:.2f}", values["signature"].replace("|", r"\|")
        assert f"| {name} | {values['step']:,} | bleu | {score} | `{signature}` |" in body
    assert "tok:13a" in body
    assert f"{sum(each.numel() for each in loaded.model.parameters()):,} parameters" in body
    assert "Made with mt " in body
    history = loaded.meta["history"]
    changed = {str(train): {"lines": 1_900, "sha256": "before"}}
    both = {**loaded.meta, "history": [history[0] | {"files": changed}, *history]}
    card = model_card(replace(loaded, meta=both), "Use it.")
    assert says(
        card, "| train.src | 1,900 | `before` |\n", f"| train.src | 2,000 | `{sha256_of(train)}` |"
    )
    mean = replace(loaded, meta={**loaded.meta, "averaged": [1, loaded.meta["step"]]})
    assert "## Scores" not in model_card(mean, "Use it.")  # those of its newest checkpoint


# As runs/run_dir.py writes it.
CORPORA = [
    {
        "source": "opus:Digits/latest", "name": "Digits", "version": "v2",
        "languages": ["de", "en"], "url": ["https://a/d.zip"], "fetched": "2026-11-23",
        "licence": "CC-BY|4.0", "citation": "A. Author, 2012", "files": {}, "changed": [],
    },
    {
        "source": "mtdata:A-b-1-de-en", "name": "A-b", "version": "1", "languages": ["de", "en"],
        "url": ["https://b"], "fetched": "2026-11-22", "licence": "not stated by mtdata",
        "citation": "not stated by mtdata", "files": {}, "changed": ["corpus.de"],
        "cleaned": ["clean.de"],
    },
]  # fmt: skip


def test_the_card_has_licence_and_citation_of_fetched_corpora(copied_run: Path) -> None:
    start = {"model": "run", "began_from": "new weights", "to_update": 200, "corpora": CORPORA}
    for meta in copied_run.glob("checkpoints/step-*/meta.json"):
        meta.write_text(json.dumps(json.loads(meta.read_text()) | {"history": [start]}))
    card = model_card(load_model(copied_run), "Use it.")
    # That of the model is the user's to state.
    licences = "CC-BY|4.0; not stated by mtdata."
    assert f"Licence: not stated. Of the training data: {licences}" in card
    assert says(
        card,
        "## Corpora",
        "| Digits | v2 | de-en | CC-BY\\|4.0 | 2026-11-23 from https://a/d.zip | as fetched |",
        "| A-b | 1 | de-en | not stated by mtdata |",
        "| cleaned: clean.de; changed since it was fetched: corpus.de |",
        "Citations, word for word:\n\n```\nA. Author, 2012\n```\n\n## History",
        "| run | 1–200 | new weights | Digits; A-b |",
    )


def test_the_card_of_a_folder_without_a_run_leaves_out_what_is_not_known(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    data = loaded.config.data.model_copy(update={"src_lang": "src", "tgt_lang": "no"})
    config = loaded.config.model_copy(update={"data": data})
    alone = replace(loaded, folder=tmp_path, meta={}, config=config)
    _, header, body = model_card(alone, "Use it.").split("---\n", 2)
    assert yaml.safe_load(header) == {"language": ["no"], "tags": ["translation"]}
    assert "Licence: not stated. Of the training data: unknown: not recorded." in body
    assert "## Data" not in body
    mixed = replace(alone, meta={"mixed": [["runs/a", 3.0], ["b", 0.5]]})
    assert "the average of several models, in the ratio 3 a : 0.5 b." in model_card(mixed, "")
    assert "## Scores" not in body


def test_the_card_names_every_direction(loaded: LoadedModel, tiny_mapping: Mapped) -> None:
    text = {"src": "train.src", "tgt": "train.tgt"}
    both = config_of(tiny_mapping, data={"train": [text, text | {"reverse": True}]})
    card = model_card(replace(loaded, config=both), "Use it.")
    assert "# Translation model de → en, en → de\n" in card


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_special_tokens_in_a_text_are_text_or_the_card_warns(
    byte_fallback: bool, tiny_mapping: Mapped, tmp_path: Path
) -> None:
    """A vocabulary without Latin letters gives `</s>` as one unknown piece, and so its id."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    for side in ("src", "tgt"):
        (tmp_path / f"train.{side}").write_text("ひと ふた みよ\nいつ むう なな\n" * 9, "utf-8")
    changes = {"tokenizer": {"byte_fallback": byte_fallback, "vocab_size": 320}}
    loaded = untrained_model(merged(tiny_mapping, changes), tmp_path, True)
    folder = tmp_path / "ct2"
    export(loaded, folder)
    processor = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    translator = ctranslate2.Translator(str(folder))
    differ = []
    for piece in SPECIAL_PIECES:
        ours, theirs = loaded.tokenizer.src.pieces_of, processor.encode(piece, out_type=str)
        sources = [ours(loaded.tokenizer.src.encode([piece])[0]), theirs]
        (one,), (other,) = (
            result.log_probs for result in translator.score_batch(sources, [[]] * 2)
        )
        if one != pytest.approx(other, abs=1e-4):
            differ.append(piece)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert all(f"`{piece}`" in card for piece in differ)
    assert bool(differ) == ("A text must not contain" in card) == (not byte_fallback)
