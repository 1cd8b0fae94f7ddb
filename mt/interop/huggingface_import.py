"""Import a Marian model in the format of transformers, as OPUS-MT publishes them.

Marian is a post-norm Transformer whose decoder starts with pad. The row of pad is copied to our
bos, so that nothing of decoding or training changes. Shapes: V vocabulary, D d_model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mt.config.load import config_from_mapping
from mt.config.schema import Config
from mt.data.tokens.tokenizer import BOS, PAD
from mt.errors import CheckpointError, ConfigError
from mt.files import sha256_of
from mt.interop.huggingface_folder import (
    ACTIVATIONS,
    embeddings,
    read_config,
    read_weights,
    shape_faults,
    weight_faults,
)
from mt.interop.huggingface_tokenizer import MarianTokenizer, read_tokenizer
from mt.interop.huggingface_weights import correspondences, to_interleaved
from mt.model.checkpoint import save_model_folder

# Added to the logit of a special token whose row another token has too, so that the probabilities
# of all others stay what they were. Not -inf, because label smoothing multiplies it.
NEVER = -100.0
# The longest segment of a source to translate, as by default, where the positions suffice.
MAX_TOKENS = 256


@dataclass(frozen=True)
class Imported:
    """What `mt import` reports."""

    parameters: int
    config: Config
    notes: list[str]

    def __str__(self) -> str:
        """One line about the model, then the notes."""
        model = self.config.model
        first = (
            f"{self.parameters:,} parameters, {model.n_encoder_layers} + {model.n_decoder_layers} "
            f"layers, d_model {model.d_model}, {self.config.tokenizer.vocab_size:,} tokens"
        )
        return "\n".join([first, *self.notes])


def import_model(folder: Path, output: Path) -> Imported:
    """Write the Marian model in `folder` to `output`, a new model folder.

    `config.yaml` beside the weights is a config to fine-tune it. Raises ConfigError with all
    reasons at once for what `mt` cannot represent, CheckpointError for files that are missing or
    damaged and for an `output` that exists or cannot be written.
    """
    if output.exists():
        raise CheckpointError(f"--output {output}: already exists; give another path, or remove it")
    settings = read_config(folder)
    faults = shape_faults(settings)
    tokenizer = read_tokenizer(folder, settings, faults)
    path, tensors = read_weights(folder)
    faults += weight_faults(tensors, settings)
    if faults or tokenizer is None:
        raise ConfigError("\n".join(f"{folder}: {fault}" for fault in faults))
    config = model_config(settings, tokenizer)
    weights = convert(tensors, settings, tokenizer)
    init_from = {"train": config.train.model_copy(update={"init_from": str(output)})}
    save_model_folder(
        output,
        weights,
        {
            "config": config.model_dump(mode="json"),
            "tokenizer": tokenizer.tokenizer.fingerprint,
            "imported": {"format": "huggingface marian", "sha256": {path.name: sha256_of(path)}},
        },
        tokenizer=tokenizer.tokenizer,
        texts={"config.yaml": config.model_copy(update=init_from).to_yaml()},
    )
    return Imported(sum(each.numel() for each in weights.values()), config, _notes(settings))


def model_config(settings: Mapping[str, Any], tokenizer: MarianTokenizer) -> Config:
    """The config of our model; what does not follow from the folder is at its default."""
    positions = settings["max_position_embeddings"]
    sizes = [len(tokenizer.source.pieces), len(tokenizer.target.pieces)]
    data = {"src_lang": tokenizer.src_lang, "tgt_lang": tokenizer.tgt_lang}
    decode = {"beam_size": settings["num_beams"], "length_penalty": settings["length_penalty"]}
    mapping = {
        "data": {
            "max_tokens": max(1, min(MAX_TOKENS, positions - 2)),
            **{key: value for key, value in data.items() if value is not None},
        },
        "tokenizer": {
            "vocab_size": max(sizes),
            "type": tokenizer.type,
            "joint": tokenizer.tokenizer.joint,
            "byte_fallback": tokenizer.byte_fallback,
        },
        "model": {
            "d_model": settings["d_model"],
            "n_heads": settings["encoder_attention_heads"],
            "n_encoder_layers": settings["encoder_layers"],
            "n_decoder_layers": settings["decoder_layers"],
            "d_ff": settings["encoder_ffn_dim"],
            "dropout": settings["dropout"],
            "attention_dropout": settings["attention_dropout"],
            "activation_dropout": settings["activation_dropout"],
            "norm": "post",
            "tie_embeddings": settings["tie_word_embeddings"] and settings["scale_embedding"],
            "activation": ACTIVATIONS[settings["activation_function"]],
            "output_bias": True,
            "max_positions": positions,
        },
        "decode": {key: value for key, value in decode.items() if value is not None},
    }
    return config_from_mapping(mapping, "config.json")


def convert(
    tensors: Mapping[str, Tensor], settings: Mapping[str, Any], tokenizer: MarianTokenizer
) -> dict[str, Tensor]:
    """Our weights, by name, of theirs."""
    order = to_interleaved(settings["d_model"])
    weights = {}
    for ours, theirs, axis in correspondences(
        "post", settings["encoder_layers"], settings["decoder_layers"]
    ):
        stacked = torch.cat([tensors[name] for name in theirs])
        weights[ours] = stacked if axis is None else stacked.index_select(axis, order)

    src_rows, tgt_rows = (torch.tensor(side.rows) for side in (tokenizer.source, tokenizer.target))
    # Our embeddings are always multiplied by sqrt(D).
    scale = 1.0 if settings["scale_embedding"] else math.sqrt(settings["d_model"])
    found = [each for each in embeddings(tensors, settings).values() if each is not None]
    source, target, output = (matrix[:, order] for matrix in found)
    tied = settings["tie_word_embeddings"] and settings["scale_embedding"]
    weights["src_embedding.tokens.weight"] = source[src_rows] / scale  # (V, D)
    if not (tied and tokenizer.tokenizer.joint):  # else one matrix, under its first name
        weights["tgt_embedding.tokens.weight"] = target[tgt_rows] / scale
    if not tied:
        weights["output.weight"] = output[tgt_rows]
    bias = tensors.get("final_logits_bias", torch.zeros(len(output))).flatten()[tgt_rows]  # (V,)
    for special in _copies(tokenizer.target.rows):
        bias[special] += NEVER
    weights["output.bias"] = bias
    return weights


def _copies(rows: list[int]) -> list[int]:
    """Which of bos and pad have the row of another token."""
    others = dict(enumerate(rows))
    copies = []
    for special in (BOS, PAD):
        row = others.pop(special)
        if row in others.values():
            copies.append(special)
        else:
            others[special] = row
    return copies


def _notes(settings: Mapping[str, Any]) -> list[str]:
    """What of the folder is left out, or kept in another form."""
    notes = []
    if not settings["scale_embedding"] and settings["tie_word_embeddings"]:
        notes.append(
            "scale_embedding is false there, so the embeddings are divided by sqrt(d_model), and "
            "embedding and output are two matrices (model.tie_embeddings: false)"
        )
    notes += [
        f"{key} {settings[key]} is left out: mt trains all layers"
        for key in ("encoder_layerdrop", "decoder_layerdrop")
        if settings.get(key)
    ]
    return notes
