"""mt export huggingface: what transformers opens computes the same, whatever the shape."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Mt, merged, refused
from marian_models import SAVED
from messages import says
from untrained_models import untrained_model

from mt.errors import ConfigError
from mt.interop.huggingface_export import ExportedFolder, export
from mt.interop.huggingface_import import import_model
from mt.interop.huggingface_layout import to_halves, to_interleaved
from mt.model.checkpoint import load_model
from mt.runtime.devices import choose_device
from mt.search.inference import Inference
from mt.search.parity import prove
from mt.search.scoring import ForcedDecoder

SHAPES: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"norm": "post"}, True),
    ({"norm": "post", "activation": "silu", "output_bias": True}, False),
    ({"norm": "post", "tie_embeddings": False, "attention_bias": False}, True),
    ({"norm": "post", "tie_embeddings": False, "n_encoder_layers": 2, "n_heads": 4}, False),
    ({"activation": "gelu", "positions": "learned", "output_bias": True}, True),
    ({"tie_embeddings": False, "attention_bias": False}, True),
    ({}, False),
    ({"tie_embeddings": False, "activation": "silu"}, False),
]


CHANGES = {
    "tokenizer": {"byte_fallback": False, "vocab_size": 60},  # separate ones differ in size
    # Outputs of random weights reach their limit, where transformers takes 1 for the probability of
    # the end: that makes no difference to greedy search.
    "decode": {"beam_size": 1},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize(("shape", "joint"), SHAPES, ids=str)
def test_every_shape_gives_the_same_probabilities_and_translations(
    shape: dict[str, Any],
    joint: bool,
    tiny_mapping: Mapping[str, Any],
    tiny_corpus: Path,
    tmp_path: Path,
) -> None:
    transformers = pytest.importorskip("transformers")
    mapping = merged(tiny_mapping, {**CHANGES, "model": shape})
    loaded = untrained_model(mapping, tiny_corpus, joint)
    said: list[str] = []
    parity = export(loaded, tmp_path / "out", say=said.append)
    assert parity.max_difference < 1e-4
    post = shape.get("norm") == "post"
    architecture = "MarianMTModel" if post else "PegasusForConditionalGeneration"
    assert f"{architecture}; {parity.tokens:,} tokens of 64 pairs" in said[0]
    assert "first 40 lines of data.valid: 40 translations are the same, BLEU " in said[1]

    # What its users change and save again is still the same model.
    again = ExportedFolder(transformers, tmp_path / "out")
    again.model.save_pretrained(tmp_path / "again")
    again.model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again").eval()
    prove(loaded, "again", again.log_probs, 1e-4)

    if post:  # and back again; the decoder's start is one more piece there
        import_model(tmp_path / "out", tmp_path / "back")
        files = (tiny_corpus / f"test.{side}" for side in ("src", "tgt"))
        texts = [file.read_text(encoding="utf-8").splitlines() for file in files]
        scores = []
        for each in (loaded, load_model(tmp_path / "back")):
            encoded = each.tokenizer.encode_src(texts[0]), each.tokenizer.encode_tgt(texts[1])
            decoder = ForcedDecoder(Inference(each.model, choose_device("cpu", "fp32")))
            found = decoder.score(list(zip(*encoded, strict=True)))
            scores.append([sum(score.log_probs) for score in found])
        assert scores[0] == pytest.approx(scores[1], abs=1e-3)


@pytest.mark.slow
def test_a_run_and_an_imported_model_are_exported(tiny_run: Path, tmp_path: Path, mt: Mt) -> None:
    pytest.importorskip("transformers")
    ended = mt("export", "huggingface", "--model", tiny_run, "-o", tmp_path / "out")
    assert ended.code == 0, ended.err
    assert "first 40 lines of data.valid: 40 translations are the same, BLEU " in ended.err
    assert "## Data" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    import_model(SAVED, tmp_path / "imported")
    ended = mt("export", "huggingface", "--model", tmp_path / "imported", "-o", tmp_path / "back")
    assert ended.code == 0, ended.err
    assert "MarianMTModel; " in ended.err
    assert "the model's config has no data.valid" in ended.err


def test_their_dimensions_are_all_sines_then_all_cosines() -> None:
    assert to_halves(6).tolist() == [0, 2, 4, 1, 3, 5]
    assert to_halves(6)[to_interleaved(6)].tolist() == list(range(6))


def test_messages_about_exports(
    tiny_run: Path,
    tiny_mapping: Mapping[str, Any],
    tiny_corpus: Path,
    tmp_path: Path,
    mt: Mt,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace())
    shape = {"norm": "post", "positions": "learned"}
    loaded = untrained_model(merged(tiny_mapping, {"model": shape}), tiny_corpus, True)
    with pytest.raises(ConfigError, match=r"model\.positions learned with model\.norm post"):
        export(loaded, tmp_path / "out")
    monkeypatch.setitem(sys.modules, "transformers", None)
    message = refused(mt("export", "huggingface", "--model", tiny_run, "-o", tmp_path / "out"))
    assert says(message, "needs the package transformers", "pip install transformers")
