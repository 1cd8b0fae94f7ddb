"""mt export huggingface: what transformers opens computes the same, whatever the shape."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Mt, merged, refused
from marian_models import SAVED
from messages import says
from safetensors.torch import save_file
from torch import Tensor
from untrained_models import untrained_model

from mt.errors import ConfigError, MtError
from mt.interop.exporter import translate_plainly
from mt.interop.huggingface_export import ExportedFolder, build, export
from mt.interop.huggingface_import import import_model
from mt.interop.huggingface_layout import to_halves, to_interleaved
from mt.interop.huggingface_tokenizer import write_tokenizer
from mt.model.checkpoint import LoadedModel, load_model, weights_of
from mt.runtime.devices import choose_device
from mt.search.engine import TorchEngine
from mt.search.inference import Inference
from mt.search.parity import LogProbs, prove
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


# What a model that was exported and imported has in any case.
ALWAYS = {"attention_bias": True, "output_bias": True, "activation_dropout": 0.1}
LITERAL = ["</s>", "drei </s> acht", "<unk> acht", "<pad><s>", "eins</s>"]
CHANGES = {
    "tokenizer": {"byte_fallback": False, "vocab_size": 60},  # separate ones differ in size
    # Outputs of random weights reach their limit, where transformers takes 1 for the probability of
    # the end: that makes no difference to greedy search.
    "decode": {"beam_size": 1},
}


def translations(loaded: LoadedModel, lines: list[str]) -> list[str]:
    """Translate lines with the model's own settings."""
    engine = TorchEngine(
        Inference(loaded.model, choose_device("cpu", "fp32")), loaded.config.decode
    )
    return translate_plainly(loaded, engine, None, lines)


def log_probs_of(loaded: LoadedModel) -> LogProbs:
    decoder = ForcedDecoder(Inference(loaded.model, choose_device("cpu", "fp32")))
    return lambda pairs: [score.log_probs for score in decoder.score(list(pairs))]


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
    assert again.translate(LITERAL, loaded.config.decode) == translations(loaded, LITERAL)

    comes_back(loaded, tmp_path / "out", (tiny_corpus / "test.src").read_text("utf-8"))


class Fake:
    """Stands for a config of transformers' Pegasus, and for a model of one."""

    def __init__(self, config: Any = None, **settings: Any) -> None:
        self.settings = settings | (config.settings if config else {})
        self.weights: dict[str, Tensor] = {}
        self.generation_config: Any = None

    def state_dict(self) -> dict[str, Tensor]:
        get = self.settings.__getitem__
        width, rows = get("d_model"), get("vocab_size")
        embeddings = {f"model.{side}.embed_tokens.weight": (rows, width)
                      for side in ("encoder", "decoder")}  # fmt: skip
        shapes = {"final_logits_bias": (1, rows), "lm_head.weight": (rows, width), **embeddings}
        if get("tie_word_embeddings"):
            shapes["model.shared.weight"] = (rows, width)
        return {name: torch.zeros(shape) for name, shape in shapes.items()}

    def load_state_dict(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    def eval(self) -> Fake:
        return self

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir()
        config, generation = (
            self.settings | {"model_type": "pegasus"},
            self.generation_config.settings,
        )
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
        weights = {name: each.detach().clone() for name, each in self.weights.items()}
        save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("shape", "joint", "sides"),
    [
        ({}, True, ("src", "tgt")),
        ({}, False, ("src", "tgt")),
        ({}, False, ("tgt", "src")),  # the smaller vocabulary is the source's
        ({"positions": "learned", "tie_embeddings": False}, True, ("src", "tgt")),
    ],
    ids=str,
)
def test_an_exported_pre_norm_model_comes_back(
    shape: dict[str, Any], joint: bool, sides: tuple[str, str],
    tiny_mapping: Mapping[str, Any], tiny_corpus: Path, tmp_path: Path,
) -> None:  # fmt: skip
    """Without transformers: its models are only asked for the names of their weights."""
    mapping = merged(tiny_mapping, {**CHANGES, "model": shape})
    loaded = untrained_model(mapping, tiny_corpus, joint, sides)
    names = ("PegasusConfig", "PegasusForConditionalGeneration", "GenerationConfig")
    build(SimpleNamespace(**dict.fromkeys(names, Fake)), loaded).save_pretrained(tmp_path / "out")
    write_tokenizer(loaded, tmp_path / "out")
    comes_back(loaded, tmp_path / "out", (tiny_corpus / "test.src").read_text("utf-8"))
    (tmp_path / "out" / "vocab.json").unlink()
    with pytest.raises(MtError, match=r"vocab\.json"):
        import_model(tmp_path / "out", tmp_path / "other")


def comes_back(loaded: LoadedModel, folder: Path, text: str) -> None:
    """Import a folder and compare it with the model that was exported to it."""
    import_model(folder, folder.with_name("back"))
    back = load_model(folder.with_name("back"))
    lines = [*text.splitlines(), *LITERAL, "drei acht " * 40]  # split at data.max_tokens
    assert translations(back, lines) == translations(loaded, lines)
    assert weights_of(back.model).keys() >= weights_of(loaded.model).keys()
    sizes = [(each.src.size, each.tgt.size) for each in (back.tokenizer, loaded.tokenizer)]
    assert sizes[0] == sizes[1]
    assert back.config.model == loaded.config.model.model_copy(update=ALWAYS)
    assert back.config.decode == loaded.config.decode
    prove(loaded, "back", log_probs_of(back), 1e-4)


@pytest.mark.slow
def test_a_run_and_an_imported_model_are_exported(tiny_run: Path, tmp_path: Path, mt: Mt) -> None:
    pytest.importorskip("transformers")
    ended = mt("export", "huggingface", "--model", tiny_run, "-o", tmp_path / "out")
    assert ended.code == 0, ended.err
    assert "first 40 lines of data.valid: 40 translations are the same, BLEU " in ended.err
    assert "## Data" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1
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
