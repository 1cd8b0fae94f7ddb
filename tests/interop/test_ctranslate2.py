"""Export to CTranslate2: every option that changes the arithmetic, and what stands in the way."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Mapped, MonkeyPatch, Mt, config_of, merged, refused
from messages import says
from sentencepiece import SentencePieceTrainer
from untrained_models import untrained_model

from mt.data.tokens.tokenizer import Tokenizer
from mt.errors import CheckpointError
from mt.interop import ctranslate2 as module
from mt.interop.ctranslate2 import INT8_TOLERANCE, export
from mt.interop.huggingface_tokenizer import write_tokenizer
from mt.model.checkpoint import LoadedModel, build_model, load_model
from mt.search import ctranslate2_model
from mt.search.ctranslate2_model import scorer
from mt.search.scoring import TOLERANCE, prove

library = pytest.importorskip("ctranslate2")

SHAPES: list[dict[str, Any]] = [
    {}, {"norm": "post"}, {"activation": "gelu"}, {"activation": "silu"}, {"positions": "learned"},
    {"attention_bias": False}, {"output_bias": True},
    {"tie_embeddings": False, "n_encoder_layers": 3, "n_decoder_layers": 2, "n_heads": 4},
]  # fmt: skip


@pytest.mark.parametrize("quantization", ["fp16", "bf16", "int8"])
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[-1]], ids=str)
def test_weights_are_rounded_as_stated(
    quantization: str, shape: dict[str, Any], tiny_mapping: Mapped, tiny_corpus: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    loaded = untrained_model(merged(tiny_mapping, {"model": shape}), tiny_corpus, joint=True)
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    parity = export(loaded, tmp_path / "out", quantization=quantization)
    assert parity.max_difference < (INT8_TOLERANCE if quantization == "int8" else TOLERANCE)
    assert parity.max_difference < parity.change < 0.5  # what rounding itself changes
    assert f"weights rounded to {quantization}; rounding changes it by " in str(parity)
    for name, tensor in loaded.model.state_dict().items():  # ctranslate2 scales in place
        assert torch.equal(tensor, before[name])
    export(loaded, tmp_path / "whole")
    size, whole = ((tmp_path / name / "model.bin").stat().st_size for name in ("out", "whole"))
    # Positions, as many as the rest of this tiny model, are not rounded to int8.
    assert size < 0.58 * whole


def test_rounding_to_int8_by_hand() -> None:
    """One row: 127 steps up to its largest value, 2; another has its own step; 0 stays 0."""
    model: Any = torch.nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[2.0, 1.0, 0.009], [-0.5, 0.25, 0.0], [0.0, 0.0, 0.0]]))
    bias = model.bias.clone()
    changed: Any = module.rounded(model, "int8")
    step, other = 2 / 127, 0.5 / 127
    wanted = [[2.0, 64 * step, step], [-0.5, 64 * other, 0.0], [0.0, 0.0, 0.0]]
    assert changed.weight.tolist() == [pytest.approx(row, rel=1e-6) for row in wanted]
    assert torch.equal(changed.bias, bias)
    assert model.weight[0, 1] == 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("joint", [True, False])
def test_every_shape_gives_the_same_probabilities(
    shape: dict[str, Any], joint: bool, tiny_mapping: Mapped, tiny_corpus: Path, tmp_path: Path
) -> None:
    loaded = untrained_model(merged(tiny_mapping, {"model": shape}), tiny_corpus, joint)
    parity = export(loaded, tmp_path / "out")
    assert parity.tokens > 300
    assert parity.max_difference < TOLERANCE
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"model.bin", "config.json"}


def test_special_pieces_renamed(tiny_mapping: Mapped, tiny_corpus: Path, tmp_path: Path) -> None:
    """As a model of SentencePiece has them that a user brings."""
    pieces = {"pad": "[PAD]", "unk": "[UNK]", "bos": "[CLS]", "eos": "[SEP]"}
    settings: dict[str, Any] = {f"{name}_id": number for number, name in enumerate(pieces)}
    settings |= {f"{name}_piece": piece for name, piece in pieces.items()}
    settings["user_defined_symbols"] = ["<2x>"]  # looks like a language token
    SentencePieceTrainer.train(
        input=str(tiny_corpus / "train.src"), model_prefix=str(tmp_path / "own"), vocab_size=60,
        hard_vocab_limit=False, minloglevel=2, **settings,
    )  # fmt: skip
    config = config_of(tiny_mapping, decode={"beam_size": 1})
    tokenizer = Tokenizer((tmp_path / "own.model").read_bytes())
    loaded = LoadedModel(Path(), {}, config, tokenizer, build_model(config, tokenizer))
    assert export(loaded, tmp_path / "out").tokens > 300
    write_tokenizer(loaded, tmp_path)
    ids = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    assert [ids[piece] for piece in ("<pad>", "<unk>", "<s>", "</s>")] == [0, 1, 2, 3]
    assert "<2x>" in ids
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "names the target language" not in card


def test_a_trained_model_translates_alike(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    out, source = tmp_path / "out", tiny_corpus / "test.src"
    ended = mt("export", "ctranslate2", "-m", tiny_run, "-o", out)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "# Translation model de → en" in card
    program = card.split("```python\n")[1].split("```")[0]
    line = source.read_text(encoding="utf-8").split("\n")[0]
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as printed:  # text, no pieces
        exec(program.replace("...", line), {})
    assert printed.getvalue() == mt("translate", "-m", tiny_run, source).lines[0] + "\n"
    assert ended.code == 0
    assert "have the same log-probability, within " in ended.err
    tokenizer = load_model(tiny_run).tokenizer
    lines = [tokenizer.src.pieces(line) for line in source.read_text(encoding="utf-8").splitlines()]
    translator = library.Translator(str(out), device="cpu", compute_type="float32")
    results = translator.translate_batch(
        lines, beam_size=1, disable_unk=True, max_decoding_length=64
    )
    theirs = [tokenizer.tgt.processor.decode(result.hypotheses[0]) for result in results]
    ours = mt("translate", "-m", tiny_run, source, "--beam-size", 1, "--precision", "fp32").lines
    assert sum(one == other for one, other in zip(ours, theirs, strict=True)) >= 39
    assert {path.name for path in out.iterdir()} >= {"model.bin", "tokenizer.model"}


def test_a_wrong_export_is_detected_and_not_written(
    tiny_mapping: Mapped, tiny_corpus: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """So is a right one of which one bias changes a little."""
    loaded = untrained_model(tiny_mapping, tiny_corpus, joint=True)
    export(loaded, tmp_path / "right")
    translator = library.Translator(str(tmp_path / "right"), device="cpu", compute_type="float32")
    with torch.no_grad():
        loaded.model.decoder_norm.bias.add_(0.05)  # type: ignore[union-attr, operator]
    with pytest.raises(CheckpointError):
        prove(loaded, "ctranslate2", scorer(loaded.tokenizer, translator))
    real = ctranslate2_model._array
    monkeypatch.setattr(ctranslate2_model, "_array", lambda tensor: real(tensor) * 1.02)
    with pytest.raises(
        CheckpointError, match="the converted model gives other probabilities than mt, by up to"
    ):
        export(loaded, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["right"]


def test_what_prevents_it(mt: Mt, tiny_run: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").write_bytes(b"")

    def refusal(out: Path, *options: str) -> str:
        return refused(mt("export", "ctranslate2", "-m", tiny_run, "-o", out, *options))

    out = tmp_path / "out"
    message = refusal(out, "--quantization", "int4")
    assert says(message, "--quantization", "fp32, fp16, bf16 or int8", "'int4'")
    there, below = tmp_path / "there", tmp_path / "file" / "out"
    assert says(refusal(there), "--output", there, "already exists", "remove it")
    message = refusal(below)
    assert says(message, "--output", below, "cannot be written (Not a directory)", "free some")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)  # importing it raises ImportError
    message = refusal(out)
    assert says(message, "export", "ctranslate2", "cannot be imported", "pip install ctranslate2")
    assert {path.name for path in tmp_path.iterdir()} == {"there", "file"}
    assert list(there.iterdir()) == []


def test_a_full_disk(mt: Mt, tiny_run: Path, small_disk: Callable[[int], Path]) -> None:
    out = small_disk(64) / "out"
    message = refused(mt("export", "ctranslate2", "-m", tiny_run, "-o", out))
    assert says(message, "--output", out, "(No space left on device)", "the export needs 0.")
    assert list(out.parent.iterdir()) == []
