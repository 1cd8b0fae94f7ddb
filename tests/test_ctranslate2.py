"""The model as CTranslate2 reads it: every option that changes the arithmetic, and translations of a trained one."""

from __future__ import annotations

import builtins
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Mt, merged, refused

from mt.config.load import config_from_mapping
from mt.data.tokenizer import train_tokenizer
from mt.errors import CheckpointError
from mt.interop import ctranslate2 as module
from mt.interop.ctranslate2 import TOLERANCE, compare, export
from mt.model.checkpoint import LoadedModel, build_model, load_model

library = pytest.importorskip("ctranslate2")

SHAPES: list[dict[str, Any]] = [
    {},
    {"norm": "post"},
    {"activation": "gelu"},
    {"positions": "learned"},
    {"attention_bias": False},
    {"output_bias": True},
    {"tie_embeddings": False, "n_encoder_layers": 3, "n_decoder_layers": 2, "n_heads": 4},
]


def untrained(mapping: Mapping[str, Any], tiny_corpus: Path, joint: bool) -> LoadedModel:
    config = config_from_mapping(merged(mapping, {"tokenizer": {"joint": joint}}), "test")
    sides = [
        (tiny_corpus / f"train.{side}").read_text(encoding="utf-8").splitlines()
        for side in ("src", "tgt")
    ]
    tokenizer = train_tokenizer(config.tokenizer, zip(*sides, strict=True), 1, lambda _: None)
    torch.manual_seed(1)
    model = build_model(config, tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms must count
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return LoadedModel(model.eval(), tokenizer, config, {}, Path())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("joint", [True, False])
def test_every_shape_has_the_same_probabilities(
    shape: dict[str, Any],
    joint: bool,
    tiny_mapping: Mapping[str, Any],
    tiny_corpus: Path,
    tmp_path: Path,
) -> None:
    loaded = untrained(merged(tiny_mapping, {"model": shape}), tiny_corpus, joint)
    parity = export(loaded, tmp_path / "out")
    assert parity.tokens > 300
    assert parity.largest < TOLERANCE
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"model.bin", "config.json"}


def test_a_trained_model_translates_alike(
    mt: Mt, tiny_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    out, source = tmp_path / "out", tiny_corpus / "test.src"
    ended = mt("export", "ctranslate2", "-m", tiny_run, "-o", out)
    assert ended.code == 0
    assert "have the same log-probability, within " in ended.err
    tokenizer = load_model(tiny_run).tokenizer
    lines = [tokenizer.src_pieces(line) for line in source.read_text(encoding="utf-8").splitlines()]
    translator = library.Translator(str(out), device="cpu", compute_type="float32")
    results = translator.translate_batch(
        lines, beam_size=1, disable_unk=True, max_decoding_length=64
    )
    theirs = [tokenizer._tgt.decode(result.hypotheses[0]) for result in results]
    ours = mt("translate", "-m", tiny_run, source, "--beam-size", 1, "--precision", "fp32").lines
    assert sum(one == other for one, other in zip(ours, theirs, strict=True)) >= 39
    assert {path.name for path in out.iterdir()} >= {"model.bin", "tokenizer.model"}


def test_a_wrong_export_is_found_and_not_written(
    tiny_mapping: Mapping[str, Any],
    tiny_corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded = untrained(tiny_mapping, tiny_corpus, joint=True)
    real = module._array
    monkeypatch.setattr(module, "_array", lambda tensor: real(tensor) * 1.02)
    with pytest.raises(
        CheckpointError, match="CTranslate2 gives other probabilities than mt, by up to"
    ):
        export(loaded, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_stands_in_the_way(
    mt: Mt, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    command = ["export", "ctranslate2", "-m", tmp_path / "run", "-o"]
    assert refused(mt(*command, tmp_path / "run")) == (
        f"--output {tmp_path / 'run'}: is there already; give another place, or remove it"
    )
    said = refused(mt(*command, tmp_path / "run" / "config.yaml" / "out"))
    assert said.startswith(
        f"--output {tmp_path / 'run' / 'config.yaml' / 'out'}: cannot be written: "
    )
    imported = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "ctranslate2":
            raise ImportError("No module named 'ctranslate2'")
        return imported(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert refused(mt(*command, tmp_path / "out")) == (
        "export: the package ctranslate2 is needed, and cannot be imported (No module named 'ctranslate2'); "
        "pip install ctranslate2"
    )


def test_the_comparison_sees_small_differences(
    tiny_mapping: Mapping[str, Any], tiny_corpus: Path, tmp_path: Path
) -> None:
    loaded = untrained(tiny_mapping, tiny_corpus, joint=True)
    export(loaded, tmp_path / "out")
    translator = library.Translator(str(tmp_path / "out"), device="cpu", compute_type="float32")
    with torch.no_grad():
        loaded.model.decoder_norm.bias.add_(0.05)  # type: ignore[union-attr, operator]
    with pytest.raises(CheckpointError):
        compare(loaded, translator)
