"""A model as a CTranslate2 folder (`pip install ctranslate2`), with a proof that both find the same probabilities.

Shapes: V vocabulary, D d_model, F d_ff; CTranslate2 keeps matrices as torch does, (outputs, inputs).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mt.data.tokenizer import EOS, Tokenizer
from mt.decoding.inference import Inference
from mt.decoding.scoring import ForcedDecoder
from mt.errors import CheckpointError, ConfigError
from mt.model.checkpoint import LoadedModel
from mt.model.transformer import (
    DecoderLayer,
    EncoderLayer,
    LayerNorm,
    MultiHeadAttention,
    Residual,
    Transformer,
)
from mt.runtime.devices import Device

# Pairs whose probabilities are compared, and how far they may lie apart: nats per token, in float32.
PAIRS = 64
TOLERANCE = 1e-3
LONGEST = 20  # pieces


@dataclass(frozen=True)
class Parity:
    """How near the exported model is to ours."""

    pairs: int
    tokens: int
    largest: float  # difference of a token's log-probability

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens of {self.pairs} pairs have the same log-probability, within {self.largest:.1e}"


def export(loaded: LoadedModel, output: Path) -> Parity:
    """Write `output`, a new folder, with the SentencePiece models beside the weights.

    Raises ConfigError without the library, CheckpointError where it cannot be written or the proof fails.
    """
    library = _library()
    if output.exists():
        raise CheckpointError(
            f"--output {output}: is there already; give another place, or remove it"
        )
    partial = output.with_name(f".{output.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        spec = specification(loaded.model, loaded.tokenizer)
        spec.save(str(partial))
        loaded.tokenizer.save(partial)
        parity = compare(
            loaded, library.Translator(str(partial), device="cpu", compute_type="float32")
        )
        partial.rename(output)
    except OSError as error:
        raise CheckpointError(
            f"--output {output}: cannot be written: {error.strerror}; give a place that can be written and has room"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return parity


def _library() -> Any:
    try:
        import ctranslate2
    except ImportError as error:
        raise ConfigError(
            f"export: the package ctranslate2 is needed, and cannot be imported ({error}); pip install ctranslate2"
        ) from error
    return ctranslate2


def specification(model: Transformer, tokenizer: Tokenizer) -> Any:
    """The model in CTranslate2's terms, ready to be saved."""
    from ctranslate2.specs import common_spec, transformer_spec

    config = model.config
    activations = common_spec.Activation
    spec = transformer_spec.TransformerSpec.from_config(
        (config.n_encoder_layers, config.n_decoder_layers),
        config.n_heads,
        pre_norm=config.norm == "pre",
        activation=activations.RELU if config.activation == "relu" else activations.GELU,
    )
    for side, ours in ((spec.encoder, model.src_embedding), (spec.decoder, model.tgt_embedding)):
        embeddings = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embeddings.weight = _array(ours.tokens.weight)  # (V, D)
        side.scale_embeddings = True
        side.position_encodings.encodings = _array(ours.positions)  # (positions, D)
    for theirs, layer in zip(spec.encoder.layer, model.encoder, strict=True):
        _encoder_layer(theirs, layer)
    for theirs, layer in zip(spec.decoder.layer, model.decoder, strict=True):
        _decoder_layer(theirs, layer)
    if config.norm == "pre":
        _norm(spec.encoder.layer_norm, model.encoder_norm)
        _norm(spec.decoder.layer_norm, model.decoder_norm)
    _linear(spec.decoder.projection, model.output)
    spec.register_source_vocabulary(tokenizer.src_pieces_of(list(range(tokenizer.src_vocab_size))))
    spec.register_target_vocabulary(tokenizer.tgt_pieces_of(list(range(tokenizer.tgt_vocab_size))))
    spec.config.add_source_eos = True  # src = tokens + eos
    spec.config.layer_norm_epsilon = model.encoder[0].around_attention.norm.eps  # type: ignore[union-attr]
    spec.validate()
    spec.optimize(quantization=None)
    return spec


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().numpy()


