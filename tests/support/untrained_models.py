"""Models with random weights whose biases differ from 0 and norms from 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from conftest import Mapped, config_of, lines_of
from token_stores import tokenizer_of

from mt.model.checkpoint import LoadedModel, build_model


def untrained_model(
    mapping: Mapped, corpus: Path, joint: bool, sides: Sequence[str] = ("src", "tgt")
) -> LoadedModel:
    """A model of this config, with a tokenizer of the corpus; it belongs to no folder."""
    config = config_of(mapping, tokenizer={"joint": joint})
    lines = [lines_of(corpus / f"train.{side}") for side in sides]
    tokenizer = tokenizer_of(config.tokenizer, zip(*lines, strict=True))
    torch.manual_seed(1)
    model = build_model(config, tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return LoadedModel(Path(), {}, config, tokenizer, model.eval())