def _matrix(theirs: Any, weight: Tensor, bias: Tensor | None) -> None:
    theirs.weight = _array(weight)
    if bias is not None:
        theirs.bias = _array(bias)


def _linear(theirs: Any, ours: nn.Linear) -> None:
    _matrix(theirs, ours.weight, ours.bias)


def _norm(theirs: Any, ours: Any) -> None:
    assert isinstance(ours, LayerNorm)
    theirs.gamma, theirs.beta = _array(ours.weight), _array(ours.bias)


def _encoder_layer(theirs: Any, ours: Any) -> None:
    assert isinstance(ours, EncoderLayer)
    _attention(theirs.self_attention, ours.attention, ours.around_attention)
    _feed_forward(theirs.ffn, ours)


def _decoder_layer(theirs: Any, ours: Any) -> None:
    assert isinstance(ours, DecoderLayer)
    _attention(theirs.self_attention, ours.self_attention, ours.around_self_attention)
    cross = ours.cross_attention
    width = cross.query_key_value.in_features
    weight, bias = cross.query_key_value.weight, cross.query_key_value.bias
    _norm(theirs.attention.layer_norm, ours.around_cross_attention.norm)
    query, key_value, output = theirs.attention.linear
    _matrix(query, weight[:width], None if bias is None else bias[:width])  # (D, D)
    _matrix(key_value, weight[width:], None if bias is None else bias[width:])  # (2 D, D)
    _linear(output, cross.output)
    _feed_forward(theirs.ffn, ours)


def _attention(theirs: Any, ours: MultiHeadAttention, around: Residual) -> None:
    _norm(theirs.layer_norm, around.norm)
    merged, output = theirs.linear
    _linear(merged, ours.query_key_value)  # (3 D, D)
    _linear(output, ours.output)


def _feed_forward(theirs: Any, ours: EncoderLayer | DecoderLayer) -> None:
    _norm(theirs.layer_norm, ours.around_feed_forward.norm)
    _linear(theirs.linear_0, ours.feed_forward.inner)
    _linear(theirs.linear_1, ours.feed_forward.outer)


def compare(loaded: LoadedModel, translator: Any) -> Parity:
    """Both models' log-probabilities of the same targets, token by token; raises CheckpointError if they differ.

    The pairs are random pieces of all lengths up to `LONGEST`: every row of the embeddings can be among them, and a
    model need not be good to be compared.
    """
    tokenizer, draw = loaded.tokenizer, random.Random(1)
    longest = min(LONGEST, loaded.model.config.max_positions - 1)

    def line(size: int) -> list[int]:
        return [draw.randrange(EOS + 1, size) for _ in range(draw.randint(1, longest))]

    pairs = [(line(tokenizer.src_vocab_size), line(tokenizer.tgt_vocab_size)) for _ in range(PAIRS)]
    ours = ForcedDecoder(Inference(loaded.model, Device(torch.device("cpu"), "fp32"))).score(pairs)
    theirs: Sequence[Any] = translator.score_batch(
        [tokenizer.src_pieces_of(src) for src, _ in pairs],
        [tokenizer.tgt_pieces_of(tgt) for _, tgt in pairs],
    )
    differences = [
        abs(one - other)
        for reading, result in zip(ours, theirs, strict=True)
        for one, other in zip(reading.log_probs, result.log_probs, strict=True)
    ]
    if not max(differences) <= TOLERANCE:
        raise CheckpointError(
            f"export: CTranslate2 gives other probabilities than mt, by up to {max(differences):.4f} nats a token, "
            f"{TOLERANCE} being allowed; nothing was written. It supports what this model is made of in another way: "
            "please report it with the run's config.yaml"
        )
    return Parity(len(pairs), len(differences), max(differences))
